package telemetry

import (
	"context"
	"sync/atomic"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/sluice-gateway/sluice/internal/grpcserver"
	"github.com/sluice-gateway/sluice/internal/protofields"
	"github.com/sluice-gateway/sluice/internal/request"
)

// AccessLogMethod is the path of the method by which Envoy sends its access log.
const AccessLogMethod = "/envoy.service.accesslog.v3.AccessLogService/StreamAccessLogs"

// AccessLog receives Envoy's gRPC access log (envoy.service.accesslog.v3.AccessLogService). The
// zero value discards it.
//
// Envoy opens one stream per worker and log, and reopens a broken stream by itself. Records written
// in the meantime are lost. So a component that must learn of each end needs a second source.
type AccessLog struct {
	// OnEntry is called for every HTTP record, concurrently for several connections, in order
	// within a stream. It blocks its connection and must be fast. nil means that records are
	// discarded.
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

// Open opens a stream of AccessLogMethod.
func (a *AccessLog) Open(stream *grpcserver.Stream, _ func(name string) string) grpcserver.Handler {
	return &logStream{log: a, stream: stream}
}

// logStream is one stream of records.
type logStream struct {
	log    *AccessLog
	stream *grpcserver.Stream
	// name is the name of the log. Only the first message of a stream has it.
	name  string
	words request.Words
}

// Message implements grpcserver.Handler: it reads a StreamAccessLogsMessage.
func (l *logStream) Message(content []byte) {
	err := protofields.Each(content, func(field protowire.Number, content []byte, _ uint64) error {
		switch {
		case content == nil:
		case field == 1: // identifier
			l.name = string(protofields.Bytes(content, 2))
		case field == 2: // http_logs
			return l.records(content)
		}
		return nil
	})
	if err != nil {
		l.stream.Finish(codes.Internal, "malformed message: "+err.Error())
	} else if l.log.retired.Load() || l.log.Elsewhere != nil && l.log.Elsewhere(l.stream.Context()) {
		l.HalfClose()
	}
}

// records reads an HTTPAccessLogEntries.
func (l *logStream) records(content []byte) error {
	if l.log.OnEntry == nil {
		return nil
	}
	return protofields.Each(content, func(field protowire.Number, content []byte, _ uint64) error {
		if field != 1 || content == nil {
			return nil
		}
		e, err := newEntry(l.name, content, &l.words)
		if err == nil {
			e.PID = l.stream.PeerPID()
			l.log.OnEntry(e)
		}
		return err
	})
}

// HalfClose implements grpcserver.Handler: it sends a StreamAccessLogsResponse, which is empty.
func (l *logStream) HalfClose() {
	_ = l.stream.Send(func(out []byte) []byte { return out }) // an error means that the stream has ended
	l.stream.Finish(codes.OK, "")
}

// End implements grpcserver.Handler.
func (l *logStream) End() {}
