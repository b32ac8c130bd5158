package admission

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/sluice-gateway/sluice/internal/redistest"
	"github.com/sluice-gateway/sluice/tests/e2e/harness"
)

// TestE2E_W5_W6_FailoverUnderLoad: the master of Redis dies while three gateways serve requests and
// tasks with limits. Each request is served and each task ends once, no limit is exceeded, a stream
// runs on, and nothing is held at the end: not even a task whose end the new master lacks.
func TestE2E_W5_W6_FailoverUnderLoad(t *testing.T) {
	t.Parallel()
	t.Run("sentinels", func(t *testing.T) {
		t.Parallel()
		g := redistest.Sentinels(t, nil)
		redis := fmt.Sprintf("\n  url: %s\n  sentinel: {master: %s, username: %s, password: %s}", g.URL(), redistest.MasterName,
			redistest.SentinelUser, redistest.SentinelPassword)
		failOverUnderLoad(t, redis, g.Servers[0], g.Servers[1].Client())
	})
	t.Run("cluster", func(t *testing.T) {
		t.Parallel()
		cluster := redistest.Cluster(t) // the first server has the slot of {sluice}
		replica := redistest.Replica(t, cluster)
		failOverUnderLoad(t, redistest.URL(cluster...), cluster[0], replica.Client())
	})
}

// failOverUnderLoad kills the master while three gateways serve, and returns when they are idle and
// share the replica that has become the master.
func failOverUnderLoad(t *testing.T, redisText string, master *redistest.Server, replica *redis.Client) {
	const limit, tasks = 6, 3
	up := startSlowEngine(t, 20*time.Millisecond)
	held := harness.StartHeldUpstream(t)
	config := patient + sharedConfig(redisText, up.url, limit) + fmt.Sprintf(`
  - {name: held, launcher: upstream, upstreams: [{url: "%s", model: m}]}
  - {name: t, launcher: none, admission: {max_concurrent_requests: %d}}
`, held.URL, tasks)
	var gateways []*harness.Gateway
	for range 3 {
		gateways = append(gateways, harness.Start(t, config))
	}
	for _, g := range gateways {
		g.AwaitSharedState(true, 3)
	}
	if n := master.Client().Exists(t.Context(), "{sluice}:epoch").Val(); n != 1 {
		t.Fatal("the master that is to die does not have the limits")
	}
	var callers sync.WaitGroup
	stream, err := gateways[0].Open(t.Context(), "/v1/completions", `{"model":"held","prompt":"x","stream":true}`)
	if err != nil {
		t.Fatal(err)
	}
	defer stream.Body.Close()
	ctx, stop := context.WithCancel(t.Context())
	defer callers.Wait()
	defer stop()
	var l load
	for i, g := range gateways {
		for range 4 {
			callers.Go(func() {
				for ctx.Err() == nil {
					if a := g.Post("/v1/completions", `{"model":"m","prompt":"x"}`); a.StatusCode != 200 {
						t.Errorf("a request: %v", a)
						return
					}
				}
			})
		}
		for n := range 2 {
			callers.Go(func() {
				for ctx.Err() == nil && !t.Failed() {
					l.task(t, g, gateways[(i+n)%3])
				}
			})
		}
	}
	goOn := func() {
		t.Helper()
		requests, ended := up.started.Load(), l.ended.Load()
		harness.Eventually(t, "requests and tasks go on", func() error {
			if r, e := up.started.Load()-requests, l.ended.Load()-ended; r < 50 || e < 20 {
				return fmt.Errorf("%d requests and %d tasks since", r, e)
			}
			return nil
		})
	}
	goOn()
	const lost = "Redis lost, limits divided by the number of gateways"
	var before []int
	for _, g := range gateways {
		before = append(before, strings.Count(g.LogText(), lost))
	}
	master.Kill()
	for i, g := range gateways {
		g.AwaitLogged(lost, before[i]+1)
	}
	for _, g := range gateways {
		g.AwaitSharedState(true, 3)
	}
	goOn()
	stop()
	callers.Wait()
	held.Release <- struct{}{}
	if b, err := io.ReadAll(stream.Body); err != nil || !strings.Contains(string(b), "[DONE]") {
		t.Errorf("the stream: %q, %v", b, err)
	}
	// One that comes back later than the others has its share until then.
	if n := up.most.Load(); n > limit+limit/3 {
		t.Errorf("%d requests at once, the limit is %d", n, limit)
	}
	for _, g := range gateways {
		for _, model := range []string{"m", "held", "t"} {
			g.AwaitIdle(model)
		}
	}
	for _, model := range []string{"m", "held", "t"} {
		harness.Eventually(t, "the new master holds nothing of "+model, func() error {
			if n, err := replica.ZCard(t.Context(), "{sluice}:leases:"+model).Result(); err != nil || n != 0 {
				return fmt.Errorf("%d leases, %w", n, err)
			}
			return nil
		})
	}
}

// load counts tasks.
type load struct{ made, ended atomic.Int64 }

// task makes a task at one gateway and ends it at another one. While Redis is away, only the first
// one can end the task, and the other one says so.
func (l *load) task(t *testing.T, g, other *harness.Gateway) {
	body := fmt.Sprintf(`{"estimated_tokens": 10, "model": "t", "request_id": "n%d", "max_wait_ms": 1000}`, l.made.Add(1))
	var d decision
	for d.Task == "" {
		a := g.Post("/schedule", body)
		if err := json.Unmarshal(a.Content, &d); err != nil || a.StatusCode != 200 {
			t.Errorf("/schedule: %v, %v", a, err)
			return
		}
	}
	for {
		a := completeTask(other, d.Task)
		if a.StatusCode == 200 {
			l.ended.Add(1)
			return
		}
		if a.StatusCode != http.StatusServiceUnavailable || a.Header.Get("retry-after") == "" {
			t.Errorf("/complete: %v", a)
			return
		}
		time.Sleep(50 * time.Millisecond)
	}
}
