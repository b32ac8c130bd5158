package telemetry

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"google.golang.org/protobuf/proto"

	collector "go.opentelemetry.io/proto/otlp/collector/logs/v1"
	common "go.opentelemetry.io/proto/otlp/common/v1"
	otlp "go.opentelemetry.io/proto/otlp/logs/v1"
	resource "go.opentelemetry.io/proto/otlp/resource/v1"
)

const (
	// otlpBatch is how many records a call of the collector has at most, otlpPause how long a
	// record waits for others.
	otlpBatch = 512
	otlpPause = time.Second
	// otlpTimeout bounds one call of the collector, and the start of the last one at the end.
	otlpTimeout = 10 * time.Second
)

// otlpCore sends each entry as a log record to a collector of OpenTelemetry, by OTLP over HTTP. The
// fields are its attributes. Records beyond sinkQueue that wait are dropped, and so are those of a
// call that the collector refuses.
type otlpCore struct {
	zapcore.LevelEnabler
	config  AccessLogConfig
	url     string
	records chan *otlp.LogRecord
	dropped atomic.Int64
	// reported is when a fault was last logged; only run uses it.
	reported time.Time
}

func newOTLPCore(c AccessLogConfig) *otlpCore {
	url := strings.TrimSuffix(c.Endpoint, "/")
	if !strings.HasSuffix(url, "/v1/logs") {
		url += "/v1/logs"
	}
	return &otlpCore{LevelEnabler: zapcore.InfoLevel, config: c, url: url, records: make(chan *otlp.LogRecord, sinkQueue)}
}

// With implements zapcore.Core. The access log has no fields of its own.
func (c *otlpCore) With([]zapcore.Field) zapcore.Core { return c }

func (c *otlpCore) Check(e zapcore.Entry, to *zapcore.CheckedEntry) *zapcore.CheckedEntry {
	return to.AddCore(e, c)
}

// Write implements zapcore.Core. It does not wait.
func (c *otlpCore) Write(e zapcore.Entry, fields []zapcore.Field) error {
	values := zapcore.NewMapObjectEncoder()
	for _, f := range fields {
		f.AddTo(values)
	}
	at := uint64(e.Time.UnixNano())
	record := &otlp.LogRecord{TimeUnixNano: at, ObservedTimeUnixNano: at, SeverityNumber: otlp.SeverityNumber_SEVERITY_NUMBER_INFO,
		SeverityText: e.Level.String(), Body: otlpValue(e.LoggerName + " " + e.Message)}
	for _, f := range fields { // in their order
		if value, ok := values.Fields[f.Key]; ok {
			record.Attributes = append(record.Attributes, &common.KeyValue{Key: f.Key, Value: otlpValue(value)})
		}
	}
	select {
	case c.records <- record:
	default:
		c.dropped.Add(1)
	}
	return nil
}

// Sync implements zapcore.Core. run sends what waits.
func (c *otlpCore) Sync() error { return nil }

// otlpValue returns a value of a field as OTLP has it. Its text is valid UTF-8, because a text that
// is not would make the whole batch impossible to encode.
func otlpValue(value any) *common.AnyValue {
	switch v := value.(type) {
	case string:
		return otlpText(v)
	case bool:
		return &common.AnyValue{Value: &common.AnyValue_BoolValue{BoolValue: v}}
	case int64:
		return &common.AnyValue{Value: &common.AnyValue_IntValue{IntValue: v}}
	case float64:
		return &common.AnyValue{Value: &common.AnyValue_DoubleValue{DoubleValue: v}}
	}
	return otlpText(fmt.Sprint(value))
}

func otlpText(text string) *common.AnyValue {
	return &common.AnyValue{Value: &common.AnyValue_StringValue{StringValue: strings.ToValidUTF8(text, "?")}}
}

// run sends records until ctx ends, and then those that are left.
func (c *otlpCore) run(ctx context.Context) error {
	tick := time.NewTicker(otlpPause)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-ctx.Done():
			for late := time.Now().Add(otlpTimeout); len(c.records) > 0 && time.Now().Before(late); {
				c.send()
			}
			return nil
		}
		for sent := true; sent && len(c.records) > 0; {
			sent = c.send() == otlpBatch
		}
	}
}

// send sends a batch of the records that wait, and returns how many it had.
func (c *otlpCore) send() int {
	var batch []*otlp.LogRecord
	for len(batch) < otlpBatch && len(c.records) > 0 {
		batch = append(batch, <-c.records)
	}
	err := c.post(batch)
	if err != nil {
		c.dropped.Add(int64(len(batch)))
	}
	if c.dropped.Load() > 0 && time.Since(c.reported) >= sinkReport {
		c.reported = time.Now()
		c.config.Log.Warn("lines of the access log dropped", zap.Int64("lines", c.dropped.Swap(0)), zap.Error(err))
	}
	return len(batch)
}

func (c *otlpCore) post(batch []*otlp.LogRecord) error {
	body, err := proto.Marshal(&collector.ExportLogsServiceRequest{ResourceLogs: []*otlp.ResourceLogs{{
		Resource: &resource.Resource{Attributes: []*common.KeyValue{
			{Key: "service.name", Value: otlpValue("sluice")}, {Key: "service.version", Value: otlpValue(c.config.Version)}}},
		ScopeLogs: []*otlp.ScopeLogs{{Scope: &common.InstrumentationScope{Name: "sluice.access_log"}, LogRecords: batch}},
	}}})
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), otlpTimeout)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, c.url, bytes.NewReader(body))
	if err != nil {
		return err
	}
	r.Header.Set("content-type", "application/x-protobuf")
	for name, value := range c.config.Headers {
		r.Header.Set(name, value)
	}
	answer, err := http.DefaultClient.Do(r)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	_, _ = io.Copy(io.Discard, io.LimitReader(answer.Body, 1<<16)) // so that the connection is used again
	if answer.StatusCode/100 != 2 {
		return fmt.Errorf("the collector answers %s", answer.Status)
	}
	return nil
}
