package admission

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/sluice-gateway/sluice/internal/condition"
	"github.com/sluice-gateway/sluice/internal/redistest"
	"github.com/sluice-gateway/sluice/tests/e2e/harness"
)

// slowEngine is an engine that answers after a fixed time and counts the requests in flight.
type slowEngine struct {
	url                    string
	running, most, started atomic.Int64
	// held is closed when the engine may answer; nil: it may.
	held atomic.Pointer[chan struct{}]
}

// hold makes the engine answer nothing until open is called, which may be called again.
func (s *slowEngine) hold() (open func()) {
	held := make(chan struct{})
	s.held.Store(&held)
	return sync.OnceFunc(func() { close(held) })
}

func startSlowEngine(t *testing.T, takes time.Duration) *slowEngine {
	s := new(slowEngine)
	s.url = harness.StartUpstream(t, func(w http.ResponseWriter, r *http.Request) {
		if harness.ServeModelList(w, r, "m") {
			return
		}
		io.Copy(io.Discard, r.Body)
		n := s.running.Add(1)
		defer s.running.Add(-1)
		s.started.Add(1)
		for most := s.most.Load(); n > most && !s.most.CompareAndSwap(most, n); most = s.most.Load() {
		}
		if held := s.held.Load(); held != nil {
			select {
			case <-*held:
			case <-r.Context().Done():
				return
			}
		}
		select {
		case <-time.After(takes):
			io.WriteString(w, `{"choices":[{"text":"ok"}]}`)
		case <-r.Context().Done():
		}
	})
	return s
}

// patient is the setting for tests of what gateways share on a machine that is busy with other
// tests.
const patient = "\nredis_timeout: 500ms"

// sharedConfig returns the configuration of gateways that share a Redis and one model.
func sharedConfig(redis, upstream string, limit int) string {
	return fmt.Sprintf(`
redis: %s
models:
  - {name: m, launcher: upstream, upstreams: [%s], admission: {max_per_replica: 1000, max_concurrent_requests: %d}}
`, redis, upstream, limit)
}

func TestE2E_W5_ThreeGatewaysObeyOneLimit(t *testing.T) {
	t.Parallel()
	const limit, callers = 20, 600
	up := startSlowEngine(t, 50*time.Millisecond)
	redis := redistest.Start(t)
	var gateways []*harness.Gateway
	for range 3 {
		gateways = append(gateways, harness.Start(t, patient+sharedConfig(redistest.URL(redis), up.url, limit)))
	}
	for _, g := range gateways {
		g.AwaitSharedState(true, 3)
	}
	var all sync.WaitGroup
	// ask sends n requests to the gateways in turn, and lets the engine answer when as many run as
	// may and the others wait.
	ask := func(n, limit int) error {
		up.most.Store(0)
		open := up.hold()
		defer all.Wait()
		defer open()
		for i := range n {
			all.Go(func() {
				a, err := gateways[i%3].TryPost(context.Background(), "/v1/completions", `{"model":"m","prompt":"x"}`)
				if err != nil || a.StatusCode != 200 {
					t.Errorf("%v %v", a, err)
				}
			})
		}
		harness.Eventually(t, "each request runs or waits", func() error {
			waiting := 0
			for _, g := range gateways {
				waiting += g.Model("m").Queued
			}
			if running := int(up.running.Load()); running == 0 || running+waiting != n {
				return fmt.Errorf("%d run and %d wait of %d", running, waiting, n)
			}
			return nil
		})
		if running := up.running.Load(); running != int64(limit) {
			return fmt.Errorf("%d requests at once over three gateways, want exactly %d", running, limit)
		}
		open()
		all.Wait()
		if most := up.most.Load(); most != int64(limit) {
			return fmt.Errorf("%d requests at once over three gateways, want %d at most", most, limit)
		}
		return nil
	}
	if err := ask(callers, limit); err != nil {
		t.Error(err)
	}
	for _, g := range gateways {
		g.AwaitIdle("m")
	}
	t.Run("a limit is changed for all", func(t *testing.T) {
		if a := patchLimits(gateways[0], "/api/v1/models/m/limits", `{"max_concurrent_requests": 5}`); a.StatusCode != 200 {
			t.Fatal(a)
		}
		round := func() error { return ask(60, 5) }
		harness.Eventually(t, "the others have heard of it", round)
		if err := round(); err != nil {
			t.Error(err)
		}
	})
	t.Run("any gateway ends a task", func(t *testing.T) {
		task := admitTask(gateways[0], `{"estimated_tokens": 10, "request_id": "one"}`)
		if again := scheduleTask(gateways[1], `{"estimated_tokens": 10, "request_id": "one"}`); again.Task != task.Task {
			t.Errorf("a retry at another gateway got %+v, want %+v", again, task)
		}
		if a := completeTask(gateways[2], task.Task); a.StatusCode != 200 {
			t.Error(a)
		}
		if a := completeTask(gateways[0], task.Task); a.StatusCode != 404 {
			t.Error(a)
		}
	})
}

// TestE2E_W2_LimitsInRedisOutliveTheGateways: a changed weight and a changed limit hold from the
// next request on. A gateway that starts later, when no other is left and with another state
// directory, has them from Redis.
func TestE2E_W2_LimitsInRedisOutliveTheGateways(t *testing.T) {
	t.Parallel()
	config := fmt.Sprintf(`%s
redis: %s
models:
  - {name: light, launcher: none, admission: {weight: 1}}
  - {name: heavy, launcher: none, admission: {weight: 1}}
  - {name: tight, launcher: none, admission: {max_concurrent_requests: 9}}
pools: [{name: all, models: [light, heavy]}]
`, patient, redistest.URL(redistest.Start(t)))
	// shares returns how many of the next 40 tasks the model heavy gets.
	shares := func(g *harness.Gateway) (heavy int) {
		t.Helper()
		for range 40 {
			d := scheduleTask(g, `{"estimated_tokens": 100, "pool": "all"}`)
			if d.Model == "heavy" {
				heavy++
			}
			if a := completeTask(g, d.Task); a.StatusCode != 200 {
				t.Fatal(a)
			}
		}
		return heavy
	}
	one := harness.Start(t, config)
	one.AwaitSharedState(true, 1)
	if n := shares(one); n < 18 || n > 22 {
		t.Errorf("of equal weight, and one has %d of 40", n)
	}
	for path, change := range map[string]string{"heavy": `{"weight": 9}`, "tight": `{"max_concurrent_requests": 1}`} {
		if a := patchLimits(one, "/api/v1/models/"+path+"/limits", change); a.StatusCode != 200 {
			t.Fatal(a)
		}
	}
	check := func(g *harness.Gateway) {
		t.Helper()
		if n := shares(g); n < 34 || n > 38 {
			t.Errorf("with nine tenths of the weight it has %d of 40", n)
		}
		held := scheduleTask(g, `{"estimated_tokens": 1, "model": "tight"}`)
		if d := scheduleTask(g, `{"estimated_tokens": 1, "model": "tight"}`); held.Task == "" || d.Wait == nil {
			t.Errorf("one task at once, and they are %+v and %+v", held, d)
		}
		completeTask(g, held.Task)
	}
	check(one)
	one.Signal(syscall.SIGTERM)
	one.AwaitExit()
	two := harness.Start(t, config)
	two.AwaitSharedState(true, 1)
	check(two)
}

// TestE2E_W5_ASlowRedisIsShared: gateways share a Redis that takes longer than the default of
// redis_timeout, if the setting is longer. Else a gateway goes on alone and serves all the same. It
// does not begin to share again and again.
func TestE2E_W5_ASlowRedisIsShared(t *testing.T) {
	t.Parallel()
	const limit = 4
	up := startSlowEngine(t, 20*time.Millisecond)
	url := redistest.Slow(redistest.Start(t), 150*time.Millisecond)
	alone := harness.Start(t, sharedConfig(url, up.url, limit))
	if a := alone.Post("/v1/completions", `{"model":"m","prompt":"x"}`); a.StatusCode != 200 {
		t.Fatal(a)
	}
	alone.AwaitSharedState(false, 0)
	harness.Eventually(t, "the operator is told why", func() error {
		c := alone.AwaitCondition(condition.RedisUnavailable, "")
		if !strings.Contains(c.Message, "no answer within 50ms") || !strings.Contains(c.Message, "redis_timeout") {
			return fmt.Errorf("%+v", c)
		}
		return nil
	})
	if log := alone.LogText(); strings.Contains(log, "Redis connected") {
		t.Errorf("shared although Redis is slow:\n%s", log)
	}
	alone.Stop()
	var gateways []*harness.Gateway
	for range 2 {
		gateways = append(gateways, harness.Start(t, patient+sharedConfig(url, up.url, limit)))
	}
	for _, g := range gateways {
		g.AwaitSharedState(true, 2)
	}
	up.most.Store(0)
	var all sync.WaitGroup
	for i := range 40 {
		all.Go(func() {
			a, err := gateways[i%2].TryPost(context.Background(), "/v1/completions", `{"model":"m","prompt":"x"}`)
			if err != nil || a.StatusCode != 200 {
				t.Errorf("%v %v", a, err)
			}
		})
	}
	all.Wait()
	if most := up.most.Load(); most > limit {
		t.Errorf("%d requests at once over two gateways, want %d at most", most, limit)
	}
}

func TestE2E_W5_ARedisThatStopsCostsNoRequest(t *testing.T) {
	t.Parallel()
	const limit = 10
	up := startSlowEngine(t, 20*time.Millisecond)
	redis := redistest.Start(t)
	config := patient + sharedConfig(redistest.URL(redis), up.url, limit)
	gateways := []*harness.Gateway{harness.Start(t, config), harness.Start(t, config)}
	for _, g := range gateways {
		g.AwaitSharedState(true, 2)
	}
	stop := make(chan struct{})
	var callers sync.WaitGroup
	var failed atomic.Int64
	for i := range 40 {
		callers.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				if r, err := gateways[i%2].TryPost(context.Background(), "/v1/completions", `{"model":"m","prompt":"x"}`); err != nil || r.StatusCode != 200 {
					failed.Add(1)
					t.Errorf("%v %v", r, err)
					return
				}
			}
		})
	}
	goOn := func() {
		t.Helper()
		from := up.started.Load()
		harness.Eventually(t, "requests go on", func() error {
			if n := up.started.Load() - from; n < 100 && failed.Load() == 0 {
				return fmt.Errorf("%d since", n)
			}
			return nil
		})
	}
	for _, outage := range []struct {
		name       string
		begin, end func()
	}{
		{"stopped", redis.Pause, redis.Resume},
		{"restarted empty", redis.Kill, redis.Restart},
	} {
		goOn()
		outage.begin()
		for _, g := range gateways {
			g.AwaitSharedState(false, 0)
		}
		goOn()
		outage.end()
		for _, g := range gateways {
			g.AwaitSharedState(true, 2)
		}
		goOn()
		if most := up.most.Load(); most > limit {
			t.Errorf("%s: %d at once, the limit is %d", outage.name, most, limit)
		}
	}
	close(stop)
	callers.Wait()
	for _, g := range gateways {
		g.AwaitIdle("m")
	}
}

func TestE2E_W6_LeasesOfStreamsOutliveTheirGateway(t *testing.T) {
	t.Parallel()
	up := harness.StartHeldUpstream(t)
	redis := redistest.Start(t)
	config := patient + sharedConfig(redistest.URL(redis), up.URL, 3)
	a, b := harness.Start(t, config), harness.Start(t, config)
	a.AwaitSharedState(true, 2)
	b.AwaitSharedState(true, 2)
	ask := func(g *harness.Gateway) {
		r, err := g.Open(context.Background(), "/v1/completions", `{"model":"m","prompt":"x","stream":true}`)
		if err != nil {
			t.Error(err)
			return
		}
		io.Copy(io.Discard, r.Body)
		r.Body.Close()
	}
	var streams sync.WaitGroup
	for range 2 {
		streams.Go(func() { ask(a) })
	}
	running := func(n int64) {
		t.Helper()
		harness.Eventually(t, fmt.Sprint(n, " at the engine"), func() error {
			if got := up.Running.Load(); got != n {
				return fmt.Errorf("%d", got)
			}
			return nil
		})
	}
	running(2)
	a.Kill() // its streams run on, and count
	for range 2 {
		streams.Go(func() { ask(b) })
	}
	running(3)
	b.AwaitQueued("m", 1)
	a.Launch()
	a.AwaitReady()
	harness.Eventually(t, "the gateway that is back knows its streams", func() error {
		if m := a.Model("m"); m.InFlight != 2 {
			return fmt.Errorf("%+v", m)
		}
		return nil
	})
	if n := up.Most.Load(); n != 3 {
		t.Errorf("%d at once, the limit is 3", n)
	}
	// Their end is heard of at once, long before their leases would end by themselves.
	for range 4 {
		up.Release <- struct{}{}
	}
	done := make(chan struct{})
	go func() {
		streams.Wait()
		close(done)
	}()
	harness.Eventually(t, "all streams end", func() error {
		select {
		case <-done:
			return nil
		default:
			return errors.New("some still run or wait")
		}
	})
	for _, g := range []*harness.Gateway{a, b} {
		g.AwaitIdle("m")
	}
	for range 3 { // all three places are free again
		streams.Go(func() { ask(a) })
	}
	running(3)
	for range 3 {
		up.Release <- struct{}{}
	}
	streams.Wait()
}

func TestE2E_T2_AReplicaThatIsFullForOneGatewayIsFullForAll(t *testing.T) {
	t.Parallel()
	one, two := harness.StartHeldUpstream(t), harness.StartHeldUpstream(t)
	redis := redistest.Start(t)
	config := fmt.Sprintf(patient+`
redis: %s
models:
  - {name: m, launcher: upstream, upstreams: [%s, %s], admission: {max_per_replica: 2}}
`, redistest.URL(redis), one.URL, two.URL)
	gateways := []*harness.Gateway{harness.Start(t, config), harness.Start(t, config)}
	for _, g := range gateways {
		g.AwaitSharedState(true, 2)
	}
	ctx, leave := context.WithCancel(context.Background())
	var streams sync.WaitGroup
	ask := func(g *harness.Gateway) {
		streams.Go(func() {
			if r, err := g.Open(ctx, "/v1/completions", `{"model":"m","prompt":"the same","stream":true}`); err == nil {
				io.Copy(io.Discard, r.Body)
				r.Body.Close()
			}
		})
	}
	// Four slots on two servers. One prompt means one server at first; the second gateway has not
	// seen that the first has filled it.
	for range 2 {
		ask(gateways[0])
	}
	harness.Eventually(t, "one server is full", func() error {
		if n := one.Running.Load() + two.Running.Load(); n != 2 {
			return fmt.Errorf("%d", n)
		}
		return nil
	})
	for range 2 {
		ask(gateways[1])
	}
	full := func() {
		t.Helper()
		harness.Eventually(t, "all four slots are taken", func() error {
			if a, b := one.Running.Load(), two.Running.Load(); a != 2 || b != 2 {
				return fmt.Errorf("%d and %d", a, b)
			}
			return nil
		})
	}
	full()
	for _, g := range gateways {
		ask(g)
	}
	one.Release <- struct{}{} // the next one that waits takes the slot, wherever it waits
	full()
	if a, b := one.Most.Load(), two.Most.Load(); a != 2 || b != 2 {
		t.Errorf("%d and %d at once, two may be", a, b)
	}
	leave()
	streams.Wait()
	for _, g := range gateways {
		g.AwaitIdle("m")
	}
}

// TestE2E_W6_ASlotIsWhereItsStreamIs: a stream that another server has taken over holds its slot
// there for all gateways. The process that adopts the stream goes on holding it.
func TestE2E_W6_ASlotIsWhereItsStreamIs(t *testing.T) {
	t.Parallel()
	up, redis := harness.StartHeldUpstream(t), redistest.Start(t)
	var refused atomic.Int64
	broken := harness.StartUpstream(t, func(w http.ResponseWriter, r *http.Request) {
		if harness.ServeModelList(w, r, "m") {
			return
		}
		refused.Add(1)
		w.WriteHeader(http.StatusServiceUnavailable)
	})
	g := harness.Start(t, fmt.Sprintf(`
redis: %s
models:
  - {name: m, launcher: upstream, upstreams: [%s, %s], routing: {strategy: round_robin}, admission: {max_per_replica: 4}}
`, redistest.URL(redis), broken, up.URL))
	g.AwaitSharedState(true, 1)
	ctx, leave := context.WithCancel(context.Background())
	var streams sync.WaitGroup
	for n := range int64(2) { // one of them goes to the broken server first
		streams.Go(func() {
			if r, err := g.Open(ctx, "/v1/completions", `{"model":"m","prompt":"x","stream":true}`); err == nil {
				io.Copy(io.Discard, r.Body)
				r.Body.Close()
			}
		})
		harness.Eventually(t, "the stream runs", func() error {
			if got := up.Running.Load(); got != n+1 {
				return fmt.Errorf("%d", got)
			}
			return nil
		})
	}
	if refused.Load() == 0 {
		t.Fatal("no stream was taken over")
	}
	client := redis.Client()
	host, _ := os.Hostname() // part of the names of servers at loopback addresses
	slots := func(replica string) []float64 {
		var ends []float64
		for _, z := range client.ZRangeWithScores(t.Context(), "{sluice}:replica:"+replica+"@"+host, 0, -1).Val() {
			ends = append(ends, z.Score)
		}
		return ends
	}
	harness.Eventually(t, "both slots are at the server that serves", func() error {
		if at, left := slots(up.ID()), slots(strings.TrimPrefix(broken, "http://")); len(at) != 2 || len(left) != 0 {
			return fmt.Errorf("%v there, and %v at the broken one", at, left)
		}
		return nil
	})
	g.Kill()
	last := slices.Max(slots(up.ID()))
	g.Launch()
	g.AwaitReady()
	harness.Eventually(t, "the next process holds both slots", func() error {
		if ends := slots(up.ID()); len(ends) != 2 || slices.Min(ends) <= last {
			return fmt.Errorf("they end at %v, those of the process before at %v", ends, last)
		}
		return nil
	})
	leave()
	streams.Wait()
	harness.Eventually(t, "the slots are free", func() error {
		if ends := slots(up.ID()); len(ends) != 0 {
			return fmt.Errorf("%v", ends)
		}
		return nil
	})
}
