package authz

import (
	"cmp"
	"context"
	"strconv"
	"strings"

	core "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	auth "github.com/envoyproxy/go-control-plane/envoy/service/auth/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/sluice-gateway/sluice/internal/headers"
	"github.com/sluice-gateway/sluice/internal/openai"
	"github.com/sluice-gateway/sluice/internal/routes"
)

// Server implements Envoy's ext_authz over gRPC.
//
// An allowed request continues without its credentials and with three headers. x-sluice-tenant is
// the tenant's name, and x-sluice-priority its priority. x-sluice-key is the digest of its key, or
// for a WebSocket the Proof of its caller. A refused HTTP request gets the error in OpenAI's form,
// or in Anthropic's if it has the version of that API. A refused gRPC request gets a status and the
// error's message.
type Server struct {
	auth.UnimplementedAuthorizationServer
	Authenticator *Authenticator
	// MaxHeaders are the limits of a request's headers. The zero value means no limits.
	MaxHeaders headers.Limits
}

// Register adds the server to a gRPC server.
func (s *Server) Register(r grpc.ServiceRegistrar) { auth.RegisterAuthorizationServer(r, s) }

// Check implements envoy.service.auth.v3.Authorization.
func (s *Server) Check(_ context.Context, req *auth.CheckRequest) (*auth.CheckResponse, error) {
	r := req.GetAttributes().GetRequest().GetHttp()
	h := r.GetHeaders()
	if fault := s.checkSize(h); fault != nil {
		return denied(fault, h), nil
	}
	c := Credentials{Authorization: h["authorization"], APIKey: cmp.Or(h["x-api-key"], h["api-key"]), ForwardedFor: h["x-forwarded-for"]}
	passed := &auth.OkHttpResponse{HeadersToRemove: []string{"authorization", "x-api-key", "api-key"}}
	if name := s.Authenticator.Header(); name != "" {
		c.User = h[name]
		passed.HeadersToRemove = append(passed.HeadersToRemove, name)
	}
	proof := Credentials.Digest
	if path, _, _ := strings.Cut(r.GetPath(), "?"); path == routes.RealtimePath {
		key := passProtocols(passed, h[protocolHeader])
		c.APIKey = cmp.Or(c.APIKey, key)
		proof = s.Authenticator.Proof
	}
	tenant, fault := s.Authenticator.Authenticate(c)
	if fault != nil {
		return denied(fault, h), nil
	}
	priority, fault := tenant.PriorityOf(h[headers.Priority])
	if fault != nil {
		return denied(fault, h), nil
	}
	passed.Headers = append(passed.Headers, setHeader(headers.Tenant, tenant.Name), setHeader(headers.Priority, priority), setHeader(headers.Key, proof(c)))
	return &auth.CheckResponse{
		Status: &status.Status{Code: int32(codes.OK)},
		DynamicMetadata: &structpb.Struct{Fields: map[string]*structpb.Value{
			headers.MetadataTenant: structpb.NewStringValue(tenant.Name), headers.MetadataKey: structpb.NewStringValue(tenant.Key),
		}},
		HttpResponse: &auth.CheckResponse_OkResponse{OkResponse: passed},
	}, nil
}

// checkSize refuses a request with too many headers.
func (s *Server) checkSize(h map[string]string) *openai.Error {
	size := 0
	for name, value := range h {
		size += len(name) + len(value)
	}
	if why := s.MaxHeaders.Exceeded(len(h), size); why != "" {
		return &openai.Error{Code: openai.CodeHeadersTooLarge, Message: why}
	}
	return nil
}

// A browser can set no header of a WebSocket except the list of subprotocols. Therefore a client of
// /v1/realtime may send its key as a subprotocol, as OpenAI's clients do.
const (
	protocolHeader = "sec-websocket-protocol"
	protocolKey    = "openai-insecure-api-key."
)

// passProtocols removes the keys from the subprotocols that a client offers and returns the first
// key. It removes them even if the caller authenticates the client by another header. passed
// becomes the answer that sets the remaining subprotocols.
func passProtocols(passed *auth.OkHttpResponse, offered string) (key string) {
	if !strings.Contains(offered, protocolKey) {
		return ""
	}
	var others []string
	for entry := range strings.SplitSeq(offered, ",") {
		entry = strings.TrimSpace(entry)
		secret, ok := strings.CutPrefix(entry, protocolKey)
		if !ok {
			others = append(others, entry)
		} else if key == "" {
			key = secret
		}
	}
	if len(others) == 0 {
		passed.HeadersToRemove = append(passed.HeadersToRemove, protocolHeader)
		return key
	}
	passed.Headers = append(passed.Headers, setHeader(protocolHeader, strings.Join(others, ", ")))
	return key
}

// denied returns the refusal of a request that has these headers.
func denied(e *openai.Error, request map[string]string) *auth.CheckResponse {
	if strings.HasPrefix(request["content-type"], "application/grpc") {
		return refusal(e, e.Message, setHeader(headers.Source, headers.SourceGateway),
			setHeader("grpc-status", strconv.Itoa(int(grpcCode(e)))))
	}
	set := []*core.HeaderValueOption{
		setHeader("content-type", "application/json"),
		setHeader(headers.Source, headers.SourceGateway),
	}
	if e.HTTPStatus() == 401 {
		set = append(set, setHeader("www-authenticate", "Bearer"))
	}
	if s := e.RetryAfterSeconds(); s != "" {
		set = append(set, setHeader("retry-after", s))
	}
	if e.MustNotRepeat() {
		set = append(set, setHeader(headers.ShouldRetry, "false"))
	}
	return refusal(e, string(e.BodyFor(request[openai.VersionHeader])), set...)
}

// grpcCode returns the gRPC status of an error. Without it Envoy would derive a status from the
// HTTP status, which is UNIMPLEMENTED or INTERNAL for some errors.
func grpcCode(e *openai.Error) codes.Code {
	switch e.HTTPStatus() {
	case 400:
		return codes.InvalidArgument
	case 401:
		return codes.Unauthenticated
	case 403:
		return codes.PermissionDenied
	}
	return codes.Unavailable
}

// refusal returns the answer that makes Envoy refuse a request with the status of e. The access log
// finds the code of e in the metadata.
func refusal(e *openai.Error, body string, set ...*core.HeaderValueOption) *auth.CheckResponse {
	return &auth.CheckResponse{
		Status:          &status.Status{Code: int32(codes.PermissionDenied), Message: strconv.Itoa(e.HTTPStatus())},
		DynamicMetadata: &structpb.Struct{Fields: map[string]*structpb.Value{headers.MetadataCode: structpb.NewStringValue(string(e.Code))}},
		HttpResponse: &auth.CheckResponse_DeniedResponse{DeniedResponse: &auth.DeniedHttpResponse{
			Status:  &typev3.HttpStatus{Code: typev3.StatusCode(e.HTTPStatus())},
			Headers: set,
			Body:    body,
		}},
	}
}

// setHeader replaces a header, whoever set the header before.
func setHeader(key, value string) *core.HeaderValueOption {
	return &core.HeaderValueOption{
		Header:       &core.HeaderValue{Key: key, Value: value},
		AppendAction: core.HeaderValueOption_OVERWRITE_IF_EXISTS_OR_ADD,
	}
}
