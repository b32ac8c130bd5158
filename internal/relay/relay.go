package relay

import (
	"cmp"
	"context"
	"crypto/tls"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/sluice-gateway/sluice/authz"
	"github.com/sluice-gateway/sluice/internal/dispatch"
	"github.com/sluice-gateway/sluice/internal/http1"
	"github.com/sluice-gateway/sluice/internal/memory"
	"github.com/sluice-gateway/sluice/internal/openai"
	"github.com/sluice-gateway/sluice/internal/relay/replay"
	"github.com/sluice-gateway/sluice/internal/request"
)

// Config has what a Relay works with.
type Config struct {
	Dispatcher *dispatch.Dispatcher
	// Handoff holds the requests that ext_proc offers. nil: a new one, to which nobody offers any.
	Handoff *dispatch.Handoff
	// Failed is called when a request has failed on the side of a replica. nil: nobody is told.
	Failed func(model, replica string, kind dispatch.Failure, reason string)
	// Rest is called when a replica has too much to do, with the Retry-After of its answer; 0: it
	// gave none. nil: nobody is told.
	Rest func(replica string, retryAfter time.Duration)
	// CloseDelimited is called when a replica ends a response by closing its connection. nil:
	// nobody is told.
	CloseDelimited func(model, replica string)
	// Retried is called when a call of a tenant is tried again at a model, with one of the reasons
	// that the metrics name. nil: nobody is told.
	Retried func(model, tenant, reason string)
	// Gaps is called with times between two tokens, for a part of the calls. Each comes before the
	// end of its stream, at the latest. nil: nobody is told.
	Gaps func(model string, gaps ...time.Duration)
	// Workers makes the client that calls replicas which speak llm.v1 instead of HTTP, with the
	// settings of TLS of their transport. nil: there are no such replicas.
	Workers func(*tls.Config) http1.Client
	// Budget refuses a call that comes by Generate because a budget of its caller is used up. nil:
	// there are no budgets. ext_proc has asked for the calls that it offers.
	Budget func(*authz.Tenant) *openai.Error
	// MayUse reports whether a caller, a tenant and the digest of its key, may use the model that a
	// request has named. nil: everybody may.
	MayUse func(tenant, key, model string) bool
	// Peers are the remote gateways that a client's request id may belong to. nil: there are none.
	Peers Peers
	// StartTrace starts the trace of a call, by the traceparent header that the client has sent
	// (empty: none) and the time at which the request came. It returns nil for a call that is not
	// traced. nil: no call is.
	StartTrace func(a request.Arrival, traceparent string, received time.Time) Trace
	// Elsewhere answers a request that Envoy has sent to this process although another process of
	// this gateway has made its offer or has its stream. It returns false, and has written nothing,
	// if there is no such process. nil: there is none.
	Elsewhere func(w http.ResponseWriter, r *http.Request) bool
	// Requests makes the records of the calls that come by Generate, and of the errors of the
	// relay's own paths. An offer of ext_proc has its record already. nil: no records are made.
	Requests *request.Store
	// ReplicaHeader reports whether responses name their replica in a header. nil: they do.
	ReplicaHeader func() bool
	// Memory is the budget for everything that the relay keeps: the bodies of requests, whole
	// answers, events for clients that read slowly or come back. nil: there is no budget.
	Memory *memory.Budget
	// MemoryWait is how long a request waits for memory before it is refused. 0: 5 s.
	MemoryWait time.Duration
	// MaxAnswer is the greatest size of an answer that is no stream, in bytes. 0: 64 MiB.
	MaxAnswer int64
	// WriteTimeout is how long a client may take for one write, of at most about 32 KiB, before it
	// counts as gone. 0: one minute.
	WriteTimeout time.Duration
	// Patience is how long a client of a patient call may accept nothing. 0: ten minutes, which is
	// longer than a WebSocket may hold up its turn.
	Patience time.Duration
	// Log is the logger. nil: nothing is logged.
	Log *zap.Logger
}

// Relay carries managed streams. New makes one, and it serves until Close.
type Relay struct {
	config           Config
	rules            atomic.Pointer[Rules]
	clients, workers replicaClients
	// named are the generations of named calls.
	named replay.Registry[*generation]
	// gapSampler chooses the streams of replicas whose token gaps are observed.
	gapSampler gapSampler

	// ctx ends with the relay, and every generation with it.
	ctx    context.Context
	cancel context.CancelCauseFunc
	// running counts what Close waits for: generations, and subscribers that must still be told.
	running sync.WaitGroup
	// mu guards closed. It is locked around running.Add, so that nothing is added after Close.
	mu     sync.Mutex
	closed bool
	// carrying counts what running waits for, for Carries.
	carrying atomic.Int64
	// successor carries the calls that do not run yet. It is nil before Retire.
	successor atomic.Pointer[Forwarder]
}

// New returns a Relay without rules.
func New(c Config) *Relay {
	c.Log = cmp.Or(c.Log, zap.NewNop())
	if c.Handoff == nil {
		c.Handoff = new(dispatch.Handoff)
	}
	if c.Gaps == nil {
		c.Gaps = func(string, ...time.Duration) {}
	}
	if c.Retried == nil {
		c.Retried = func(string, string, string) {}
	}
	if c.Failed == nil {
		c.Failed = func(string, string, dispatch.Failure, string) {}
	}
	if c.Rest == nil {
		c.Rest = func(string, time.Duration) {}
	}
	if c.CloseDelimited == nil {
		c.CloseDelimited = func(string, string) {}
	}
	c.WriteTimeout = cmp.Or(c.WriteTimeout, time.Minute)
	c.Patience = cmp.Or(c.Patience, 10*time.Minute)
	if c.ReplicaHeader == nil {
		c.ReplicaHeader = func() bool { return true }
	}
	c.MemoryWait = cmp.Or(c.MemoryWait, 5*time.Second)
	c.MaxAnswer = cmp.Or(c.MaxAnswer, defaultMaxAnswer)
	r := &Relay{config: c}
	r.named.OnForget = (*generation).release
	r.rules.Store(&Rules{})
	r.ctx, r.cancel = context.WithCancelCause(context.Background())
	return r
}

// Close ends every generation; its clients are told that the gateway stops. Close returns when all
// clients have been told, or when ctx ends.
func (r *Relay) Close(ctx context.Context) {
	r.cancel(errClosing)
	r.mu.Lock()
	r.closed = true
	r.mu.Unlock()
	done := make(chan struct{})
	go func() {
		r.running.Wait()
		close(done)
	}()
	select {
	case <-done:
	case <-ctx.Done():
	}
	r.clients.close()
	r.workers.close()
}

// delayClose makes Close wait until release is called, because a client must still be told how its
// call ends. After Close it has no effect.
func (r *Relay) delayClose() (release func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return func() {}
	}
	r.running.Add(1)
	r.carrying.Add(1)
	return func() {
		r.carrying.Add(-1)
		r.running.Done()
	}
}

// start runs a generation in a goroutine of its own. After Close the generation is over at once,
// and its clients are told that the gateway stops.
func (r *Relay) start(g *generation) {
	r.mu.Lock()
	if !r.closed {
		r.carrying.Add(1)
		r.running.Go(func() {
			defer r.carrying.Add(-1)
			g.run()
		})
		r.mu.Unlock()
		return
	}
	r.mu.Unlock()
	g.run()
}
