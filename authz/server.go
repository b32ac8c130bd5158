package authz

import (
	"context"
	"strconv"
	"strings"

	core "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	auth "github.com/envoyproxy/go-control-plane/envoy/service/auth/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"

	"github.com/sluice-gateway/sluice/internal/headers"
	"github.com/sluice-gateway/sluice/internal/openai"
)

// Server answers Envoy's ext_authz filter over gRPC. An allowed request goes on with the tenant's name in the header
// x-sluice-tenant, its priority in x-sluice-priority, the digest of its key in x-sluice-key, and without its credentials; a refused
// one gets the error in OpenAI's shape, and a refused gRPC request a status with its message.
type Server struct {
	auth.UnimplementedAuthorizationServer
	Authenticator *Authenticator
}

// Register adds the server to a gRPC server.
func (s *Server) Register(r grpc.ServiceRegistrar) { auth.RegisterAuthorizationServer(r, s) }

// Check implements envoy.service.auth.v3.Authorization.
func (s *Server) Check(_ context.Context, req *auth.CheckRequest) (*auth.CheckResponse, error) {
	r := req.GetAttributes().GetRequest().GetHttp()
	h := r.GetHeaders()
	c := Credentials{Authorization: h["authorization"], APIKey: h["x-api-key"]}
	if c.APIKey == "" {
		c.APIKey = h["api-key"]
	}
	passed := &auth.OkHttpResponse{HeadersToRemove: []string{"authorization", "x-api-key", "api-key"}}
	if path, _, _ := strings.Cut(r.GetPath(), "?"); path == realtimePath {
		key := passProtocols(passed, h[protocolHeader])
		if c.APIKey == "" {
			c.APIKey = key
		}
	}
	tenant, fault := s.Authenticator.Authenticate(c)
	if fault != nil {
		return denied(fault, h), nil
	}
	priority, fault := tenant.PriorityOf(h[headers.Priority])
	if fault != nil {
		return denied(fault, h), nil
	}
	passed.Headers = append(passed.Headers, option(headers.Tenant, tenant.Name), option(headers.Priority, priority), option(headers.Key, c.Digest()))
	return &auth.CheckResponse{
		Status:       &status.Status{Code: int32(codes.OK)},
		HttpResponse: &auth.CheckResponse_OkResponse{OkResponse: passed},
	}, nil
}

// Of a WebSocket a browser can set no header but the list of subprotocols. So the key may be one of them, as it may with OpenAI.
const (
	realtimePath   = "/v1/realtime"
	protocolHeader = "sec-websocket-protocol"
	protocolKey    = "openai-insecure-api-key."
)

// passProtocols takes the keys out of the subprotocols that a client offers, whether one of them is needed or not, and returns the first.
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
	passed.Headers = append(passed.Headers, option(protocolHeader, strings.Join(others, ", ")))
	return key
}

// denied is the refusal of a request with these headers.
func denied(e *openai.Error, request map[string]string) *auth.CheckResponse {
	if strings.HasPrefix(request["content-type"], "application/grpc") {
		return refusal(e, e.Message, option(headers.Source, headers.SourceGateway),
			option("grpc-status", strconv.Itoa(int(grpcCode(e)))))
	}
	hs := []*core.HeaderValueOption{
		option("content-type", "application/json"),
		option(headers.Source, headers.SourceGateway),
	}
	if e.HTTPStatus() == 401 {
		hs = append(hs, option("www-authenticate", "Bearer"))
	}
	if s := e.RetryAfterSeconds(); s != "" {
		hs = append(hs, option("retry-after", s))
	}
	return refusal(e, string(e.Body()), hs...)
}

// grpcCode is the status of an error for a gRPC client. Envoy would make one of the HTTP status, and UNIMPLEMENTED or INTERNAL of some.
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

func refusal(e *openai.Error, body string, hs ...*core.HeaderValueOption) *auth.CheckResponse {
	return &auth.CheckResponse{
		Status: &status.Status{Code: int32(codes.PermissionDenied), Message: strconv.Itoa(e.HTTPStatus())},
		HttpResponse: &auth.CheckResponse_DeniedResponse{DeniedResponse: &auth.DeniedHttpResponse{
			Status:  &typev3.HttpStatus{Code: typev3.StatusCode(e.HTTPStatus())},
			Headers: hs,
			Body:    body,
		}},
	}
}

func option(key, value string) *core.HeaderValueOption {
	return &core.HeaderValueOption{
		Header:       &core.HeaderValue{Key: key, Value: value},
		AppendAction: core.HeaderValueOption_OVERWRITE_IF_EXISTS_OR_ADD,
	}
}
