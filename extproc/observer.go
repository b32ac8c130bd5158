package extproc

import (
	"context"

	extproc "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"google.golang.org/grpc/metadata"

	"github.com/sluice-gateway/sluice/internal/headers"
)

// observing says whether the exchange is one of Envoy's observer, which asks nothing and only tells
// of a response's first bytes. Envoy opens one for a request that was let go with the header
// x-sluice-observe, and not before there are such bytes: an engine may send its headers long before
// it has a token.
func observing(ctx context.Context) bool {
	role := metadata.ValueFromIncomingContext(ctx, headers.Role)
	return len(role) == 1 && role[0] == headers.RoleObserver
}

// observe waits for the first bytes of the response's body, tells the request's ticket, and ends
// the exchange: Envoy sends none of the later ones then. Nothing may be answered on it.
func (s *Server) observe(stream extproc.ExternalProcessor_ProcessServer) error {
	id := ""
	for {
		in, err := stream.Recv()
		if err != nil {
			return ended(err)
		}
		if named := observedID(in); named != "" { // in the first message only
			id = named
		}
		if len(in.GetResponseBody().GetBody()) == 0 {
			continue
		}
		s.Requests.FirstToken(id)
		return nil
	}
}

// observedID is the id of the request that a message of the observer is about; empty when it does
// not say.
func observedID(in *extproc.ProcessingRequest) string {
	for _, of := range in.GetAttributes() { // by the kind of the filter, of which there is one
		if id := of.GetFields()[headers.AttributeRequestID].GetStringValue(); id != "" {
			return id
		}
	}
	return ""
}
