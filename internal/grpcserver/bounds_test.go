package grpcserver

import (
	"errors"
	"io"
	"net"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/net/http2"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

// rawClient is a client that says which frames it sends.
type rawClient struct {
	t testing.TB
	*http2.Framer
	net.Conn
	// got are the frames that have come.
	got chan http2.Frame
}

// newRawClient returns a client that lets the server send nothing on a stream.
func newRawClient(t testing.TB, socket net.Conn) *rawClient {
	t.Helper()
	c := &rawClient{t, http2.NewFramer(socket, socket), socket, make(chan http2.Frame, 1000)}
	go func() {
		defer close(c.got)
		for {
			f, err := c.ReadFrame()
			if err != nil {
				return
			}
			if f, ok := f.(*http2.PingFrame); ok && !f.IsAck() {
				go func(data [8]byte) { _ = http2.NewFramer(socket, nil).WritePing(true, data) }(f.Data) // a pipe has no buffer
			}
			if f, ok := f.(*http2.RSTStreamFrame); ok {
				frame := *f
				c.got <- &frame // the next frame takes the place of this one
			}
		}
	}()
	if _, err := io.WriteString(socket, preface); err != nil {
		t.Fatal(err)
	}
	if err := c.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 0}); err != nil {
		t.Fatal(err)
	}
	return c
}

// open opens a stream and sends a message.
func (c *rawClient) open(id uint32, content []byte) {
	c.t.Helper()
	if err := c.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: echoBlock(), EndHeaders: true}); err != nil {
		c.t.Fatal(err)
	}
	c.message(id, content)
}

func (c *rawClient) message(id uint32, content []byte) {
	c.t.Helper()
	if err := c.WriteData(id, false, endMessage(append(make([]byte, prefixSize), content...), 0)); err != nil {
		c.t.Fatal(err)
	}
}

// reset returns the next RST_STREAM.
func (c *rawClient) reset() (id uint32, code http2.ErrCode) {
	c.t.Helper()
	select {
	case f, ok := <-c.got:
		if !ok {
			c.t.Fatal("the connection has ended")
		}
		return f.Header().StreamID, f.(*http2.RSTStreamFrame).ErrCode
	case <-time.After(time.Minute):
		c.t.Fatal("no stream is reset within a minute")
	}
	return 0, 0
}

// flood sends messages of a size until one is refused.
type flood struct {
	stream *Stream
	size   int
	// most is how many messages are sent at most.
	most int
	sent *atomic.Int64
	// ended is told the end.
	ended chan error
	err   error
}

func (f *flood) Message([]byte) {
	for range f.most {
		if f.err = f.stream.Send(func(out []byte) []byte { return append(out, make([]byte, f.size)...) }); f.err != nil {
			return
		}
		f.sent.Add(int64(f.size))
	}
}

func (f *flood) HalfClose() {}

func (f *flood) End() { f.ended <- f.err }

// A client that leaves a stream no window loses that stream, and not the others.
func TestB12_AnswersWithoutAWindowAreBounded(t *testing.T) {
	t.Parallel()
	const size = 64 << 10
	var sent atomic.Int64
	ended := make(chan error, 1)
	_, path := serve(t, func(s *Stream, _ func(string) string) Handler {
		return &flood{stream: s, size: size, most: 1000, sent: &sent, ended: ended}
	})
	c := dialRaw(t, path)
	c.open(1, nil)
	if id, code := c.reset(); id != 1 || code != http2.ErrCodeEnhanceYourCalm {
		t.Errorf("the stream %d is reset with %v", id, code)
	}
	if err := <-ended; !errors.Is(err, errEnded) {
		t.Errorf("the Handler got %v", err)
	}
	if n := sent.Load(); n < maxUnsent || n > maxUnsent+size {
		t.Errorf("%d bytes wait", n)
	}
	c.open(3, nil)
	if id, _ := c.reset(); id != 3 {
		t.Errorf("the stream %d is reset", id)
	}
	<-ended
}

// What all streams of a connection have to send is bounded too, and what was given up makes room.
func TestB12_AnswersWithoutAWindowOfAllStreamsAreBounded(t *testing.T) {
	t.Parallel()
	const size, most = 2<<20 - prefixSize, maxAllUnsent/(2<<20) + 1
	var sent atomic.Int64
	ended := make(chan error, 100)
	_, path := serve(t, func(s *Stream, _ func(string) string) Handler {
		return &flood{stream: s, size: size, most: 1, sent: &sent, ended: ended}
	})
	c := dialRaw(t, path)
	for i := range most + 2 {
		c.open(uint32(2*i+1), nil)
	}
	for range 2 {
		if _, code := c.reset(); code != http2.ErrCodeEnhanceYourCalm {
			t.Errorf("a stream is reset with %v", code)
		}
		<-ended
	}
	if n := sent.Load(); n != most*size {
		t.Errorf("%d bytes wait", n)
	}
	for id := uint32(1); id <= 3; id += 2 {
		if err := c.WriteRSTStream(id, http2.ErrCodeCancel); err != nil {
			t.Fatal(err)
		}
		<-ended
	}
	c.open(1001, nil)
	until(t, "a stream has room", func() bool { return sent.Load() == (most+1)*size })
}

// Messages that wait for a Handler are bounded in bytes.
func TestB12_WaitingMessagesAreBoundedInBytes(t *testing.T) {
	t.Parallel()
	wait, blocked := make(chan struct{}), make(chan struct{}, 1)
	s, path := serve(t, func(s *Stream, _ func(string) string) Handler { return &blocker{echo{stream: s, wait: wait}, blocked} })
	s.MaxMessage = 1000
	stream := call(t.Context(), t, dial(t, path), echoMethod)
	send := func() {
		if err := stream.SendMsg(wrapperspb.Bytes(pattern(400))); err != nil && !errors.Is(err, io.EOF) {
			t.Fatal(err)
		}
	}
	send()
	<-blocked
	for range 4 { // three have more than 1000 bytes
		send()
	}
	if err := stream.RecvMsg(new(wrapperspb.BytesValue)); status.Code(err) != codes.ResourceExhausted {
		t.Errorf("the stream ends with %v", err)
	}
}

// blocker tells when its first message waits.
type blocker struct {
	echo
	blocked chan struct{}
}

func (b *blocker) Message(content []byte) {
	select {
	case b.blocked <- struct{}{}:
	default:
	}
	b.echo.Message(content)
}

func dialRaw(t *testing.T, path string) *rawClient {
	t.Helper()
	socket, err := net.Dial("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = socket.Close() })
	return newRawClient(t, socket)
}

// halfCloser is a socket whose write side can be closed, of which it only takes a note.
type halfCloser struct {
	net.Conn
	halfClosed atomic.Bool
}

// CloseWrite closes the write side.
func (h *halfCloser) CloseWrite() error {
	h.halfClosed.Store(true)
	return nil
}

// A drained connection closes its write side first, and the rest when the client has closed it, or
// soon after. Until then it reads what still comes.
func TestB12_ADrainedConnectionClosesInOrder(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := &Server{Methods: map[string]Method{echoMethod: openEcho}, conns: map[*conn]bool{}}
		ours, theirs := net.Pipe()
		socket := &halfCloser{Conn: ours}
		s.start(socket)
		c := newRawClient(t, theirs)
		s.Drain()
		synctest.Wait()
		if !socket.halfClosed.Load() {
			t.Fatal("the write side is open")
		}
		time.Sleep(closeTime / 2)
		for range 3 {
			if err := c.WritePing(false, [8]byte{}); err != nil {
				t.Errorf("the socket does not take what comes: %v", err)
			}
		}
		synctest.Wait()
		time.Sleep(closeTime)
		synctest.Wait()
		if err := c.WritePing(false, [8]byte{}); err == nil || connections(s) > 0 {
			t.Errorf("the connection stays open: %v", err)
		}
		s.Stop()
		theirs.Close()
	})
}

// A drained connection does not wait for ever for a client that leaves no window for what a stream
// has sent last.
func TestB12_ADrainedConnectionDoesNotWaitForAWindow(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := &Server{Methods: map[string]Method{echoMethod: func(s *Stream, _ func(string) string) Handler {
			_ = s.Send(func(out []byte) []byte { return append(out, "more"...) })
			s.Finish(codes.OK, "")
			return &echo{stream: s}
		}}, conns: map[*conn]bool{}}
		ours, theirs := net.Pipe()
		s.start(ours)
		c := newRawClient(t, theirs)
		c.open(1, nil)
		s.Drain()
		time.Sleep(unsentTime - time.Millisecond)
		synctest.Wait()
		if connections(s) == 0 {
			t.Error("the connection is closed at once")
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		if connections(s) > 0 {
			t.Error("the connection stays open")
		}
		theirs.Close()
		s.Stop()
	})
}

// overTCP is a socket that has come over TCP.
type overTCP struct{ net.Conn }

// RemoteAddr returns an address of another host.
func (overTCP) RemoteAddr() net.Addr { return &net.TCPAddr{IP: net.IPv4(10, 0, 0, 1), Port: 1} }

// An Envoy of another host that is frozen loses its connection, although its kernel goes on. One
// that has nothing to say keeps it, and so does the Envoy of this host.
func TestU16_AFrozenEnvoyLosesItsConnection(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := &Server{Methods: map[string]Method{echoMethod: openEcho}, conns: map[*conn]bool{}}
		var clients [3]net.Conn
		var ours [3]net.Conn
		for i := range clients {
			ours[i], clients[i] = net.Pipe()
		}
		s.start(overTCP{ours[0]})
		idle := newRawClient(t, clients[0])
		s.start(ours[1])
		go io.Copy(io.Discard, clients[1]) // ends with the pipe
		s.start(overTCP{ours[2]})
		go io.Copy(io.Discard, clients[2])
		for _, c := range clients[1:] {
			if _, err := io.WriteString(c, preface); err != nil {
				t.Fatal(err)
			}
		}
		idle.open(1, nil)
		time.Sleep(2*silence - time.Millisecond)
		if n := connections(s); n != 3 {
			t.Errorf("%d connections", n)
		}
		time.Sleep(time.Minute)
		if n := connections(s); n != 2 {
			t.Errorf("%d connections", n)
		}
		if err := idle.WritePing(false, [8]byte{}); err != nil {
			t.Errorf("the Envoy that has nothing to say: %v", err)
		}
		if _, err := clients[2].Write([]byte{0}); err == nil {
			t.Error("the frozen Envoy has a connection")
		}
		for _, c := range clients {
			c.Close()
		}
		s.Stop()
	})
}

// connections returns how many connections a server has.
func connections(s *Server) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.conns)
}
