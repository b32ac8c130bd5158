package join

import (
	"context"
	"encoding/json"

	"google.golang.org/grpc"
)

// The names of the gRPC service and its methods.
const (
	serviceName = "sluice.node.v1.Nodes"
	joinMethod  = "/" + serviceName + "/Join"
	renewMethod = "/" + serviceName + "/Renew"
	runMethod   = "/" + serviceName + "/Run"
	logMethod   = "/" + serviceName + "/Log"
)

// nodeService is the interface of the gRPC service. Server implements it.
type nodeService interface {
	join(context.Context, *joinRequest) (*certificates, error)
	renew(context.Context, *renewRequest) (*certificates, error)
	run(grpc.ServerStream) error
	receiveLog(grpc.ServerStream) error
	receiveFirst(ctx context.Context, receive func() error) error
}

// serviceDesc describes the gRPC service. There is no generated code, because this package holds
// both sides.
func serviceDesc() *grpc.ServiceDesc {
	return &grpc.ServiceDesc{
		ServiceName: serviceName,
		HandlerType: (*nodeService)(nil),
		Methods: []grpc.MethodDesc{
			{MethodName: "Join", Handler: unary(nodeService.join)},
			{MethodName: "Renew", Handler: unary(nodeService.renew)},
		},
		Streams: []grpc.StreamDesc{*runStreamDesc(), *logStreamDesc()},
	}
}

func runStreamDesc() *grpc.StreamDesc {
	return &grpc.StreamDesc{StreamName: "Run", ServerStreams: true, ClientStreams: true,
		Handler: func(server any, stream grpc.ServerStream) error { return server.(nodeService).run(stream) },
	}
}

func logStreamDesc() *grpc.StreamDesc {
	return &grpc.StreamDesc{StreamName: "Log", ClientStreams: true,
		Handler: func(server any, stream grpc.ServerStream) error { return server.(nodeService).receiveLog(stream) },
	}
}

// unary returns the gRPC handler of a method. It ignores interceptors, because the server has none.
func unary[Request any](call func(nodeService, context.Context, *Request) (*certificates, error)) grpc.MethodHandler {
	return func(server any, ctx context.Context, decode func(any) error, _ grpc.UnaryServerInterceptor) (any, error) {
		request := new(Request)
		if err := server.(nodeService).receiveFirst(ctx, func() error { return decode(request) }); err != nil {
			return nil, err
		}
		return call(server.(nodeService), ctx, request)
	}
}

// codec encodes gRPC messages as JSON.
type codec struct{}

func (codec) Marshal(message any) ([]byte, error) { return json.Marshal(message) }

func (codec) Unmarshal(data []byte, message any) error { return json.Unmarshal(data, message) }

func (codec) Name() string { return "json" }
