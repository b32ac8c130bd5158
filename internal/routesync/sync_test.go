package routesync

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	store "github.com/sluice-gateway/sluice/admission/redis"
	"github.com/sluice-gateway/sluice/internal/dispatch"
	"github.com/sluice-gateway/sluice/internal/redistest"
	"github.com/sluice-gateway/sluice/internal/testutil"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// router is a dispatcher that only remembers what it is told.
type router struct {
	mu      sync.Mutex
	placed  []dispatch.Placement
	waiting map[string]int64
	remote  map[string]map[string]int64
}

func (r *router) Place(p dispatch.Placement) {
	r.mu.Lock()
	defer r.mu.Unlock()
	p.Chain.Blocks, p.Chain.Ends = slices.Clone(p.Chain.Blocks), slices.Clone(p.Chain.Ends)
	r.placed = append(r.placed, p)
}

func (r *router) WaitingTokens() map[string]int64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return maps.Clone(r.waiting)
}

func (r *router) SetRemoteWaiting(gateway string, tokens map[string]int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.remote[gateway] = tokens; tokens == nil {
		delete(r.remote, gateway)
	}
}

// setWaiting changes the waiting tokens of this gateway.
func (r *router) setWaiting(tokens map[string]int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.waiting = tokens
}

// has reports whether the router knows exactly these waiting tokens of a gateway; nil means none.
func (r *router) has(gateway string, tokens map[string]int64) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	got, known := r.remote[gateway]
	return known == (tokens != nil) && maps.Equal(got, tokens)
}

// sessions returns the sessions that were placed, each once.
func (r *router) sessions() map[uint64]bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	all := map[uint64]bool{}
	for _, p := range r.placed {
		all[p.Session] = true
	}
	return all
}

// gateway is a Sync that runs with a router of its own.
type gateway struct {
	*Sync
	router *router
	// stop ends it as a gateway that drains does, kill as one that dies.
	stop, kill func()
}

func start(t testing.TB, name string, servers []*redistest.Server, change func(*Config)) *gateway {
	t.Helper()
	client, err := store.NewClient(store.Server{URL: redistest.URL(servers...)}, 0)
	if err != nil {
		t.Fatal(err)
	}
	g := &gateway{router: &router{remote: map[string]map[string]int64{}}}
	cfg := Config{Redis: client, Gateway: name, Router: g.router}
	if change != nil {
		change(&cfg)
	}
	g.Sync = New(cfg)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- g.Run(ctx) }()
	g.stop = sync.OnceFunc(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		_ = client.Close() // kill may have closed it
	})
	g.kill = func() { _ = client.Close() }
	t.Cleanup(g.stop)
	return g
}

// startTogether starts gateways and waits until each hears the others.
func startTogether(t testing.TB, servers []*redistest.Server, names ...string) []*gateway {
	t.Helper()
	var all []*gateway
	for _, name := range names {
		all = append(all, start(t, name, servers, nil))
	}
	for _, g := range all {
		testutil.Eventually(t, "each gateway hears the others", func() bool { return g.others.count() == len(all)-1 })
	}
	return all
}

// placement returns a placement of a session.
func placement(session uint64) dispatch.Placement {
	return dispatch.Placement{Model: "m", Replica: fmt.Sprintf("10.0.0.%d:8000", session%8), Session: session,
		Chain: chainOf(4000, 2000, session%5, session)}
}

func TestB1_PlacementsReachTheOtherGateways(t *testing.T) {
	t.Parallel()
	run := func(t *testing.T, servers []*redistest.Server) {
		all := startTogether(t, servers, "a", "b", "c")
		const n = 700 // more than one message has
		for i := range uint64(n) {
			all[0].Placed(placement(i))
		}
		for _, g := range all[1:] {
			testutil.Eventually(t, "all placements are known", func() bool { return len(g.router.sessions()) == n })
			g.router.mu.Lock()
			for _, p := range g.router.placed {
				want := placement(p.Session)
				if p.Model != want.Model || p.Replica != want.Replica || !slices.Equal(p.Chain.Blocks, want.Chain.Blocks) ||
					!slices.Equal(p.Chain.Ends, want.Chain.Ends) || p.Chain.Bytes != want.Chain.Bytes {
					t.Fatalf("placement %d came as %+v", p.Session, p)
				}
			}
			g.router.mu.Unlock()
		}
		if len(all[0].router.sessions()) > 0 {
			t.Error("a gateway was told its own placements")
		}
		if s := all[0].Stats(); s.Told != n || s.Dropped+s.Ignored > 0 {
			t.Errorf("%+v", s)
		}
	}
	t.Run("one", func(t *testing.T) {
		t.Parallel()
		run(t, []*redistest.Server{redistest.Start(t)})
	})
	t.Run("cluster", func(t *testing.T) {
		t.Parallel()
		if testing.Short() {
			t.Skip("takes some seconds")
		}
		run(t, redistest.Cluster(t))
	})
}

func TestB1_WaitingTokensReachTheOtherGateways(t *testing.T) {
	t.Parallel()
	all := startTogether(t, []*redistest.Server{redistest.Start(t)}, "a", "b")
	a, b := all[0], all[1]
	for _, tokens := range []map[string]int64{{"r": 5, "q": 1}, {"r": 6}, {"r": 6, "q": 2}, {}} {
		a.router.setWaiting(tokens)
		a.Placed(placement(1)) // as a request that begins to wait does
		testutil.Eventually(t, fmt.Sprint("b knows ", tokens), func() bool { return b.router.has("a", tokens) })
	}
	// What no placement tells of is in the next heartbeat.
	a.router.setWaiting(map[string]int64{"z": 1})
	testutil.Eventually(t, "b knows of z", func() bool { return b.router.has("a", map[string]int64{"z": 1}) })
	if !a.router.has("b", nil) {
		t.Error("a gateway that waits for nothing has told of waiting tokens")
	}
}

// However often the tokens change, there is one message in each interval.
func TestB1_ChangedWaitingTokensAreCoalesced(t *testing.T) {
	t.Parallel()
	client, err := store.NewClient(store.Server{URL: "redis://127.0.0.1:1"}, 0) // nothing listens there
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	r := &router{remote: map[string]map[string]int64{}}
	w := &sender{Sync: New(Config{Redis: client, Router: r})}
	w.subscribed.Store(true)
	w.hear(&message{sender: "b", kind: kindAll}, time.Now())
	now := time.Now()
	w.heartbeatAt, w.looks = now.Add(heartbeatInterval), looksAfterPlacement
	messages := func(at time.Time) uint64 {
		w.sendDue(t.Context(), at)
		return w.failed.Load()
	}
	for i := range 10 {
		r.setWaiting(map[string]int64{"r": int64(i + 1)})
		if n := messages(now.Add(time.Duration(i) * time.Millisecond)); n != 1 {
			t.Fatalf("%d messages after %d changes", n, i+1)
		}
	}
	if due := w.nextDue(); !due.Equal(now.Add(waitingInterval)) {
		t.Errorf("the next look is in %v, want %v", due.Sub(now), waitingInterval)
	}
	if n := messages(now.Add(waitingInterval)); n != 2 {
		t.Errorf("%d messages after the interval", n)
	}
	r.setWaiting(nil)
	for i := range looksAfterPlacement + 1 {
		messages(now.Add(time.Duration(i+2) * waitingInterval))
	}
	if due := w.nextDue(); !due.Equal(w.heartbeatAt) {
		t.Errorf("a gateway where nothing waits looks again in %v", due.Sub(now))
	}
}

func TestB1_AGatewayThatDiesIsForgotten(t *testing.T) {
	t.Parallel()
	all := startTogether(t, []*redistest.Server{redistest.Start(t)}, "a", "b", "c")
	tokens := map[string]int64{"r": 5}
	for _, g := range all[:2] {
		g.router.setWaiting(tokens)
	}
	c := all[2]
	testutil.Eventually(t, "c knows what waits", func() bool { return c.router.has("a", tokens) && c.router.has("b", tokens) })
	all[0].kill()
	testutil.Eventually(t, "what a had waiting is forgotten", func() bool { return c.router.has("a", nil) && c.others.count() == 1 })
	if !c.router.has("b", tokens) {
		t.Error("the waiting tokens of a gateway that lives are forgotten")
	}
	all[1].stop()
	testutil.Eventually(t, "what b had waiting is forgotten", func() bool { return c.router.has("b", nil) && c.others.count() == 0 })
}

// A gateway that starts later is told the latest placements.
func TestB1_ANewGatewayIsToldTheLatestPlacements(t *testing.T) {
	t.Parallel()
	redis := []*redistest.Server{redistest.Start(t)}
	a := start(t, "a", redis, nil)
	for i := range uint64(10) {
		a.Placed(placement(i))
	}
	b := start(t, "b", redis, nil)
	testutil.Eventually(t, "b knows the placements of before", func() bool { return len(b.router.sessions()) == 10 })
	c := start(t, "c", redis, nil)
	testutil.Eventually(t, "c knows them too", func() bool { return len(c.router.sessions()) == 10 })
	old := time.Now().Add(-2 * placementAge)
	a.outbox.mu.Lock()
	for i := range a.outbox.ring {
		a.outbox.ring[i].at = old
	}
	a.outbox.mu.Unlock()
	d := start(t, "d", redis, nil)
	a.Placed(placement(11))
	testutil.Eventually(t, "d knows the new one", func() bool { return d.router.sessions()[11] })
	if len(d.router.sessions()) != 1 {
		t.Errorf("d was told placements that are too old: %v", d.router.sessions())
	}
}

func TestB1_RedisAwayAndBack(t *testing.T) {
	t.Parallel()
	for _, outage := range []struct {
		name       string
		begin, end func(*redistest.Server)
	}{
		{"killed", (*redistest.Server).Kill, (*redistest.Server).Restart},
		{"stopped", (*redistest.Server).Pause, (*redistest.Server).Resume},
	} {
		t.Run(outage.name, func(t *testing.T) {
			t.Parallel()
			redis := redistest.Start(t)
			all := startTogether(t, []*redistest.Server{redis}, "a", "b")
			a, b := all[0], all[1]
			tokens := map[string]int64{"r": 5}
			a.router.setWaiting(tokens)
			testutil.Eventually(t, "b knows what waits", func() bool { return b.router.has("a", tokens) })
			outage.begin(redis)
			for i := range uint64(20) {
				a.Placed(placement(i))
			}
			testutil.Eventually(t, "each is alone", func() bool {
				return b.router.has("a", nil) && a.others.count() == 0 && b.others.count() == 0
			})
			outage.end(redis)
			testutil.Eventually(t, "both share again", func() bool {
				return b.router.has("a", tokens) && len(b.router.sessions()) == 20
			})
		})
	}
}

// Messages that no gateway has sent are ignored and counted, and do no harm.
func TestB1_GarbageIsIgnored(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	all := startTogether(t, []*redistest.Server{server}, "a", "b")
	for _, text := range []string{"", "garbage", string([]byte{version + 1, 1, 'x', kindLeaving}), string([]byte{version, 1, 'x', kindPlacements, 9})} {
		if err := server.Client().Publish(t.Context(), "{sluice}:routing:0", text).Err(); err != nil {
			t.Fatal(err)
		}
	}
	testutil.Eventually(t, "the garbage is counted", func() bool { return all[1].Stats().Ignored == 4 })
	all[0].Placed(placement(3))
	testutil.Eventually(t, "the gateways share as before", func() bool { return all[1].router.sessions()[3] })
}

// TestB1_OthersAreNotTold: gateways of other databases and deployments are not heard.
func TestB1_OthersAreNotTold(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	servers := []*redistest.Server{server}
	a := start(t, "a", servers, nil)
	database, err := store.NewClient(store.Server{URL: redistest.URL(server) + "/1"}, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer database.Close()
	strangers := []*gateway{
		start(t, "c", servers, func(c *Config) { c.Redis = database }),
		start(t, "d", servers, func(c *Config) { c.Deployment = "other" }),
	}
	b := start(t, "b", servers, nil)
	a.router.setWaiting(map[string]int64{"r": 1})
	a.Placed(dispatch.Placement{Model: "m", Replica: "r", Session: 2})
	testutil.Eventually(t, "b knows what it may", func() bool {
		return b.router.has("a", map[string]int64{"r": 1}) && b.router.sessions()[2]
	})
	for _, g := range strangers {
		if s := g.Stats(); s.Received > 0 || g.others.count() > 0 {
			t.Errorf("a stranger has heard something: %+v", s)
		}
		g.stop()
	}
}

// TestB1_R7_StoredResponsesAreToldAtOnce: the others hear of a stored response long before the next
// batch of placements, which comes 250 ms after the last one.
func TestB1_R7_StoredResponsesAreToldAtOnce(t *testing.T) {
	t.Parallel()
	all := startTogether(t, []*redistest.Server{redistest.Start(t)}, "a", "b")
	heard := func(p dispatch.Placement) time.Duration {
		began := time.Now()
		all[0].Placed(p)
		for !all[1].router.sessions()[p.Session] {
			if time.Since(began) > testutil.Patience {
				t.Fatalf("session %d was not heard of", p.Session)
			}
			time.Sleep(time.Millisecond)
		}
		return time.Since(began)
	}
	soonest := time.Minute
	for round := range uint64(8) {
		heard(placement(2*round + 1))
		response := placement(2*round + 2)
		response.Owner = 7
		soonest = min(soonest, heard(response))
	}
	if soonest > placementsInterval/2 {
		t.Errorf("the others hear of a response after %v at the soonest", soonest)
	}
}
