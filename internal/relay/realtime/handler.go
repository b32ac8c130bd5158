package realtime

import (
	"cmp"
	"context"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/sluice-gateway/sluice/authz"
	"github.com/sluice-gateway/sluice/internal/memory"
	"github.com/sluice-gateway/sluice/internal/relay"
	"github.com/sluice-gateway/sluice/internal/request"
)

// Generator runs a call to its end and calls the sink. The relay is one. The end of ctx means that
// the client has left, unless its cause is an *openai.Error (errors.As). Its code is cancelled when
// the client has cancelled the call, so that nothing is kept for a client that comes back. It is
// client_too_slow when the client accepted nothing for too long, and gateway_unavailable when the
// gateway stops.
type Generator interface {
	Generate(ctx context.Context, c *relay.Call, sink relay.Sink)
}

// Handler serves /v1/realtime behind Envoy, whose headers it trusts. Generator and Tenants must be
// set; the zero values of the other fields are useful. It must not be copied after its first use,
// and must be closed.
type Handler struct {
	Generator Generator
	// Tenants finds a tenant by its name and the digest of the client's key. It is called before
	// every turn, so that a tenant that was removed is refused.
	Tenants func(name, key string) (*authz.Tenant, bool)
	// Watch returns a function that reports whether a tenant's key is still valid, by the header
	// headers.Key.
	// The function is called at every handshake and before every turn. nil: a key is valid as long
	// as its tenant exists.
	Watch func(tenant, key string) (valid func() bool)
	// Heartbeat returns how long a socket may be silent before the client is pinged. That is also
	// how long a client may hold up a turn before it gets a heartbeat. It is called for each
	// socket. nil: it is 15 s.
	Heartbeat func() time.Duration
	Limits    Limits
	// Memory is the budget that conversations are kept from. nil: there is none.
	Memory *memory.Budget
	// TenantSockets returns the greatest number of open sockets of a tenant. nil:
	// Limits.SocketsPerTenant.
	TenantSockets func(tenant string) int
	// Allows reports whether a page of another host may open sockets. It is for gateways without
	// keys: a page cannot know a key, but it can open a socket to every address that its reader can
	// reach. nil: every page may.
	Allows func(origin string) bool
	// Requests has the list of requests show the handshakes that are refused. nil: there is none.
	Requests *request.Store
	// Log logs the sockets that were closed. nil: nothing is logged.
	Log *zap.Logger

	// mu guards sessions, tenants and closing.
	mu       sync.Mutex
	sessions map[*session]struct{}
	tenants  map[string]int // the number of sockets of each tenant
	closing  bool
	running  sync.WaitGroup
	// refused counts the sockets that were one too many.
	refused atomic.Uint64
}

// Limits bound what one client can hold. Zero values mean the defaults.
type Limits struct {
	// Message is the greatest size of a client's message in bytes. 0: 1 MiB.
	Message int
	// Conversation is the greatest size of a conversation with its tools and parameters, in bytes.
	// 0: 4 MiB.
	Conversation int
	// Write is how long one message to the client may take. 0: 30 s.
	Write time.Duration
	// Hold is how long a client may hold up a turn by a pause or by giving no credit. 0: 5 min.
	Hold time.Duration
	// Sockets is the greatest number of open sockets, SocketsPerTenant that of one tenant. 0:
	// 10,000 and 1,000.
	Sockets, SocketsPerTenant int
	// Idle is how long a socket may be open without a turn and without a message of its client.
	// 0: for ever.
	Idle time.Duration
}

func (l Limits) withDefaults() Limits {
	l.Message = cmp.Or(l.Message, 1<<20)
	l.Conversation = cmp.Or(l.Conversation, 4<<20)
	l.Write = cmp.Or(l.Write, 30*time.Second)
	l.Hold = cmp.Or(l.Hold, 5*time.Minute)
	l.Sockets = cmp.Or(l.Sockets, 10_000)
	l.SocketsPerTenant = cmp.Or(l.SocketsPerTenant, 1000)
	return l
}

// heartbeat returns the heartbeat of a new socket.
func (h *Handler) heartbeat() time.Duration {
	if h.Heartbeat == nil {
		return defaultHeartbeat
	}
	return h.Heartbeat()
}

// defaultHeartbeat is the default of Handler.Heartbeat.
const defaultHeartbeat = 15 * time.Second

// closeTimeout is how long sockets have to send their last messages after the end of the context of
// Close, and then how long clients have to receive them.
const closeTimeout = time.Second

// Close refuses new sockets and turns, and closes the sockets with 1001: each one when its turn has
// ended, and all when ctx ends. It returns when all are closed, at the latest 2 s after the end of
// ctx.
func (h *Handler) Close(ctx context.Context) {
	h.mu.Lock()
	h.closing = true
	for s := range h.sessions {
		s.drain()
	}
	h.mu.Unlock()
	gone := make(chan struct{})
	go func() {
		h.running.Wait()
		close(gone)
	}()
	if closedBefore(gone, ctx.Done()) {
		return
	}
	h.each((*session).cancelTurn)
	if closedBefore(gone, time.After(closeTimeout)) {
		return
	}
	h.each(func(s *session) { s.socket.stop(closeStopping) })
	closedBefore(gone, time.After(closeTimeout))
}

// Busy reports whether a socket is open.
func (h *Handler) Busy() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.sessions) > 0
}

// closedBefore reports whether all sockets were closed before the time was over.
func closedBefore[T any](gone <-chan struct{}, late <-chan T) bool {
	select {
	case <-gone:
		return true
	case <-late:
		return false
	}
}

// each calls do with every session, with mu held.
func (h *Handler) each(do func(*session)) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for s := range h.sessions {
		do(s)
	}
}

// Sockets is how many sockets are open.
type Sockets struct {
	Open, Limit int
	// Tenant has the most of them, and Most is how many.
	Tenant string
	Most   int
	// Refused counts the sockets that were one too many.
	Refused uint64
}

// Sockets returns how many sockets are open.
func (h *Handler) Sockets() Sockets {
	h.mu.Lock()
	defer h.mu.Unlock()
	s := Sockets{Open: len(h.sessions), Limit: h.Limits.withDefaults().Sockets, Refused: h.refused.Load()}
	for name, n := range h.tenants {
		if n > s.Most || n == s.Most && name < s.Tenant {
			s.Tenant, s.Most = name, n
		}
	}
	return s
}

// addSession adds a session. ok is false when the gateway stops. full says why there is one session
// too many; nil: there is not.
func (h *Handler) addSession(s *session) (full *closeReason, ok bool) {
	limits := h.Limits.withDefaults()
	perTenant := limits.SocketsPerTenant
	if h.TenantSockets != nil {
		perTenant = h.TenantSockets(s.tenant)
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closing {
		return nil, false
	}
	if h.sessions == nil {
		h.sessions, h.tenants = map[*session]struct{}{}, map[string]int{}
	}
	switch {
	case len(h.sessions) >= limits.Sockets:
		full = closeFull
	case h.tenants[s.tenant] >= perTenant:
		full = closeTenantFull
	}
	if full != nil {
		h.refused.Add(1)
	}
	h.sessions[s] = struct{}{}
	h.tenants[s.tenant]++
	h.running.Add(1)
	return full, true
}

// removeSession removes a session that is closed.
func (h *Handler) removeSession(s *session) {
	h.mu.Lock()
	delete(h.sessions, s)
	if h.tenants[s.tenant]--; h.tenants[s.tenant] == 0 {
		delete(h.tenants, s.tenant)
	}
	h.mu.Unlock()
	h.running.Done()
}
