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

// exporter sends batches of spans. It says once that it cannot, instead of for each batch.
type exporter struct {
	*otlptrace.Exporter
	log     *zap.Logger
	failing atomic.Bool
	// ended is closed when no batch will follow
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

// ExportSpans implements sdktrace.SpanExporter. Spans that were not taken are lost.
func (e *exporter) ExportSpans(ctx context.Context, spans []sdktrace.ReadOnlySpan) error {
	err := e.Exporter.ExportSpans(ctx, spans)
	switch {
	case err != nil && e.failing.CompareAndSwap(false, true):
		e.log.Warn("spans cannot be sent and are lost", zap.Error(err))
	case err == nil && e.failing.CompareAndSwap(true, false):
		e.log.Info("spans are sent again")
	}
	return nil
}

// Shutdown implements sdktrace.SpanExporter. It is called once, by the processor whose batches
// these are, after the last of them.
func (e *exporter) Shutdown(ctx context.Context) error {
	close(e.ended)
	return e.Exporter.Shutdown(ctx)
}

func (t *Tracer) run(ctx context.Context) error {
	if err := t.exporter.Start(context.WithoutCancel(ctx)); err != nil {
		t.config.Log.Warn("spans are not sent", zap.Error(err))
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
		// It has taken too long. What is still being sent is broken off, and what is left fails at
		// once; the exporter says so.
		_ = t.exporter.Exporter.Shutdown(context.WithoutCancel(ctx))
		<-t.exporter.ended
	}
	return nil
}
