package realtime

import (
	"cmp"
	"context"
	"encoding/json"
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/sluice-gateway/sluice/internal/headers"
	"github.com/sluice-gateway/sluice/internal/memory"
	"github.com/sluice-gateway/sluice/internal/openai"
	"github.com/sluice-gateway/sluice/internal/relay"
)

// chatPath is the endpoint of the turns.
const chatPath = "/v1/chat/completions"

// memoryRetryAfter is when a client may try again whose conversation did not fit into the budget.
const memoryRetryAfter = 5 * time.Second

// session is the conversation over one socket. One goroutine, in run, owns it. Other goroutines
// send and receive, and run the turn.
type session struct {
	handler   *Handler
	limits    Limits
	heartbeat time.Duration
	tenant    string
	key       string // the digest of the key
	// valid reports whether the key is still valid. nil: it is as long as its tenant exists.
	valid    func() bool
	priority string
	// id is Envoy's id of the handshake.
	id string
	// turnHeader has the headers of the handshake that every turn gets: the trace and the session
	// that it belongs to.
	turnHeader http.Header
	socket     *socket

	// turnCtx is the parent of the contexts of turns. It ends with the socket, or by cancelTurn.
	turnCtx     context.Context
	cancelTurns context.CancelCauseFunc
	draining    chan struct{}
	drained     sync.Once

	conversation conversation
	// memory is the reservation for the conversation.
	memory memory.Hold
	// turn is the running turn. nil: none runs. turnDone receives it when its call has ended.
	turn         *turn
	turnDone     chan *turn
	turnsStarted int
	// keptMessages is how many messages of the conversation stay if the turn fails.
	keptMessages int
	// keptModel is the model of the conversation before the running turn. It comes back if the turn
	// fails because of its model.
	keptModel string
	// awaitingTools is the turn whose tool calls wait for answers. nil: there is none.
	awaitingTools *turn
	// gate is that of the last start message.
	gate *gate

	// greeted says that session.created was sent. greetLater says that a silent client gets it.
	greeted, greetLater bool
	// instructions and tools are those of a session of OpenAI's protocol, as the client wrote them.
	instructions string
	tools        []json.RawMessage
	// waiting are the messages that join the conversation at the end of the turn. itemsCreated
	// counts the items of the client.
	waiting      []json.RawMessage
	itemsCreated int
}

// newSession reads the handshake. The session has no connection yet.
func newSession(h *Handler, r *http.Request) *session {
	s := &session{
		handler: h, limits: h.Limits.withDefaults(), heartbeat: h.heartbeat(),
		tenant: r.Header.Get(headers.Tenant), key: r.Header.Get(headers.Key), priority: r.Header.Get(headers.Priority), id: r.Header.Get(headers.RequestID),
		turnHeader: http.Header{}, draining: make(chan struct{}), turnDone: make(chan *turn, 1),
	}
	for _, name := range []string{"Traceparent", "Tracestate", http.CanonicalHeaderKey(headers.SessionID)} {
		if values := r.Header[name]; values != nil {
			s.turnHeader[name] = values
		}
	}
	if h.Watch != nil {
		s.valid = h.Watch(s.tenant, s.key)
	}
	s.memory = h.Memory.Hold(memory.Requests)
	s.conversation = conversation{limit: s.limits.Conversation, model: r.URL.Query().Get("model")}
	s.socket = newSocket(s.limits)
	s.socket.openAI.beta = isBetaClient(r)
	s.socket.openAI.active.Store(isOpenAIClient(r))
	s.greetLater = s.conversation.model != ""
	s.turnCtx, s.cancelTurns = context.WithCancelCause(s.socket.ctx)
	return s
}

// drain closes the socket as soon as no turn runs.
func (s *session) drain() { s.drained.Do(func() { close(s.draining) }) }

// cancelTurn ends the running turn because the gateway stops.
func (s *session) cancelTurn() { s.cancelTurns(openai.Stopping()) }

// run serves the socket until it is closed, and returns why it was.
func (s *session) run() *closeReason {
	messages := make(chan []byte)
	var receiver sync.WaitGroup
	receiver.Go(func() { s.socket.receive(messages) })
	s.serve(messages)
	if s.turn != nil {
		<-s.turnDone
	}
	receiver.Wait()
	s.socket.pings.Wait()
	<-s.socket.closed
	s.cancelTurns(nil)
	s.memory.Release()
	return s.socket.closeReason()
}

// serve handles messages and ends of turns until the socket is stopped.
func (s *session) serve(messages <-chan []byte) {
	tick := time.NewTicker(s.heartbeat)
	defer tick.Stop()
	draining := s.draining
	idle, restart := newIdleTimer(s.limits.Idle)
	silent := s.greetSoon()
	for {
		select {
		case <-s.socket.ctx.Done():
			return
		case data := <-messages:
			silent = nil
			s.handle(data)
			restart()
		case <-silent:
			s.greet()
		case t := <-s.turnDone:
			s.finishTurn(t)
			restart()
		case <-idle:
			if s.turn == nil {
				s.socket.stop(closeIdle)
			}
		case <-tick.C:
			s.socket.ping(s.heartbeat)
		case <-draining:
			draining = nil
		}
		if draining == nil && s.turn == nil {
			s.socket.stop(closeStopping)
		}
	}
}

// newIdleTimer returns a channel that receives after this time without a call of restart. 0: never.
func newIdleTimer(limit time.Duration) (idle <-chan time.Time, restart func()) {
	if limit <= 0 {
		return nil, func() {}
	}
	timer := time.NewTimer(limit) // the garbage collector stops it
	return timer.C, func() { timer.Reset(limit) }
}

// handle handles a message. A message with an error changes nothing, and the client is told.
func (s *session) handle(data []byte) {
	if s.speaksOpenAI(data) {
		s.greet()
		s.handleOpenAI(data)
		return
	}
	m, fault := readMessage(data)
	if fault == nil {
		fault = s.execute(&m)
	}
	if fault == nil {
		return
	}
	id := ""
	if m.Type == typeStart && (s.turn == nil || s.turn.id != m.RequestID) && !isInvalidName(m.RequestID) {
		id = m.RequestID
	}
	s.tell(newError(id, fault))
}

// tell sends a message. After an error the socket is stopped, and serve returns.
func (s *session) tell(message any) { _ = s.socket.send(message) }

// execute does what a message asks for.
func (s *session) execute(m *message) *openai.Error {
	switch m.Type {
	case typeStart:
		return s.start(m)
	case typeUpdate:
		return s.update(m)
	case typePause, typeResume, typeCancel:
		return s.control(m)
	case typeToolResult:
		return s.answerToolCall(m.ToolCallID, m.Content)
	case typeToolCancel:
		return s.answerToolCall(m.ToolCallID, json.RawMessage(cancelledCall))
	case typeCredit:
		if s.gate == nil || !s.gate.addCredit(int64(m.Tokens)) {
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
	case s.awaitingTools != nil && m.Messages == nil:
		return invalid("messages", "Tool calls wait for their answers: answer or cancel them, or begin anew with messages.")
	}
	next, fault := s.conversation.with(m)
	if fault != nil {
		return fault
	}
	if fault := s.reserve(next, s.instructions, s.tools); fault != nil {
		return fault
	}
	id := m.RequestID
	if id == "" {
		id = s.nextID()
	}
	call, fault := s.newCall(next, m.RequestID)
	if fault != nil {
		return fault
	}
	s.keptMessages, s.keptModel = len(next.messages), s.conversation.model
	if m.Message != nil {
		s.keptMessages--
	}
	s.conversation, s.awaitingTools, s.gate = next, nil, newGate((*int64)(m.Credit))
	s.startTurn(id, call)
	return nil
}

// reserve reserves the memory for a conversation, with the settings of OpenAI's protocol.
func (s *session) reserve(next conversation, instructions string, tools []json.RawMessage) *openai.Error {
	size := next.size + len(instructions)
	for _, tool := range tools {
		size += len(tool)
	}
	if s.memory.Resize(int64(size)) {
		return nil
	}
	return &openai.Error{Code: openai.CodeGatewayUnavailable, RetryAfter: memoryRetryAfter,
		Message: "The gateway has no memory left for this conversation."}
}

// newCall returns the call for the next turn of a conversation.
func (s *session) newCall(next conversation, requestID string) (*relay.Call, *openai.Error) {
	select {
	case <-s.draining:
		return nil, openai.Stopping()
	default:
	}
	tenant, ok := s.handler.Tenants(s.tenant, s.key)
	if !ok || s.valid != nil && !s.valid() {
		s.socket.stop(closeTenant)
		return nil, openai.Errorf(openai.CodeInvalidAPIKey, "The key, or its tenant, is not known any more.")
	}
	call, fault := relay.NewCall(relay.CallParams{Tenant: tenant, Priority: s.priority, Path: chatPath, Body: next.body(requestID),
		Header: s.turnHeader, RequestID: s.nextID(), Received: time.Now()})
	if fault != nil {
		return nil, fault
	}
	call.Patient, call.OnConnection = true, true
	return call, nil
}

// nextID returns Sluice's own id of the next turn.
func (s *session) nextID() string { return s.id + "." + strconv.Itoa(s.turnsStarted+1) }

// startTurn runs a turn in a goroutine of its own.
func (s *session) startTurn(id string, call *relay.Call) {
	s.turnsStarted++
	t := &turn{id: id, socket: s.socket, gate: s.gate, heartbeat: s.heartbeat, hold: s.limits.Hold, received: call.Received,
		bytesLeft: s.conversation.limit - s.conversation.size}
	t.ctx, t.cancel = context.WithCancelCause(s.turnCtx)
	if !s.socket.openAI.active.Load() { // a session of OpenAI's protocol keeps its settings
		s.conversation = s.conversation.unforced()
	}
	s.turn = t
	go func() {
		s.handler.Generator.Generate(t.ctx, call, t)
		s.turnDone <- t
	}()
}

// control handles pause, resume and cancel.
func (s *session) control(m *message) *openai.Error {
	switch {
	case s.turn == nil:
		return invalid("", "No turn runs.")
	case m.RequestID != "" && m.RequestID != s.turn.id:
		return invalid("request_id", "No turn of this request_id runs.")
	}
	switch m.Type {
	case typePause:
		s.gate.setPaused(true)
	case typeResume:
		s.gate.setPaused(false)
	case typeCancel:
		s.turn.cancel(openai.Errorf(openai.CodeCancelled, "The client cancelled the turn."))
	}
	return nil
}

// update changes the parameters of later turns.
func (s *session) update(m *message) *openai.Error {
	next, fault := s.conversation.updated(m.Params)
	if fault != nil {
		return fault
	}
	probe := conversation{model: "any", params: next.params}
	if _, fault := openai.Scan(openai.Chat, "application/json", probe.body("")); fault != nil {
		return fault
	}
	if fault := s.reserve(next, s.instructions, s.tools); fault != nil {
		return fault
	}
	s.conversation = next
	return nil
}

// answerToolCall answers a tool call of the running turn or of the last one.
func (s *session) answerToolCall(id string, content json.RawMessage) *openai.Error {
	t := cmp.Or(s.turn, s.awaitingTools)
	if t == nil {
		return invalid("tool_call_id", "There is no such tool call in the last turn.")
	}
	if fault := t.calls.answer(id, content, s.conversation.limit-s.conversation.size); fault != nil {
		return fault
	}
	if s.turn != nil {
		return nil
	}
	return s.continueAfterTools(t)
}

// finishTurn handles the end of a turn.
func (s *session) finishTurn(t *turn) {
	s.turn = nil
	defer s.addWaitingItems()
	finish, fault := t.outcome()
	broken := !t.finished && t.fault == nil && t.ctx.Err() == nil
	t.cancel(nil)
	s.gate.setPaused(false)
	if fault != nil {
		if s.removePrompt(); fault.Param == "model" {
			s.conversation.model = s.keptModel
		}
		s.tell(newError(t.id, fault))
		if broken {
			s.socket.stop(closeInternal)
		}
		return
	}
	calls := s.addAnswer(t, finish)
	if s.sendFinal(t, finish, calls) != nil || len(calls) == 0 || s.socket.openAI.active.Load() {
		return // a client of OpenAI's protocol begins the next response itself
	}
	s.awaitingTools = t
	if fault := s.continueAfterTools(t); fault != nil {
		s.tell(newError(t.id, fault))
	}
}

// removePrompt removes the message that the turn should have answered.
func (s *session) removePrompt() {
	s.conversation.messages = s.conversation.messages[:s.keptMessages]
	s.conversation, _ = s.conversation.measure() // the conversation was no larger before
}

// addAnswer adds the answer to the conversation. It returns the tool calls that need answers.
func (s *session) addAnswer(t *turn, finish string) []*toolCall {
	if !isCutShort(finish) {
		t.answer.calls = t.calls.list
	}
	message := t.answer.message()
	if message == nil && finish == finishCancelled {
		s.removePrompt()
		return nil
	}
	if message != nil {
		s.conversation.messages = append(s.conversation.messages, message)
	}
	s.conversation.tooLarge = s.conversation.tooLarge || t.tooLarge
	s.conversation, _ = s.conversation.measure()           // the next start reports that it is too large
	_ = s.reserve(s.conversation, s.instructions, s.tools) // the next start reports that there is no room
	s.keptMessages = len(s.conversation.messages)
	return t.answer.calls
}

// sendFinal sends the last messages of a turn.
func (s *session) sendFinal(t *turn, finish string, calls []*toolCall) error {
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

// continueAfterTools begins the next turn when every tool call has its answer.
func (s *session) continueAfterTools(t *turn) *openai.Error {
	if t.calls.isOpen() {
		return nil
	}
	next, fault := s.conversation.added(t.calls.answers()...)
	if fault != nil {
		return fault
	}
	call, fault := s.newCall(next, "")
	if fault != nil {
		return fault
	}
	_ = s.reserve(next, s.instructions, s.tools) // the client cannot answer again; the next start reports it
	s.conversation, s.awaitingTools, s.keptMessages, s.keptModel = next, nil, len(next.messages), next.model
	s.startTurn(t.id, call)
	return nil
}
