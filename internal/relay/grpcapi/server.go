package grpcapi

import (
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

// chatPath is the endpoint that a call stands for.
const chatPath = "/v1/chat/completions"

// maxTimeout bounds a client's timeout, as in JSON.
const maxTimeout = 24 * time.Hour

// Generator runs calls.
type Generator interface {
	// Generate runs the call to its end, telling the sink from the calling goroutine. ctx ends when the client has left.
	Generate(ctx context.Context, c *relay.Call, sink relay.Sink)
}

// Server serves llm.v1.Inference to clients, behind Envoy, which has asked ext_authz who calls. The metadata that Envoy sets is trusted,
// so nobody else may reach it. It is ready to use when Generator and Tenants are set.
type Server struct {
	pb.UnimplementedInferenceServer

	Generator Generator
	// Tenants finds the tenant whom ext_authz has named.
	Tenants func(name string) (*authz.Tenant, bool)
	// ReplicaHeader puts the id of the replica into the trailers. nil: always.
	ReplicaHeader func() bool
}

// Register has a gRPC server serve it. That server's MaxRecvMsgSize is what bounds a request: gRPC's own default is 4 MiB.
func (s *Server) Register(on grpc.ServiceRegistrar) { pb.RegisterInferenceServer(on, s) }

// Stream implements llm.v1.Inference.
func (s *Server) Stream(start *pb.StartRequest, out grpc.ServerStreamingServer[pb.StreamChunk]) error {
	received, ctx := time.Now(), out.Context()
	to := &sink{out: out, id: start.GetRequestId(), named: s.ReplicaHeader == nil || s.ReplicaHeader()}
	call, fault := s.call(ctx, start, received)
	if fault != nil {
		return to.refuse(errorOf(fault))
	}
	if to.id == "" {
		to.id = call.RequestID
	}
	to.several = call.Scan.Choices > 1
	s.Generator.Generate(ctx, call, to)
	switch {
	case to.ended:
		return to.err
	case ctx.Err() != nil:
		return status.FromContextError(ctx.Err()).Err()
	}
	return status.Error(codes.Internal, "The call ended without a word.") // a Generator that keeps its word does not
}

// call makes the call that a request asks for.
func (s *Server) call(ctx context.Context, start *pb.StartRequest, received time.Time) (*relay.Call, *openai.Error) {
	md, _ := metadata.FromIncomingContext(ctx)
	tenant, ok := s.Tenants(first(md, headers.Tenant))
	if !ok {
		return nil, openai.Errorf(openai.CodeInvalidAPIKey, "The caller is not known.")
	}
	body, fault := bodyOf(start)
	if fault != nil {
		return nil, fault
	}
	id := first(md, headers.RequestID)
	if id == "" {
		id = rand.Text()
	}
	call, fault := relay.NewCall(relay.CallParams{
		Tenant: tenant, Priority: first(md, headers.Priority), Path: chatPath, Body: body, Header: passed(md), RequestID: id, Received: received,
	})
	if fault != nil {
		return nil, fault
	}
	call.Patient = true
	call.Task = first(md, headers.TaskID)
	bound(ctx, call)
	return call, nil
}

// bound makes the client's deadline the call's timeout, unless that is shorter.
func bound(ctx context.Context, call *relay.Call) {
	deadline, ok := ctx.Deadline()
	if !ok {
		return
	}
	left := min(max(deadline.Sub(call.Received), time.Millisecond), maxTimeout)
	if call.Scan.Timeout == 0 || left < call.Scan.Timeout {
		call.Scan.Timeout = left
	}
}

func first(md metadata.MD, name string) string {
	if values := md.Get(name); len(values) > 0 {
		return values[0]
	}
	return ""
}

// passed is what an engine gets of a client's metadata: neither credentials nor what is between us and the client.
func passed(md metadata.MD) http.Header {
	to := make(http.Header, len(md))
	for name, values := range md {
		if between(name) || credential(name) || strings.HasPrefix(name, "x-sluice-") || strings.HasPrefix(name, "x-envoy-") ||
			strings.HasPrefix(name, headers.Endpoint) {
			continue
		}
		for _, v := range values {
			to.Add(name, v)
		}
	}
	return to
}

func credential(name string) bool {
	switch name {
	case "authorization", "proxy-authorization", "cookie", "x-api-key", "api-key":
		return true
	}
	return false
}

// between says that a header, in lower case, is of one connection or of one protocol and means nothing to the next.
func between(name string) bool {
	switch name {
	case "content-type", "content-length", "content-encoding", "accept", "accept-encoding", "connection", "keep-alive", "proxy-connection", "te",
		"trailer", "transfer-encoding", "upgrade", "expect", "host", "user-agent", headers.IdempotencyKey:
		return true
	}
	return strings.HasPrefix(name, ":") || strings.HasPrefix(name, "grpc-") || strings.HasSuffix(name, "-bin")
}
