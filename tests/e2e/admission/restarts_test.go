package admission

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/sluice-gateway/sluice/internal/redistest"
	"github.com/sluice-gateway/sluice/internal/testutil"
	"github.com/sluice-gateway/sluice/tests/e2e/harness"
)

// A Redis that comes back empty knows of no gateway. The first that finds it must not take itself
// for the only one while it still decides alone: the others have theirs, and are given time to
// tell.
func TestE2E_W5_AnEmptiedRedisMakesNobodyTheOnlyGateway(t *testing.T) {
	t.Parallel()
	const limit = 8
	redis := redistest.Start(t)
	config := fmt.Sprintf("redis: %s\nmodels:\n  - {name: m, launcher: none, admission: {max_concurrent_requests: %d}}\n", redistest.URL(redis), limit)
	a, b := harness.Start(t, config), harness.Start(t, config)
	a.AwaitSharedState(true, 2)
	b.AwaitSharedState(true, 2)
	redis.Kill()
	held := map[*harness.Gateway]int{}
	for _, g := range []*harness.Gateway{a, b} {
		g.AwaitSharedState(false, 0)
		for scheduleTask(g, `{"estimated_tokens": 1}`).Task != "" {
			held[g]++
		}
	}
	// The other one is a little late, as one that looks every so often is: well within the time
	// that it has to tell.
	b.Signal(syscall.SIGSTOP)
	redis.Restart()
	client := redis.Client()
	var joined int64 // when the first one has told Redis of itself, in µs by the clock of Redis
	harness.Eventually(t, "the first one has told Redis of itself", func() (err error) {
		if scheduleTask(a, `{"estimated_tokens": 1}`).Task != "" {
			held[a]++
		}
		joined, err = client.HGet(t.Context(), "{sluice}:epoch", "born").Int64()
		return err
	})
	// It may share again after 600 ms, and the other one has two seconds. A task that is granted
	// later than that says nothing.
	for since := int64(0); since < 900_000; time.Sleep(10 * time.Millisecond) {
		granted := scheduleTask(a, `{"estimated_tokens": 1}`).Task != ""
		now, err := client.Time(t.Context()).Result()
		if err != nil {
			t.Fatal(err)
		}
		if since = now.UnixMicro() - joined; granted && since < 1_500_000 {
			held[a]++
		}
	}
	b.Signal(syscall.SIGCONT)
	a.AwaitSharedState(true, 2)
	if n := held[a] + held[b]; n > limit {
		t.Errorf("%d and %d tasks at once, the limit is %d", held[a], held[b], limit)
	}
}

// A task that waits holds nothing that would have to end. A stop does not wait for the task, and
// the task gets an answer.
func TestE2E_W6_AStopAnswersWhoWaits(t *testing.T) {
	t.Parallel()
	up := harness.StartHeldUpstream(t)
	g := harness.Start(t, fmt.Sprintf(`
drain_timeout: 10m
models:
  - {name: task, launcher: none, admission: {max_concurrent_requests: 1}}
  - {name: m, launcher: upstream, upstreams: [%s], admission: {max_per_replica: 1, queue_timeout: 10m}}
`, up.URL))
	admitTask(g, `{"estimated_tokens": 1, "model": "task"}`)
	ctx, cancel := context.WithTimeout(t.Context(), testutil.Patience)
	defer cancel()
	var all sync.WaitGroup
	ask := func(path, body string) {
		all.Go(func() {
			r, err := g.TryPost(ctx, path, body)
			if err != nil {
				t.Errorf("%s: no answer at all: %v", path, err)
			} else if r.StatusCode != 200 && (r.StatusCode != 503 || r.Header.Get("retry-after") == "") {
				t.Errorf("%s: %v", path, r)
			}
		})
	}
	running, leave := context.WithCancel(t.Context())
	go func() {
		if r, err := g.Open(running, "/v1/completions", `{"model":"m","prompt":"x"}`); err == nil {
			io.Copy(io.Discard, r.Body)
			r.Body.Close()
		}
	}()
	defer leave()
	harness.Eventually(t, "the place is taken", func() error {
		if n := g.Model("m").InFlight; n != 1 {
			return fmt.Errorf("%d in flight", n)
		}
		return nil
	})
	ask("/schedule", `{"estimated_tokens": 1, "model": "task", "max_wait_ms": 50000}`)
	ask("/v1/completions", `{"model":"m","prompt":"y"}`)
	g.AwaitQueued("task", 1)
	g.AwaitQueued("m", 1)
	g.Signal(syscall.SIGTERM)
	all.Wait()
	leave()
	g.AwaitExit() // a second signal would end it at once, and leave the rest to the guard
}

// A retried call gets the task of the first one. A call that asks for something else under the same
// name is a mistake. It must not be told to use a model that it did not ask for.
func TestE2E_W6_ARequestIDOfAnotherModelIsAConflict(t *testing.T) {
	t.Parallel()
	g := harness.Start(t, "models:\n  - {name: a, launcher: none}\n  - {name: b, launcher: none}\n")
	admitTask(g, `{"estimated_tokens": 1, "model": "a", "request_id": "one"}`)
	r, err := g.TryPost(t.Context(), "/schedule", `{"estimated_tokens": 1, "model": "b", "request_id": "one"}`)
	if err != nil {
		t.Fatal(err)
	}
	if r.StatusCode != http.StatusConflict {
		t.Errorf("%v, want 409", r)
	}
}
