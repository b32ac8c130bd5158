package gateway

import (
	"context"
	"net"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/zap"

	"github.com/sluice-gateway/sluice/internal/carry"
	"github.com/sluice-gateway/sluice/internal/history"
	"github.com/sluice-gateway/sluice/internal/request"
	"github.com/sluice-gateway/sluice/internal/testutil"
)

// TestO5_X20_TokensCountedApartReachTheNewProcess: a named generation goes on at a replaced process
// after its client has left, and its tokens are counted apart from the end of the request. Nobody
// can ask that process, so the new one counts them, too. It also counts the attempts that the old
// one repeats.
func TestO5_X20_TokensCountedApartReachTheNewProcess(t *testing.T) {
	t.Parallel()
	known := func(string) bool { return true }
	old, next := &Gateway{traffic: history.NewTraffic(known)}, &Gateway{traffic: history.NewTraffic(known)}
	path := filepath.Join(t.TempDir(), "carry.sock")
	link := carry.NewLink(path, carry.Process{}, func(time.Duration) {}, zap.NewNop())
	old.succession.link.Store(link)
	old.used(&request.Summary{Model: "m", UsedApart: true, CompletionTokens: 7}) // before the two are connected
	old.retried("m", "acme", request.ReasonConnect)
	server := carry.NewServer(nil, zap.NewNop())
	var told, retries atomic.Int64
	server.Retried = func(model, tenant, reason string) {
		if model == "m" && tenant == "acme" && reason == request.ReasonConnect {
			retries.Add(1)
		}
	}
	server.Used = func(q request.Summary) {
		next.addUsed(q)
		told.Add(q.CompletionTokens)
	}
	listener, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	defer running.Wait()
	defer cancel()
	running.Go(func() { _ = server.Serve(ctx, listener) })
	running.Go(func() { _ = link.Run(ctx) })
	if err := server.Await(t.Context(), 1); err != nil {
		t.Fatal(err)
	}
	old.used(&request.Summary{Model: "m", UsedApart: true, CompletionTokens: 5})
	testutil.Eventually(t, "the new process is told of all tokens", func() bool { return told.Load() == 12 })
	old.retried("m", "acme", request.ReasonConnect)
	testutil.Eventually(t, "the new process is told of all retries", func() bool { return retries.Load() == 2 })
	var s history.Sample
	if next.traffic.Take(&s); s.Total[history.TokensPerSecond] <= 0 {
		t.Error("the history of the new process has no tokens")
	}
}
