package authz

import (
	"context"
	"strconv"

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
// x-sluice-tenant, its priority in x-sluice-priority, and without its credentials; a refused one gets the error in OpenAI's shape.
type Server struct {
	auth.UnimplementedAuthorizationServer
	Authenticator *Authenticator
}

// Register adds the server to a gRPC server.
func (s *Server) Register(r grpc.ServiceRegistrar) { auth.RegisterAuthorizationServer(r, s) }

// Check implements envoy.service.auth.v3.Authorization.
func (s *Server) Check(_ context.Context, req *auth.CheckRequest) (*auth.CheckResponse, error) {
	h := req.GetAttributes().GetRequest().GetHttp().GetHeaders()
	c := Credentials{Authorization: h["authorization"], APIKey: h["x-api-key"]}
	if c.APIKey == "" {
		c.APIKey = h["api-key"]
	}
	tenant, fault := s.Authenticator.Authenticate(c)
	if fault != nil {
		return denied(fault), nil
	}
	priority, fault := tenant.PriorityOf(h[headers.Priority])
	if fault != nil {
		return denied(fault), nil
	}
	return &auth.CheckResponse{
		Status: &status.Status{Code: int32(codes.OK)},
		HttpResponse: &auth.CheckResponse_OkResponse{OkResponse: &auth.OkHttpResponse{
			Headers:         []*core.HeaderValueOption{option(headers.Tenant, tenant.Name), option(headers.Priority, priority)},
			HeadersToRemove: []string{"authorization", "x-api-key", "api-key"},
		}},
	}, nil
}

func denied(e *openai.Error) *auth.CheckResponse {
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
	return &auth.CheckResponse{
		Status: &status.Status{Code: int32(codes.PermissionDenied), Message: strconv.Itoa(e.HTTPStatus())},
		HttpResponse: &auth.CheckResponse_DeniedResponse{DeniedResponse: &auth.DeniedHttpResponse{
			Status:  &typev3.HttpStatus{Code: typev3.StatusCode(e.HTTPStatus())},
			Headers: hs,
			Body:    string(e.Body()),
		}},
	}
}

func option(key, value string) *core.HeaderValueOption {
	return &core.HeaderValueOption{
		Header:       &core.HeaderValue{Key: key, Value: value},
		AppendAction: core.HeaderValueOption_OVERWRITE_IF_EXISTS_OR_ADD,
	}
}
