package relay

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"io"
	"mime"
	"net"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/sluice-gateway/sluice/internal/dispatch"
	"github.com/sluice-gateway/sluice/internal/openai"
	"github.com/sluice-gateway/sluice/internal/openai/sse"
	"github.com/sluice-gateway/sluice/internal/relay/moderation"
)

// maxAnswer bounds an answer that is no stream, in bytes: it is held whole.
const maxAnswer = 64 << 20

var (
	errFirstToken = errors.New("no first token in time")
	errStalled    = errors.New("nothing came for too long")
)

// attempts are the tries of one ticket: the replica that was picked, then those that it may fall back to, until a first token has come.
type attempts struct {
	*generation
	ticket *dispatch.Ticket
	// policy of the model that the ticket is for
	policy Policy
	// rules for the answer; nil: there are none
	rules *moderation.Set

	// began is when the call left for its first replica.
	began  time.Time
	result Result
	// rerank is the request when its replicas have an API of their own for it
	rerank *rerankRequest
	// last is the answer of a replica that refused, to be passed on when no other answers.
	last *Answer
	// lastWords are the events of one that told of a fault before its first token.
	lastWords []byte
	// read is what has come of the responses so far, in bytes
	read   int64
	stream bool
	// prefill is from when the call left for the replica that answers to the first token; 0: there was none
	prefill time.Duration
}

func (g *generation) attempts(t *dispatch.Ticket) *attempts {
	a := &attempts{generation: g, ticket: t, began: time.Now(), policy: g.relay.rules.Load().policy(t.Model)}
	a.result.Model, a.result.Replica, a.result.Held = t.Model, t.Replica(), a.began.Sub(g.call.Received)
	g.enter(Prefill, nil)
	g.decided(t)
	return a
}

// decided tells everybody who wants to know where the call goes.
func (g *generation) decided(t *dispatch.Ticket) {
	held := time.Since(g.call.Received)
	header := t.Quota()
	g.mu.Lock()
	g.header = header
	g.soFar = Result{Model: t.Model, Replica: t.Replica(), Held: held}
	g.mu.Unlock()
	if g.call.Entry != nil {
		g.call.Entry.Decided(t.Model, t.Replica(), held)
	}
	if g.tracer != nil {
		on := g.relay.config.Dispatcher.Replica(t.Model, t.Replica())
		g.tracer.Admitted(t.Model, t.Replica(), on.Load)
	}
}

// run tries one replica after the other. It returns true when the call is to wait for its turn again.
func (a *attempts) run() (again bool) {
	if d := a.ticket.MaxDuration; d > 0 {
		defer time.AfterFunc(d, func() { a.cancel(errTooLong) }).Stop()
	}
	a.rules = a.relay.rules.Load().moderated(a.ticket.Model, a.call.Tenant.Name)
	list := a.ticket.Upstreams()
	for i, at := range list {
		if i > 0 {
			a.ticket.Moved(at.Address)
		}
		a.result.Replica = at.ID
		a.tried++
		a.result.Attempts = a.tried
		a.note(func(r *Result) { r.Replica, r.Attempts = at.ID, a.result.Attempts })
		reason := a.try(at)
		switch {
		case reason == "":
			return false
		case reason == reasonPreempted:
			return true
		case i == len(list)-1:
			a.giveUp()
			return false
		}
		a.relay.config.Retried(reason)
	}
	a.giveUp()
	return false
}

// giveUp passes the refusal of the last replica on, or says that none answered.
func (a *attempts) giveUp() {
	switch {
	case a.last != nil:
		a.generation.answer, a.result.Answered = a.last, true
	case a.lastWords != nil:
		a.own(a.lastWords)
		a.result.Answered, a.result.Told, a.result.Cause = true, true, causeEngine
	case a.result.Fault == nil:
		a.result.Fault = openai.Errorf(openai.CodeUpstreamError, "No replica of the model could answer.")
	}
}

// try asks one replica. The reason is why another one is to be tried; empty: the call is over, and its result says how.
func (a *attempts) try(at dispatch.Upstream) (reason string) {
	ctx, cancel := context.WithCancelCause(a.ctx)
	defer cancel(nil)
	t := &tokens{attempts: a, at: at, sent: time.Now(), ctx: ctx, cancel: cancel}
	if a.room != nil {
		a.room.to(func() { t.giveWay(errPreempted) })
	}
	if d := a.policy.TTFTTimeout; d > 0 && a.call.Scan.Stream {
		t.first = time.AfterFunc(d, func() { t.giveWay(errFirstToken) })
		defer t.first.Stop()
	}
	a.result.Fault, a.last, a.lastWords = nil, nil, nil
	request, fault := a.requestTo(ctx, at)
	if fault != nil {
		a.result.Fault = fault
		return ""
	}
	response, err := a.relay.send(request, at, a.policy)
	if err != nil {
		return t.failed(err)
	}
	defer response.Body.Close()
	if response.StatusCode < http.StatusOK { // it wants to speak another protocol
		return t.failed(errors.New("no answer"))
	}
	if err := unpack(response); err != nil {
		return t.failed(err)
	}
	if isStream(response) {
		a.stream = true
		return t.read(response.Body)
	}
	return t.whole(response)
}

// unpack undoes the compression of an engine that was asked for none.
func unpack(r *http.Response) error {
	if !strings.EqualFold(r.Header.Get("content-encoding"), "gzip") {
		return nil
	}
	plain, err := gzip.NewReader(r.Body)
	if err != nil {
		return err
	}
	r.Body = struct {
		io.Reader
		io.Closer
	}{plain, r.Body}
	r.Header.Del("content-encoding")
	return nil
}

func isStream(r *http.Response) bool {
	if r.StatusCode != http.StatusOK {
		return false
	}
	media, _, err := mime.ParseMediaType(r.Header.Get("content-type"))
	return err == nil && media == "text/event-stream"
}

// failed says what became of an attempt that broke off before the first token, or before an answer was whole.
func (t *tokens) failed(err error) (reason string) {
	a := t.attempts
	cause := context.Cause(t.ctx)
	switch {
	case t.ctx.Err() == nil:
	case errors.Is(cause, errPreempted):
		return reasonPreempted
	case errors.Is(cause, errFirstToken):
		a.result.Fault = openai.Errorf(openai.CodeUpstreamTimeout, "The engine did not begin its answer in time.")
		return reasonTTFT
	case errors.Is(cause, errTimeout), errors.Is(cause, errTooLong):
		t.timeOver(cause)
		return ""
	default:
		a.ended(cause)
		return ""
	}
	a.result.Fault = openai.Errorf(openai.CodeUpstreamError, "The engine could not be reached or closed the connection, and no other replica could answer.")
	var op *net.OpError
	if errors.As(err, &op) && op.Op == "dial" {
		a.relay.config.Failed(t.at.ID, dispatch.Connect, "refused a connection")
		return reasonConnect
	}
	a.relay.config.Failed(t.at.ID, dispatch.Reset, "broke a response off")
	return reasonReset
}

// whole takes an answer that is no stream.
func (t *tokens) whole(response *http.Response) (reason string) {
	a := t.attempts
	var body bytes.Buffer
	n, err := body.ReadFrom(io.LimitReader(response.Body, maxAnswer+1))
	a.read += n
	if err == nil && cutShort(response, body.Bytes()) {
		err = io.ErrUnexpectedEOF
	}
	if err != nil {
		return t.failed(err)
	}
	if n > maxAnswer {
		a.result.Fault = openai.Errorf(openai.CodeUpstreamError, "The engine's answer is larger than %d bytes.", maxAnswer)
		return ""
	}
	answer := &Answer{Status: response.StatusCode, Header: response.Header, Body: body.Bytes()}
	if kind := dispatch.Answered(answer.Status); kind != 0 {
		a.relay.config.Failed(t.at.ID, kind, "answered "+strconv.Itoa(answer.Status))
		a.last = answer
		return reason5xx
	}
	if answer.Status < 300 {
		if fault := t.understand(answer); fault != nil {
			a.result.Fault = fault
			return ""
		}
	}
	a.generation.answer, a.result.Answered = answer, true
	return ""
}

// cutShort says that a good answer is not whole, however its connection has ended: what says that it is JSON is none.
func cutShort(r *http.Response, body []byte) bool {
	if r.StatusCode != http.StatusOK {
		return false
	}
	media, _, err := mime.ParseMediaType(r.Header.Get("content-type"))
	return err == nil && media == "application/json" && !json.Valid(body)
}

// understand reads what a good answer tells, translates it, and holds it against the rules.
func (t *tokens) understand(answer *Answer) *openai.Error {
	a := t.attempts
	if a.rerank != nil {
		body, ok := a.rerank.fromTEI(a.call.Scan.Model, answer.Body)
		if !ok {
			return openai.Errorf(openai.CodeUpstreamError, "The engine's answer is none to a request to rerank.")
		}
		answer.Body = body
	}
	chunk := new(sse.Chunk)
	if chunk.Read(answer.Body) && chunk.HasUsage {
		u := chunk.Usage
		a.result.Usage = Usage{Prompt: u.Prompt, Completion: u.Completion, Cached: u.Cached, Known: true}
	}
	if a.rules != nil && !a.call.Scan.Endpoint.NoOutput() {
		body, verdict := a.rules.Body(a.ctx, answer.Body)
		t.unanswered(verdict)
		if verdict.Action == moderation.Block {
			answer.Body, a.result.Cause, a.result.Finish = body, causeModeration, finishFiltered
		}
	}
	return nil
}

// ended is the end of a call whose context has ended, and nothing of an answer had come.
func (a *attempts) ended(cause error) {
	a.result.Fault, a.result.Cause = faultOf(cause), causeOf(cause)
}

// response is what settles the ticket.
func (a *attempts) response() dispatch.Response {
	u := a.result.Usage
	return dispatch.Response{Bytes: a.read, Stream: a.stream, Failed: a.read == 0 || a.generation.answer != nil && a.generation.answer.Status >= 400,
		Prompt: u.Prompt, Completion: u.Completion, Cached: u.Cached, Known: u.Known, TTFT: a.prefill}
}
