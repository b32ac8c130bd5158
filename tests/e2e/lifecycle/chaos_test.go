package lifecycle

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/sluice-gateway/sluice/tests/e2e/harness"
)

// TestE2E_N5_RandomKillsUnderLoad: while replicas are killed at random, a request fails only if its
// response had begun.
func TestE2E_N5_RandomKillsUnderLoad(t *testing.T) {
	t.Parallel()
	g := harness.Start(t, strings.NewReplacer("{min: 3, max: 3}", "{min: 4, max: 4}", "token_interval: 20ms", "token_interval: 2ms").Replace(harness.SlowSims))
	const lasts = 60 * time.Second
	stop := make(chan struct{})
	var clients sync.WaitGroup
	var whole, cut, begun atomic.Int64
	for i := range 16 {
		clients.Go(func() {
			for n := 0; ; n++ {
				select {
				case <-stop:
					return
				default:
				}
				begun.Add(1)
				r, err := g.Open(context.Background(), "/v1/chat/completions", harness.ChatBody("chat", n%2 == 0, 20, fmt.Sprint("client ", i, " asks ", n)))
				if err != nil || r.StatusCode != 200 {
					t.Errorf("failed before its response had begun: %v %v", r, err)
					return
				}
				if _, err := io.ReadAll(r.Body); err != nil {
					cut.Add(1)
				} else {
					whole.Add(1)
				}
				r.Body.Close()
			}
		})
	}
	kills := 0
	for end := time.Now().Add(lasts); time.Now().Before(end); time.Sleep(500*time.Millisecond + rand.N(1500*time.Millisecond)) {
		var ready []harness.Replica
		for _, r := range g.Replicas() {
			if r.State == "ready" {
				ready = append(ready, r)
			}
		}
		if len(ready) > 2 { // a request that has lost its second replica, and knew of two, has nowhere to go
			syscall.Kill(ready[rand.N(len(ready))].PID, syscall.SIGKILL)
			kills++
		}
	}
	close(stop)
	clients.Wait()
	t.Logf("%d kills, %d requests: %d whole, %d cut after they had begun", kills, begun.Load(), whole.Load(), cut.Load())
	if kills < 10 || whole.Load() < 500 {
		t.Error("hardly anything happened")
	}
	g.AwaitIdle("chat")
}
