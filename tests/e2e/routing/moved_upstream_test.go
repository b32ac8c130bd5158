package routing

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/sluice-gateway/sluice/tests/e2e/harness"
)

// TestE2E_T6_AnUpstreamThatMovesCostsNoRequest: reloads make servers be called in another way, and
// so move them to other clusters of Envoy, while requests go on. One model has another server
// meanwhile, one has none and waits.
func TestE2E_T6_AnUpstreamThatMovesCostsNoRequest(t *testing.T) {
	t.Parallel()
	const moves = 20
	serve := func(w http.ResponseWriter, r *http.Request) {
		if !harness.ServeModelList(w, r, "two", "one") {
			fmt.Fprint(w, `{"choices":[]}`)
		}
	}
	a, b, c := harness.StartUpstream(t, serve), harness.StartUpstream(t, serve), harness.StartUpstream(t, serve)
	config := func(n int) string {
		way := "" // plain, then by a group, then by another, and so on
		if n%3 > 0 {
			way = fmt.Sprintf(", headers: {X-Way: w%d}", n)
		}
		return fmt.Sprintf(`
models:
  - name: two
    launcher: upstream
    upstreams: [%s, {url: %s%s}]
    admission: {max_per_replica: 8}
  - name: one
    launcher: upstream
    upstreams: [{url: %s%s}]
    admission: {max_per_replica: 8}
`, a, b, way, c, way)
	}
	g := harness.Start(t, config(0))
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	var callers sync.WaitGroup
	var answered atomic.Int64
	for i := range 8 {
		callers.Go(func() {
			for n := 0; ctx.Err() == nil; n++ {
				answer, err := g.TryPost(context.Background(), "/v1/chat/completions", harness.ChatBody([]string{"two", "one"}[i%2], false, 1, fmt.Sprint(i, n)))
				if err != nil || answer.StatusCode != 200 {
					t.Errorf("%v %v", answer, err)
				}
				answered.Add(1)
			}
		})
	}
	for n := range moves {
		before := answered.Load()
		g.Configure(config(n + 1))
		g.Signal(syscall.SIGHUP)
		harness.Eventually(t, "the file is taken and requests go on", func() error {
			if taken := strings.Count(g.LogText(), "configuration reloaded"); taken <= n || answered.Load() < before+50 {
				return fmt.Errorf("%d reloads, %d answers since", taken, answered.Load()-before)
			}
			return nil
		})
	}
	stop()
	callers.Wait()
	t.Logf("%d requests over %d moves", answered.Load(), moves)
}
