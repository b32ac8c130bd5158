package grpcserver

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"os"
	"slices"
	"time"

	"go.uber.org/zap"
	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

const (
	// bufferSize is the size of a reader's buffer.
	bufferSize = 64 << 10
	// maxScratch is the size of messages that are copied out of the buffer before a Handler gets
	// them. A stream that waits then keeps its message, and not the whole buffer.
	maxScratch = 32 << 10
	// silence is how long a client over TCP may send nothing until it is sent a PING, and then how
	// long it may take to answer.
	silence = 5 * time.Second
	// silencePing is the content of that PING.
	silencePing = "answer_?"
)

// reader is the goroutine that reads a connection. What it has read is in input, which goes to the
// next reader when a Handler is about to block.
type reader struct {
	*conn
	*input
	// place is where the message lies that a Handler works on.
	place place
}

// place says to whom a message belongs.
type place uint8

const (
	inBuffer  place = iota // to the buffer of the input
	inScratch              // to the scratch of the input
	onItsOwn               // to the stream
)

// input is what was read of a connection, and is not handled yet.
type input struct {
	buffer []byte
	// The bytes of buffer from begin to end are not parsed yet.
	begin, end int
	// scratch has the message that a Handler works on, if it is small.
	scratch []byte
	// greeted means that the preface has come.
	greeted bool
	data    dataFrame
	// block is a block of headers that CONTINUATION frames complete, of the frame blockHead.
	block     []byte
	blockHead frameHead
	decoder   *hpack.Decoder
	fields    []hpack.HeaderField
	// size is the size of the fields in bytes.
	size int
	// received is how many bytes of DATA the client may send again.
	received uint32
	// asked means that the client was sent a PING since it has sent anything.
	asked bool
}

// protocolError is what the client has done wrong. It ends the connection.
type protocolError struct {
	code http2.ErrCode
	what string
}

func (e *protocolError) Error() string { return e.code.String() + ": " + e.what }

func violation(code http2.ErrCode, format string, args ...any) error {
	return &protocolError{code, fmt.Sprintf(format, args...)}
}

// run reads frames until the connection ends, or until another goroutine reads.
func (r *reader) run() {
	r.decoder = hpack.NewDecoder(4096, r.input.addField)
	r.decoder.SetMaxStringLength(maxHeaderList)
	r.flush()
	_ = r.socket.SetReadDeadline(time.Now().Add(prefaceTimeout)) // an error shows at the next read
	r.read()
}

func (in *input) addField(f hpack.HeaderField) {
	if in.size += int(f.Size()); in.size <= maxHeaderList {
		in.fields = append(in.fields, f)
	}
}

// read reads frames until the connection ends, or until another goroutine reads.
func (r *reader) read() {
	for {
		err := r.frames()
		r.flushApart()
		if r.input == nil {
			r.closeIfDrained()
			return
		}
		if err != nil {
			r.fail(err)
			return
		}
		r.closeIfDrained()
		r.makeRoom()
		if err := r.more(); err != nil {
			r.fail(err)
			return
		}
	}
}

// more reads what has come next. A client over TCP that has sent nothing for a while is sent a
// PING. One that sends nothing after that is frozen or has vanished.
func (r *reader) more() error {
	watched := r.remote && r.greeted
	if watched && !r.closing.Load() {
		_ = r.socket.SetReadDeadline(time.Now().Add(silence)) // an error shows at the next read
	}
	n, err := r.incoming.Read(r.buffer[r.end:])
	r.end += n
	switch {
	case n > 0:
		r.asked = false
		return nil
	case !watched || r.closing.Load() || !errors.Is(err, os.ErrDeadlineExceeded):
		return err
	case r.asked:
		return fmt.Errorf("the client at %v does not answer", r.socket.RemoteAddr())
	}
	r.asked = true
	return r.Add(func(out []byte) []byte {
		return append(appendFrameHead(out, frameHead{8, http2.FramePing, 0, 0}), silencePing...)
	})
}

// makeRoom moves what is not parsed yet to the front of the buffer.
func (r *reader) makeRoom() {
	if r.begin > 0 {
		r.end = copy(r.buffer, r.buffer[r.begin:r.end])
		r.begin = 0
	}
}

// handOver makes another goroutine the reader.
func (r *reader) handOver() {
	in := r.input
	if in == nil {
		return
	}
	r.input = nil
	switch r.place {
	case inBuffer:
		rest := in.buffer[in.begin:in.end]
		in.buffer = make([]byte, bufferSize)
		in.begin, in.end = 0, copy(in.buffer, rest)
	case inScratch:
		in.scratch = nil
	}
	r.flushApart()
	r.server.running.Go((&reader{conn: r.conn, input: in}).read)
}

// frames handles the frames that have come.
func (r *reader) frames() error {
	for r.input != nil {
		if r.closing.Load() {
			r.begin = r.end
			return nil
		}
		if r.data.active {
			if r.begin == r.end && r.data.left+r.data.padding > 0 {
				return nil
			}
			if err := r.dataPart(); err != nil {
				return err
			}
			continue
		}
		rest := r.buffer[r.begin:r.end]
		if !r.greeted {
			if len(rest) < len(preface) {
				return nil
			}
			if string(rest[:len(preface)]) != preface {
				return violation(http2.ErrCodeProtocol, "the client does not speak HTTP/2")
			}
			r.greeted, r.begin = true, r.begin+len(preface)
			_ = r.socket.SetReadDeadline(time.Time{}) // an error shows at the next read
			continue
		}
		whole, err := r.frame(rest)
		if err != nil || !whole {
			return err
		}
	}
	return nil
}

// frame handles the frame at the beginning of rest. It returns false if more of it must come.
func (r *reader) frame(rest []byte) (whole bool, err error) {
	if len(rest) < headSize {
		return false, nil
	}
	h := readFrameHead(rest)
	if r.block != nil && (h.kind != http2.FrameContinuation || h.stream != r.blockHead.stream) {
		return false, violation(http2.ErrCodeProtocol, "%v within the headers of a stream", h.kind)
	}
	if h.kind == http2.FrameData {
		return r.beginData(h, rest[headSize:])
	}
	if h.length > maxControlFrame {
		return false, violation(http2.ErrCodeFrameSize, "%v of %d bytes", h.kind, h.length)
	}
	size := headSize + int(h.length)
	if len(rest) < size {
		return false, nil
	}
	r.begin += size
	return true, r.control(h, rest[headSize:size])
}

// control handles a frame that is not DATA.
func (r *reader) control(h frameHead, content []byte) error {
	switch h.kind {
	case http2.FrameHeaders:
		return r.headers(h, content)
	case http2.FrameContinuation:
		if r.block == nil {
			return violation(http2.ErrCodeProtocol, "CONTINUATION without HEADERS")
		}
		if r.block = append(r.block, content...); len(r.block) > maxHeaderList {
			return violation(http2.ErrCodeEnhanceYourCalm, "headers of more than %d bytes", maxHeaderList)
		}
		if h.flags.Has(http2.FlagContinuationEndHeaders) {
			block := r.block
			r.block = nil
			return r.open(r.blockHead, block)
		}
	case http2.FrameRSTStream:
		if len(content) != 4 || h.stream == 0 {
			return violation(http2.ErrCodeProtocol, "malformed RST_STREAM")
		}
		r.leave(h.stream)
	case http2.FrameSettings:
		return r.settings(h, content)
	case http2.FramePing:
		return r.ping(h, content)
	case http2.FrameWindowUpdate:
		if len(content) != 4 {
			return violation(http2.ErrCodeFrameSize, "malformed WINDOW_UPDATE")
		}
		return r.widen(h.stream, int64(binary.BigEndian.Uint32(content)&^(1<<31)))
	case http2.FramePushPromise:
		return violation(http2.ErrCodeProtocol, "PUSH_PROMISE of a client")
	}
	return nil // GOAWAY, PRIORITY, and types that are unknown, ask for nothing
}

func (r *reader) headers(h frameHead, content []byte) error {
	padding := 0
	if h.flags.Has(http2.FlagHeadersPadded) {
		if len(content) == 0 {
			return violation(http2.ErrCodeProtocol, "malformed HEADERS")
		}
		padding, content = int(content[0]), content[1:]
	}
	if h.flags.Has(http2.FlagHeadersPriority) {
		padding += 5
	}
	if padding > len(content) {
		return violation(http2.ErrCodeProtocol, "malformed HEADERS")
	}
	if h.flags.Has(http2.FlagHeadersPriority) {
		content, padding = content[5:], padding-5
	}
	content = content[:len(content)-padding]
	if !h.flags.Has(http2.FlagHeadersEndHeaders) {
		r.block, r.blockHead = append(make([]byte, 0, 2*len(content)+1), content...), h
		return nil
	}
	return r.open(h, content)
}

// open opens the stream that a block of headers belongs to. A second block of a stream has its
// trailers, which say nothing but that the client has sent everything.
func (r *reader) open(h frameHead, block []byte) error {
	r.fields, r.size = r.fields[:0], 0
	if _, err := r.decoder.Write(block); err != nil {
		return violation(http2.ErrCodeCompression, "%v", err)
	}
	if err := r.decoder.Close(); err != nil {
		return violation(http2.ErrCodeCompression, "%v", err)
	}
	if r.size > maxHeaderList {
		return violation(http2.ErrCodeEnhanceYourCalm, "headers of more than %d bytes", maxHeaderList)
	}
	if h.stream%2 == 0 {
		return violation(http2.ErrCodeProtocol, "HEADERS of the stream %d", h.stream)
	}
	ended := h.flags.Has(http2.FlagHeadersEndStream)
	r.mu.Lock()
	s := r.streams[h.stream]
	isNew, refused := h.stream > r.last, len(r.streams) >= maxStreams
	if isNew {
		r.last = h.stream
	}
	r.mu.Unlock()
	switch {
	case s != nil && !ended:
		return violation(http2.ErrCodeProtocol, "second HEADERS of the stream %d", h.stream)
	case s != nil:
		r.halfClose(s)
	case isNew && refused:
		return r.Add(func(out []byte) []byte {
			return appendNumber(out, http2.FrameRSTStream, h.stream, uint32(http2.ErrCodeRefusedStream))
		})
	case isNew:
		r.begun(h.stream, ended)
	}
	return nil
}

// fail ends the connection and its streams.
func (r *reader) fail(err error) {
	var wrong *protocolError
	if errors.As(err, &wrong) {
		_ = r.Add(func(out []byte) []byte { return appendGoAway(out, r.last, wrong.code, wrong.what) })
		r.flush()
	}
	_ = r.socket.Close()
	if !errors.Is(err, io.EOF) && !errors.Is(err, net.ErrClosed) && !r.closing.Load() {
		r.server.log().Warn("gRPC connection of Envoy broke", zap.Error(err))
	}
	r.mu.Lock()
	if r.Broken = true; r.overdue != nil {
		r.overdue.Stop()
	}
	all := slices.Collect(maps.Values(r.streams))
	r.room.Broadcast()
	r.mu.Unlock()
	for _, s := range all {
		s.abandon()
	}
	r.server.forget(r.conn)
}
