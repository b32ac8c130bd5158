package dispatch

import (
	"context"
	"time"

	"github.com/sluice-gateway/sluice/admission"
	"github.com/sluice-gateway/sluice/internal/headers"
	"github.com/sluice-gateway/sluice/internal/openai"
)

// Pending is a dispatch that has begun and waits in a queue. One goroutine at a time uses it, and
// may hand it to another: ext_proc hands it to the relay (Handoff). Its last user calls either
// Await or Cancel.
type Pending struct {
	dispatcher *Dispatcher
	// admission is the wait for the lease; nil if the ticket has been granted (Granted).
	admission *admission.Pending
	choice    choice
	request   *Request
	// ticket is the one that Await will return. It is nil after Await and Cancel.
	ticket *Ticket
}

// Begin resolves the request and asks for its admission, and does not wait for it. Exactly one of
// its results is not nil: the ticket of a request that may go at once, the wait of one that must
// wait, or the reason of one that is refused. ctx is that of the client; Begin reads it only for
// its cause.
func (d *Dispatcher) Begin(ctx context.Context, r *Request) (*Ticket, *Pending, *openai.Error) {
	table := d.table.Load()
	c, fault := table.resolve(r)
	if fault != nil {
		return nil, nil, fault
	}
	if r.Task != "" {
		if c, fault = d.byTask(ctx, table, c, r); fault != nil {
			return nil, nil, fault
		}
	}
	t := &Ticket{dispatcher: d}
	if fault := d.claimIDs(t, r); fault != nil {
		return nil, nil, fault
	}
	if err := ctx.Err(); err != nil {
		t.releaseIDs()
		return nil, nil, d.explain(ctx, c, r, err)
	}
	lease, wait, err := d.admission.Begin(d.admissionRequest(c, r, t))
	switch {
	case err != nil:
		t.releaseIDs()
		return nil, nil, d.explain(ctx, c, r, err)
	case wait != nil:
		return nil, &Pending{dispatcher: d, admission: wait, choice: c, request: r, ticket: t}, nil
	}
	t.granted(lease, r.Model)
	return t, nil, nil
}

// claimIDs claims the client's request id and the task of the request, which one request at a time
// may have. Ticket.releaseIDs releases both.
func (d *Dispatcher) claimIDs(t *Ticket, r *Request) *openai.Error {
	release, ok := d.ids.claim(r.Tenant, r.ID)
	if !ok {
		return &openai.Error{Code: openai.CodeRequestIDConflict, Param: "request_id",
			Message: "A request with this request_id is still running."}
	}
	t.releaseIDs = release
	if r.Task == "" {
		return nil
	}
	if t.releaseIDs, ok = d.inTask(r, release); !ok {
		return &openai.Error{Code: openai.CodeRequestIDConflict, Param: headers.TaskID,
			Message: "Another request of this task is still running."}
	}
	return nil
}

// Granted is a dispatch that has ended with this ticket, for a request that is handed to the relay
// although it no longer waits.
func Granted(t *Ticket) *Pending { return &Pending{ticket: t} }

// Await blocks until the request may go, or never will. A request whose ctx ends leaves the queue.
func (p *Pending) Await(ctx context.Context) (*Ticket, *openai.Error) {
	t := p.ticket
	p.ticket = nil // the caller's from now on
	if p.admission == nil {
		return t, nil
	}
	lease, err := p.admission.Await(ctx)
	if err != nil {
		t.releaseIDs()
		return nil, p.dispatcher.explain(ctx, p.choice, p.request, err)
	}
	t.granted(lease, p.request.Model)
	return t, nil
}

// Cancel gives up the place in the queue, or the ticket if the request was granted one. The request
// is not charged. After Await or another Cancel it does nothing.
func (p *Pending) Cancel() {
	if p.ticket == nil {
		return
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if t, fault := p.Await(ctx); fault == nil {
		t.Settle(Response{Failed: true})
		t.Release()
	}
}

// Progress tells what the request waits for; nil if nobody asked for that (Request.Watch).
func (p *Pending) Progress() *Wait {
	if p.request == nil {
		return nil
	}
	return p.request.Watch
}

// awaitFor waits no longer than patience after the request has begun to wait. False: it still
// waits.
func (p *Pending) awaitFor(ctx context.Context, patience time.Duration) (decided bool) {
	return p.admission.AwaitFor(ctx, patience)
}
