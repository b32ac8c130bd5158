package trace

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/url"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
	"go.uber.org/zap"
)

// Config says where spans go.
type Config struct {
	// Endpoint is the collector's OTLP/HTTP address, "http://127.0.0.1:4318"; without a path it is
	// asked at /v1/traces. Empty: nothing is traced.
	Endpoint string
	// Headers are sent with every request to it, a credential say.
	Headers map[string]string
	// Sample is the share, from 0 to 1, of the requests without a trace of their client's that are
	// traced. Where the client has one, its sampled flag decides.
	Sample float64
	// Service is the name by which the collector knows us; empty: "sluice". Version is that of
	// Sluice, and may be empty.
	Service, Version string
	// Log is told when the collector cannot be reached, and when it can again; nil: nobody is.
	Log *zap.Logger
}

// The bounds on what waits for a collector, and for it.
const (
	// queueSize in spans, some 1 KB each. What is beyond it is lost.
	queueSize = 8192
	// exportTimeout bounds one request to the collector with its repetitions, flushTimeout what is
	// left to be sent at the end.
	exportTimeout = 10 * time.Second
	flushTimeout  = 5 * time.Second
)

// Tracer makes spans. Make it with New and run it with Run. Its methods are safe for concurrent
// use. A nil *Tracer traces nothing, at no cost.
type Tracer struct {
	config   Config
	exporter *exporter
	provider *sdktrace.TracerProvider
	spans    trace.Tracer
	sample   sdktrace.Sampler
	now      func() time.Time
	// queue bounds the spans that wait, flush the end of Run
	queue int
	flush time.Duration
	// started is closed when spans are no longer lost
	started chan struct{}
}

// New returns a Tracer that has yet to be run; nil, and no error, when the Config has no Endpoint.
// It fails when the Endpoint is no URL of HTTP, or Sample no share.
func New(c Config) (*Tracer, error) {
	if c.Endpoint == "" {
		return nil, nil
	}
	if !(c.Sample >= 0 && c.Sample <= 1) { // a NaN neither
		return nil, fmt.Errorf("a share of %v is not between 0 and 1", c.Sample)
	}
	to, err := url.Parse(c.Endpoint)
	if err != nil || to.Host == "" || to.Scheme != "http" && to.Scheme != "https" {
		return nil, errors.New("the endpoint is not the URL of an OTLP/HTTP collector") // it is not quoted: it may hold a credential
	}
	if to.User != nil {
		return nil, errors.New("the endpoint has a credential, whose place is in the headers")
	}
	if c.Log == nil {
		c.Log = zap.NewNop()
	}
	about := []attribute.KeyValue{attribute.String("service.name", cmp.Or(c.Service, "sluice"))}
	if c.Version != "" {
		about = append(about, attribute.String("service.version", c.Version))
	}
	provider := sdktrace.NewTracerProvider(
		sdktrace.WithSampler(sdktrace.AlwaysSample()), // what is not sampled never gets here
		sdktrace.WithIDGenerator(ids{}),
		sdktrace.WithResource(resource.NewSchemaless(about...)),
	)
	return &Tracer{
		config: c, exporter: newExporter(to, c), provider: provider, spans: provider.Tracer(scope, trace.WithInstrumentationVersion(c.Version)),
		sample: sdktrace.TraceIDRatioBased(c.Sample), now: time.Now, queue: queueSize, flush: flushTimeout, started: make(chan struct{}),
	}, nil
}

const scope = "github.com/sluice-gateway/sluice"

// Run sends spans until ctx ends, and then what is left, for 5 s at most. Spans of before are lost.
// It blocks, and is called once. Its error is nil: a collector that is away does not end a gateway.
func (t *Tracer) Run(ctx context.Context) error {
	if t == nil {
		<-ctx.Done()
		return nil
	}
	return t.run(ctx)
}
