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
	// lines takes the lines as JSON; nil: log does.
	lines *queuedWriter
	run   func(context.Context) error
}

// NewRequestLog returns an access log. It is nil if c.To is empty. The error says why the file
// cannot be written.
func NewRequestLog(c AccessLogConfig) (*RequestLog, error) {
	if c.To == "" {
		return nil, nil
	}
	core, lines, err := newSink(c)
	if err != nil {
		return nil, err
	}
	l := &RequestLog{sample: c.Sample, short: c.To == SinkConsole, lines: lines}
	if lines != nil {
		l.run = lines.Run
		return l, nil
	}
	l.log = zap.New(core).Named("request")
	if otlp, ok := core.(*otlpCore); ok {
		l.run = otlp.run
	}
	return l, nil
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
// not read. Without an engine's count, estimated is true. tokens_out is then the number of events
// with a part of the answer, or what the bytes of the answer suggest if nobody has read it.
// tokens_in is then estimated from the prompt, or missing. tpot_ms is the mean time per output
// token after the first. It is missing if all came within a millisecond. client_request_id is the
// client's own id of the request; it is missing if the client gave none. finish_reason is always
// there, and empty for a response without one. finish_estimated is true if nobody has read it, so
// that it is what the length of the answer suggests.
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
	if l.lines != nil {
		l.write(&q)
		return
	}
	if line := l.log.Check(zapcore.InfoLevel, "finished"); line != nil {
		fields := make(zapFields, 0, 24)
		tellLine(&fields, &q)
		line.Write(fields...)
	}
}

// write writes the line of a request as JSON.
func (l *RequestLog) write(q *request.Summary) {
	line := jsonLines.Get().(*jsonLine)
	line.begin(time.Now())
	tellLine(line, q)
	line.end()
	_, _ = l.lines.Write(*line) // it counts lines that are dropped
	jsonLines.Put(line)
}
