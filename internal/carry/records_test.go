package carry

import (
	"context"
	"errors"
	"net"
	"net/http"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/zap"

	"github.com/sluice-gateway/sluice/internal/request"
	"github.com/sluice-gateway/sluice/internal/testutil"
)

// cancelled counts how often a request was cancelled.
type cancelled int

func (c *cancelled) Cancel() bool {
	*c++
	return true
}

// TestX20_TheSuccessorListsCarriedRequests: an operator reads and cancels the requests that a
// predecessor carries at its successor, which keeps those that have ended.
func TestX20_TheSuccessorListsCarriedRequests(t *testing.T) {
	dir := t.TempDir()
	path, own := filepath.Join(dir, "carry.sock"), filepath.Join(dir, "own.sock")
	old, next := request.NewStore(0), request.NewStore(0)
	serveHTTP(t, own, Handler(func(string, string) bool { return false }, old, http.NotFoundHandler(), http.NotFoundHandler()))
	var cancels cancelled
	record := old.Begin(request.Arrival{ID: "1", ClientID: "mine", Tenant: "acme", Model: "m", OnConnection: true, Canceller: &cancels})
	old.Begin(request.Arrival{ID: "2", Model: "m", OnConnection: true})

	l := NewLink(path, Process{Instance: "a", Socket: own}, func(time.Duration) {}, zap.NewNop())
	old.Subscribe(request.Subscribers{Finished: []func(request.Summary){func(q request.Summary) { l.Ended(q, true) }}})
	ctx, cancel := context.WithCancel(t.Context())
	unlinked := make(chan error, 1)
	go func() { unlinked <- l.Run(ctx) }()
	defer func() {
		cancel()
		<-unlinked
	}()
	successor := NewServer(newDispatcher(), zap.NewNop())
	var counted atomic.Int32
	successor.Ended = func(q request.Summary, counts bool) {
		next.AddEnded(q)
		if counts {
			counted.Add(1)
		}
	}
	listener, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	serveServer(t, successor, listener)
	if err := successor.Await(t.Context(), 1); err != nil {
		t.Fatal(err)
	}

	if all, running := successor.Requests(1); running != 2 || len(all) != 1 {
		t.Errorf("%d run: %+v", running, all)
	}
	all, running := successor.Requests(0)
	if running != 2 || len(all) != 2 || all[1].Tenant != "acme" || all[0].ID != "2" || all[1].Duration <= 0 {
		t.Errorf("%d run: %+v", running, all)
	}
	if found, ok := successor.Request("mine"); !ok || found.ID != "1" {
		t.Errorf("%v, %+v", ok, found)
	}
	if _, ok := successor.Request("other"); ok {
		t.Error("a request that is not there was found")
	}
	if err := successor.Cancel("1"); err != nil || cancels != 1 {
		t.Errorf("%v, cancelled %d times", err, cancels)
	}
	if err := successor.Cancel("2"); !errors.Is(err, request.ErrNotHeld) {
		t.Errorf("a request that nobody can cancel: %v", err)
	}
	if err := successor.Cancel("3"); !errors.Is(err, request.ErrNotRunning) {
		t.Errorf("a request that is not there: %v", err)
	}

	record.Close(nil)
	l.Flush(10 * time.Second)
	l.Ended(request.Summary{ID: "1", Tenant: "acme", State: request.Done}, false) // it is known already
	testutil.Eventually(t, "the request has ended", func() bool {
		all, running := next.List(0)
		return running == 0 && len(all) == 1 && all[0].ID == "1" && all[0].Tenant == "acme" && all[0].State == request.Done && counted.Load() == 1
	})
	if all, running := successor.Requests(0); running != 1 || len(all) != 1 {
		t.Errorf("%d run: %+v", running, all)
	}
}

// serveHTTP serves the handler on a unix socket until the test ends.
func serveHTTP(t *testing.T, path string, h http.Handler) {
	t.Helper()
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{Handler: h, ReadHeaderTimeout: time.Minute}
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(l) }()
	t.Cleanup(func() {
		server.Close()
		<-ended
	})
}
