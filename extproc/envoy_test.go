package extproc

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"testing"

	pb "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/sluice-gateway/sluice/internal/grpcserver"
	"github.com/sluice-gateway/sluice/internal/headers"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// envoy is Envoy's end of one exchange, over a connection of its own.
type envoy struct {
	t         testing.TB
	ctx       context.Context
	reset     context.CancelFunc
	toSluice  chan *pb.ProcessingRequest
	toEnvoy   chan *pb.ProcessingResponse
	processed chan error
	// ended is closed when the exchange has ended at both ends.
	ended chan struct{}
}

// ending tells when the Handler of an exchange has ended.
type ending struct {
	grpcserver.Handler
	ended chan struct{}
}

func (e ending) End() {
	e.Handler.End()
	close(e.ended)
}

// open opens an exchange.
func open(t testing.TB, s *Server) *envoy { return openAs(t, s, "") }

// openAs opens an exchange of a filter with this role.
func openAs(t testing.TB, s *Server, role string) *envoy {
	t.Helper()
	e := &envoy{t: t, toSluice: make(chan *pb.ProcessingRequest), toEnvoy: make(chan *pb.ProcessingResponse, 4), processed: make(chan error, 1), ended: make(chan struct{})}
	ended := make(chan struct{})
	conn := serveMethod(t, func(stream *grpcserver.Stream, header func(string) string) grpcserver.Handler {
		return ending{s.Open(stream, header), ended}
	})
	e.ctx, e.reset = context.WithCancel(context.Background())
	ctx := e.ctx
	if role != "" {
		ctx = metadata.AppendToOutgoingContext(ctx, headers.Role, role)
	}
	stream, err := pb.NewExternalProcessorClient(conn).Process(ctx)
	if err != nil {
		t.Fatal(err)
	}
	go e.send(stream)
	go func() {
		err := e.receive(stream)
		<-ended
		e.reset() // as gRPC does
		e.processed <- err
		close(e.ended)
	}()
	t.Cleanup(func() {
		e.reset()
		<-e.ended
	})
	return e
}

// send sends the messages of toSluice until it is closed, or the exchange ends.
func (e *envoy) send(stream pb.ExternalProcessor_ProcessClient) {
	for {
		select {
		case m, ok := <-e.toSluice:
			if !ok {
				_ = stream.CloseSend()
				return
			}
			_ = stream.Send(m) // receive has the error
		case <-e.ctx.Done():
			return
		}
	}
}

// receive passes messages to toEnvoy, and returns how the exchange has ended.
func (e *envoy) receive(stream pb.ExternalProcessor_ProcessClient) error {
	for {
		m, err := stream.Recv()
		switch {
		case errors.Is(err, io.EOF), status.Code(err) == codes.Canceled:
			return nil
		case err != nil:
			return err
		}
		select {
		case e.toEnvoy <- m:
		case <-e.ctx.Done():
		}
	}
}

// serveMethod serves ext_proc on a Unix socket and returns a connection to it.
func serveMethod(t testing.TB, m grpcserver.Method) *grpc.ClientConn {
	t.Helper()
	dir, err := os.MkdirTemp("", "s") // t.TempDir may be too long for a socket
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "s")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	server := &grpcserver.Server{Methods: map[string]grpcserver.Method{Method: m}, MaxMessage: 64 << 20}
	served := make(chan error, 1)
	go func() { served <- server.Serve(l) }()
	conn, err := grpc.NewClient("unix:"+path, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = conn.Close()
		server.Stop()
		if err := <-served; err != nil {
			t.Error(err)
		}
		_ = os.RemoveAll(dir)
	})
	return conn
}
