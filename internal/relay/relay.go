package relay

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/sluice-gateway/sluice/internal/dispatch"
	"github.com/sluice-gateway/sluice/internal/relay/replay"
)

// Config is what a Relay works with.
type Config struct {
	Dispatcher *dispatch.Dispatcher
	// Handoff holds the requests that ext_proc offers. nil: a new one, to which nobody offers any.
	Handoff *dispatch.Handoff
	// Failed is told that a request failed on a replica's side, and how. nil: nobody is.
	Failed func(replica string, kind dispatch.Failure, reason string)
	// Retried is told why a call was tried at another replica, by one of the Reason constants. nil: nobody is.
	Retried func(reason string)
	// Gap is told of the time between two tokens, of the share of the calls that the policy samples. nil: nobody is.
	Gap func(model string, gap time.Duration)
	// Workers calls the replicas that speak llm.v1 instead of HTTP. nil: there are none.
	Workers RoundTripper
	// Peers are the other gateways that a client's request id may belong to. nil: there are none.
	Peers Peers
	// Tracer follows calls. nil: nobody does.
	Tracer Tracer
	// ReplicaHeader puts the id of the replica on responses.
	ReplicaHeader func() bool
	// WriteTimeout is how long a client may take for one write, of some 32 KiB at most, before it counts as gone; 0: a minute.
	WriteTimeout time.Duration
	Log          *zap.Logger
}

// Relay carries managed streams. Make one with New; it serves until Close.
type Relay struct {
	config  Config
	rules   atomic.Pointer[Rules]
	clients clients
	// sessions are the calls that their clients have named, by tenant and name
	named *replay.Registry[*generation]

	// life ends with the relay, and every call with it
	life context.Context
	end  context.CancelCauseFunc
	// running are the generations, and those who listen; closed says that no more are added to them
	running sync.WaitGroup
	mu      sync.Mutex
	closed  bool // guarded by mu
	sampled atomic.Uint64
}

// New returns a Relay that knows no rules yet.
func New(c Config) *Relay {
	if c.Log == nil {
		c.Log = zap.NewNop()
	}
	if c.Handoff == nil {
		c.Handoff = new(dispatch.Handoff)
	}
	if c.Gap == nil {
		c.Gap = func(string, time.Duration) {}
	}
	if c.Retried == nil {
		c.Retried = func(string) {}
	}
	if c.Failed == nil {
		c.Failed = func(string, dispatch.Failure, string) {}
	}
	if c.WriteTimeout == 0 {
		c.WriteTimeout = time.Minute
	}
	if c.ReplicaHeader == nil {
		c.ReplicaHeader = func() bool { return true }
	}
	r := &Relay{config: c, named: replay.NewRegistry[*generation](replay.RegistryConfig{})}
	r.rules.Store(&Rules{})
	r.life, r.end = context.WithCancelCause(context.Background())
	return r
}

// Close ends every call: its client is told that the gateway goes. It returns when all have been told, or when ctx ends.
func (r *Relay) Close(ctx context.Context) {
	r.end(errClosing)
	r.mu.Lock()
	r.closed = true
	r.mu.Unlock()
	ended := make(chan struct{})
	go func() {
		r.running.Wait()
		close(ended)
	}()
	select {
	case <-ended:
	case <-ctx.Done():
	}
	r.clients.close()
}

// listens has Close wait until over is called: somebody is yet to be told how a call ends.
func (r *Relay) listens() (over func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return func() {}
	}
	r.running.Add(1)
	return r.running.Done
}

// start runs a generation. After Close it is over before it has begun, and its clients are told so.
func (r *Relay) start(g *generation) {
	r.mu.Lock()
	if !r.closed {
		r.running.Go(g.run)
		r.mu.Unlock()
		return
	}
	r.mu.Unlock()
	g.run()
}
