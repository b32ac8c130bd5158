// Package trace turns requests into OpenTelemetry spans and sends them, by OTLP over HTTP, to a
// collector. Package internal/gateway runs it: it subscribes the tracer to the requests of
// internal/request, and has internal/relay start the traces of managed streams.
//
// A request that a client's own trace samples, or a share of those without one, has a span named
// after what it asks for ("chat <model>") with attributes by OpenTelemetry's conventions for
// generative AI. Below it are the phases in which clients and engines differ: queue, prefill,
// decode. For managed streams, which Sluice reads, some of the steps and of the writes are there as
// well.
//
// Whether a request is traced, and by which ids, is decided when it comes, so that the engine's own
// spans can be below ours. The spans themselves are made when the request has ended, out of the
// times that are known anyway. So a request that is not traced costs nothing, and a native stream
// nothing while it runs.
//
// No attribute ever holds a key, a prompt or a completion.
package trace
