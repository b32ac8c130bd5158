package grpcserver

import (
	"golang.org/x/net/http2"
	"google.golang.org/grpc/status"
)

// dataFrame is the DATA frame that is being read. The zero value means none.
type dataFrame struct {
	active bool
	// stream is nil if the stream has ended.
	stream *Stream
	// left and padding are how many bytes are still to come.
	left, padding uint32
	// end means that it is the last frame of the stream.
	end bool
}

// dataPart handles what has come of the current DATA frame: one message, a part of one, or the end
// of the frame.
func (r *reader) dataPart() error {
	d := &r.data
	if d.left == 0 {
		n := min(int(d.padding), r.end-r.begin)
		r.begin += n
		if d.padding -= uint32(n); d.padding > 0 {
			return nil
		}
		s, ended := d.stream, d.end
		*d = dataFrame{}
		if s != nil && ended {
			r.halfClose(s)
		}
		return nil
	}
	available := r.buffer[r.begin:min(r.end, r.begin+int(d.left))]
	s := d.stream
	if s == nil {
		r.consume(len(available))
		return nil
	}
	if s.body != nil {
		r.consume(len(available))
		if !s.body.add(available) {
			return violation(http2.ErrCodeFlowControl, "more than the window of the stream %d", s.id)
		}
		return nil
	}
	n, content, at, err := s.assembly.next(available, r.server.maxMessage())
	r.consume(n)
	if err != nil {
		s.Finish(status.Code(err), status.Convert(err).Message())
		d.stream = nil
		return nil
	}
	if content != nil {
		r.deliver(s, content, at)
	}
	return nil
}

// consume tells that n bytes of the current DATA frame are handled.
func (r *reader) consume(n int) {
	r.begin += n
	r.data.left -= uint32(n)
}

func (r *reader) beginData(h frameHead, rest []byte) (whole bool, err error) {
	if h.stream == 0 || h.length > maxDataFrame {
		return false, violation(http2.ErrCodeProtocol, "DATA of %d bytes on the stream %d", h.length, h.stream)
	}
	size, padding := headSize, uint32(0)
	left := h.length
	if h.flags.Has(http2.FlagDataPadded) {
		if h.length > 0 {
			if len(rest) == 0 {
				return false, nil
			}
			padding = uint32(rest[0])
		}
		if h.length < 1+padding {
			return false, violation(http2.ErrCodeProtocol, "malformed DATA")
		}
		size, left = size+1, left-1-padding
	}
	r.mu.Lock()
	s, last := r.streams[h.stream], r.last
	if s != nil && (s.over || s.halfClosed) {
		s = nil
	}
	r.mu.Unlock()
	if h.stream > last {
		return false, violation(http2.ErrCodeProtocol, "DATA of the stream %d, which is not open", h.stream)
	}
	r.begin += size
	r.data = dataFrame{true, s, left, padding, h.flags.Has(http2.FlagDataEndStream)}
	r.refill(s, h.length)
	return true, nil
}

// refill lets the client send more. The bytes of a stream of Other are counted when they are read.
func (r *reader) refill(s *Stream, n uint32) {
	if r.received += n; r.received >= connWindow/4 {
		n := r.received
		r.received = 0
		_ = r.Add(func(out []byte) []byte { return appendNumber(out, http2.FrameWindowUpdate, 0, n) }) // it fails when the connection does
	}
	if s == nil || r.data.end {
		return
	}
	if s.body != nil {
		n -= r.data.left // padding, which nobody reads
	}
	if s.received += n; s.received >= streamWindow/2 {
		n := s.received
		s.received = 0
		_ = r.Add(func(out []byte) []byte { return appendNumber(out, http2.FrameWindowUpdate, s.id, n) })
	}
}
