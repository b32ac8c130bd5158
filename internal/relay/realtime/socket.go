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

// closing is why a socket is closed. It is the cause of the socket's context, and what a call that runs then ends with.
type closing struct {
	// code is sent to the client; 0: it is gone, or is not worth a word.
	code   websocket.StatusCode
	reason string
	fault  openai.Code
}

func (c *closing) Error() string { return "socket closed: " + c.reason }

// Unwrap gives the fault, for whoever looks for an *openai.Error.
func (c *closing) Unwrap() error {
	if c.fault == "" {
		return nil
	}
	return openai.Errorf(c.fault, "The socket is closed: %s.", c.reason)
}

// The ways a socket is closed. They are never changed.
var (
	closeGone     = &closing{reason: "the client left"}
	closeDead     = &closing{reason: "the client did not answer a ping"}
	closeGoing    = &closing{code: websocket.StatusGoingAway, reason: "the gateway is stopping", fault: openai.CodeGatewayUnavailable}
	closeBinary   = &closing{code: websocket.StatusUnsupportedData, reason: "messages are text"}
	closeTooSlow  = &closing{code: websocket.StatusPolicyViolation, reason: "the client does not read", fault: openai.CodeClientTooSlow}
	closeTenant   = &closing{code: websocket.StatusPolicyViolation, reason: "the key, or its tenant, is not known any more"}
	closeTooBig   = &closing{code: websocket.StatusMessageTooBig, reason: "the message is too large"}
	closeInternal = &closing{code: websocket.StatusInternalError, reason: "a fault of the gateway"}
	closeFull     = &closing{code: websocket.StatusTryAgainLater, reason: "too many sockets are open"}
)

// socket sends and receives messages until it is stopped.
type socket struct {
	conn   *websocket.Conn
	limits Limits

	// ctx ends when the socket is to be closed; its cause is the closing. What is written or read does not hang on it, or it would
	// end without a word: the library drops a connection whose context ends.
	ctx    context.Context
	cancel context.CancelCauseFunc
	closed chan struct{}
	// heard is when the client was heard last, in nanoseconds since the epoch.
	heard   atomic.Int64
	pinging atomic.Bool
	pings   sync.WaitGroup

	sending sync.Mutex
	buf     bytes.Buffer  // guarded by sending
	encoder *json.Encoder // guarded by sending
	late    *time.Timer   // guarded by sending
}

func newSocket(limits Limits) *socket {
	s := &socket{limits: limits, closed: make(chan struct{})}
	s.ctx, s.cancel = context.WithCancelCause(context.Background())
	s.encoder = json.NewEncoder(&s.buf)
	s.encoder.SetEscapeHTML(false)
	return s
}

// attach gives the socket its connection, which it owns from then on. It may have been stopped before.
func (s *socket) attach(conn *websocket.Conn) {
	s.conn = conn
	conn.SetReadLimit(int64(s.limits.Message))
	s.late = time.AfterFunc(s.limits.Write, func() { s.stop(closeTooSlow) })
	s.late.Stop()
	s.hear()
	context.AfterFunc(s.ctx, s.close)
}

// stop has the socket closed. The first reason counts.
func (s *socket) stop(why *closing) { s.cancel(why) }

// why is what the socket was stopped for.
func (s *socket) why() *closing {
	var c *closing
	errors.As(context.Cause(s.ctx), &c)
	return c
}

// close ends the connection, which unblocks who reads or writes: after 5 s for the close frame to be sent, and 5 s for its answer.
func (s *socket) close() {
	defer close(s.closed)
	if why := s.why(); why.code != 0 {
		s.conn.Close(why.code, why.reason) //nolint:errcheck // the client may be gone
	}
	s.conn.CloseNow() //nolint:errcheck // it is closed by now, most of the time
}

// send writes one message. An error says that the socket is stopped.
func (s *socket) send(message any) error {
	s.sending.Lock()
	defer s.sending.Unlock()
	if s.ctx.Err() != nil {
		return context.Cause(s.ctx)
	}
	s.buf.Reset()
	if err := s.encoder.Encode(message); err != nil {
		s.stop(closeInternal)
		return err
	}
	s.late.Reset(s.limits.Write)
	err := s.conn.Write(context.Background(), websocket.MessageText, bytes.TrimSuffix(s.buf.Bytes(), []byte("\n")))
	s.late.Stop()
	if err != nil {
		s.stop(closeGone)
		return context.Cause(s.ctx)
	}
	return nil
}

// receive hands messages over until the socket is stopped, or stops it.
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
		s.hear()
		select {
		case to <- data:
		case <-s.ctx.Done():
			return
		}
	}
}

func (s *socket) hear() { s.heard.Store(time.Now().UnixNano()) }

// ping asks a client that has been silent for so long whether it is there, and drops it when it is not. It does not wait.
func (s *socket) ping(silent time.Duration) {
	if time.Now().UnixNano()-s.heard.Load() < int64(silent) || !s.pinging.CompareAndSwap(false, true) {
		return
	}
	s.pings.Go(func() {
		defer s.pinging.Store(false)
		// A client that reads slowly comes upon the ping after all that was sent before it.
		ctx, cancel := context.WithTimeout(s.ctx, max(silent, s.limits.Write))
		defer cancel()
		if s.conn.Ping(ctx) != nil {
			s.stop(closeDead)
			return
		}
		s.hear()
	})
}
