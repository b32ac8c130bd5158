package grpcapi

import (
	"cmp"
	"context"
	"crypto/rand"
	"net/http"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	pb "github.com/sluice-gateway/sluice/api/llm/v1"
	"github.com/sluice-gateway/sluice/authz"
	"github.com/sluice-gateway/sluice/internal/headers"
	"github.com/sluice-gateway/sluice/internal/openai"
	"github.com/sluice-gateway/sluice/internal/relay"
)

// chatPath is the path of the endpoint that a call stands for.
const chatPath = "/v1/chat/completions"

// maxTimeout bounds a client's timeout, as in the HTTP API.
const maxTimeout = 24 * time.Hour

// Generator runs calls. The relay is one.
type Generator interface {
	// Generate runs the call to its end and writes it to the sink. ctx ends when the client has
	// left.
	Generate(ctx context.Context, c *relay.Call, sink relay.Sink)
}

// Server serves llm.v1.Inference to clients, behind Envoy, which has had ext_authz authenticate the
// caller. Server trusts the metadata that Envoy sets, so only Envoy may reach it. Generator and
// Tenants must be set.
type Server struct {
	pb.UnimplementedInferenceServer

	Generator Generator
	// Tenants finds the tenant that ext_authz has named, by its name and the digest of the key.
	Tenants func(name, key string) (*authz.Tenant, bool)
	// ReplicaHeader reports whether the trailers name the replica. nil: they do.
	ReplicaHeader func() bool
	// Alive returns Call.Alive for the context of a request. nil: there is none.
	Alive func(context.Context) func() bool
}

// Register registers the service with a gRPC server. The MaxRecvMsgSize of that server bounds a
// request: gRPC's own default is 4 MiB.
func (s *Server) Register(on grpc.ServiceRegistrar) { pb.RegisterInferenceServer(on, s) }

// Stream implements llm.v1.Inference.
func (s *Server) Stream(start *pb.StartRequest, out grpc.ServerStreamingServer[pb.StreamChunk]) error {
	received, ctx := time.Now(), out.Context()
	to := &sink{out: out, id: start.GetRequestId(), showReplica: s.ReplicaHeader == nil || s.ReplicaHeader()}
	call, fault := s.call(ctx, start, received)
	if fault != nil {
		return to.refuse(errorOf(fault))
	}
	to.id = cmp.Or(to.id, call.RequestID)
	if s.Alive != nil {
		call.Alive = s.Alive(ctx)
	}
	to.severalChoices = call.Scan.Choices > 1
	s.Generator.Generate(ctx, call, to)
	switch {
	case to.finished:
		return to.err
	case ctx.Err() != nil:
		return status.FromContextError(ctx.Err()).Err()
	}
	return status.Error(codes.Internal, "The call ended without a result.") // a Generator always calls Finish unless ctx has ended
}

// call returns the call that a request asks for.
func (s *Server) call(ctx context.Context, start *pb.StartRequest, received time.Time) (*relay.Call, *openai.Error) {
	md, _ := metadata.FromIncomingContext(ctx)
	tenant, ok := s.Tenants(first(md, headers.Tenant), first(md, headers.Key))
	if !ok {
		return nil, openai.Errorf(openai.CodeInvalidAPIKey, "The caller is not known.")
	}
	body, fault := chatBody(start)
	if fault != nil {
		return nil, fault
	}
	id := first(md, headers.RequestID)
	if id == "" {
		id = rand.Text()
	}
	call, fault := relay.NewCall(relay.CallParams{
		Tenant: tenant, Priority: first(md, headers.Priority), Path: chatPath, Body: body, Header: forwardedHeaders(md), RequestID: id, Received: received,
	})
	if fault != nil {
		return nil, fault
	}
	call.Patient = true
	call.Task = first(md, headers.TaskID)
	applyDeadline(ctx, call)
	return call, nil
}

// applyDeadline makes the client's deadline the timeout of the call, unless the call has a shorter
// one.
func applyDeadline(ctx context.Context, call *relay.Call) {
	deadline, ok := ctx.Deadline()
	if !ok {
		return
	}
	left := min(max(deadline.Sub(call.Received), time.Millisecond), maxTimeout)
	if call.Scan.Timeout == 0 || left < call.Scan.Timeout {
		call.Scan.Timeout = left
	}
}

// first returns the first value of a metadata key, empty if there is none.
func first(md metadata.MD, name string) string {
	if values := md.Get(name); len(values) > 0 {
		return values[0]
	}
	return ""
}

// forwardedHeaders returns the client's metadata that the engine gets: neither credentials nor
// headers between Sluice and the client.
func forwardedHeaders(md metadata.MD) http.Header {
	to := make(http.Header, len(md))
	for name, values := range md {
		if isHopByHop(name) || headers.IsStripped(name) || strings.HasPrefix(name, "x-sluice-") || strings.HasPrefix(name, "x-envoy-") ||
			strings.HasPrefix(name, headers.Endpoint) {
			continue
		}
		for _, v := range values {
			to.Add(name, v)
		}
	}
	return to
}

// isHopByHop reports whether a header, in lower case, belongs to one connection or one protocol.
func isHopByHop(name string) bool {
	switch name {
	case "content-type", "content-length", "content-encoding", "accept", "accept-encoding", "connection", "keep-alive", "proxy-connection", "te",
		"trailer", "transfer-encoding", "upgrade", "expect", "host", "user-agent", headers.IdempotencyKey:
		return true
	}
	return strings.HasPrefix(name, ":") || strings.HasPrefix(name, "grpc-") || strings.HasSuffix(name, "-bin")
}
