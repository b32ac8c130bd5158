package grpcserver

import (
	"encoding/binary"

	"golang.org/x/net/http2"
)

const (
	// maxQueue is how many bytes may wait for a client that does not read. The connection of such a
	// client is closed.
	maxQueue = 64 << 20
	// maxUnsent is how much of a stream with a Handler may wait for the client's window when a
	// further message is sent. The stream of a client that lets less pass is reset.
	maxUnsent = 1 << 20
	// maxAllUnsent is the same for all streams of a connection.
	maxAllUnsent = 64 << 20
)

// flush writes what waits to be written, unless another goroutine does.
func (c *conn) flush() {
	c.Flush()
	c.closeIfDrained()
}

// flushApart writes what waits to be written, and leaves much of it to another goroutine.
func (c *conn) flushApart() {
	if c.Much() {
		go c.flush() // Stop closes the socket, which ends the write
		return
	}
	c.flush()
}

// beginLocked queues the headers of a response, unless they are sent. c.mu is held.
func (c *conn) beginLocked(s *Stream) {
	if !s.begun {
		s.begun = true
		c.Out = c.appendHeadersLocked(c.Out, s.id, 0, func(out []byte) []byte { return append(out, responseFields...) })
	}
}

// appendHeadersLocked appends HEADERS. c.mu is held.
func (c *conn) appendHeadersLocked(out []byte, id uint32, flags http2.Flags, fields func(out []byte) []byte) []byte {
	from := len(out)
	out = appendFrameHead(out, frameHead{0, http2.FrameHeaders, flags | http2.FlagHeadersEndHeaders, id})
	if c.shrink {
		out, c.shrink = append(out, 0x20), false // the table has no room at all: nothing here needs any
	}
	out = fields(out)
	setLength(out[from:], len(out)-from-headSize)
	return out
}

// finishLocked ends the response, with these headers at its end. c.mu is held.
func (c *conn) finishLocked(s *Stream, fields func(out []byte) []byte) {
	if c.Check() != nil {
		c.closeLocked(s)
		return
	}
	if len(s.pending) > 0 {
		s.trailers = fields(nil)
		return
	}
	c.Out = c.appendHeadersLocked(c.Out, s.id, http2.FlagHeadersEndStream, fields)
	if !s.halfClosed {
		c.Out = appendNumber(c.Out, http2.FrameRSTStream, s.id, uint32(http2.ErrCodeNo))
	}
	c.closeLocked(s)
}

// closeLocked removes a stream. c.mu is held.
func (c *conn) closeLocked(s *Stream) {
	c.unsent -= len(s.pending)
	s.pending, s.trailers = nil, nil
	delete(c.streams, s.id)
	delete(c.waiting, s)
}

// holdLocked adds what a stream has to send, and queues what the windows allow. c.mu is held.
func (c *conn) holdLocked(s *Stream, content []byte) {
	s.pending, c.unsent = append(s.pending, content...), c.unsent+len(content)
	c.sendPendingLocked(s)
}

// sendPendingLocked queues what the windows allow of what a stream has to send. c.mu is held.
func (c *conn) sendPendingLocked(s *Stream) {
	for len(s.pending) > 0 {
		n := int(min(int64(len(s.pending)), int64(c.maxFrame), s.window, c.window))
		if n <= 0 {
			c.waiting[s] = true
			return
		}
		c.Out = append(appendFrameHead(c.Out, frameHead{uint32(n), http2.FrameData, 0, s.id}), s.pending[:n]...)
		s.pending, c.unsent = s.pending[n:], c.unsent-n
		s.window, c.window = s.window-int64(n), c.window-int64(n)
	}
	s.pending = nil
	delete(c.waiting, s)
	if trailers := s.trailers; trailers != nil {
		s.trailers = nil
		c.finishLocked(s, func(out []byte) []byte { return append(out, trailers...) })
	}
}

// widen handles WINDOW_UPDATE. The stream 0 stands for the connection.
func (r *reader) widen(id uint32, n int64) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := r.Check(); err != nil {
		return err
	}
	if n == 0 {
		return violation(http2.ErrCodeProtocol, "WINDOW_UPDATE of 0 bytes")
	}
	if id != 0 {
		s := r.streams[id]
		if s == nil {
			return nil // it has ended
		}
		if s.window += n; s.window > maxWindow {
			return violation(http2.ErrCodeFlowControl, "window of the stream %d", id)
		}
		r.sendPendingLocked(s)
	} else if r.window += n; r.window > maxWindow {
		return violation(http2.ErrCodeFlowControl, "window of the connection")
	} else {
		for s := range r.waiting {
			r.sendPendingLocked(s)
		}
	}
	r.room.Broadcast()
	return nil
}

func (r *reader) settings(h frameHead, content []byte) error {
	if h.stream != 0 || len(content)%6 != 0 {
		return violation(http2.ErrCodeProtocol, "malformed SETTINGS")
	}
	if h.flags.Has(http2.FlagSettingsAck) {
		return nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := r.Check(); err != nil {
		return err
	}
	for ; len(content) > 0; content = content[6:] {
		if err := r.settingLocked(http2.SettingID(binary.BigEndian.Uint16(content)), binary.BigEndian.Uint32(content[2:])); err != nil {
			return err
		}
	}
	r.Out = appendFrameHead(r.Out, frameHead{0, http2.FrameSettings, http2.FlagSettingsAck, 0})
	r.room.Broadcast()
	return nil
}

// settingLocked handles one value of SETTINGS. c.mu is held.
func (c *conn) settingLocked(id http2.SettingID, value uint32) error {
	switch id {
	case http2.SettingHeaderTableSize:
		c.shrink = c.shrink || value < 4096
	case http2.SettingMaxFrameSize:
		if value < minFrame || value > 1<<24-1 {
			return violation(http2.ErrCodeProtocol, "frames of %d bytes", value)
		}
		c.maxFrame = int(value)
	case http2.SettingInitialWindowSize:
		if value > maxWindow {
			return violation(http2.ErrCodeFlowControl, "window of %d bytes", value)
		}
		change := int64(value) - c.streamWindow
		c.streamWindow = int64(value)
		for _, s := range c.streams {
			s.window += change
		}
		for s := range c.waiting {
			c.sendPendingLocked(s)
		}
	}
	return nil
}

func (r *reader) ping(h frameHead, content []byte) error {
	if h.stream != 0 || len(content) != 8 {
		return violation(http2.ErrCodeFrameSize, "malformed PING")
	}
	if !h.flags.Has(http2.FlagPingAck) {
		return r.Add(func(out []byte) []byte {
			return append(appendFrameHead(out, frameHead{8, http2.FramePing, http2.FlagPingAck, 0}), content...)
		})
	}
	if string(content) == drainPing {
		r.mu.Lock()
		r.drained = true
		r.mu.Unlock()
	}
	return nil
}
