package realtime

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/coder/websocket"

	"github.com/sluice-gateway/sluice/internal/openai"
)

// closeReason is why a socket is closed. It is the cause of the socket's context, and the error
// with which a running call ends.
type closeReason struct {
	// code is sent to the client. 0: the client is gone, or gets none.
	code   websocket.StatusCode
	reason string
	fault  openai.Code
}

func (c *closeReason) Error() string { return "socket closed: " + c.reason }

// Unwrap returns the reason as an *openai.Error, if it has a code of the API.
func (c *closeReason) Unwrap() error {
	if c.fault == "" {
		return nil
	}
	return openai.Errorf(c.fault, "The socket is closed: %s.", c.reason)
}

// The reasons for which a socket is closed. They do not change.
var (
	closeGone     = &closeReason{reason: "the client left"}
	closeNoPong   = &closeReason{reason: "the client did not answer a ping"}
	closeStopping = &closeReason{code: websocket.StatusGoingAway, reason: "the gateway is stopping", fault: openai.CodeGatewayUnavailable}
	closeBinary   = &closeReason{code: websocket.StatusUnsupportedData, reason: "messages are text"}
	closeTooSlow  = &closeReason{code: websocket.StatusPolicyViolation, reason: "the client does not read", fault: openai.CodeClientTooSlow}
	closeTenant   = &closeReason{code: websocket.StatusPolicyViolation, reason: "the key, or its tenant, is not known any more"}
	closeTooBig   = &closeReason{code: websocket.StatusMessageTooBig, reason: "the message is too large"}
	closeInternal = &closeReason{code: websocket.StatusInternalError, reason: "a fault of the gateway"}
	closeFull     = &closeReason{code: websocket.StatusTryAgainLater, reason: "too many sockets are open at the gateway"}
	// closeTenantFull and closeIdle protect the other tenants.
	closeTenantFull = &closeReason{code: websocket.StatusTryAgainLater, reason: "the tenant has too many sockets open"}
	closeIdle       = &closeReason{code: statusIdle, reason: "the socket was idle for too long"}
)

// statusIdle closes an idle socket. It is a private code (RFC 6455, section 7.4.2), after HTTP's
// 408.
const statusIdle websocket.StatusCode = 4408

// socket sends and receives messages until it is stopped.
type socket struct {
	conn   *websocket.Conn
	limits Limits

	// ctx ends when the socket is to be closed; its cause is a *closeReason. Reads and writes do
	// not use ctx: the library drops a connection without a close frame when their context ends.
	ctx    context.Context
	cancel context.CancelCauseFunc
	closed chan struct{}
	// made is when the socket was made. lastReceived is when the client has sent something last, in
	// nanoseconds since then: a Unix time would follow a clock that is set.
	made         time.Time
	lastReceived atomic.Int64
	pinging      atomic.Bool
	pings        sync.WaitGroup

	// writeMu guards the fields below.
	writeMu sync.Mutex
	// openAI translates what is sent to a client of OpenAI's protocol.
	openAI     openAIEvents
	buf        bytes.Buffer
	encoder    *json.Encoder
	writeTimer *time.Timer
}

func newSocket(limits Limits) *socket {
	s := &socket{limits: limits, closed: make(chan struct{}), made: time.Now()}
	s.ctx, s.cancel = context.WithCancelCause(context.Background())
	s.encoder = json.NewEncoder(&s.buf)
	s.encoder.SetEscapeHTML(false)
	return s
}

// attach gives the socket its connection, which the socket closes. The socket may have been stopped
// before.
func (s *socket) attach(conn *websocket.Conn) {
	s.conn = conn
	conn.SetReadLimit(int64(s.limits.Message))
	s.writeTimer = time.AfterFunc(s.limits.Write, func() { s.stop(closeTooSlow) })
	s.writeTimer.Stop()
	s.recordReceived()
	context.AfterFunc(s.ctx, s.close)
}

// stop closes the socket. The first reason counts.
func (s *socket) stop(why *closeReason) { s.cancel(why) }

// closeReason returns why the socket was stopped.
func (s *socket) closeReason() *closeReason {
	var c *closeReason
	errors.As(context.Cause(s.ctx), &c)
	return c
}

// close closes the connection, which unblocks readers and writers. It takes up to 5 s to send the
// close frame and up to 5 s for the answer.
func (s *socket) close() {
	defer close(s.closed)
	if why := s.closeReason(); why.code != 0 {
		s.conn.Close(why.code, why.reason) //nolint:errcheck // the client may be gone
	}
	s.conn.CloseNow() //nolint:errcheck // the connection is mostly closed already
}

// send writes one message. An error says that the socket is stopped.
func (s *socket) send(message any) error {
	s.writeMu.Lock()
	defer s.writeMu.Unlock()
	if _, ok := message.(event); !ok && !s.openAI.active.Load() {
		return s.writeLocked(message)
	}
	for _, each := range s.openAI.translate(message) {
		if err := s.writeLocked(each); err != nil {
			return err
		}
	}
	return nil
}

// lastItem returns the id of the last item that a client of OpenAI's protocol was told of. Empty:
// there is none.
func (s *socket) lastItem() string {
	s.writeMu.Lock()
	defer s.writeMu.Unlock()
	return s.openAI.last
}

// writeLocked writes one message, with writeMu held.
func (s *socket) writeLocked(message any) error {
	if s.ctx.Err() != nil {
		return context.Cause(s.ctx)
	}
	s.buf.Reset()
	if err := s.encoder.Encode(message); err != nil {
		s.stop(closeInternal)
		return err
	}
	s.writeTimer.Reset(s.limits.Write)
	err := s.conn.Write(context.Background(), websocket.MessageText, bytes.TrimSuffix(s.buf.Bytes(), []byte("\n")))
	s.writeTimer.Stop()
	if err != nil {
		s.stop(closeGone)
		return context.Cause(s.ctx)
	}
	return nil
}

// receive receives messages until the socket is stopped.
func (s *socket) receive(to chan<- []byte) {
	for {
		kind, data, err := s.conn.Read(context.Background())
		switch {
		case errors.Is(err, websocket.ErrMessageTooBig):
			s.stop(closeTooBig)
		case err != nil:
			s.stop(closeGone)
		case kind != websocket.MessageText:
			s.stop(closeBinary)
		}
		if s.ctx.Err() != nil {
			return
		}
		s.recordReceived()
		select {
		case to <- data:
		case <-s.ctx.Done():
			return
		}
	}
}

func (s *socket) recordReceived() { s.lastReceived.Store(int64(time.Since(s.made))) }

// isSilent reports whether the client has sent nothing for so long.
func (s *socket) isSilent(now time.Time, long time.Duration) bool {
	return now.Sub(s.made)-time.Duration(s.lastReceived.Load()) >= long
}

// ping pings a client that has been silent for so long, and stops the socket if the client does not
// answer. It does not wait.
func (s *socket) ping(silent time.Duration) {
	if !s.isSilent(time.Now(), silent) || !s.pinging.CompareAndSwap(false, true) {
		return
	}
	s.pings.Go(func() {
		defer s.pinging.Store(false)
		// A client that reads slowly receives the ping after everything that was sent before. The
		// end of the connection ends the wait.
		ctx, cancel := context.WithTimeout(context.Background(), max(silent, s.limits.Write))
		defer cancel()
		if s.conn.Ping(ctx) != nil {
			s.stop(closeNoPong)
			return
		}
		s.recordReceived()
	})
}
