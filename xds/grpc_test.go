package xds

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	grpcstatus "google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/sluice-gateway/sluice/internal/headers"
	"github.com/sluice-gateway/sluice/internal/routes"
)

const inferenceMethod = "/llm.v1.Inference/Stream"

// serveGRPC serves a gRPC service with the name of Sluice's. Its messages are plain texts. It
// repeats each message with the tenant, and answers "deadline" with the time that is left.
func serveGRPC(t *testing.T, dir string) *grpc.Server {
	t.Helper()
	s := grpc.NewServer()
	s.RegisterService(&grpc.ServiceDesc{
		ServiceName: "llm.v1.Inference", HandlerType: (*any)(nil),
		Streams: []grpc.StreamDesc{{StreamName: "Stream", Handler: repeat, ServerStreams: true, ClientStreams: true}},
	}, nil)
	l := listenUnix(t, dir, "grpc.sock")
	done := make(chan error, 1)
	go func() { done <- s.Serve(l) }()
	t.Cleanup(func() {
		s.Stop()
		if err := <-done; err != nil && !errors.Is(err, grpc.ErrServerStopped) {
			t.Error(err)
		}
	})
	return s
}

func repeat(_ any, stream grpc.ServerStream) error {
	tenant := strings.Join(metadata.ValueFromIncomingContext(stream.Context(), headers.Tenant), "+")
	for {
		var in wrapperspb.StringValue
		if err := stream.RecvMsg(&in); err != nil {
			if errors.Is(err, io.EOF) {
				return grpcstatus.Error(codes.NotFound, "all said")
			}
			return err
		}
		said := in.Value + " " + tenant
		if in.Value == "deadline" {
			<-stream.Context().Done()
			return grpcstatus.FromContextError(stream.Context().Err()).Err()
		}
		if at, ok := stream.Context().Deadline(); ok && in.Value == "time" {
			said = time.Until(at).Round(time.Hour).String()
		}
		if err := stream.SendMsg(wrapperspb.String(said)); err != nil {
			return err
		}
	}
}

// call opens a stream through Envoy, with metadata in pairs.
func (m *managed) call(ctx context.Context, t *testing.T, method string, pairs ...string) grpc.ClientStream {
	t.Helper()
	conn, err := grpc.NewClient(m.addr, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(metadata.AppendToOutgoingContext(ctx, pairs...))
	// The context has no deadline, since the server would see it.
	stop := time.AfterFunc(testTimeout, cancel)
	t.Cleanup(func() { stop.Stop(); cancel(); conn.Close() })
	stream, err := conn.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}, method)
	if err != nil {
		t.Fatal(err)
	}
	return stream
}

func ask(t *testing.T, stream grpc.ClientStream, said string) (string, error) {
	t.Helper()
	if err := stream.SendMsg(wrapperspb.String(said)); err != nil && !errors.Is(err, io.EOF) {
		t.Fatal(err)
	}
	var out wrapperspb.StringValue
	err := stream.RecvMsg(&out)
	return out.Value, err
}

// Each message arrives before the next is sent, and the service's own status and trailers arrive at
// the end.
func grpcMessages(t *testing.T, m *managed) {
	stream := m.call(t.Context(), t, inferenceMethod, "authorization", "Bearer k", headers.Tenant, "root")
	for _, said := range []string{"a", "b", strings.Repeat("x", 1<<20), "c"} {
		if got, err := ask(t, stream, said); err != nil || got != said+" acme" {
			t.Fatalf("said %.20q, heard %.20q, %v", said, got, err)
		}
	}
	header, err := stream.Header()
	if err != nil || strings.Join(header.Get(headers.Source), "+") != "gateway" || len(header.Get(headers.RequestID)) != 1 {
		t.Errorf("%v, %v", header, err)
	}
	if err := stream.CloseSend(); err != nil {
		t.Fatal(err)
	}
	err = stream.RecvMsg(&wrapperspb.StringValue{})
	if s := grpcstatus.Convert(err); s.Code() != codes.NotFound || s.Message() != "all said" {
		t.Errorf("ended with %v", err)
	}
	if e := m.log.wait(t, header.Get(headers.RequestID)[0]); e.GetCommonProperties().GetRouteName() != routes.GRPC {
		t.Errorf("route %q", e.GetCommonProperties().GetRouteName())
	}
}

// The server gets the client's deadline unchanged, and the client gets its expiry as a status.
func grpcDeadline(t *testing.T, m *managed) {
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Hour)
	defer cancel()
	if got, err := ask(t, m.call(ctx, t, inferenceMethod, "authorization", "Bearer k"), "time"); err != nil || got != "5h0m0s" {
		t.Errorf("%q, %v", got, err)
	}
	ctx, cancel = context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	if _, err := ask(t, m.call(ctx, t, inferenceMethod, "authorization", "Bearer k"), "deadline"); grpcstatus.Code(err) != codes.DeadlineExceeded {
		t.Errorf("%v", err)
	}
}

// The client gets a gRPC status, whichever part refuses the request.
func grpcRefused(t *testing.T, m *managed) {
	for name, test := range map[string]struct {
		pairs   []string
		code    codes.Code
		message string
	}{
		"no key":    {nil, codes.Unauthenticated, "sluice says 401"},
		"wrong key": {[]string{"x-test-real", "1", "authorization", "Bearer w"}, codes.Unauthenticated, "Incorrect API key provided."},
		"odd priority": {
			[]string{"x-test-real", "1", "authorization", "Bearer k", headers.Priority, "x"}, codes.InvalidArgument,
			"x-sluice-priority must be interactive, default or batch.",
		},
		"nobody checks keys": {[]string{"x-test-fail", "1"}, codes.Unavailable, "The gateway does not answer at the moment."},
	} {
		_, err := ask(t, m.call(t.Context(), t, inferenceMethod, test.pairs...), "a")
		if s := grpcstatus.Convert(err); s.Code() != test.code || s.Message() != test.message {
			t.Errorf("%s: %v", name, err)
		}
	}
	_, err := ask(t, m.call(t.Context(), t, "/llm.v1.Inference/Other", "authorization", "Bearer k"), "a")
	if grpcstatus.Code(err) != codes.Unimplemented {
		t.Errorf("another method: %v", err)
	}
}

func notGRPC(t *testing.T, m *managed) {
	got := m.do(t, http.MethodPost, inferenceMethod, []byte("{}"), "x-test-answer", "404", "Content-Type", "application/json")
	if got.StatusCode != 404 || string(got.body) != "sluice says 404" {
		t.Errorf("%d %s", got.StatusCode, got.body)
	}
}

// Sluice's own listeners are away while its control listener answers.
func TestManagedUnavailable(t *testing.T) {
	t.Parallel()
	dir := shortDir(t)
	m := &managed{gateway: newGatewayIn(t, dir, managedConfig(dir), nil)}
	for name, got := range map[string]answer{
		"relay":    m.relay(t, "x", []byte("{}")),
		"streams":  m.do(t, "GET", "/v1/streams/a", nil, "Authorization", "k"),
		"realtime": m.do(t, "GET", "/v1/realtime", nil, "Authorization", "k"),
	} {
		if got.StatusCode != 503 || got.code(t) != "gateway_unavailable" {
			t.Errorf("%s: %d %s", name, got.StatusCode, got.body)
		}
	}
	stream := m.call(t.Context(), t, inferenceMethod, "authorization", "Bearer k")
	_, err := ask(t, stream, "a")
	if s := grpcstatus.Convert(err); s.Code() != codes.Unavailable || s.Message() != "The gateway does not answer at the moment." {
		t.Errorf("%v", err)
	}
	if got := strings.Join(stream.Trailer().Get(headers.Source), "+"); got != "gateway" {
		t.Errorf("from %q: %v", got, stream.Trailer())
	}
}
