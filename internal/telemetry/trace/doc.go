// Package trace turns requests into OpenTelemetry spans and sends them, by OTLP over HTTP, to a
// collector.
//
// A request that a client's own trace samples, or a share of those without one, has a span named
// after what it asks for ("chat <model>") with attributes by OpenTelemetry's conventions for
// generative AI, and below it the phases in which clients and engines differ: queue, prefill,
// decode. Of managed streams, which Sluice reads, some of the steps and of the writes are there as
// well.
//
// Whether a request is traced, and by which ids, is settled when it comes, so that the engine's own
// spans can be below ours; the spans themselves are made when it has ended, out of the times that
// are known anyway. So a request that is not traced costs nothing, and a native stream nothing
// while it runs.
//
// No attribute ever holds a key, a prompt or a completion.
package trace
