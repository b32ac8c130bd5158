package extproc

import (
	"sync"

	"github.com/sluice-gateway/sluice/internal/dispatch"
)

// live finds the ticket of a running request by Envoy's request id, for news of it that come by another way.
type live struct {
	tickets sync.Map // request id → *dispatch.Ticket
}

func (l *live) add(id string, t *dispatch.Ticket)    { l.tickets.Store(id, t) }
func (l *live) remove(id string, t *dispatch.Ticket) { l.tickets.CompareAndDelete(id, t) }

// Moved tells that Envoy's retry took the request to the replica at this address, so that the slot follows. An id that is not
// running is ignored.
func (s *Server) Moved(requestID, address string) {
	if t, ok := s.live.tickets.Load(requestID); ok {
		t.(*dispatch.Ticket).Moved(address)
	}
}
