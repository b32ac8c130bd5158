package realtime

import (
	"context"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/sluice-gateway/sluice/authz"
	"github.com/sluice-gateway/sluice/internal/openai"
	"github.com/sluice-gateway/sluice/internal/relay"
)

// Generator runs a call to its end and calls the sink from the calling goroutine. The end of ctx is the client's leaving, unless its
// cause is an *openai.Error (errors.As): of code cancelled when the client asked for the end, so that nothing is kept for its coming back; of
// client_too_slow when it took nothing for too long; of gateway_unavailable when the gateway goes.
type Generator interface {
	Generate(ctx context.Context, c *relay.Call, sink relay.Sink)
}

// Handler serves /v1/realtime behind Envoy, whose headers it trusts. Generator and Tenants must be set; other fields have useful zero
// values. It must not be copied once it serves, and is to be closed.
type Handler struct {
	Generator Generator
	// Tenants finds a tenant by its name. It is asked before every turn, so that a tenant that is removed is refused.
	Tenants func(name string) (*authz.Tenant, bool)
	// Valid says whether a tenant's key is still good, by its digest. It is asked before every turn too. nil: keys are good for as long as their
	// tenant is there.
	Valid func(tenant, key string) bool
	// Heartbeat is how long a socket may be silent before it is pinged, and a turn held up before its client is told. 0: 15 s.
	Heartbeat time.Duration
	Limits    Limits
	// CheckOrigin refuses browsers on pages of other hosts. It is for gateways without keys: a page cannot know a key, but it can open a
	// socket to wherever its reader can.
	CheckOrigin bool
	// Log is told of sockets that Sluice closes itself; nil: nobody is.
	Log *zap.Logger

	mu       sync.Mutex
	sessions map[*session]struct{} // guarded by mu
	tenants  map[string]int        // sockets of each; guarded by mu
	closing  bool                  // guarded by mu
	gone     sync.WaitGroup
}

// Limits bound what one client can hold. Zero values mean the defaults.
type Limits struct {
	// Message is the largest message of a client in bytes; 0: 1 MiB.
	Message int
	// Conversation is how large a conversation may grow, with its tools and parameters, in bytes; 0: 4 MiB.
	Conversation int
	// Write is how long one message to the client may take; 0: 30 s.
	Write time.Duration
	// Hold is how long a client may hold a turn up by pausing it or by giving no credit; 0: 5 min.
	Hold time.Duration
	// Sockets may be open at once, SocketsPerTenant of one tenant; 0: 10,000 and 1,000.
	Sockets, SocketsPerTenant int
}

func (l Limits) withDefaults() Limits {
	l.Message = orElse(l.Message, 1<<20)
	l.Conversation = orElse(l.Conversation, 4<<20)
	l.Write = orElse(l.Write, 30*time.Second)
	l.Hold = orElse(l.Hold, 5*time.Minute)
	l.Sockets = orElse(l.Sockets, 10_000)
	l.SocketsPerTenant = orElse(l.SocketsPerTenant, 1000)
	return l
}

func orElse[T int | time.Duration](v, otherwise T) T {
	if v == 0 {
		return otherwise
	}
	return v
}

// closeGrace is how long sockets have to say their last words once Close must not wait any longer, and how long clients have to hear them.
const closeGrace = time.Second

// Close refuses new sockets and turns, and closes the sockets with 1001: each when its turn has ended, and all when ctx ends. It returns
// when they are gone, and 2 s after the end of ctx at the latest.
func (h *Handler) Close(ctx context.Context) {
	h.mu.Lock()
	h.closing = true
	for s := range h.sessions {
		s.drain()
	}
	h.mu.Unlock()
	gone := make(chan struct{})
	go func() {
		h.gone.Wait()
		close(gone)
	}()
	if goneBefore(gone, ctx.Done()) {
		return
	}
	h.each((*session).cut)
	if goneBefore(gone, time.After(closeGrace)) {
		return
	}
	h.each(func(s *session) { s.socket.stop(closeGoing) })
	goneBefore(gone, time.After(closeGrace))
}

// goneBefore says whether all were gone before it was late.
func goneBefore[T any](gone <-chan struct{}, late <-chan T) bool {
	select {
	case <-gone:
		return true
	case <-late:
		return false
	}
}

func (h *Handler) each(do func(*session)) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for s := range h.sessions {
		do(s)
	}
}

// enter counts a session in; false when the gateway goes. full says that there is one too many.
func (h *Handler) enter(s *session) (full, ok bool) {
	limits := h.Limits.withDefaults()
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closing {
		return false, false
	}
	if h.sessions == nil {
		h.sessions, h.tenants = map[*session]struct{}{}, map[string]int{}
	}
	full = len(h.sessions) >= limits.Sockets || h.tenants[s.tenant] >= limits.SocketsPerTenant
	h.sessions[s] = struct{}{}
	h.tenants[s.tenant]++
	h.gone.Add(1)
	return full, true
}

func (h *Handler) leave(s *session) {
	h.mu.Lock()
	delete(h.sessions, s)
	if h.tenants[s.tenant]--; h.tenants[s.tenant] == 0 {
		delete(h.tenants, s.tenant)
	}
	h.mu.Unlock()
	h.gone.Done()
}

// going is what clients are told when the gateway goes.
func going() *openai.Error {
	return openai.Errorf(openai.CodeGatewayUnavailable, "The gateway is stopping.")
}
