package telemetry

import (
	"context"
	"errors"
	"io"
	"sync/atomic"

	alsv3 "github.com/envoyproxy/go-control-plane/envoy/service/accesslog/v3"
	"google.golang.org/grpc"

	"github.com/sluice-gateway/sluice/internal/request"
)

// AccessLog receives Envoy's gRPC access log (envoy.service.accesslog.v3.AccessLogService). The
// zero value discards it.
//
// Envoy opens one stream per worker and log, and reopens a broken stream by itself. Records written
// in the meantime are lost. So a component that must learn of each end needs a second source.
type AccessLog struct {
	alsv3.UnimplementedAccessLogServiceServer

	// OnEntry is called for every HTTP record, concurrently for several streams, in order within a
	// stream. It blocks its stream and must be fast. nil means that records are discarded.
	OnEntry func(request.Entry)

	// Elsewhere reports whether another gateway configures the Envoy at the other end. The stream
	// then ends after its next message, so that Envoy opens it again at that gateway, which alone
	// knows the requests. nil means never.
	Elsewhere func(stream context.Context) bool

	// retired says that another process receives the log, see Retire.
	retired atomic.Bool
}

// Retire ends each stream after its next message, so that Envoy opens it again at the process that
// has replaced this one.
func (a *AccessLog) Retire() { a.retired.Store(true) }

// Register adds the service to a gRPC server.
func (a *AccessLog) Register(r grpc.ServiceRegistrar) { alsv3.RegisterAccessLogServiceServer(r, a) }

// StreamAccessLogs implements the service. It ends when Envoy or the connection does.
func (a *AccessLog) StreamAccessLogs(stream alsv3.AccessLogService_StreamAccessLogsServer) error {
	log := ""
	for {
		in, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return stream.SendAndClose(&alsv3.StreamAccessLogsResponse{})
		}
		if err != nil {
			return err
		}
		if id := in.GetIdentifier(); id != nil { // the first message of a stream only
			log = id.GetLogName()
		}
		if a.OnEntry != nil {
			for _, record := range in.GetHttpLogs().GetLogEntry() {
				a.OnEntry(newEntry(log, record))
			}
		}
		if a.retired.Load() || a.Elsewhere != nil && a.Elsewhere(stream.Context()) {
			return stream.SendAndClose(&alsv3.StreamAccessLogsResponse{})
		}
	}
}
