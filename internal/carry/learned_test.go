package carry

import (
	"context"
	"fmt"
	"path/filepath"
	"testing"
	"time"

	"go.uber.org/zap"

	"github.com/sluice-gateway/sluice/internal/dispatch"
	"github.com/sluice-gateway/sluice/internal/testutil"
)

// A successor knows the responses that its predecessor learns of, also those of the time in which
// no successor was connected.
func TestR7_X20_TheSuccessorKnowsLearnedResponses(t *testing.T) {
	path := filepath.Join(t.TempDir(), "carry.sock")
	old, next, last := newDispatcher(), newDispatcher(), newDispatcher()
	l := NewLink(path, Process{Instance: "a"}, func(time.Duration) {}, zap.NewNop())
	old.WatchResponses(l.Learned)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- l.Run(ctx) }()
	defer func() {
		cancel()
		<-ended
	}()
	ticket := holdOne(t, old)
	defer ticket.Release()
	knows := func(d *dispatch.Dispatcher, n int) {
		t.Helper()
		testutil.Eventually(t, "the response is known", func() bool {
			model, at, ok := d.Holder("acme", fmt.Sprint("resp_", n))
			return ok && model == "m" && at.ID == "m-0"
		})
	}
	ticket.LearnResponse("resp_0") // while the successor starts
	_, stop := serve(t, next, path)
	knows(next, 0)
	ticket.LearnResponse("resp_1")
	knows(next, 1)
	stop()
	ticket.LearnResponse("resp_2")
	time.Sleep(3 * reconnectPause) // the connection has ended
	ticket.LearnResponse("resp_3")
	serve(t, last, path)
	knows(last, 3)
}
