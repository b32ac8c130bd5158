package extproc

import (
	"context"

	extproc "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"google.golang.org/grpc/metadata"

	"github.com/sluice-gateway/sluice/internal/headers"
)

// observing reports whether Envoy's observer filter opened the exchange. The observer reports the
// first bytes of a response and expects no answer. Envoy opens such an exchange for a request that
// has the header x-sluice-observe, when the first bytes of the body arrive. Response headers do not
// count, since an engine may send them long before its first token.
func observing(ctx context.Context) bool {
	role := metadata.ValueFromIncomingContext(ctx, headers.Role)
	return len(role) == 1 && role[0] == headers.RoleObserver
}

// maxObserved bounds how much of a response is read for its id, in bytes.
const maxObserved = 64 << 10

// observe waits for the first bytes of the response's body, reports the first token and the id of
// the response to the request's ticket, and ends the exchange. After that end Envoy sends no
// further bytes. An observer expects no answer, so observe must not send any.
func (s *Server) observe(stream extproc.ExternalProcessor_ProcessServer) error {
	id, begin := "", []byte(nil)
	for {
		in, err := stream.Recv()
		if err != nil {
			return ignoreOrdinaryEnd(err)
		}
		if named := observedID(in); named != "" { // only the first message has it
			id = named
		}
		if len(in.GetResponseBody().GetBody()) == 0 {
			continue
		}
		begin = append(begin, in.GetResponseBody().GetBody()...)
		if !s.Requests.FirstToken(id, begin) || len(begin) >= maxObserved {
			return nil
		}
	}
}

// observedID returns the id of the request that an observer's message is about. It is empty if the
// message has none.
func observedID(in *extproc.ProcessingRequest) string {
	for _, attributes := range in.GetAttributes() { // the map has one entry, named after the filter
		if id := attributes.GetFields()[headers.AttributeRequestID].GetStringValue(); id != "" {
			return id
		}
	}
	return ""
}
