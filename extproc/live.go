package extproc

import (
	"sync"
	"time"

	"github.com/sluice-gateway/sluice/internal/dispatch"
)

// live finds the ticket of a request by Envoy's request id, for news of it that come by another way: while it runs, and after its end until
// the access log has told of it. The zero value is ready to use.
type live struct {
	tickets sync.Map // request id → *dispatch.Ticket

	mu sync.Mutex
	// ended lists the requests that have ended, oldest first; guarded by mu
	ended []ending
}

// ending is a request that has ended, and when.
type ending struct {
	id     string
	ticket *dispatch.Ticket
	at     time.Time
}

// newsLate is how long the access log may take to tell of a request's end; it comes within some 100 ms, unless Envoy has died.
const newsLate = 10 * time.Second

func (l *live) add(id string, t *dispatch.Ticket) { l.tickets.Store(id, t) }

func (l *live) find(id string) *dispatch.Ticket {
	if t, ok := l.tickets.Load(id); ok {
		return t.(*dispatch.Ticket)
	}
	return nil
}

// end notes that the request is over, and forgets those that nothing was heard of.
func (l *live) end(id string, t *dispatch.Ticket) {
	now := time.Now()
	l.mu.Lock()
	late := 0
	for late < len(l.ended) && now.Sub(l.ended[late].at) > newsLate {
		l.tickets.CompareAndDelete(l.ended[late].id, l.ended[late].ticket)
		late++
	}
	l.ended = append(l.ended[late:], ending{id, t, now})
	l.mu.Unlock()
}

// Moved tells that Envoy's retry took the request to the replica at this address, so that the slot follows. An id that is not
// running is ignored.
func (s *Server) Moved(requestID, address string) {
	if t := s.live.find(requestID); t != nil {
		t.Moved(address)
	}
}

// Settled tells what the response of a request was. An id that is not known is ignored.
func (s *Server) Settled(requestID string, r dispatch.Response) {
	if t := s.live.find(requestID); t != nil {
		s.live.tickets.CompareAndDelete(requestID, t)
		t.Settle(r)
	}
}
