package relay

import (
	"context"
	"errors"
	"net"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/sluice-gateway/sluice/engines"
	"github.com/sluice-gateway/sluice/internal/dispatch"
	"github.com/sluice-gateway/sluice/internal/lack"
	"github.com/sluice-gateway/sluice/internal/openai"
	"github.com/sluice-gateway/sluice/internal/relay/moderation"
	"github.com/sluice-gateway/sluice/internal/request"
)

// Causes of an attempt's context for which it is abandoned before its first token.
var (
	errNoFirstToken = errors.New("the engine has sent no first token in time")
	errPreempted    = errors.New("a more urgent request has preempted the attempt")
)

// failover tries the replicas that one ticket allows, one after the other, until one of them has
// sent a first token. Only the generation's goroutine uses it.
type failover struct {
	gen    *generation
	ticket *dispatch.Ticket
	// policy is that of the model that the ticket is for.
	policy Policy
	// rules moderate the answer. nil: there are none.
	rules *moderation.Set
	// preemption ends the attempt if a more urgent request needs the slot. nil: it cannot.
	preemption *preemption
	// rerank is the client's request if the replicas have an API of their own for reranking.
	rerank *rerankRequest

	// result is how the generation ends if no further ticket is needed.
	result Result
	// answer is the response of an engine that is no stream. nil: there is none.
	answer *Answer
	// refusal is the last answer of a replica that has refused, and refusedBy its id. It is passed
	// on if no other replica answers.
	refusal   *Answer
	refusedBy string
	// lastEvents are the events of the last replica that has reported an error before its first
	// token. They are passed on if no other replica answers and none has refused.
	lastEvents []byte
	// isRefused says that lastEvents are the answer, so no replica has generated anything.
	isRefused bool
	// hidesUsage says that the relay has asked for the usage in each event and the client has not.
	hidesUsage bool
	// bytesRead counts the bytes of all responses.
	bytesRead int64
	// isStream says that a replica has answered with a stream.
	isStream bool
	// prefill is the time from sending the request to the replica that answers to its first token.
	// 0: there was none.
	prefill time.Duration
}

// newFailover prepares the attempts of a ticket and reports which replica comes first.
func (g *generation) newFailover(t *dispatch.Ticket, p *preemption) *failover {
	rules := g.relay.rules.Load()
	f := &failover{gen: g, ticket: t, policy: rules.policyOf(t), rules: rules.moderated(t.Model, g.call.Tenant.Name), preemption: p}
	f.result.Model, f.result.Replica, f.result.Held = t.Model, t.Replica(), time.Since(g.call.Received)
	g.status.enter(Prefill, nil)
	g.status.admitted(f.result, t.Quota())
	if g.call.Entry != nil {
		g.call.Entry.SetDispatched(t.Model, t.Replica(), f.result.Held)
		g.call.Entry.SetPrediction(t.Prediction())
	}
	if g.trace != nil {
		replica := g.relay.config.Dispatcher.Replica(t.Model, t.Replica())
		g.trace.Admitted(t.Model, t.Replica(), replica.Load)
	}
	return f
}

// run tries the replicas. It returns true when the generation was preempted and has to wait for
// another ticket.
func (f *failover) run() (preempted bool) {
	if scan := &f.gen.call.Scan; f.rules != nil && scan.Background && !scan.Stream {
		f.result.Fault = &openai.Error{Code: openai.CodeInvalidRequest, Param: "background",
			Message: "Moderation rules apply to the model, so nobody may read its stored responses: set stream to true, or leave background out."}
		return false
	}
	if d := f.ticket.MaxDuration; d > 0 {
		defer time.AfterFunc(d, func() { f.gen.cancel(errTooLong) }).Stop()
	}
	replicas := f.ticket.Upstreams()
	for i, replica := range replicas {
		if i > 0 {
			f.ticket.MovedTo(replica.ID)
		}
		f.gen.attempts++
		f.result.Replica, f.result.Attempts = replica.ID, f.gen.attempts
		f.gen.status.update(func(r *Result) { r.Replica, r.Attempts = f.result.Replica, f.result.Attempts })
		reason := f.try(replica)
		switch {
		case reason == "":
			return false
		case reason == request.ReasonPreempted:
			return true
		case i < len(replicas)-1:
			f.gen.reportRetry(f.ticket.Model, replica.ID, reason)
		}
	}
	f.giveUp()
	return false
}

// giveUp passes on the last answer of a replica that has refused, or says that no replica has
// answered.
func (f *failover) giveUp() {
	switch {
	case f.refusal != nil:
		f.answer, f.result.Answered, f.result.Fault, f.result.Replica = f.refusal, true, nil, f.refusedBy
		f.gen.status.update(func(r *Result) { r.Replica = f.refusedBy })
	case f.lastEvents != nil:
		f.publishLastEvents()
	case f.result.Fault == nil:
		f.result.Fault = openai.Errorf(openai.CodeUpstreamError, "No replica of the model could answer.")
	}
}

// try asks one replica. The reason is why another replica has to be tried. It is empty when the
// generation is over; result says how.
func (f *failover) try(replica dispatch.Upstream) (reason string) {
	ctx, cancel := context.WithCancelCause(f.gen.ctx)
	defer cancel(nil)
	a := &attempt{gen: f.gen, failover: f, replica: replica, ctx: ctx, cancel: cancel, sent: time.Now()}
	a.stream = engineStream{gen: f.gen, failover: f, attempt: a}
	a.stream.tracker.Choices = f.gen.call.Scan.Answers()
	if f.preemption != nil {
		f.preemption.setAttempt(func() { a.abandon(errPreempted) })
	}
	if d := f.policy.TTFTTimeout; d > 0 && f.gen.call.Scan.Stream {
		a.firstTokenTimer = time.AfterFunc(d, func() { a.abandon(errNoFirstToken) })
		defer a.firstTokenTimer.Stop()
	}
	f.result.Fault = nil
	request, fault := f.newRequest(ctx, replica)
	if fault != nil {
		f.result.Fault = fault
		return ""
	}
	response, err := f.gen.relay.send(request, replica, f.policy)
	if err != nil {
		return a.fail(err)
	}
	defer response.Body.Close()
	if response.StatusCode < http.StatusOK {
		return a.fail(errors.New("the engine wants to change the protocol"))
	}
	if fault := refuseRedirect(response); fault != nil {
		f.result.Fault = fault
		return ""
	}
	if err := decompress(response); err != nil {
		return a.fail(err)
	}
	if a.stream.closeDelimited = engines.IsCloseDelimited(response); a.stream.closeDelimited {
		f.gen.relay.config.CloseDelimited(f.ticket.Model, replica.ID)
	}
	if fault := f.checkForm(response); fault != nil {
		f.result.Fault = fault
		return ""
	}
	if f.gen.call.isEventStream(response) {
		f.isStream = true
		return a.stream.read(response.Body)
	}
	return a.readAnswer(response)
}

// response describes the engine's response, for the correction of the ticket's charge.
func (f *failover) response() dispatch.Response {
	u := f.result.Usage
	failed := f.bytesRead == 0 || f.isRefused || f.answer != nil && f.answer.Status >= http.StatusBadRequest
	return dispatch.Response{Bytes: f.bytesRead, Stream: f.isStream, Failed: failed, Abandoned: failed && f.isAbandoned(),
		Prompt: u.Prompt, Completion: u.Completion,
		Cached: u.Cached, Known: u.Known, TTFT: f.prefill}
}

// isAbandoned reports whether no replica has begun to answer when the client left, cancelled the
// call, or the call's time was over.
func (f *failover) isAbandoned() bool {
	cause := context.Cause(f.gen.ctx)
	return f.bytesRead == 0 && (errors.Is(cause, errLeft) || errors.Is(cause, errCancelled) || errors.Is(cause, errTimeout) || errors.Is(cause, errTooLong))
}

// attempt is one try at one replica.
type attempt struct {
	gen      *generation
	failover *failover
	replica  dispatch.Upstream
	// stream reads the response if it is a stream.
	stream engineStream

	// ctx is the context of the request to the replica, a child of the generation's. See "Who ends
	// what" in the package comment.
	ctx    context.Context
	cancel context.CancelCauseFunc
	// sent is when the request was sent.
	sent time.Time
	// firstTokenTimer abandons the attempt when it runs out. nil: there is no limit.
	firstTokenTimer *time.Timer
	// kept says that the attempt was committed without a token. Only the generation's goroutine
	// uses it.
	kept bool
	// decision decides once between the first token, which commits the attempt, and abandoning it.
	decision atomic.Int32
}

// Values of attempt.decision.
const (
	undecided int32 = iota
	committed
	abandoned
)

// abandon ends the attempt, unless it is committed. The client does not notice an attempt that was
// abandoned. Any goroutine may call it.
func (a *attempt) abandon(cause error) {
	if a.decision.CompareAndSwap(undecided, abandoned) {
		a.cancel(cause)
	}
}

func (a *attempt) isAbandoned() bool { return a.decision.Load() == abandoned }

// commit decides that no other replica takes over, because the response has begun. It returns false
// if the attempt was abandoned before, or if another request has already been given its slot.
func (a *attempt) commit() bool {
	if !a.keep(a.failover.ticket.FirstToken) {
		return false
	}
	if a.kept { // this is the first token of an attempt that was committed without one
		a.kept = false
		return a.failover.ticket.FirstToken()
	}
	return true
}

// commitBeforeToken is commit before the first token. The request stays in prefill.
func (a *attempt) commitBeforeToken() bool {
	a.kept = a.decision.Load() != committed && a.keep(a.failover.ticket.Keep)
	return a.kept
}

// keep decides that no other replica takes over. tell passes the decision to the ticket. It returns
// false if another request has already been given the slot.
func (a *attempt) keep(tell func() bool) bool {
	if a.decision.Load() == committed {
		return true
	}
	if !a.decision.CompareAndSwap(undecided, committed) {
		return false
	}
	if !tell() {
		a.decision.Store(abandoned)
		a.cancel(errPreempted)
		return false
	}
	if a.firstTokenTimer != nil {
		a.firstTokenTimer.Stop()
	}
	a.gen.dropPrompt()
	return true
}

// fail finishes an attempt that has ended before its first token, or before its answer was whole.
// err is why; it is not used when the attempt's context has ended. The reason is as for
// failover.try.
func (a *attempt) fail(err error) (reason string) {
	f := a.failover
	if a.isAbandoned() {
		<-a.ctx.Done() // abandon, in another goroutine, is about to end it
	}
	cause := context.Cause(a.ctx)
	switch {
	case a.ctx.Err() == nil:
	case errors.Is(cause, errPreempted):
		return request.ReasonPreempted
	case errors.Is(cause, errNoFirstToken):
		f.result.Fault = openai.Errorf(openai.CodeUpstreamTimeout, "The engine did not begin its answer in time.")
		return request.ReasonTTFTTimeout
	case errors.Is(cause, errTimeout), errors.Is(cause, errTooLong):
		a.stream.finishTimeout(cause)
		return ""
	default:
		f.result.Fault, f.result.Cause = faultOf(cause), causeOf(cause)
		return ""
	}
	f.result.Fault = openai.Errorf(openai.CodeUpstreamError, "The engine could not be reached or closed the connection, and no other replica could answer.")
	if unusable := new(unusableError); errors.As(err, &unusable) {
		f.result.Fault = unusable.fault
	}
	failed := a.gen.relay.config.Failed
	var op *net.OpError
	if errors.As(err, &op) && op.Op == "dial" {
		if lack.IsOwn(err) {
			return request.ReasonConnect
		}
		failed(f.ticket.Model, a.replica.ID, dispatch.Connect, "refused a connection")
		return request.ReasonConnect
	}
	failed(f.ticket.Model, a.replica.ID, dispatch.Reset, "broke a response off")
	return request.ReasonReset
}
