package telemetry

import (
	"encoding/json"
	"strconv"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/sluice-gateway/sluice/internal/request"
)

// lineFields receives the fields of a line of the access log, in their order.
type lineFields interface {
	text(name, value string)
	number(name string, value int64)
	truth(name string, value bool)
	milliseconds(name string, value time.Duration)
}

// tellLine tells the fields of the line of a request. See RequestLog.Finished.
func tellLine(to lineFields, q *request.Summary) {
	to.text("request_id", q.ID)
	if q.ClientID != "" {
		to.text("client_request_id", q.ClientID)
	}
	to.text("tenant", q.Tenant)
	to.text("model", q.Model)
	to.text("replica", q.Replica)
	to.text("route", q.Route)
	to.number("status", int64(q.Status))
	to.text("code", q.Code)
	to.truth("stream", q.Stream)
	to.milliseconds("queued_ms", q.Waited)
	if ttft := q.TTFT(); q.Stream && ttft > 0 {
		to.milliseconds("ttft_ms", ttft)
	}
	to.milliseconds("duration_ms", q.Duration)
	tellTokens(to, q)
	if q.Cause != "" {
		to.text("cause", q.Cause)
	}
	if id := q.TraceID(); id != "" {
		to.text("trace_id", id)
	}
	to.text("finish_reason", q.FinishReason)
	if q.FinishEstimated {
		to.truth("finish_estimated", true)
	}
	to.number("retries", int64(max(0, q.Attempts-1)))
	to.number("bytes", q.BytesOut)
}

func tellTokens(to lineFields, q *request.Summary) {
	if q.UsageKnown || q.PromptTokens > 0 {
		to.number("tokens_in", q.PromptTokens)
	}
	if q.UsageKnown || q.CompletionTokens > 0 {
		to.number("tokens_out", q.CompletionTokens)
	}
	if q.IsEstimated() {
		to.truth("estimated", true)
	}
	if q.CachedKnown {
		to.number("cached_tokens", q.CachedTokens)
	}
	if each := streamOf(q).perToken(); each > 0 {
		to.milliseconds("tpot_ms", each)
	}
}

// zapFields are the fields of a line for a core of zap.
type zapFields []zap.Field

func (f *zapFields) text(name, value string)         { *f = append(*f, zap.String(name, value)) }
func (f *zapFields) number(name string, value int64) { *f = append(*f, zap.Int64(name, value)) }
func (f *zapFields) truth(name string, value bool)   { *f = append(*f, zap.Bool(name, value)) }
func (f *zapFields) milliseconds(name string, value time.Duration) {
	*f = append(*f, zap.Float64(name, inMilliseconds(value)))
}

func inMilliseconds(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

// jsonLine is a line in JSON. It says what jsonEncoder writes of zapFields
// (TestALineIsWhatZapWrites), with other escapes for rare characters. It takes no memory that it
// does not keep.
type jsonLine []byte

// jsonLines has lines that are not in use.
var jsonLines = sync.Pool{New: func() any { l := make(jsonLine, 0, 1<<10); return &l }}

// begin begins the line of a request that has ended.
func (l *jsonLine) begin(at time.Time) {
	*l = append((*l)[:0], `{"level":"info","time":"`...)
	*l = at.AppendFormat(*l, timeLayout)
	*l = append(*l, `","logger":"request","msg":"finished"`...)
}

func (l *jsonLine) end() { *l = append(*l, '}', '\n') }

func (l *jsonLine) name(name string) {
	*l = append(append(append(*l, ',', '"'), name...), '"', ':')
}

func (l *jsonLine) text(name, value string) {
	l.name(name)
	for i := range len(value) {
		if c := value[i]; c < ' ' || c > '~' || c == '"' || c == '\\' {
			encoded, _ := json.Marshal(value) // a string can always be encoded
			*l = append(*l, encoded...)
			return
		}
	}
	*l = append(append(append(*l, '"'), value...), '"')
}

func (l *jsonLine) number(name string, value int64) {
	l.name(name)
	*l = strconv.AppendInt(*l, value, 10)
}

func (l *jsonLine) truth(name string, value bool) {
	l.name(name)
	*l = strconv.AppendBool(*l, value)
}

func (l *jsonLine) milliseconds(name string, value time.Duration) {
	l.name(name)
	*l = strconv.AppendFloat(*l, inMilliseconds(value), 'f', -1, 64)
}
