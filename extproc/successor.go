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
// other end of to. See decide.Decider.Retire.
func (s *Server) Retire(to grpc.ClientConnInterface) {
	client := extproc.NewExternalProcessorClient(to)
	s.successor.Store(&client)
	s.Decider.Retire()
}

// passOn has the successor serve the exchange, of which last is the message that nobody has
// answered yet. It replays the messages before, and then copies messages both ways to the end.
func (e *exchange) passOn(last *extproc.ProcessingRequest) error {
	e.Leave()
	ctx, cancel := context.WithCancel(e.envoy.Context())
	defer cancel()
	if gateway := e.Gateway(); gateway != "" {
		ctx = metadata.AppendToOutgoingContext(ctx, headers.Endpoint, gateway)
	}
	to, err := (*e.server.successor.Load()).Process(ctx)
	if err != nil {
		return ignoreOrdinaryEnd(err)
	}
	if e.first != nil {
		refusal, err := replayHeaders(to, e.first)
		if err != nil {
			return ignoreOrdinaryEnd(err)
		}
		if refusal != nil {
			return ignoreOrdinaryEnd(e.send(refusal))
		}
	}
	if err := to.Send(last); err != nil {
		return ignoreOrdinaryEnd(err)
	}
	go func() { // it ends when Process has returned
		for {
			in, err := e.envoy.Recv()
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
		if err := e.send(out); err != nil {
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

// Gateway implements decide.Envoy. An Envoy of another host may use another gateway before it
// brings an offer. A predecessor that passes an exchange on tells the address.
func (e *exchange) Gateway() string {
	ctx := e.envoy.Context()
	if _, gateway, ok := elsewhere.Peer(ctx); ok {
		return cmp.Or(e.server.Advertise, gateway)
	}
	if told := metadata.ValueFromIncomingContext(ctx, headers.Endpoint); len(told) == 1 {
		return told[0]
	}
	return ""
}
