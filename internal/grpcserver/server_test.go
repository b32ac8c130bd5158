package grpcserver

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sluice-gateway/sluice/internal/testutil"

	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	echoMethod  = "/test.Echo/Fast"
	otherMethod = "/test.Echo/Other"
)

// echo answers each message with the same, and ends when the client has sent everything.
type echo struct {
	stream *Stream
	// wait has each message wait for a value, after Block. nil means that none waits.
	wait chan struct{}
	// ended is closed by End. nil means that nobody wants to know.
	ended chan struct{}
}

func (e *echo) Message(content []byte) {
	if e.wait != nil {
		e.stream.Block()
		select {
		case <-e.wait:
		case <-e.stream.Context().Done():
			return
		}
	}
	_ = e.stream.Send(func(out []byte) []byte { return append(out, content...) })
}

func (e *echo) HalfClose() { e.stream.Finish(codes.OK, "") }

func (e *echo) End() {
	if e.ended != nil {
		close(e.ended)
	}
}

func openEcho(s *Stream, _ func(string) string) Handler { return &echo{stream: s} }

// otherEcho is the same over grpc-go.
func otherEcho(_ any, stream grpc.ServerStream) error {
	if md, _ := metadata.FromIncomingContext(stream.Context()); len(md["x-fail"]) > 0 {
		return status.Error(codes.FailedPrecondition, md["x-fail"][0])
	}
	for {
		m := new(wrapperspb.BytesValue)
		if err := stream.RecvMsg(m); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
		if err := stream.SendMsg(m); err != nil {
			return err
		}
	}
}

// listen listens on a Unix socket.
func listen(t testing.TB) net.Listener {
	t.Helper()
	dir, err := os.MkdirTemp("", "s") // t.TempDir may be too long for a socket
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	l, err := net.Listen("unix", filepath.Join(dir, "s"))
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// serve serves a server that knows echoMethod, and otherMethod by grpc-go.
func serve(t testing.TB, open Method) (*Server, string) {
	t.Helper()
	rest := grpc.NewServer(grpc.MaxRecvMsgSize(64 << 20))
	rest.RegisterService(&grpc.ServiceDesc{ServiceName: "test.Echo", HandlerType: (*any)(nil),
		Streams: []grpc.StreamDesc{{StreamName: "Other", Handler: otherEcho, ServerStreams: true, ClientStreams: true}}}, nil)
	s := &Server{Methods: map[string]Method{echoMethod: open}, Other: rest, MaxMessage: 64 << 20}
	l := listen(t)
	served := make(chan error, 1)
	go func() { served <- s.Serve(l) }()
	t.Cleanup(func() {
		s.Stop()
		rest.Stop()
		if err := <-served; err != nil {
			t.Error(err)
		}
	})
	return s, l.Addr().String()
}

// dial returns a connection to the server, which is closed before the server stops.
func dial(t testing.TB, path string, options ...grpc.DialOption) *grpc.ClientConn {
	t.Helper()
	conn, err := grpc.NewClient("unix:"+path, append(options, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(64<<20)))...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// call opens a stream.
func call(ctx context.Context, t testing.TB, conn *grpc.ClientConn, method string) grpc.ClientStream {
	t.Helper()
	stream, err := conn.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}, method)
	if err != nil {
		t.Fatal(err)
	}
	return stream
}

// exchange sends a message and returns an error unless it comes back.
func exchange(stream grpc.ClientStream, content []byte) error {
	if err := stream.SendMsg(wrapperspb.Bytes(content)); err != nil {
		return err
	}
	got := new(wrapperspb.BytesValue)
	if err := stream.RecvMsg(got); err != nil {
		return err
	}
	if !bytes.Equal(got.GetValue(), content) {
		return fmt.Errorf("%d bytes came back, not the %d that were sent", len(got.GetValue()), len(content))
	}
	return nil
}

// pattern returns bytes that differ by their place.
func pattern(n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(i ^ i>>8 ^ i>>16)
	}
	return b
}

// Messages of any size go both ways, over all bounds of buffers, frames and windows.
func TestB12_Messages(t *testing.T) {
	t.Parallel()
	for _, method := range []string{echoMethod, otherMethod} {
		for name, options := range map[string][]grpc.DialOption{
			"dynamic windows": nil,
			"small windows":   {grpc.WithInitialWindowSize(64 << 10), grpc.WithInitialConnWindowSize(64 << 10)},
		} {
			t.Run(method+" "+name, func(t *testing.T) {
				t.Parallel()
				_, path := serve(t, openEcho)
				stream := call(t.Context(), t, dial(t, path, options...), method)
				for _, n := range []int{0, 1, 100, maxScratch, maxScratch + 1, minFrame, bufferSize - 100, bufferSize, 128 << 10, 128<<10 + 1,
					largeBuffer, 3 * largeBuffer, connWindow + 5, 0, 7} {
					if err := exchange(stream, pattern(n)); err != nil {
						t.Fatalf("%d bytes: %v", n, err)
					}
				}
				if err := stream.CloseSend(); err != nil {
					t.Fatal(err)
				}
				if err := stream.RecvMsg(new(wrapperspb.BytesValue)); !errors.Is(err, io.EOF) {
					t.Errorf("the stream has ended with %v", err)
				}
			})
		}
	}
}

// Many streams of one connection do not disturb each other, whether they wait or not.
func TestB12_ManyStreams(t *testing.T) {
	t.Parallel()
	wait := make(chan struct{})
	_, path := serve(t, func(s *Stream, header func(string) string) Handler {
		if header("x-wait") != "" {
			return &echo{stream: s, wait: wait}
		}
		return &echo{stream: s}
	})
	conn := dial(t, path)
	const waiting = 50
	var all sync.WaitGroup
	for i := range waiting {
		stream := call(metadata.AppendToOutgoingContext(t.Context(), "x-wait", "1"), t, conn, echoMethod)
		if err := stream.SendMsg(wrapperspb.Bytes(pattern(i * 2000))); err != nil {
			t.Fatal(err)
		}
		all.Go(func() {
			got := new(wrapperspb.BytesValue)
			if err := stream.RecvMsg(got); err != nil || !bytes.Equal(got.GetValue(), pattern(i*2000)) {
				t.Errorf("stream %d: %d bytes, %v", i, len(got.GetValue()), err)
			}
		})
	}
	var others sync.WaitGroup
	for i := range 20 {
		others.Go(func() {
			for n := range 20 {
				stream := call(t.Context(), t, conn, []string{echoMethod, otherMethod}[n%2])
				if err := exchange(stream, pattern(i*n*1000)); err != nil {
					t.Error(err)
				}
				_ = stream.CloseSend()
				if err := stream.RecvMsg(new(wrapperspb.BytesValue)); !errors.Is(err, io.EOF) {
					t.Errorf("the stream has ended with %v", err)
				}
			}
		})
	}
	others.Wait() // while the first ones wait
	for range waiting {
		wait <- struct{}{}
	}
	all.Wait()
}

// The Handler of a stream learns of the end, also while it waits.
func TestB12_ClientLeaves(t *testing.T) {
	t.Parallel()
	for name, wait := range map[string]chan struct{}{"waits": make(chan struct{}), "is idle": nil} {
		for _, how := range []string{"reset", "half-close", "connection"} {
			t.Run(name+" "+how, func(t *testing.T) {
				t.Parallel()
				opened, ended := make(chan struct{}), make(chan struct{})
				_, path := serve(t, func(s *Stream, _ func(string) string) Handler {
					close(opened)
					return &echo{stream: s, wait: wait, ended: ended}
				})
				conn := dial(t, path)
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				stream := call(ctx, t, conn, echoMethod)
				if err := stream.SendMsg(wrapperspb.Bytes(nil)); err != nil {
					t.Fatal(err)
				}
				<-opened
				switch how {
				case "reset":
					cancel()
				case "half-close":
					_ = stream.CloseSend()
				case "connection":
					_ = conn.Close()
				}
				select {
				case <-ended:
				case <-time.After(time.Minute):
					t.Error("the Handler does not know")
				}
			})
		}
	}
}

// A status comes as it was given.
func TestB12_Status(t *testing.T) {
	t.Parallel()
	const why = "schön: 100 %\n"
	_, path := serve(t, func(s *Stream, _ func(string) string) Handler {
		s.Finish(codes.NotFound, why)
		return &echo{stream: s}
	})
	conn := dial(t, path)
	for method, want := range map[string]error{
		echoMethod:   status.Error(codes.NotFound, why),
		otherMethod:  status.Error(codes.FailedPrecondition, "1 %"),
		"/test.No/X": status.Error(codes.Unimplemented, "unknown service test.No"),
	} {
		ctx := t.Context()
		if method == otherMethod {
			ctx = metadata.AppendToOutgoingContext(ctx, "x-fail", "1 %")
		}
		err := call(ctx, t, conn, method).RecvMsg(new(wrapperspb.BytesValue))
		if status.Code(err) != status.Code(want) || status.Convert(err).Message() != status.Convert(want).Message() {
			t.Errorf("%s: %v, want %v", method, err, want)
		}
	}
}

// A message that is too large, or compressed, ends its stream, and no other one.
func TestB12_RefusedMessages(t *testing.T) {
	t.Parallel()
	s, path := serve(t, openEcho)
	s.MaxMessage = 1000
	conn := dial(t, path)
	good := call(t.Context(), t, conn, echoMethod)
	large := call(t.Context(), t, conn, echoMethod)
	if err := exchange(large, pattern(100<<10)); status.Code(err) != codes.ResourceExhausted || !strings.Contains(err.Error(), "more than 1000") {
		t.Errorf("a large message: %v", err)
	}
	if err := exchange(good, pattern(900)); err != nil {
		t.Error(err)
	}
}

// Drain lets the streams of a connection go on, and closes it after them. New ones find no server.
func TestB12_Drain(t *testing.T) {
	t.Parallel()
	s, path := serve(t, openEcho)
	conn := dial(t, path)
	fast, other := call(t.Context(), t, conn, echoMethod), call(t.Context(), t, conn, otherMethod)
	for _, stream := range []grpc.ClientStream{fast, other} {
		if err := exchange(stream, pattern(10)); err != nil {
			t.Fatal(err)
		}
	}
	s.Drain()
	until(t, "the client opens no further stream", func() bool { return conn.GetState().String() != "READY" })
	for _, stream := range []grpc.ClientStream{fast, other} {
		if err := exchange(stream, pattern(200<<10)); err != nil {
			t.Error(err)
		}
		_ = stream.CloseSend()
		if err := stream.RecvMsg(new(wrapperspb.BytesValue)); !errors.Is(err, io.EOF) {
			t.Errorf("the stream has ended with %v", err)
		}
	}
	until(t, "the connection is closed", func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		return len(s.conns) == 0
	})
}

// A Handler finds the addresses of its connection, as a server of grpc-go does.
func TestB12_Peer(t *testing.T) {
	t.Parallel()
	found := make(chan *peer.Peer, 1)
	s := &Server{Methods: map[string]Method{echoMethod: func(s *Stream, _ func(string) string) Handler {
		p, _ := peer.FromContext(s.Context())
		found <- p
		return &echo{stream: s}
	}}}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- s.Serve(l) }()
	defer func() {
		s.Stop()
		if err := <-served; err != nil {
			t.Error(err)
		}
	}()
	conn, err := grpc.NewClient(l.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	call(t.Context(), t, conn, echoMethod)
	if p := <-found; p.LocalAddr.String() != l.Addr().String() || p.Addr.Network() != "tcp" {
		t.Errorf("got %+v", p)
	}
	stream := call(t.Context(), t, conn, otherMethod)
	if err := stream.RecvMsg(new(wrapperspb.BytesValue)); status.Code(err) != codes.Unimplemented {
		t.Errorf("without Other: %v", err)
	}
}

func until(t testing.TB, what string, holds func() bool) {
	t.Helper()
	testutil.Eventually(t, what, holds)
}
