// Package trace converts requests to OpenTelemetry spans and sends them to a collector, by OTLP
// over HTTP. Package internal/gateway runs it: it subscribes the tracer to the requests of
// internal/request, and has internal/relay start the traces of managed streams.
//
// A request is traced if its client's trace is sampled. Of the requests without a client's trace, a
// share is traced. The request's span is named after its operation ("chat <model>"), and its
// attributes follow OpenTelemetry's conventions for generative AI. Its children are the phases
// queue, prefill and decode. Managed streams, which Sluice reads, also have spans for some of their
// steps and writes.
//
// Whether a request is traced, and with which ids, is decided when it arrives, so that the engine's
// own spans can be its children. The spans are made when the request has ended, from times that are
// measured anyway. So an untraced request costs nothing, and a native stream costs nothing while it
// runs.
//
// No attribute ever contains a key, a prompt or a completion.
package trace
