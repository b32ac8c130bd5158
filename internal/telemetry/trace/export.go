package trace

import (
	"context"
	"net/url"
	"strings"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/exporters/otlp/otlptrace"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.uber.org/zap"
)

// exporter sends batches of spans. It logs a failure once, not for each batch.
type exporter struct {
	*otlptrace.Exporter
	log     *zap.Logger
	failing atomic.Bool
	// ended is closed after the last batch
	ended chan struct{}
}

func newExporter(to *url.URL, c Config) *exporter {
	at := *to
	if strings.Trim(at.Path, "/") == "" {
		at.Path = "/v1/traces"
	}
	client := otlptracehttp.NewClient(
		otlptracehttp.WithEndpointURL(at.String()), otlptracehttp.WithHeaders(c.Headers), otlptracehttp.WithCompression(otlptracehttp.GzipCompression),
		otlptracehttp.WithTimeout(exportTimeout), otlptracehttp.WithRetry(otlptracehttp.RetryConfig{
			Enabled: true, InitialInterval: time.Second, MaxInterval: flushTimeout, MaxElapsedTime: exportTimeout,
		}),
	)
	return &exporter{Exporter: otlptrace.NewUnstarted(client), log: c.Log, ended: make(chan struct{})}
}

// ExportSpans implements sdktrace.SpanExporter. Spans that the collector did not accept are lost.
func (e *exporter) ExportSpans(ctx context.Context, spans []sdktrace.ReadOnlySpan) error {
	err := e.Exporter.ExportSpans(ctx, spans)
	switch {
	case err != nil && e.failing.CompareAndSwap(false, true):
		e.log.Warn("spans lost, collector not reachable", zap.Error(err))
	case err == nil && e.failing.CompareAndSwap(true, false):
		e.log.Info("spans sent again, collector reachable")
	}
	return nil
}

// Shutdown implements sdktrace.SpanExporter. The batch processor calls it once, after its last
// batch.
func (e *exporter) Shutdown(ctx context.Context) error {
	close(e.ended)
	return e.Exporter.Shutdown(ctx)
}

func (t *Tracer) run(ctx context.Context) error {
	if err := t.exporter.Start(context.WithoutCancel(ctx)); err != nil {
		t.config.Log.Warn("exporter failed to start, no spans will be sent", zap.Error(err))
		<-ctx.Done()
		return nil
	}
	t.provider.RegisterSpanProcessor(sdktrace.NewBatchSpanProcessor(t.exporter,
		sdktrace.WithMaxQueueSize(t.queue), sdktrace.WithExportTimeout(exportTimeout)))
	close(t.started)
	<-ctx.Done()
	end, cancel := context.WithTimeout(context.WithoutCancel(ctx), t.flush)
	defer cancel()
	if t.provider.Shutdown(end) != nil {
		// The flush timed out. This Shutdown aborts the request in progress and makes the remaining
		// batches fail at once; the exporter logs the failure.
		_ = t.exporter.Exporter.Shutdown(context.WithoutCancel(ctx))
		<-t.exporter.ended
	}
	return nil
}
