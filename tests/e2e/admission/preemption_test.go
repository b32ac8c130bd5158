package admission

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/sluice-gateway/sluice/tests/e2e/harness"
)

// A request that is more urgent takes the place of one that has no token yet, whose client notices
// nothing but time. One that has begun to answer is left alone.
func TestE2E_S11_UrgentRequestPushesOutPrefill(t *testing.T) {
	t.Parallel()
	tenants, key := tenantsOf(map[string]string{"people": ", priority: interactive", "night": ", priority: batch"})
	g := harness.Start(t, tenants+`
models:
  - name: m
    engine: sim
    launcher: local
    variables: {prefill_rate: 100, token_interval: 10ms, max_num_seqs: 1}
    admission: {max_concurrent_requests: 1}
    stream: {mode: managed, heartbeat: 500ms}
`)
	as := func(name string) string { return key[name] }
	var order []string
	var mu sync.Mutex
	first := func(name string) {
		mu.Lock()
		order = append(order, name)
		mu.Unlock()
	}
	var both sync.WaitGroup
	both.Go(func() { // some three seconds of prefill
		_, all := g.Stream(harness.ChatPath, harness.ChatBody("m", true, 10, strings.Repeat("night ", 300)), as("night"))
		if text, finish := harness.StreamedText(t, all); finish != "length" || text == "" {
			t.Errorf("pushed out, and then: %v", all)
		}
		first("night")
	})
	harness.Eventually(t, "the night's request is at the engine", func() error {
		if n := g.Generations("m-0"); n != 1 {
			return fmt.Errorf("%d", n)
		}
		return nil
	})
	_, all := g.Stream(harness.ChatPath, harness.ChatBody("m", true, 10, "quick"), as("people"))
	if _, finish := harness.StreamedText(t, all); finish != "length" {
		t.Errorf("%v", all)
	}
	first("people")
	both.Wait()
	if !slices.Equal(order, []string{"people", "night"}) || g.Generations("m-0") != 3 {
		t.Errorf("ended in the order %v, with %d requests at the engine", order, g.Generations("m-0"))
	}
	if !strings.Contains(g.AdminText("/metrics"), `stream_retries_total{reason="preempted"} 1`) {
		t.Error("the preemption is not in the metrics")
	}
	// In decode it stays.
	r, err := g.Open(context.Background(), harness.ChatPath, harness.ChatBody("m", true, 200, "decode"), as("night"))
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	io.ReadFull(r.Body, make([]byte, 1000))
	if _, all := g.Stream(harness.ChatPath, harness.ChatBody("m", true, 5, "waits"), as("people")); len(all) == 0 {
		t.Error("nothing")
	}
	rest, err := harness.ReadEvents(r.Body)
	if err != nil || rest[len(rest)-1].Data != "[DONE]" || g.Generations("m-0") != 5 {
		t.Errorf("%v: %v; %d requests", err, rest[len(rest)-1:], g.Generations("m-0"))
	}
	g.AwaitIdle("m")
}
