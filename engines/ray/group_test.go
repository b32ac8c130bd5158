package ray

import (
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"slices"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/sluice-gateway/sluice/engines"
	"github.com/sluice-gateway/sluice/engines/supervise"
	"github.com/sluice-gateway/sluice/internal/redistest"
	"github.com/sluice-gateway/sluice/internal/testutil"
)

// member is a gateway of a group, with the client by which it reaches Redis and what it tells.
type member struct {
	*gateway
	redis    *redis.Client
	requests atomic.Int64
	queued   atomic.Int64
	refused  atomic.Int64
	demand   chan string
}

// member starts a gateway of this identity that shares the jobs of the stub.
func (s *stub) member(identity string, store *redistest.Server) *member {
	s.t.Helper()
	m := &member{redis: store.Client(), demand: make(chan string, 100)}
	f := &fixture{t: s.t}
	m.gateway = f.gatewayAt(s.URL, func(c *Config) {
		// A busy machine may renew the lease late.
		c.Identity, c.Redis, c.Lease, c.DrainSettle = identity, m.redis, 3*time.Second, 50*time.Millisecond
		c.Ports, c.BackOff = Ports{21000, 21003}, supervise.BackOff{First: time.Millisecond, Max: time.Millisecond}
		c.InFlight = func(string) int { return int(m.requests.Load()) }
		c.Load = func(string) engines.Load {
			return engines.Load{Running: int(m.requests.Load()), Queued: int(m.queued.Load()), Refused: uint64(m.refused.Load())}
		}
		c.OnDemand = func(model string) {
			select {
			case m.demand <- model:
			default:
			}
		}
	})
	return m
}

// serving makes the stub start jobs whose server is a running one.
func (s *stub) serving() {
	s.t.Helper()
	port, _ := server(s.t)
	s.servingAt(port)
}

// servingAt makes the stub start jobs whose server is the one at this port.
func (s *stub) servingAt(port int) {
	s.submitted = func(a submission) rayJob {
		a.Metadata[metaPort] = strconv.Itoa(port)
		return rayJob{SubmissionID: a.SubmissionID, Status: statusRunning, Metadata: a.Metadata, StartTime: time.Now().UnixMilli(),
			AgentAddress: "http://127.0.0.1:52365", NodeID: "n1"}
	}
}

func (s *stub) ids() (all []string) {
	for _, j := range s.list() {
		all = append(all, j.SubmissionID)
	}
	slices.Sort(all)
	return all
}

// set gives the members the same models.
func set(models []Model, members ...*member) {
	for _, m := range members {
		m.Set(models)
	}
}

// writerAndOther starts two gateways, of which a writes, with a replica that both see ready.
func (s *stub) writerAndOther(store *redistest.Server) (a, b *member) {
	s.t.Helper()
	a = s.member("a", store)
	testutil.Eventually(s.t, "the jobs are known", a.HasPublished)
	b = s.member("b", store)
	testutil.Eventually(s.t, "the jobs are known to both", b.HasPublished)
	awaitWriter(s.t, a, b)
	set([]Model{s.model(1)}, a, b)
	a.awaitReady("chat", 1)
	b.awaitReady("chat", 1)
	return a, b
}

// awaitWriter waits until exactly this member is the writer.
func awaitWriter(t *testing.T, writer *member, others ...*member) {
	t.Helper()
	testutil.Eventually(t, "one gateway writes", func() bool {
		return writer.group.mayWrite() && !slices.ContainsFunc(others, func(o *member) bool { return o.group.mayWrite() })
	})
}

// TestN4_GatewaysOfOneNameShareTheJobs: one of two gateways starts the jobs, both have the
// replicas, and the load of each reaches the other. When the writer loses Redis, it stops writing,
// the other takes over, and no replica is started again.
func TestN4_GatewaysOfOneNameShareTheJobs(t *testing.T) {
	t.Parallel()
	s, store := newStub(t), redistest.Start(t)
	s.serving()
	a := s.member("a", store)
	testutil.Eventually(t, "the jobs are known", a.HasPublished)
	b := s.member("b", store)
	testutil.Eventually(t, "the jobs are known to both", b.HasPublished)
	awaitWriter(t, a, b)
	testutil.Eventually(t, "the other gateway knows who scales", func() bool { return b.ScaledBy() == "a" && a.ScaledBy() == "" })
	set([]Model{s.model(2)}, a, b)
	at := a.awaitReady("chat", 2)
	for i, r := range b.awaitReady("chat", 2) {
		if r.ID != at[i].ID || r.Address != at[i].Address {
			t.Errorf("one gateway has %+v, the other %+v", at[i], r)
		}
	}
	jobs := s.ids()
	if len(jobs) != 2 || a.Status() != (Status{}) || b.Status() != (Status{}) {
		t.Errorf("jobs %v, the states are %+v and %+v", jobs, a.Status(), b.Status())
	}

	b.queued.Store(3)
	b.refused.Store(2)
	b.PublishLoad()
	if got := <-a.demand; got != "chat" || a.OthersLoad("chat").Queued != 3 {
		t.Errorf("the writer hears of demand for %q, load %+v", got, a.OthersLoad("chat"))
	}
	if got := slices.Collect(maps.Values(a.OthersRefused("chat"))); !slices.Equal(got, []uint64{2}) {
		t.Errorf("the other gateways have refused %v", got)
	}

	if err := a.redis.Close(); err != nil {
		t.Fatal(err)
	}
	awaitWriter(t, b, a)
	testutil.Eventually(t, "the lost Redis is a fault", func() bool { return a.Status().Redis != "" })
	set([]Model{s.model(3)}, b)
	b.awaitReady("chat", 3)
	a.awaitReady("chat", 3)
	a.Set(nil)
	a.cycle(t.Context())
	now := s.ids()
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(now) != 3 || len(s.stopped) > 0 || slices.ContainsFunc(jobs, func(id string) bool { return !slices.Contains(now, id) }) {
		t.Errorf("the jobs were %v and are %v; stopped were %v", jobs, now, s.stopped)
	}
	if b.Status() != (Status{}) {
		t.Errorf("the new writer shows %+v", b.Status())
	}
}

// TestN4_AReplicaThatIsBusyForOthersIsKept: the writer does not end a replica that answers probes
// as a busy one while only another gateway has requests at it. It ends one that nobody uses.
func TestN4_AReplicaThatIsBusyForOthersIsKept(t *testing.T) {
	t.Parallel()
	s, store := newStub(t), redistest.Start(t)
	var busyProbes atomic.Int64 // negative until the engine is busy
	busyProbes.Store(-1)
	engine := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if busyProbes.Load() >= 0 {
			busyProbes.Add(1)
			w.WriteHeader(http.StatusServiceUnavailable)
		}
	}))
	t.Cleanup(engine.Close)
	port := netip.MustParseAddrPort(engine.Listener.Addr().String()).Port()
	s.servingAt(int(port))
	a, b := s.writerAndOther(store)
	b.requests.Store(5)
	testutil.Eventually(t, "the writer knows the other's requests", func() bool { return a.group.requests("chat-0") == 5 })

	busyProbes.Store(0)
	stopped := func() int {
		s.mu.Lock()
		defer s.mu.Unlock()
		return len(s.stopped)
	}
	testutil.Eventually(t, "many probes", func() bool { return busyProbes.Load() >= 6*supervise.MaxBadProbes || stopped() > 0 })
	if n := stopped(); n > 0 {
		t.Fatalf("the writer stopped %d jobs with requests of the other gateway", n)
	}
	b.requests.Store(0)
	testutil.Eventually(t, "the replica that nobody uses is ended", func() bool { return stopped() > 0 })
}

// TestN4_ASilentReplicaIsBusyForSomeTimeOnly: a replica that hangs while it has requests is kept.
// It is replaced when its requests have no answer either for too long.
func TestN4_ASilentReplicaIsBusyForSomeTimeOnly(t *testing.T) {
	t.Parallel()
	s := newStub(t)
	var busy atomic.Bool
	engine := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if busy.Load() {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
	}))
	t.Cleanup(engine.Close)
	s.servingAt(int(netip.MustParseAddrPort(engine.Listener.Addr().String()).Port()))
	found := make(chan string, 100)
	g := s.gatewayWith(func(c *Config) {
		c.MaxBusy, c.InFlight, c.OnHealthy = 1, func(string) int { return 1 }, func(id string) { found <- id }
	})
	testutil.Eventually(t, "the jobs are known", g.HasPublished)
	m := s.model(1)
	m.Version.Health.Every = time.Hour
	g.Set([]Model{m})
	before := g.awaitReady("chat", 1)[0]
	job := s.ids()[0]
	busy.Store(true)
	g.Suspect("chat-0", false)
	<-found
	if got := g.replicas("chat")[0]; got != before {
		t.Errorf("a replica that answers requests became %+v", got)
	}
	g.Suspect("chat-0", true)
	testutil.Eventually(t, "its job is replaced", func() bool { ids := s.ids(); return len(ids) == 1 && ids[0] != job })
	busy.Store(false)
	g.awaitReady("chat", 1)
}

// TestN4_AWriterThatEndsHandsOver: a gateway that ends gives the lease back, and the next writer
// keeps what drains.
func TestN4_AWriterThatEndsHandsOver(t *testing.T) {
	t.Parallel()
	s, store := newStub(t), redistest.Start(t)
	s.serving()
	a, b := s.writerAndOther(store)

	// The writer waits for the request at the other gateway.
	b.requests.Store(1)
	testutil.Eventually(t, "the request is known", func() bool { return a.group.requests("chat-0") == 1 })
	set([]Model{s.model(0)}, a, b)
	for _, m := range []*member{a, b} {
		m.await("chat", "it drains", func(all []engines.Replica) bool { return len(all) == 1 && all[0].State == engines.Draining })
	}
	drain := b.drainID("chat", 0)
	for range 3 {
		a.cycle(t.Context())
	}
	a.stop()
	awaitWriter(t, b)
	testutil.Eventually(t, "the new writer has read the jobs", func() bool {
		b.mu.Lock()
		defer b.mu.Unlock()
		return b.foundTerm > 0
	})
	b.Set([]Model{s.model(0)})
	b.cycle(t.Context())
	s.mu.Lock()
	if len(s.stopped) > 0 || b.drainID("chat", 0) != drain {
		t.Errorf("%v were stopped under a request; the drain was %q", s.stopped, drain)
	}
	s.mu.Unlock()

	b.requests.Store(0)
	b.await("chat", "it is gone", func(all []engines.Replica) bool { return len(all) == 0 })
	testutil.Eventually(t, "the job is deleted", func() bool { return len(s.list()) == 0 })
}

// drainID returns what the gateways call the drain of a replica.
func (g *gateway) drainID(model string, index int) string {
	g.mu.Lock()
	defer g.mu.Unlock()
	if r := g.Launcher.replicas[key{model, index}]; r != nil {
		return r.drainID
	}
	return ""
}

// TestN4_ADrainIsFollowedByAll: the gateways that do not write stop using a replica that drains.
// They use it again when the writer takes that back, and forget it when its job is gone.
func TestN4_ADrainIsFollowedByAll(t *testing.T) {
	t.Parallel()
	s, store := newStub(t), redistest.Start(t)
	s.serving()
	a, b := s.writerAndOther(store)
	b.requests.Store(1)
	testutil.Eventually(t, "the request is known", func() bool { return a.group.requests("chat-0") == 1 })
	set([]Model{s.model(0)}, a, b)
	b.await("chat", "it drains", func(all []engines.Replica) bool { return len(all) == 1 && all[0].State == engines.Draining })
	set([]Model{s.model(1)}, a, b)
	b.awaitReady("chat", 1)
	set([]Model{s.model(0)}, a, b)
	b.await("chat", "it drains again", func(all []engines.Replica) bool { return len(all) == 1 && all[0].State == engines.Draining })
	b.requests.Store(0)
	for _, m := range []*member{a, b} {
		m.await("chat", "it is forgotten", func(all []engines.Replica) bool { return len(all) == 0 })
	}
}

// TestN4_AGatewayOutsideTheGroupIsARival: a gateway that starts jobs of the name without sharing
// them is noticed, and stops the writer.
func TestN4_AGatewayOutsideTheGroupIsARival(t *testing.T) {
	t.Parallel()
	s, store := newStub(t), redistest.Start(t)
	port, _ := server(t)
	g := s.member("a", store)
	testutil.Eventually(t, "the jobs are known", g.HasPublished)
	g.Set([]Model{s.model(0)})
	awaitWriter(t, g)
	s.set(func(jobs []rayJob) []rayJob { return append(jobs, s.job("theirs", "sluice", "outside", port)) })
	testutil.Eventually(t, "the other gateway is noticed", func() bool {
		notify(g.wake)
		return g.Status().Rival == "outside"
	})
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.stopped) > 0 {
		t.Errorf("%v were stopped", s.stopped)
	}
}

// groupOf returns a group with a lease of a minute, in a process of its own.
func groupOf(store *redistest.Server, identity string) *group {
	return newGroup(Config{Redis: store.Client(), Name: "sluice", Identity: identity, Lease: time.Minute})
}

// TestN4_OneGatewayHoldsTheLease: a lease has one holder, is given back by nobody else, and stays
// with its holder when Redis has lost everything.
func TestN4_OneGatewayHoldsTheLease(t *testing.T) {
	t.Parallel()
	store := redistest.Start(t)
	a, b := groupOf(store, "a"), groupOf(store, "b")
	exchange := func(all ...*group) {
		t.Helper()
		for _, g := range all {
			if _, err := g.exchange(t.Context(), record{Gateway: fmt.Sprint(g.instance)}); err != nil {
				t.Fatal(err)
			}
		}
	}
	want := func(when string, term uint64, other uint64) {
		t.Helper()
		if a.heldTerm() != term || b.heldTerm() != other {
			t.Errorf("%s: a holds %d, b holds %d, want %d and %d", when, a.heldTerm(), b.heldTerm(), term, other)
		}
	}
	exchange(a, b, a, b)
	want("at first", 1, 0)
	elsewhere := newGroup(Config{Redis: store.Client(), Address: "http://elsewhere", Name: "sluice", Lease: time.Minute})
	if exchange(elsewhere); !elsewhere.mayWrite() {
		t.Error("an installation of the same name on another cluster has no writer")
	}
	b.leave(record{})
	exchange(a)
	want("after another has left", 1, 0)

	if err := store.Client().FlushAll(t.Context()).Err(); err != nil {
		t.Fatal(err)
	}
	exchange(b, b)
	want("while Redis is empty", 1, 0)
	exchange(a, b)
	want("when the writer has come back", 1, 0)

	a.leave(record{})
	b.standFrom = time.Now()
	exchange(b, a)
	want("after the writer has left", 0, 1)
}

// TestN4_AnExpiredLeaseWritesNothing: calls of Ray end with the lease, before Redis gives it to
// another gateway.
func TestN4_AnExpiredLeaseWritesNothing(t *testing.T) {
	t.Parallel()
	store := redistest.Start(t)
	g := groupOf(store, "a")
	g.lease = 2 * time.Second
	if _, err := g.exchange(t.Context(), record{}); err != nil || !g.mayWrite() {
		t.Fatalf("%v; may write: %v", err, g.mayWrite())
	}
	answered := time.Now()
	held, cancel := g.bound(t.Context())
	defer cancel()
	if deadline, _ := held.Deadline(); deadline.After(answered.Add(g.lease * 4 / 5)) {
		t.Errorf("calls end %v after the exchange", deadline.Sub(answered))
	}
	<-held.Done()
	if g.mayWrite() {
		t.Error("the gateway may write when its calls have ended")
	}
}
