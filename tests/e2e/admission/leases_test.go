package admission

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/sluice-gateway/sluice/tests/e2e/harness"
)

func TestE2E_LeasesNeverLeak(t *testing.T) {
	t.Parallel()
	g := harness.Start(t, `
models:
  - name: chat
    task: text-generation
    engine: sim
    launcher: local
    replicas: {min: 2, max: 2}
    variables: {prefill_rate: 0, token_interval: 1ms, max_num_seqs: 16}
    admission: {max_concurrent_requests: 24, max_queue: 50, queue_timeout: 200ms}
`)
	const workers, each = 40, 250
	kinds := []func(i int) error{
		func(i int) error { return sendAndLeave(g, i, harness.ChatBody("chat", true, 3, fmt.Sprint(i)), 0, "") },
		func(i int) error { return sendAndLeave(g, i, harness.ChatBody("chat", false, 3, fmt.Sprint(i)), 0, "") },
		func(i int) error {
			return sendAndLeave(g, i, harness.ChatBody("chat", true, 500, fmt.Sprint(i)), 5*time.Millisecond, "")
		}, // leaves
		func(i int) error {
			return sendAndLeave(g, i, harness.ChatBody("chat", true, 500, fmt.Sprint(i)), time.Millisecond, "")
		},
		func(i int) error {
			return sendAndLeave(g, i, harness.ChatBody("chat", true, 9, fmt.Sprint(i)), 0, "X-Sim-Fault: cut=2")
		},
		func(i int) error {
			return sendAndLeave(g, i, harness.ChatBody("chat", false, 9, fmt.Sprint(i)), 0, "X-Sim-Fault: status=500")
		},
		func(i int) error {
			return sendAndLeave(g, i, harness.ChatBody("chat", true, 9, fmt.Sprint(i)), 0, "X-Sim-Fault: reset-before-headers")
		},
		func(i int) error { return sendAndLeave(g, i, harness.ChatBody("nope", true, 9, fmt.Sprint(i)), 0, "") },
		func(i int) error { return sendAndLeave(g, i, `{"model":`, 0, "") },
	}
	ended := make(chan struct{})
	for w := range workers {
		go func() {
			for i := range each {
				kinds[(w+i)%len(kinds)](w*each + i) // how it ends does not matter here
			}
			ended <- struct{}{}
		}()
	}
	for range workers {
		harness.Receive(t, ended, "a client has sent all its requests")
	}
	g.AwaitIdle("chat")
	harness.Eventually(t, "no slot is held", func() error {
		all := g.Replicas()
		for _, r := range all {
			if r.InFlight != 0 {
				return fmt.Errorf("%+v", all)
			}
		}
		return nil
	})
	if a := g.Post("/v1/chat/completions", harness.ChatBody("chat", false, 2, "after all")); a.StatusCode != 200 {
		t.Errorf("%s", a)
	}
}

// sendAndLeave sends a request. If leaveAfter is not zero, the client disconnects after one to
// three times that long.
func sendAndLeave(g *harness.Gateway, i int, body string, leaveAfter time.Duration, header string) error {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	if leaveAfter > 0 {
		timer := time.AfterFunc(leaveAfter*time.Duration(1+i%3), cancel)
		defer timer.Stop()
	}
	var headers []string
	if header != "" {
		headers = append(headers, header)
	}
	_, err := g.TryPost(ctx, "/v1/chat/completions", body, headers...)
	if errors.Is(err, context.Canceled) {
		return nil
	}
	return err
}
