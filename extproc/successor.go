package extproc

import (
	"cmp"
	"context"

	extproc "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	"github.com/sluice-gateway/sluice/internal/elsewhere"
	"github.com/sluice-gateway/sluice/internal/headers"
)

// Retire passes every exchange on that is not decided yet, to the server of another process at the
// other end of to. Call it before dispatch.Dispatcher.Retire, which ends the waits of this process.
// Exchanges that are decided go on here until their responses have ended.
func (s *Server) Retire(to grpc.ClientConnInterface) {
	client := extproc.NewExternalProcessorClient(to)
	s.successor.Store(&client)
}

// Busy reports whether an exchange is open.
func (s *Server) Busy() bool { return s.open.Load() > 0 }

// passOn has the successor serve the exchange, of which last is the message that nobody has
// answered yet. It replays the messages before, and then copies messages both ways to the end.
func (x *exchange) passOn(last *extproc.ProcessingRequest) error {
	x.endUpload()
	ctx, cancel := context.WithCancel(x.envoy.Context())
	defer cancel()
	if gateway := x.gateway(); gateway != "" {
		ctx = metadata.AppendToOutgoingContext(ctx, headers.Endpoint, gateway)
	}
	to, err := (*x.server.successor.Load()).Process(ctx)
	if err != nil {
		return ignoreOrdinaryEnd(err)
	}
	if x.first != nil {
		refusal, err := replayHeaders(to, x.first)
		if err != nil {
			return ignoreOrdinaryEnd(err)
		}
		if refusal != nil {
			return ignoreOrdinaryEnd(x.send(refusal))
		}
	}
	if err := to.Send(last); err != nil {
		return ignoreOrdinaryEnd(err)
	}
	go func() { // it ends when Process has returned
		for {
			in, err := x.envoy.Recv()
			if err != nil {
				cancel()
				return
			}
			if to.Send(in) != nil {
				return
			}
		}
	}()
	for {
		out, err := to.Recv()
		if err != nil {
			return ignoreOrdinaryEnd(err)
		}
		if err := x.send(out); err != nil {
			return ignoreOrdinaryEnd(err)
		}
	}
}

// replayHeaders sends the headers of a request to the successor. Envoy has an answer to them
// already, so replayHeaders returns the successor's answer only if it refuses the request.
func replayHeaders(to extproc.ExternalProcessor_ProcessClient, headers *extproc.ProcessingRequest) (*extproc.ProcessingResponse, error) {
	if err := to.Send(headers); err != nil {
		return nil, err
	}
	out, err := to.Recv()
	if err != nil || out.GetImmediateResponse() == nil {
		return nil, err
	}
	return out, nil
}

// gateway returns the address at which the relay of this gateway has an offer, if an Envoy of
// another host asks. The Envoy may use another gateway before it brings the offer. A predecessor
// that passes an exchange on tells the address.
func (x *exchange) gateway() string {
	ctx := x.envoy.Context()
	if _, gateway, ok := elsewhere.Peer(ctx); ok {
		return cmp.Or(x.server.Advertise, gateway)
	}
	if told := metadata.ValueFromIncomingContext(ctx, headers.Endpoint); len(told) == 1 {
		return told[0]
	}
	return ""
}
