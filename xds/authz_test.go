package xds

import (
	"context"
	"testing"

	core "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	auth "github.com/envoyproxy/go-control-plane/envoy/service/auth/v3"
	httpstatus "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc/codes"
	grpcstatus "google.golang.org/grpc/status"

	"github.com/sluice-gateway/sluice/authz"
	"github.com/sluice-gateway/sluice/internal/headers"
)

// authzStandIn authorizes requests that have a key, and fails on request. For requests with
// x-test-real it calls the real server.
type authzStandIn struct {
	auth.UnimplementedAuthorizationServer
	real *authz.Server
}

// authorizerOf returns a server that knows one tenant, acme, with the key k.
func authorizerOf(t testing.TB) *authz.Server {
	t.Helper()
	a := new(authz.Authenticator)
	if err := a.Set(authz.Config{Tenants: []authz.TenantConfig{{Tenant: authz.Tenant{Name: "acme"}, Keys: []authz.KeyConfig{{Hash: authz.HashKey("k")}}}}}); err != nil {
		t.Fatal(err)
	}
	return &authz.Server{Authenticator: a}
}

func (a authzStandIn) Check(ctx context.Context, in *auth.CheckRequest) (*auth.CheckResponse, error) {
	h := in.GetAttributes().GetRequest().GetHttp().GetHeaders()
	if h["x-test-fail"] != "" {
		return nil, grpcstatus.Error(codes.Unavailable, "asked to fail")
	}
	if h["x-test-real"] != "" {
		return a.real.Check(ctx, in)
	}
	if h["authorization"] == "" {
		return &auth.CheckResponse{
			Status: &status.Status{Code: int32(codes.Unauthenticated)},
			HttpResponse: &auth.CheckResponse_DeniedResponse{DeniedResponse: &auth.DeniedHttpResponse{
				Status: &httpstatus.HttpStatus{Code: 401}, Body: "sluice says 401",
			}},
		}, nil
	}
	return &auth.CheckResponse{
		Status: &status.Status{},
		HttpResponse: &auth.CheckResponse_OkResponse{OkResponse: &auth.OkHttpResponse{Headers: []*core.HeaderValueOption{
			overwrite(headers.Tenant, "acme"), overwrite(headers.Priority, "batch"),
		}}},
	}, nil
}

func overwrite(name, value string) *core.HeaderValueOption {
	return &core.HeaderValueOption{
		Header: &core.HeaderValue{Key: name, Value: value}, AppendAction: core.HeaderValueOption_OVERWRITE_IF_EXISTS_OR_ADD,
	}
}
