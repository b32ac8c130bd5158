package realtime

import (
	"context"
	"encoding/json"
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/sluice-gateway/sluice/internal/headers"
	"github.com/sluice-gateway/sluice/internal/openai"
	"github.com/sluice-gateway/sluice/internal/relay"
)

// chatPath is where turns are asked.
const chatPath = "/v1/chat/completions"

// session is what goes on over one socket. One goroutine owns it; others send and receive, and carry the turn.
type session struct {
	handler   *Handler
	limits    Limits
	heartbeat time.Duration
	tenant    string
	key       string // its digest
	priority  string
	// id is Envoy's of the handshake.
	id string
	// trace is what of the handshake's headers every turn has: the trace that it belongs to.
	trace  http.Header
	socket *socket

	// life is what turns live in; it ends with the socket, or by cut.
	life     context.Context
	endLife  context.CancelCauseFunc
	draining chan struct{}
	drained  sync.Once

	talk conversation
	// turn runs; nil: none does. ended hands it over when it is over.
	turn  *turn
	ended chan *turn
	turns int
	// takeBack is how many messages of the conversation stay when the turn fails.
	takeBack int
	// last is the turn whose calls wait for answers; nil: none does.
	last *turn
	// gate is that of the last start.
	gate *gate
}

// newSession reads what the handshake tells. The session has no connection yet.
func newSession(h *Handler, r *http.Request) *session {
	s := &session{
		handler: h, limits: h.Limits.withDefaults(), heartbeat: orElse(h.Heartbeat, 15*time.Second),
		tenant: r.Header.Get(headers.Tenant), key: r.Header.Get(headers.Key), priority: r.Header.Get(headers.Priority), id: r.Header.Get(headers.RequestID),
		trace: http.Header{}, draining: make(chan struct{}), ended: make(chan *turn, 1),
	}
	for _, name := range []string{"Traceparent", "Tracestate"} {
		if values := r.Header[name]; values != nil {
			s.trace[name] = values
		}
	}
	s.talk = conversation{limit: s.limits.Conversation, model: r.URL.Query().Get("model")}
	s.socket = newSocket(s.limits)
	s.life, s.endLife = context.WithCancelCause(s.socket.ctx)
	return s
}

// drain has the socket closed when nothing runs on it any more.
func (s *session) drain() { s.drained.Do(func() { close(s.draining) }) }

// cut ends the turn that runs: the gateway goes.
func (s *session) cut() { s.endLife(going()) }

// run serves the socket until it is closed, and says why it was.
func (s *session) run() *closing {
	messages := make(chan []byte)
	var receiver sync.WaitGroup
	receiver.Go(func() { s.socket.receive(messages) })
	s.serve(messages)
	if s.turn != nil {
		<-s.ended
	}
	receiver.Wait()
	s.socket.pings.Wait()
	<-s.socket.closed
	s.endLife(nil)
	return s.socket.why()
}

// serve handles one thing after the other until the socket is stopped.
func (s *session) serve(messages <-chan []byte) {
	tick := time.NewTicker(s.heartbeat)
	defer tick.Stop()
	draining := s.draining
	for {
		select {
		case <-s.socket.ctx.Done():
			return
		case data := <-messages:
			s.handle(data)
		case t := <-s.ended:
			s.conclude(t)
		case <-tick.C:
			s.socket.ping(s.heartbeat)
		case <-draining:
			draining = nil
		}
		if draining == nil && s.turn == nil {
			s.socket.stop(closeGoing)
		}
	}
}

// handle does what the client asks. What is wrong with it is told and changes nothing.
func (s *session) handle(data []byte) {
	m, fault := readMessage(data)
	if fault == nil {
		fault = s.do(&m)
	}
	if fault == nil {
		return
	}
	id := ""
	if m.Type == typeStart && (s.turn == nil || s.turn.id != m.RequestID) && !badName(m.RequestID) {
		id = m.RequestID
	}
	s.socket.send(newError(id, fault)) //nolint:errcheck // the socket is stopped then, which serve sees
}

func (s *session) do(m *message) *openai.Error {
	switch m.Type {
	case typeStart:
		return s.start(m)
	case typeUpdate:
		return s.update(m)
	case typePause, typeResume, typeCancel:
		return s.control(m)
	case typeToolResult:
		return s.toolAnswer(m.ToolCallID, m.Content)
	case typeToolCancel:
		return s.toolAnswer(m.ToolCallID, json.RawMessage(cancelledCall))
	case typeCredit:
		if s.gate == nil || !s.gate.give(m.Tokens) {
			return invalid("", "No credit is counted: the start gave none.")
		}
	}
	return nil
}

// start begins a turn as the client asks for it.
func (s *session) start(m *message) *openai.Error {
	switch {
	case s.turn != nil && m.RequestID != "" && m.RequestID == s.turn.id:
		return &openai.Error{Code: openai.CodeRequestIDConflict, Param: "request_id", Message: "The turn of this request_id runs already."}
	case s.turn != nil:
		return invalid("", "Another turn runs: cancel it, or wait for its end.")
	case s.last != nil && m.Messages == nil:
		return invalid("messages", "Tool calls wait for their answers: answer or cancel them, or begin anew with messages.")
	}
	talk, fault := s.talk.with(m)
	if fault != nil {
		return fault
	}
	id := m.RequestID
	if id == "" {
		id = s.nextID()
	}
	call, fault := s.call(talk, m.RequestID)
	if fault != nil {
		return fault
	}
	s.takeBack = len(talk.messages)
	if m.Message != nil {
		s.takeBack--
	}
	s.talk, s.last, s.gate = talk, nil, newGate(m.Credit)
	s.begin(id, call)
	return nil
}

// call is the next turn of the conversation as a call.
func (s *session) call(talk conversation, requestID string) (*relay.Call, *openai.Error) {
	select {
	case <-s.draining:
		return nil, going()
	default:
	}
	tenant, ok := s.handler.Tenants(s.tenant)
	if valid := s.handler.Valid; !ok || valid != nil && !valid(s.tenant, s.key) {
		s.socket.stop(closeTenant)
		return nil, openai.Errorf(openai.CodeInvalidAPIKey, "The key, or its tenant, is not known any more.")
	}
	call, fault := relay.NewCall(relay.CallParams{Tenant: tenant, Priority: s.priority, Path: chatPath, Body: talk.body(requestID),
		Header: s.trace, RequestID: s.nextID(), Received: time.Now()})
	if fault != nil {
		return nil, fault
	}
	call.Patient, call.Turn = true, true
	return call, nil
}

// nextID is our own name of the next turn.
func (s *session) nextID() string { return s.id + "." + strconv.Itoa(s.turns+1) }

// begin lets the turn run.
func (s *session) begin(id string, call *relay.Call) {
	s.turns++
	t := &turn{id: id, socket: s.socket, gate: s.gate, heartbeat: s.heartbeat, hold: s.limits.Hold, received: call.Received,
		keep: s.talk.limit - s.talk.size}
	t.ctx, t.cancel = context.WithCancelCause(s.life)
	s.talk = s.talk.unforced()
	s.turn = t
	go func() {
		s.handler.Generator.Generate(t.ctx, call, t)
		s.ended <- t
	}()
}

// control does what is about the turn that runs.
func (s *session) control(m *message) *openai.Error {
	switch {
	case s.turn == nil:
		return invalid("", "No turn runs.")
	case m.RequestID != "" && m.RequestID != s.turn.id:
		return invalid("request_id", "No turn of this request_id runs.")
	}
	switch m.Type {
	case typePause:
		s.gate.pause(true)
	case typeResume:
		s.gate.pause(false)
	case typeCancel:
		s.turn.cancel(openai.Errorf(openai.CodeCancelled, "The client cancelled the turn."))
	}
	return nil
}

// update changes the parameters of later turns.
func (s *session) update(m *message) *openai.Error {
	talk, fault := s.talk.updated(m.Params)
	if fault != nil {
		return fault
	}
	probe := conversation{model: "any", params: talk.params}
	if _, fault := openai.Scan(openai.Chat, "application/json", probe.body("")); fault != nil {
		return fault
	}
	s.talk = talk
	return nil
}

// toolAnswer answers a tool call, of the turn that runs or of the last one.
func (s *session) toolAnswer(id string, content json.RawMessage) *openai.Error {
	t := s.turn
	if t == nil {
		t = s.last
	}
	if t == nil {
		return invalid("tool_call_id", "There is no such tool call in the last turn.")
	}
	if fault := t.calls.answer(id, content, s.talk.limit-s.talk.size); fault != nil {
		return fault
	}
	if s.turn != nil {
		return nil
	}
	return s.answered(t)
}

// conclude is the end of the turn.
func (s *session) conclude(t *turn) {
	s.turn = nil
	finish, fault := t.outcome()
	broken := !t.ended && t.fault == nil && t.ctx.Err() == nil
	t.cancel(nil)
	s.gate.pause(false)
	if fault != nil {
		s.retract()
		s.socket.send(newError(t.id, fault)) //nolint:errcheck // the socket is stopped then, which serve sees
		if broken {
			s.socket.stop(closeInternal)
		}
		return
	}
	calls := s.keep(t, finish)
	if s.tell(t, finish, calls) != nil || len(calls) == 0 {
		return
	}
	s.last = t
	if fault := s.answered(t); fault != nil {
		s.socket.send(newError(t.id, fault)) //nolint:errcheck // as above
	}
}

// retract takes the message back that the turn was to answer.
func (s *session) retract() {
	s.talk.messages = s.talk.messages[:s.takeBack]
	s.talk, _ = s.talk.measured() // it was no larger before
}

// keep has the answer join the conversation. It returns the calls that are to be answered.
func (s *session) keep(t *turn, finish string) []*toolCall {
	if !cutShort(finish) {
		t.answer.calls = t.calls.list
	}
	message := t.answer.message()
	if message == nil && finish == finishCancelled {
		s.retract()
		return nil
	}
	if message != nil {
		s.talk.messages = append(s.talk.messages, message)
	}
	s.talk.lost = s.talk.lost || t.lost
	s.talk, _ = s.talk.measured() // the next start says that it is too large
	s.takeBack = len(s.talk.messages)
	return t.answer.calls
}

// tell sends the end of the turn.
func (s *session) tell(t *turn, finish string, calls []*toolCall) error {
	for _, c := range calls {
		done := toolCallMessage{Type: "tool_call", RequestID: t.id, ID: c.id, Index: c.index, Name: c.name, Done: true}
		if err := s.socket.send(done); err != nil {
			return err
		}
	}
	final := finalMessage{Type: "final", RequestID: t.id, Usage: t.usage()}
	if finish != "" {
		final.Finish = &finish
	}
	return s.socket.send(final)
}

// answered begins the next turn when no call waits for an answer any more.
func (s *session) answered(t *turn) *openai.Error {
	if _, open := t.calls.state(); open > 0 {
		return nil
	}
	talk, fault := s.talk.added(t.calls.answers()...)
	if fault != nil {
		return fault
	}
	call, fault := s.call(talk, "")
	if fault != nil {
		return fault
	}
	s.talk, s.last, s.takeBack = talk, nil, len(talk.messages)
	s.begin(t.id, call)
	return nil
}
