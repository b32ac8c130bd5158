package decide

import (
	"context"
	"sync"
	"time"

	"github.com/sluice-gateway/sluice/admission"
	"github.com/sluice-gateway/sluice/authz"
	"github.com/sluice-gateway/sluice/internal/dispatch"
	"github.com/sluice-gateway/sluice/internal/openai"
	"github.com/sluice-gateway/sluice/internal/request"
)

// Envoy is the end of an exchange at which Envoy is. A transport implements it. Its methods are
// safe for concurrent use.
type Envoy interface {
	// Context ends when the exchange does, which means that the client has left or has its answer.
	Context() context.Context
	// Block tells the transport that its goroutine is about to block. The body that it has given to
	// Exchange.Body must not change before that has returned.
	Block()
	// Wait tells Envoy that the request waits for its decision, for d at most. Without this word
	// Envoy would take the gateway for dead after a short time.
	Wait(d time.Duration)
	// Reply has Envoy answer the client, at any time. If the response has begun, Envoy resets the
	// request. The error says that the exchange has ended.
	Reply(*Answer) error
	// Claimed tells the transport that the relay has claimed the request. The exchange may end.
	Claimed()
	// Gateway is the address at which the relay of this gateway is reached, if the Envoy of another
	// host asks. Else it is empty.
	Gateway() string
	// PID is the process of this Envoy; 0: not known.
	PID() int
}

// Exchange is the state of one request. A transport calls Head, Headers, Body and End in this
// order, from one goroutine. Cancel may be called at any time.
type Exchange struct {
	decider *Decider
	envoy   Envoy
	// mu guards ended (Envoy is told nothing more) and cancelled.
	mu               sync.Mutex
	ended, cancelled bool

	head     Head
	tenant   *authz.Tenant
	priority admission.Priority
	// budget says which budgets of the caller are reached.
	budget string
	// received is when the headers arrived, scanned when the body had been scanned.
	received, scanned time.Time
	// upload is the body while Envoy receives it. It is in uploads while uploading is true.
	upload    upload
	uploading bool
	// token is the token of the request's offer to the relay. It is empty if the request was not
	// offered.
	token string
	// record is created when the headers have been accepted. It is nil before, and after close.
	record *request.Record
	fault  *openai.Error
	// decided says that the request has its answer; moved that another process has to give it.
	decided, moved bool
	// waits says that Envoy knows that the request waits.
	waits bool
	// counted says that the exchange is one of Decider.open.
	counted bool
	answer  Answer
}

// Open opens an exchange in memory of the transport, which is zero. The transport must End it.
func (d *Decider) Open(x *Exchange, e Envoy) {
	d.open.Add(1)
	x.counted = true
	x.decider, x.envoy = d, e
	x.head.trusted = d.Authenticator.Header()
}

// Head is where the transport adds the headers of the request.
func (x *Exchange) Head() *Head { return &x.head }

// Decided reports whether the request has its answer.
func (x *Exchange) Decided() bool { return x.decided }

// Moved reports, after Body has returned nil, that another process has to decide the request. The
// transport then brings it there from its headers on, or has Envoy do so.
func (x *Exchange) Moved() bool { return x.moved }

// Offered reports whether the request was offered to the relay.
func (x *Exchange) Offered() bool { return x.token != "" }

// Headers authenticates the caller and checks what the headers of the request say. bodyless says
// that the request has no body.
func (x *Exchange) Headers(bodyless bool) *Answer {
	x.received = time.Now()
	d := x.decider
	if why := d.MaxHeaders.Exceeded(x.head.count, x.head.bytes); why != "" {
		return x.refuse(&openai.Error{Code: openai.CodeHeadersTooLarge, Message: why})
	}
	if fault := d.checkOpen(); fault != nil {
		return x.refuse(fault)
	}
	x.head.credentials.OnBlock = x.envoy.Block
	tenant, fault := d.Authenticator.Authenticate(x.head.credentials)
	if fault != nil {
		return x.refuse(fault)
	}
	if fault := x.head.check(d.MaxBody); fault != nil {
		return x.refuse(fault)
	}
	if x.priority, fault = priorityOf(tenant, x.head.priority); fault != nil {
		return x.refuse(fault)
	}
	x.tenant = tenant
	x.record = d.Requests.Begin(request.Arrival{ID: x.head.id, Method: x.head.method, Path: x.head.path, Tenant: tenant.Name, Key: tenant.Key, Canceller: x})
	if x.budget, fault = d.Budget(tenant); fault != nil {
		return x.refuse(fault)
	}
	if bodyless {
		return x.refuse(openai.Errorf(openai.CodeInvalidRequest, "The request has no body."))
	}
	if fault := x.beginUpload(); fault != nil {
		return x.refuse(fault)
	}
	return continueWithout(x.head.unsent())
}

// Body scans the body of the request and has the request dispatched. The caller must not change the
// body before Body has returned. Nothing uses it afterwards. nil means that there is nothing to
// tell Envoy: the client has left or has its answer, or the request has moved.
func (x *Exchange) Body(body []byte) *Answer {
	if x.record == nil || !x.scanned.IsZero() {
		return nil // Envoy sends the headers first and one body: this is not Sluice's Envoy
	}
	if !x.endUpload() {
		return nil
	}
	// Envoy buffers some hundred KiB of a body without a length whatever the limit of the route is.
	if fault := checkLength(int64(len(body)), x.decider.MaxBody); fault != nil {
		return x.refuse(fault)
	}
	r := &x.head
	scan, fault := openai.Scan(r.endpoint, r.contentType, body)
	scan.ReadQuery(r.path)
	if fault == nil {
		fault = r.mergeOptions(&scan)
	}
	if fault == nil {
		fault = x.decider.Dispatcher.SetModel(&scan, x.tenant)
	}
	if fault != nil {
		return x.refuse(fault)
	}
	x.record.SetBody(x.decider.Dispatcher.OwnName(scan.Model), scan.RequestID, scan.Stream, len(body))
	x.scanned = time.Now()
	return x.decide(&scan, body)
}

// End ends the exchange: Envoy is told nothing more.
func (x *Exchange) End() {
	x.mu.Lock()
	x.ended = true
	cancelled := x.cancelled
	x.mu.Unlock()
	if cancelled {
		x.fault = openai.Cancelled()
	}
	x.Close()
	x.uncount()
}

// Lose is End for an exchange whose connection to Envoy has broken while the request may run on in
// Envoy; see request.Record.
func (x *Exchange) Lose() {
	d, record, alive := x.decider, x.record, x.alive()
	d.open.Add(1) // a retired process does not end meanwhile
	defer d.open.Add(-1)
	x.End()
	d.lose(record, alive)
}

// alive returns a function that reports whether the Envoy of the exchange runs, also after the
// exchange has ended. nil: nobody can tell.
func (x *Exchange) alive() func() bool {
	lives, pid := x.decider.Lives, x.envoy.PID()
	if pid == 0 || lives == nil {
		return nil
	}
	return func() bool { return lives(pid) }
}

// lose has a record end by what Envoy tells, or when Envoy is not alive. Envoy's access log goes to
// the successor of a retired process.
func (d *Decider) lose(record *request.Record, alive func() bool) {
	if !d.Retired() {
		record.Lose(alive)
		return
	}
	d.open.Add(1) // this process does not end meanwhile
	record.EndElsewhere(alive, func() { d.open.Add(-1) })
}

// uncount has the exchange count as open no more. Further calls do nothing.
func (x *Exchange) uncount() {
	if x.counted {
		x.counted = false
		x.decider.open.Add(-1)
	}
}

// Close closes the record of the request, which releases its ticket, unless the relay has claimed
// the request. The transport calls Close when the response has ended, if it may answer Envoy after
// that. Further calls do nothing.
func (x *Exchange) Close() {
	x.endUpload()
	if x.record == nil {
		return
	}
	if x.token == "" || x.decider.Handoff.Cancel(x.token) {
		x.record.Close(x.fault)
	} // else the relay closes the record (Offer.Done)
	x.record = nil
}

// Leave gives up an exchange that moves: its body is no more one of this process.
func (x *Exchange) Leave() { x.endUpload() }

// Cancel implements request.Canceller for the requests that Envoy carries. Envoy takes a reply at
// any time: before the response has begun, its client gets the error. After that, Envoy resets the
// stream, so that the client never takes what it has for a whole answer. In both cases Envoy drops
// the replica's connection, which ends the work of the engine.
//
// The exchange of a request that the relay has claimed has ended; the relay cancels that request.
func (x *Exchange) Cancel() bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.ended {
		return false
	}
	x.cancelled = true
	return x.envoy.Reply(reply(openai.Cancelled(), x.head.isOfMessages())) == nil
}

// refuse returns the answer with which Envoy sends the error e to the client.
func (x *Exchange) refuse(e *openai.Error) *Answer {
	x.fault = e
	x.uncount() // a client that does not read the error may keep the exchange from its End
	return reply(e, x.head.isOfMessages())
}

// priorityOf returns the priority that the client asked for by name, or the tenant's default. The
// error says that the tenant may not use it.
func priorityOf(tenant *authz.Tenant, asked string) (admission.Priority, *openai.Error) {
	name, fault := tenant.PriorityOf(asked)
	if fault != nil {
		return 0, fault
	}
	return dispatch.PriorityOf(name), nil
}
