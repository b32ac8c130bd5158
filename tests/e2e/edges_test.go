package e2e

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/sluice-gateway/sluice/internal/redistest"
)

// A Redis that comes back empty knows of no gateway. The first that finds it must not take itself for the only one while it still decides
// alone: the others have theirs, and are given time to tell.
func TestE2E_W5_AnEmptiedRedisMakesNobodyTheOnlyGateway(t *testing.T) {
	t.Parallel()
	const limit = 8
	redis := redistest.Start(t)
	config := fmt.Sprintf("redis: %s\nmodels:\n  - {name: m, launcher: none, admission: {max_concurrent_requests: %d}}\n", redistest.URL(redis), limit)
	a, b := start(t, config), start(t, config)
	a.shared(true, 2)
	b.shared(true, 2)
	redis.Kill()
	held := map[*gateway]int{}
	for _, g := range []*gateway{a, b} {
		g.shared(false, 0)
		for g.schedule(`{"estimated_tokens": 1}`).Task != "" {
			held[g]++
		}
	}
	// The other one is a little late, as one that looks every so often is: well within the time that it has to tell.
	b.signal(syscall.SIGSTOP)
	redis.Restart()
	for range 100 {
		if a.schedule(`{"estimated_tokens": 1}`).Task != "" {
			held[a]++
		}
		time.Sleep(10 * time.Millisecond) // the time within which it asks Redis a few times
	}
	b.signal(syscall.SIGCONT)
	a.shared(true, 2)
	if n := held[a] + held[b]; n > limit {
		t.Errorf("%d and %d tasks at once, the limit is %d", held[a], held[b], limit)
	}
}

// Who waits holds nothing that would have to end: a stop does not wait for it, and it gets an answer.
func TestE2E_W6_AStopAnswersWhoWaits(t *testing.T) {
	t.Parallel()
	up := newGate(t)
	g := start(t, fmt.Sprintf(`
drain_timeout: 2s
models:
  - {name: task, launcher: none, admission: {max_concurrent_requests: 1}}
  - {name: m, launcher: upstream, upstreams: [%s], admission: {max_per_replica: 1}}
`, up.url))
	g.admit(`{"estimated_tokens": 1, "model": "task"}`)
	var all sync.WaitGroup
	ask := func(path, body string) {
		all.Go(func() {
			r, err := g.tryPost(context.Background(), path, body)
			if err != nil {
				t.Errorf("%s: no answer at all: %v", path, err)
			} else if r.StatusCode != 200 && (r.StatusCode != 503 || r.Header.Get("retry-after") == "") {
				t.Errorf("%s: %v", path, r)
			}
		})
	}
	running, leave := context.WithCancel(t.Context())
	go func() {
		if r, err := g.open(running, "/v1/completions", `{"model":"m","prompt":"x"}`); err == nil {
			io.Copy(io.Discard, r.Body)
			r.Body.Close()
		}
	}()
	defer leave()
	eventually(t, "the place is taken", func() error {
		if n := g.model("m").InFlight; n != 1 {
			return fmt.Errorf("%d in flight", n)
		}
		return nil
	})
	ask("/schedule", `{"estimated_tokens": 1, "model": "task", "max_wait_ms": 50000}`)
	ask("/v1/completions", `{"model":"m","prompt":"y"}`)
	g.awaitQueued("task", 1)
	g.awaitQueued("m", 1)
	g.signal(syscall.SIGTERM)
	all.Wait()
	<-g.exited // a second signal would end it at once, and leave the rest to the guard
}

// A retried call gets the task of the first one. A call that asks for something else under the same name is a mistake, and must not be
// told to use a model that it did not ask for.
func TestE2E_W6_ARequestIDOfAnotherModelIsAConflict(t *testing.T) {
	t.Parallel()
	g := start(t, "models:\n  - {name: a, launcher: none}\n  - {name: b, launcher: none}\n")
	g.admit(`{"estimated_tokens": 1, "model": "a", "request_id": "one"}`)
	r, err := g.tryPost(t.Context(), "/schedule", `{"estimated_tokens": 1, "model": "b", "request_id": "one"}`)
	if err != nil {
		t.Fatal(err)
	}
	if r.StatusCode != http.StatusConflict {
		t.Errorf("%v, want 409", r)
	}
}

// A second signal ends at once what the first one lets finish, and leaves nothing behind (stop looks).
func TestE2E_E4_ASecondSignalEndsEverythingAtOnce(t *testing.T) {
	t.Parallel()
	g := start(t, "drain_timeout: 30m"+slowSims)
	r, err := g.open(t.Context(), "/v1/chat/completions", chat("chat", true, 100_000, "Hello"))
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	g.signal(syscall.SIGTERM)
	eventually(t, "it drains", func() error {
		if !strings.Contains(g.logText(), "envoy drains") {
			return errors.New("not yet")
		}
		return nil
	})
	g.signal(syscall.SIGTERM)
	eventually(t, "it has ended", func() error {
		select {
		case <-g.exited:
			return nil
		default:
			return errors.New("still there")
		}
	})
}
