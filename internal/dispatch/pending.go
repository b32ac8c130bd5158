package dispatch

import (
	"context"
	"time"

	"github.com/sluice-gateway/sluice/admission"
	"github.com/sluice-gateway/sluice/internal/openai"
)

// Pending is a dispatch that waits in a queue. One goroutine at a time uses it, and may pass it to
// another: ext_proc passes it to the relay (Handoff). The last user calls either Await or Cancel.
type Pending struct {
	dispatcher *Dispatcher
	// admission is the wait for the lease; nil if the ticket has been granted (Granted).
	admission *admission.Pending
	choice    choice
	request   *Request
	// ticket is the ticket that Await will return. It is nil after Await and Cancel.
	ticket *Ticket
}

// Begin resolves the request and asks for its admission without waiting for it. Exactly one result
// is not nil: the ticket of an admitted request, the Pending of a request that must wait, or the
// error of a refused one. ctx is the client's; Begin reads only whether and why it has ended.
func (d *Dispatcher) Begin(ctx context.Context, r *Request) (*Ticket, *Pending, *openai.Error) {
	if d.retired.Load() {
		return nil, nil, retiredFault()
	}
	table, c, fault := d.resolve(r)
	if fault != nil {
		return nil, nil, fault
	}
	if fault := d.refuseCold(c); fault != nil {
		return nil, nil, fault
	}
	if table.continuesOther(r, time.Now()) {
		return nil, nil, &openai.Error{Code: openai.CodeResponseNotFound, Param: "previous_response_id", Message: "There is no stored response with this id."}
	}
	if r.Task != "" {
		if r.OnBlock != nil {
			r.OnBlock() // the task is renewed, in Redis or in a file
		}
		if c, fault = d.chooseByTask(ctx, table, c, r); fault == nil {
			fault = d.refuseCold(c) // of a pool, the model of the task alone counts
		}
		if fault != nil {
			return nil, nil, fault
		}
	}
	c = c.chooseByPrevious(r, time.Now())
	t := &Ticket{dispatcher: d}
	if fault := d.claimIDs(t, r); fault != nil {
		return nil, nil, fault
	}
	if err := ctx.Err(); err != nil {
		t.releaseIDs()
		return nil, nil, d.explain(ctx, c, r, err)
	}
	lease, wait, err := d.config.Admission.Begin(d.admissionRequest(c, r, t))
	switch {
	case err != nil:
		t.releaseIDs()
		return nil, nil, d.explain(ctx, c, r, err)
	case wait != nil:
		return nil, &Pending{dispatcher: d, admission: wait, choice: c, request: r, ticket: t}, nil
	}
	t.granted(lease, r)
	return t, nil, nil
}

// claimIDs claims the client's request id and the task of the request, each of which one request at
// a time may hold. Ticket.releaseIDs releases both.
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
	if t.releaseIDs, ok = d.claimTask(r, release); !ok {
		return taskBusy()
	}
	return nil
}

// Granted returns a Pending that has its ticket already, for a request that is given to the relay
// although it no longer waits.
func Granted(t *Ticket) *Pending { return &Pending{ticket: t} }

// Await blocks until the request is admitted or refused. It removes the request from the queue when
// ctx ends.
func (p *Pending) Await(ctx context.Context) (*Ticket, *openai.Error) {
	t := p.ticket
	p.ticket = nil // the caller owns it from now on
	if p.admission == nil {
		return t, nil
	}
	lease, err := p.admission.Await(ctx)
	if err != nil {
		t.releaseIDs()
		return nil, p.dispatcher.explain(ctx, p.choice, p.request, err)
	}
	t.granted(lease, p.request)
	return t, nil
}

// Cancel ends the wait, or releases the ticket if the request was admitted. The request is not
// charged. After Await or another Cancel it does nothing.
func (p *Pending) Cancel() {
	if p.ticket == nil {
		return
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if t, fault := p.Await(ctx); fault == nil {
		t.Correct(Response{Failed: true})
		t.Release()
	}
}

// Progress returns what reports the progress of the wait; nil if the Request has no Watch.
func (p *Pending) Progress() *Wait {
	if p.request == nil {
		return nil
	}
	return p.request.Watch
}

// awaitFor waits no longer than patience after the request has begun to wait. False means that the
// request still waits.
func (p *Pending) awaitFor(ctx context.Context, patience time.Duration) (decided bool) {
	return p.admission.AwaitFor(ctx, patience)
}
