package extproc

import (
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/sluice-gateway/sluice/internal/grpcserver"
	"github.com/sluice-gateway/sluice/internal/headers"
	"github.com/sluice-gateway/sluice/internal/protofields"
)

// maxObserved bounds how much of a response is read for its id, in bytes.
const maxObserved = 64 << 10

// observer is an exchange that Envoy's observer filter opened. It waits for the first bytes of the
// response's body, reports the first token and the id of the response to the request's ticket, and
// ends the exchange. After that end Envoy sends no further bytes. Envoy expects no answer, so
// observer must not send any.
//
// Envoy opens such an exchange for a request that has the header x-sluice-observe, when the first
// bytes of the body arrive. Response headers do not count, since an engine may send them long
// before its first token.
type observer struct {
	server *Server
	stream *grpcserver.Stream
	// id is the id of the request. Only the first message has it.
	id    string
	begin []byte
}

// Message implements grpcserver.Handler.
func (o *observer) Message(content []byte) {
	m, err := parse(content)
	if err != nil {
		o.stream.Finish(codes.Internal, "malformed message: "+err.Error())
		return
	}
	if id := m.requestID(); id != "" {
		o.id = id
	}
	if m.kind != responseBody || len(m.body) == 0 {
		return
	}
	o.begin = append(o.begin, m.body...)
	if !o.server.Requests.FirstToken(o.id, o.begin) || len(o.begin) >= maxObserved {
		o.stream.Finish(codes.OK, "")
	}
}

// HalfClose implements grpcserver.Handler.
func (o *observer) HalfClose() { o.stream.Finish(codes.OK, "") }

// End implements grpcserver.Handler.
func (o *observer) End() {}

// requestID returns the id of the request that an observer's message is about, from the attributes.
// It is empty if the message has none. The attributes have one entry, named after the filter.
func (m *message) requestID() string {
	id := ""
	_, attributes := protofields.Pair(m.attributes) // a Struct
	err := protofields.Each(attributes, func(_ protowire.Number, entry []byte, _ uint64) error {
		if name, value := protofields.Pair(entry); string(name) == headers.AttributeRequestID {
			id = string(protofields.Bytes(value, 3)) // string_value
		}
		return nil
	})
	if err != nil {
		return ""
	}
	return id
}
