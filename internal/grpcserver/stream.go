package grpcserver

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"

	"golang.org/x/net/http2"
	"google.golang.org/grpc/codes"
)

// maxEvents is how many messages of a stream may wait for its Handler. When those that wait have
// more bytes than one message may have, no further one is taken either.
const maxEvents = 64

// errEnded means that a stream has ended.
var errEnded = errors.New("the stream has ended")

// Stream is one stream of a method that has a Handler.
type Stream struct {
	conn    *conn
	id      uint32
	handler Handler
	ctx     streamContext
	// reader is the goroutine that reads the connection, while it works for the Handler.
	reader *reader
	// assembly and received (what the client may send again, in bytes) belong to the reader.
	assembly assembly
	received uint32
	// body is what comes to a stream of Other. nil for a stream with a Handler.
	body *body

	// The rest is guarded by conn.mu.

	// busy means that a goroutine calls the Handler, over that the stream has ended, ended that
	// the Handler knows.
	busy, over, ended bool
	// halfClosed means that the client has sent everything, told that the Handler knows.
	halfClosed, told bool
	// begun means that the headers of the response are sent.
	begun bool
	// events are messages that have come while the Handler was busy, and eventBytes is how many
	// bytes they have.
	events     [][]byte
	eventBytes int
	// window is what may be sent now. pending waits for that, and trailers are sent after it.
	window            int64
	pending, trailers []byte
}

// begun makes the stream with this id, of which the fields of the reader are the headers.
func (r *reader) begun(id uint32, ended bool) {
	s := &Stream{conn: r.conn, id: id, halfClosed: ended, assembly: assembly{buffers: &r.server.buffers}}
	s.ctx.base = r.base
	method := r.server.Methods[r.field(":path")]
	isHTTP := method == nil || r.field(":method") != "POST"
	if isHTTP {
		s.body = newBody(s, ended)
	} else {
		s.busy = true // until it has its Handler
	}
	r.mu.Lock()
	s.window = r.streamWindow
	r.streams[id] = s
	r.mu.Unlock()
	if isHTTP {
		r.serveHTTP(s)
		return
	}
	if ended {
		s.ctx.End()
	}
	r.place, s.reader = onItsOwn, r
	s.handler = method(s, r.field)
	r.work(s)
}

// field returns the value of a header, or "".
func (r *reader) field(name string) string {
	for _, f := range r.fields {
		if f.Name == name {
			return f.Value
		}
	}
	return ""
}

// deliver gives a message to the Handler of its stream.
func (r *reader) deliver(s *Stream, content []byte, at place) {
	r.mu.Lock()
	switch {
	case s.over:
		r.mu.Unlock()
		return
	case s.busy:
		tooMany := len(s.events) >= maxEvents || s.eventBytes > r.server.maxMessage()
		if !tooMany {
			s.events, s.eventBytes = append(s.events, bytes.Clone(content)), s.eventBytes+len(content)
		}
		r.mu.Unlock()
		if tooMany {
			s.Finish(codes.ResourceExhausted, "more messages than the server takes at once")
		}
		return
	}
	s.busy = true
	r.mu.Unlock()
	if at == inBuffer && len(content) <= maxScratch {
		r.scratch = append(r.scratch[:0], content...)
		content, at = r.scratch, inScratch
	}
	r.place, s.reader = at, r
	s.handler.Message(content)
	if at == onItsOwn && r.input != nil {
		r.server.buffers.put(content)
	}
	r.work(s)
}

// work calls the Handler of a busy stream for what has come meanwhile.
func (r *reader) work(s *Stream) {
	r.place = onItsOwn
	for {
		r.mu.Lock()
		switch {
		case s.over:
			isLast := !s.ended
			s.ended = true
			s.events, s.reader = nil, nil
			r.mu.Unlock()
			if isLast {
				s.handler.End()
			}
			return
		case len(s.events) > 0:
			content := s.events[0]
			s.events, s.eventBytes = s.events[1:], s.eventBytes-len(content)
			r.mu.Unlock()
			s.handler.Message(content)
		case s.halfClosed && !s.told:
			s.told = true
			r.mu.Unlock()
			s.handler.HalfClose()
		default:
			s.busy, s.reader = false, nil
			r.mu.Unlock()
			return
		}
	}
}

// halfClose tells that the client has sent everything.
func (r *reader) halfClose(s *Stream) {
	r.mu.Lock()
	if s.over || s.halfClosed {
		r.mu.Unlock()
		return
	}
	s.halfClosed = true
	if s.body != nil {
		r.mu.Unlock()
		s.body.close(nil)
		return
	}
	busy := s.busy
	s.busy = true
	r.mu.Unlock()
	s.ctx.End()
	if !busy {
		s.reader = r
		r.work(s)
	}
}

// leave handles RST_STREAM: the client has given up a stream.
func (r *reader) leave(id uint32) {
	r.mu.Lock()
	s := r.streams[id]
	r.mu.Unlock()
	if s != nil {
		s.abandon()
	}
}

// abandon ends a stream to which nothing can be sent any more.
func (s *Stream) abandon() {
	s.conn.mu.Lock()
	s.conn.closeLocked(s)
	isLast := s.endLocked()
	s.conn.room.Broadcast()
	s.conn.mu.Unlock()
	s.afterEnd(isLast)
}

// endLocked marks the stream as ended. It returns whether the caller has to tell the Handler. The
// lock of the connection is held.
func (s *Stream) endLocked() bool {
	s.over = true
	if s.busy || s.ended {
		return false
	}
	s.ended = true
	return true
}

// afterEnd ends the context of a stream that is over, and tells the Handler if tell is true.
func (s *Stream) afterEnd(tell bool) {
	s.ctx.End()
	if s.body != nil {
		s.body.close(errEnded)
	} else if tell {
		s.handler.End()
	}
}

// Context ends when the stream does, or when the client has sent everything. Package peer of
// grpc-go finds the addresses of the connection in it.
func (s *Stream) Context() context.Context { return &s.ctx }

// PeerPID returns the process of a client that has come over a unix socket; 0: not known.
func (s *Stream) PeerPID() int { return s.conn.pid }

// Block tells that the Handler is about to block. Only a method of the Handler may call it, or the
// Method that opens the stream.
func (s *Stream) Block() {
	if s.reader != nil {
		s.reader.handOver()
	}
}

// Send queues a message, which add appends to out. add is called at once, with a lock held. The
// error says that the stream has ended.
//
// What a method of the Handler queues is sent soon after the method has returned. All others call
// Flush.
func (s *Stream) Send(add func(out []byte) []byte) error {
	c := s.conn
	c.mu.Lock()
	defer c.mu.Unlock()
	if s.over || c.Check() != nil {
		return errEnded
	}
	c.beginLocked(s)
	if len(s.pending) > maxUnsent || len(s.pending) > 0 && c.unsent > maxAllUnsent {
		return c.resetLocked(s)
	}
	if from := len(s.pending); from > 0 {
		s.pending = endMessage(add(append(s.pending, 0, 0, 0, 0, 0)), from)
		c.unsent += len(s.pending) - from
		return nil
	}
	from := len(c.Out)
	out := endMessage(add(append(c.Out, make([]byte, headSize+prefixSize)...)), from+headSize)
	if size, window := len(out)-from-headSize, min(s.window, c.window); size > c.maxFrame || int64(size) > window {
		if int64(size) > window && c.unsent > maxAllUnsent {
			c.Out = out[:from]
			return c.resetLocked(s)
		}
		s.pending = append(s.pending, out[from+headSize:]...)
		c.unsent += len(s.pending)
		c.Out = out[:from]
		c.sendPendingLocked(s)
	} else {
		appendFrameHead(out[:from], frameHead{uint32(size), http2.FrameData, 0, s.id})
		s.window, c.window = s.window-int64(size), c.window-int64(size)
		c.Out = out
	}
	return nil
}

// resetLocked ends the stream of a client that leaves it no window. gRPC takes the code for
// RESOURCE_EXHAUSTED. The caller of Send may hold locks that the end of the Handler needs, so
// another goroutine tells the Handler. c.mu is held.
func (c *conn) resetLocked(s *Stream) error {
	c.Out = appendNumber(c.Out, http2.FrameRSTStream, s.id, uint32(http2.ErrCodeEnhanceYourCalm))
	c.closeLocked(s)
	isLast := s.endLocked()
	c.server.running.Go(func() { s.afterEnd(isLast) }) // the reader runs until it finds the lock free
	return errEnded
}

// endMessage sets the prefix of the message that begins at from.
func endMessage(out []byte, from int) []byte {
	binary.BigEndian.PutUint32(out[from+1:], uint32(len(out)-from-prefixSize))
	return out
}

// Finish ends the stream with a status, after what was sent before. Further calls do nothing.
func (s *Stream) Finish(code codes.Code, why string) {
	c := s.conn
	c.mu.Lock()
	if s.over {
		c.mu.Unlock()
		return
	}
	c.finishLocked(s, func(out []byte) []byte {
		if !s.begun {
			out = append(out, responseFields...)
		}
		return appendStatus(out, code, why)
	})
	isLast := s.endLocked()
	c.mu.Unlock()
	s.afterEnd(isLast)
}

// Flush sends what is queued.
func (s *Stream) Flush() {
	s.conn.flushApart()
	s.conn.closeIfDrained()
}
