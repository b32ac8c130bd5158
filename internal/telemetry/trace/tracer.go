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

// Config is the configuration of a Tracer.
type Config struct {
	// Endpoint is the collector's OTLP/HTTP address, such as "http://127.0.0.1:4318". Without a
	// path, /v1/traces is used. If it is empty, nothing is traced.
	Endpoint string
	// Headers are sent with every request to the collector, for example a credential.
	Headers map[string]string
	// Sample is the share, from 0 to 1, of the requests without a client's trace that are traced.
	// If the client has a trace, its sampled flag decides.
	Sample float64
	// Version is Sluice's version, and may be empty.
	Version string
	// Log gets a line when the collector cannot be reached, and when it can be reached again; nil
	// means none.
	Log *zap.Logger
}

// The limits of the queue of spans and of the times to send them.
const (
	// queueSize is in spans of about 1 KB each. Spans beyond it are lost.
	queueSize = 8192
	// exportTimeout bounds one request to the collector with its retries. flushTimeout bounds the
	// sending of the remaining spans when Run ends.
	exportTimeout = 10 * time.Second
	flushTimeout  = 5 * time.Second
)

// Tracer makes spans and sends them to a collector. Make it with New and run it with Run. Its
// methods are safe for concurrent use. A nil *Tracer traces nothing, at no cost.
type Tracer struct {
	config   Config
	exporter *exporter
	provider *sdktrace.TracerProvider
	spans    trace.Tracer
	sample   sdktrace.Sampler
	now      func() time.Time
	// queue bounds the waiting spans, flush the time that Run takes to send the remaining ones
	queue int
	flush time.Duration
	// started is closed when Run has started; spans before that are lost
	started chan struct{}
}

// New returns a Tracer that is not running yet. It returns nil and no error if the Config has no
// Endpoint. It returns an error if the Endpoint is not an HTTP URL or Sample is not between 0 and
// 1.
func New(c Config) (*Tracer, error) {
	if c.Endpoint == "" {
		return nil, nil
	}
	if !(c.Sample >= 0 && c.Sample <= 1) { // also refuses NaN
		return nil, fmt.Errorf("a sampled share of %v is not between 0 and 1", c.Sample)
	}
	to, err := url.Parse(c.Endpoint)
	if err != nil || to.Host == "" || to.Scheme != "http" && to.Scheme != "https" {
		return nil, errors.New("the endpoint is not the URL of an OTLP/HTTP collector") // the error does not quote the endpoint, which may contain a credential
	}
	if to.User != nil {
		return nil, errors.New("the endpoint contains a credential: put the credential into the headers")
	}
	c.Log = cmp.Or(c.Log, zap.NewNop())
	about := []attribute.KeyValue{attribute.String("service.name", "sluice")}
	if c.Version != "" {
		about = append(about, attribute.String("service.version", c.Version))
	}
	provider := sdktrace.NewTracerProvider(
		sdktrace.WithSampler(sdktrace.AlwaysSample()), // requests that are not sampled never make a span
		sdktrace.WithIDGenerator(ids{}),
		sdktrace.WithResource(resource.NewSchemaless(about...)),
	)
	return &Tracer{
		config: c, exporter: newExporter(to, c), provider: provider, spans: provider.Tracer(scope, trace.WithInstrumentationVersion(c.Version)),
		sample: sdktrace.TraceIDRatioBased(c.Sample), now: time.Now, queue: queueSize, flush: flushTimeout, started: make(chan struct{}),
	}, nil
}

const scope = "github.com/sluice-gateway/sluice"

// Run sends spans until ctx ends, and then the remaining spans, for 5 s at most. Spans that ended
// before Run are lost. It blocks and must be called once. Its error is nil, because an unreachable
// collector must not end a gateway.
func (t *Tracer) Run(ctx context.Context) error {
	if t == nil {
		<-ctx.Done()
		return nil
	}
	return t.run(ctx)
}
