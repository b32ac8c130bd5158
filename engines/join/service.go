package join

import (
	"context"
	"encoding/json"

	"google.golang.org/grpc"
)

// The service and its methods, as they are called on the wire.
const (
	serviceName = "sluice.node.v1.Nodes"
	joinMethod  = "/" + serviceName + "/Join"
	renewMethod = "/" + serviceName + "/Renew"
	runMethod   = "/" + serviceName + "/Run"
)

// nodes is what the gateway serves.
type nodes interface {
	join(context.Context, *joinRequest) (*certificates, error)
	renew(context.Context, *renewRequest) (*certificates, error)
	run(grpc.ServerStream) error
}

// description is the service. There is no generated code: both sides are in this package.
func description() *grpc.ServiceDesc {
	return &grpc.ServiceDesc{
		ServiceName: serviceName,
		HandlerType: (*nodes)(nil),
		Methods: []grpc.MethodDesc{
			{MethodName: "Join", Handler: unary(nodes.join)},
			{MethodName: "Renew", Handler: unary(nodes.renew)},
		},
		Streams: []grpc.StreamDesc{*runStream()},
	}
}

func runStream() *grpc.StreamDesc {
	return &grpc.StreamDesc{StreamName: "Run", ServerStreams: true, ClientStreams: true,
		Handler: func(server any, stream grpc.ServerStream) error { return server.(nodes).run(stream) },
	}
}

// unary makes a handler of a method. The server has no interceptors.
func unary[Request any](call func(nodes, context.Context, *Request) (*certificates, error)) grpc.MethodHandler {
	return func(server any, ctx context.Context, decode func(any) error, _ grpc.UnaryServerInterceptor) (any, error) {
		request := new(Request)
		if err := decode(request); err != nil {
			return nil, err
		}
		return call(server.(nodes), ctx, request)
	}
}

// codec carries messages as JSON.
type codec struct{}

// Marshal implements encoding.Codec.
func (codec) Marshal(message any) ([]byte, error) { return json.Marshal(message) }

// Unmarshal implements encoding.Codec.
func (codec) Unmarshal(data []byte, message any) error { return json.Unmarshal(data, message) }

// Name implements encoding.Codec.
func (codec) Name() string { return "json" }
