package telemetry

import (
	"context"
	"math/rand/v2"
	"net/http"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"github.com/sluice-gateway/sluice/internal/openai"
	"github.com/sluice-gateway/sluice/internal/request"
)

// RequestLog is the access log: one line for every finished request, at level info under the name
// "request". A line says who was served by which replica, when, and how the request ended. It has
// nothing of the prompt or the answer. A nil *RequestLog writes nothing.
type RequestLog struct {
	log    *zap.Logger
	sample float64
	// short says that a person reads the log: it has a few fields of failed requests alone.
	short bool
	run   func(context.Context) error
}

// NewRequestLog returns an access log. It is nil if c.To is empty. The error says why the file
// cannot be written.
func NewRequestLog(c AccessLogConfig) (*RequestLog, error) {
	if c.To == "" {
		return nil, nil
	}
	core, run, err := newSink(c)
	if err != nil {
		return nil, err
	}
	return &RequestLog{log: zap.New(core).Named("request"), sample: c.Sample, short: c.To == SinkConsole, run: run}, nil
}

// Run writes what waits for the sink, until ctx ends and all is written.
func (l *RequestLog) Run(ctx context.Context) error {
	if l == nil || l.run == nil {
		return nil
	}
	return l.run(ctx)
}

// hasFailed reports whether the request has failed. A client that has left has not failed.
func hasFailed(q *request.Summary) bool {
	if q.Status == openai.CodeCancelled.Status() || q.Code == string(openai.CodeCancelled) {
		return false
	}
	return q.Status >= http.StatusBadRequest || q.Code != ""
}

// failed writes the short line of a failed request.
func (l *RequestLog) failed(q *request.Summary) {
	if line := l.log.Check(zapcore.WarnLevel, "failed"); line != nil && hasFailed(q) {
		line.Write(zap.Int("status", q.Status), zap.String("code", q.Code), zap.String("model", q.Model), zap.String("tenant", q.Tenant),
			zap.String("replica", q.Replica), zap.String("request_id", q.ID))
	}
}

// Finished writes the line of a request whose final record has been joined; see request.Record.
// Probes of load balancers get no line.
//
// Times are in milliseconds, from Envoy's receipt of the request. Unknown values are omitted: the
// time to the first token without a stream, and tokens that the engine did not count or that were
// not read. Without an engine's count, estimated is true: tokens_out is the number of events with a
// part of the answer, or what the bytes of the answer suggest if nobody has read it, and tokens_in
// is estimated from the prompt or missing. tpot_ms is the mean time per output token after the
// first. client_request_id is the client's own id of the request; it is missing if the client gave
// none. finish_reason is always there, and empty for a response without one. finish_estimated is
// true if nobody has read it, so that it is what the length of the answer suggests.
func (l *RequestLog) Finished(q request.Summary) {
	if l == nil || q.IsProbe() {
		return
	}
	if l.short {
		l.failed(&q)
		return
	}
	if l.sample < 1 && rand.Float64() >= l.sample && !hasFailed(&q) {
		return
	}
	line := l.log.Check(zapcore.InfoLevel, "finished")
	if line == nil {
		return
	}
	fields := make([]zap.Field, 0, 23)
	fields = append(fields, zap.String("request_id", q.ID))
	if q.ClientID != "" {
		fields = append(fields, zap.String("client_request_id", q.ClientID))
	}
	fields = append(fields, zap.String("tenant", q.Tenant), zap.String("model", q.Model),
		zap.String("replica", q.Replica), zap.String("route", q.Route), zap.Int("status", q.Status), zap.String("code", q.Code),
		zap.Bool("stream", q.Stream), milliseconds("queued_ms", q.Waited))
	if ttft := q.TTFT(); q.Stream && ttft > 0 {
		fields = append(fields, milliseconds("ttft_ms", ttft))
	}
	fields = append(fields, milliseconds("duration_ms", q.Duration))
	fields = appendTokens(fields, &q)
	if q.Cause != "" {
		fields = append(fields, zap.String("cause", q.Cause))
	}
	if id := q.TraceID(); id != "" {
		fields = append(fields, zap.String("trace_id", id))
	}
	fields = append(fields, zap.String("finish_reason", q.FinishReason))
	if q.FinishEstimated {
		fields = append(fields, zap.Bool("finish_estimated", true))
	}
	line.Write(append(fields, zap.Int("retries", max(0, q.Attempts-1)),
		zap.Int64("bytes", q.BytesOut))...)
}

func appendTokens(fields []zap.Field, q *request.Summary) []zap.Field {
	if q.UsageKnown || q.PromptTokens > 0 {
		fields = append(fields, zap.Int64("tokens_in", q.PromptTokens))
	}
	if q.UsageKnown || q.CompletionTokens > 0 {
		fields = append(fields, zap.Int64("tokens_out", q.CompletionTokens))
	}
	if q.IsEstimated() {
		fields = append(fields, zap.Bool("estimated", true))
	}
	if q.CachedKnown {
		fields = append(fields, zap.Int64("cached_tokens", q.CachedTokens))
	}
	if each := streamOf(q).perToken(); each > 0 {
		fields = append(fields, milliseconds("tpot_ms", each))
	}
	return fields
}

func milliseconds(name string, d time.Duration) zap.Field {
	return zap.Float64(name, float64(d.Microseconds())/1000)
}
