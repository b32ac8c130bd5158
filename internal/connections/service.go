package connections

import (
	"context"
	"net/netip"

	ratelimit "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc"

	"github.com/sluice-gateway/sluice/internal/headers"
)

// service answers Envoy, which asks for each new connection in the form of a rate limit.
type service struct {
	ratelimit.UnimplementedRateLimitServiceServer
	guard *Guard
}

// Register adds the service that Envoy asks to a gRPC server.
func (g *Guard) Register(r grpc.ServiceRegistrar) {
	ratelimit.RegisterRateLimitServiceServer(r, &service{guard: g})
}

// ShouldRateLimit says whether a client may have one more connection. A request that names no
// client is admitted.
func (s *service) ShouldRateLimit(_ context.Context, r *ratelimit.RateLimitRequest) (*ratelimit.RateLimitResponse, error) {
	code := ratelimit.RateLimitResponse_OK
	for _, d := range r.GetDescriptors() {
		for _, e := range d.GetEntries() {
			client, err := netip.ParseAddr(e.GetValue())
			if e.GetKey() == headers.SourceKey && err == nil && !s.guard.admit(client) {
				code = ratelimit.RateLimitResponse_OVER_LIMIT
			}
		}
	}
	return &ratelimit.RateLimitResponse{OverallCode: code}, nil
}
