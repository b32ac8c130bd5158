package extproc

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/sluice-gateway/sluice/internal/elsewhere"
	"github.com/sluice-gateway/sluice/internal/headers"
	"github.com/sluice-gateway/sluice/internal/protofields"
)

// Retire passes every exchange on that is not decided yet, to the server of another process at the
// other end of to. See decide.Decider.Retire.
func (s *Server) Retire(to grpc.ClientConnInterface) {
	s.successor.Store(&to)
	s.Decider.Retire()
}

// passed is an exchange that the successor serves. Messages are copied both ways to the end.
type passed struct {
	to     grpc.ClientStream
	cancel context.CancelFunc
}

// passOn has the successor serve the exchange, of which last is the message that nobody has
// answered yet. It replays the messages before.
func (e *exchange) passOn(last []byte) {
	e.stream.Block()
	e.Leave()
	ctx, cancel := context.WithCancel(metadata.AppendToOutgoingContext(e.stream.Context(), headers.Role, headers.RolePassed))
	if gateway := e.Gateway(); gateway != "" {
		ctx = metadata.AppendToOutgoingContext(ctx, headers.Endpoint, gateway)
	}
	to, refusal, err := e.openAt(ctx, last)
	if err != nil || refusal != nil {
		cancel()
		e.finish(refusal, err)
		return
	}
	e.passed = &passed{to, cancel}
	go func() { // it ends with ctx, at the latest when the exchange does
		defer cancel()
		for {
			var out []byte
			if err := to.RecvMsg(&out); err != nil {
				e.finish(nil, err)
				return
			}
			if e.sendRaw(out) != nil {
				return
			}
			e.stream.Flush()
		}
	}()
}

// openAt opens the exchange at the successor. Envoy has an answer to the headers of the request
// already, so the successor's answer is returned only if it refuses the request.
func (e *exchange) openAt(ctx context.Context, last []byte) (to grpc.ClientStream, refusal []byte, err error) {
	to, err = (*e.server.successor.Load()).NewStream(ctx, &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}, Method, grpc.ForceCodecV2(rawCodec{}))
	if err != nil {
		return nil, nil, err
	}
	if e.first != nil {
		var out []byte
		if err := to.SendMsg(e.first); err != nil {
			return nil, nil, err
		}
		if err := to.RecvMsg(&out); err != nil {
			return nil, nil, err
		}
		if protofields.Bytes(out, 7) != nil { // immediate_response
			return nil, out, nil
		}
	}
	return to, nil, to.SendMsg(last)
}

// finish ends the exchange as it has ended at the successor, after a last message if there is one.
func (e *exchange) finish(last []byte, err error) {
	if last != nil {
		_ = e.sendRaw(last) // an error means that the exchange has ended
	}
	if s := status.Convert(err); err == nil || errors.Is(err, io.EOF) || s.Code() == codes.Canceled {
		e.stream.Finish(codes.OK, "")
	} else {
		e.stream.Finish(s.Code(), s.Message())
	}
	e.stream.Flush()
}

// sendRaw sends a message of the successor.
func (e *exchange) sendRaw(m []byte) error {
	return e.stream.Send(func(out []byte) []byte { return append(out, m...) })
}

// send sends a further message of Envoy to the successor.
func (p *passed) send(m []byte) {
	if p.to.SendMsg(m) != nil { // the client may send it later
		p.cancel() // the goroutine that receives ends the exchange
	}
}

// rawCodec leaves messages as they are.
type rawCodec struct{}

func (rawCodec) Marshal(v any) (mem.BufferSlice, error) {
	m, ok := v.([]byte)
	if !ok {
		return nil, fmt.Errorf("a message is %T", v)
	}
	return mem.BufferSlice{mem.SliceBuffer(m)}, nil
}

func (rawCodec) Unmarshal(data mem.BufferSlice, v any) error {
	m, ok := v.(*[]byte)
	if !ok {
		return fmt.Errorf("a message is %T", v)
	}
	*m = data.Materialize()
	return nil
}

// Name implements encoding.CodecV2. It is the codec of the messages as they are on the wire.
func (rawCodec) Name() string { return "proto" }

// Gateway implements decide.Envoy. An Envoy of another host may use another gateway before it
// brings an offer. A predecessor that passes an exchange on tells the address.
func (e *exchange) Gateway() string {
	if _, gateway, ok := elsewhere.Peer(e.stream.Context()); ok {
		return cmp.Or(e.server.Advertise, gateway)
	}
	return e.told
}
