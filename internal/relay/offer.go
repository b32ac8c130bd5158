package relay

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"sync"
	"time"

	"github.com/sluice-gateway/sluice/internal/dispatch"
	"github.com/sluice-gateway/sluice/internal/openai"
)

// Offer is a request that Envoy is about to bring: what ext_proc knows of it, and its place in the queue if it has one already.
type Offer struct {
	// Call lacks only its body and its headers.
	Call Call
	// Pending is its wait for a replica, which has begun. nil: it has not.
	Pending *Pending
	// Over is called when the relay is done with a request that Envoy has brought, after its Entry's Carried; never for one that was withdrawn.
	// nil: nobody is told.
	Over func()

	// accepted is closed when Envoy has brought the request
	accepted chan struct{}
}

// Accepted is closed when Envoy has brought the request, which is the relay's alone from then on. It is nil before Relay.Offer.
func (o *Offer) Accepted() <-chan struct{} { return o.accepted }

// offers are the requests that Envoy is about to bring, by their tickets. The zero value is ready to use.
type offers struct {
	open sync.Map // ticket → *Offer
}

// Offer takes a request, and gives the ticket that Envoy has to bring with it. The ticket is good once, and until Withdraw.
func (r *Relay) Offer(o *Offer) (ticket string) {
	var random [16]byte
	rand.Read(random[:]) //nolint:errcheck // never fails
	ticket = hex.EncodeToString(random[:])
	o.accepted = make(chan struct{})
	if o.Over == nil {
		o.Over = func() {}
	}
	r.offers.open.Store(ticket, o)
	return ticket
}

// Withdraw takes a ticket back that nobody may come with any more, and with it the place in the queue. It does nothing, and says false, when it
// was used.
func (r *Relay) Withdraw(ticket string) (withdrawn bool) {
	o, ok := r.offers.open.LoadAndDelete(ticket)
	if !ok {
		return false
	}
	if p := o.(*Offer).Pending; p != nil {
		p.Abandon()
	}
	return true
}

func (r *Relay) accept(ticket string) (*Offer, bool) {
	o, ok := r.offers.open.LoadAndDelete(ticket)
	if !ok {
		return nil, false
	}
	offer := o.(*Offer)
	close(offer.accepted)
	return offer, true
}

// Pending is a dispatch that has begun, which whoever began it may hand on.
type Pending struct {
	cancel context.CancelFunc
	done   chan struct{}
	began  time.Time
	// watch tells how the wait goes
	watch *dispatch.Wait

	ticket *dispatch.Ticket
	fault  *openai.Error
}

// Begin begins a dispatch, which lasts until it is decided or abandoned.
func (r *Relay) Begin(asked *dispatch.Request) *Pending {
	ctx, cancel := context.WithCancel(context.Background())
	p := &Pending{cancel: cancel, done: make(chan struct{}), began: time.Now(), watch: new(dispatch.Wait)}
	asked.Watch = p.watch
	go func() {
		defer close(p.done)
		p.ticket, p.fault = r.config.Dispatcher.Dispatch(ctx, asked)
	}()
	return p
}

// Granted is a dispatch that has ended well.
func Granted(t *dispatch.Ticket) *Pending {
	p := &Pending{cancel: func() {}, done: make(chan struct{}), watch: new(dispatch.Wait), ticket: t}
	close(p.done)
	return p
}

// Done is closed when the request may go, or never will.
func (p *Pending) Done() <-chan struct{} { return p.done }

// Result is what Dispatch said, once Done.
func (p *Pending) Result() (*dispatch.Ticket, *openai.Error) { return p.ticket, p.fault }

// Abandon gives the place in the queue up, or what was got by it. It may be called at any time, by who has it then.
func (p *Pending) Abandon() {
	p.cancel()
	<-p.done // Dispatch returns at once when its context has ended
	if p.ticket != nil {
		p.ticket.Settle(dispatch.Response{Failed: true}) // it has cost nothing
		p.ticket.Release()
	}
}
