package peers

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"go.uber.org/goleak"

	store "github.com/sluice-gateway/sluice/admission/redis"
	"github.com/sluice-gateway/sluice/internal/headers"
	"github.com/sluice-gateway/sluice/internal/redistest"
	"github.com/sluice-gateway/sluice/internal/testutil"
)

const (
	// soon is how long a test waits for something that happens soon, on a machine that is busy with
	// other things.
	soon = testutil.Patience
	// short is an Expiry for tests that wait until it is over.
	short = time.Second
)

func TestMain(m *testing.M) {
	if url := os.Getenv(roleKey); url != "" {
		playOwner(url)
	}
	goleak.VerifyTestMain(m)
}

// wire is the way to Redis, which can be cut.
type wire struct {
	redis.Scripter
	cut atomic.Bool
}

var errCut = errors.New("the wire is cut")

func (w *wire) EvalSha(ctx context.Context, sum string, keys []string, args ...any) *redis.Cmd {
	if w.cut.Load() {
		return redis.NewCmdResult(nil, errCut)
	}
	return w.Scripter.EvalSha(ctx, sum, keys, args...)
}

// gateway is a Peers that runs and serves.
type gateway struct {
	*Peers
	wire *wire
	// address at which it serves the others.
	address string
	// front is where its clients come in: all that they ask is passed on to the owner in the header
	// x-owner.
	front *httptest.Server
	// stopServing and stop end parts of it, and wait until they have.
	stopServing, stop func()
}

// client is the way to a Redis, or to a cluster, with time enough for a slow machine.
func client(t *testing.T, servers ...*redistest.Server) redis.UniversalClient {
	t.Helper()
	c, err := newClient(redistest.URL(servers...))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

func newClient(url string) (redis.UniversalClient, error) {
	return store.NewClient(store.Server{URL: url}, 10*time.Second)
}

// anyPort is a Config.Listen.
const anyPort = "127.0.0.1:0"

// start starts a gateway. change may change its configuration; h answers what others pass on, nil:
// nothing.
func start(t *testing.T, c redis.Scripter, change func(*Config), h http.Handler) *gateway {
	t.Helper()
	g := &gateway{wire: &wire{Scripter: c}}
	cfg := Config{Redis: g.wire, Listen: anyPort, Timeout: 10 * time.Second}
	if change != nil {
		change(&cfg)
	}
	var err error
	if g.Peers, err = New(cfg); err != nil {
		t.Fatal(err)
	}
	if h == nil {
		h = http.NotFoundHandler()
	}
	stopRun := background(t, g.Run)
	g.stopServing = background(t, func(ctx context.Context) error { return g.Serve(ctx, h) })
	g.stop = func() { stopRun(); g.stopServing() }
	eventually(t, "the gateway has a record", func() bool {
		_, err := g.fetchRecord(t.Context(), g.ID())
		return err == nil
	})
	g.address = g.ownAddress()
	g.front = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if fault := g.Forward(w, r, r.Header.Get("x-owner")); fault != nil {
			fault.AnswerTo(w, r.URL.Path)
		}
	}))
	t.Cleanup(g.front.Close)
	return g
}

// background runs a part until the test's end or until stop, which waits for it.
func background(t *testing.T, run func(context.Context) error) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- run(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("a part ended with %v", err)
		}
	})
	t.Cleanup(stop)
	return stop
}

// ask is a request of a client of g for what the owner runs.
func (g *gateway) ask(ctx context.Context, t *testing.T, owner, path string) *http.Response {
	t.Helper()
	r, err := http.NewRequestWithContext(ctx, "GET", g.front.URL+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("x-owner", owner)
	r.Header.Set(headers.Tenant, "acme")
	answer, err := http.DefaultTransport.RoundTrip(r)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { answer.Body.Close(); http.DefaultTransport.(*http.Transport).CloseIdleConnections() })
	return answer
}

func eventually(t testing.TB, what string, holds func() bool) {
	t.Helper()
	testutil.Eventually(t, what, holds)
}

// within waits for a channel.
func within[T any](t *testing.T, what string, c <-chan T) (v T) {
	t.Helper()
	select {
	case v = <-c:
	case <-time.After(soon):
		t.Fatalf("it did not happen: %s", what)
	}
	return v
}
