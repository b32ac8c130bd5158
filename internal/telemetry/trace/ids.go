package trace

import (
	"context"
	"encoding/binary"
	"encoding/hex"
	"math/rand/v2"

	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
)

// The parts of a traceparent header (W3C Trace Context) are version, trace id, span id and flags,
// with dashes in between. The constants are their offsets.
const (
	traceAt  = 3
	spanAt   = traceAt + 32 + 1
	flagsAt  = spanAt + 16 + 1
	wholeLen = flagsAt + 2
)

// parse parses a traceparent header; false means that it is invalid. Of later versions it reads the
// parts of version 00, as the recommendation demands.
func parse(header string) (trace.SpanContext, bool) {
	if len(header) < wholeLen || header[traceAt-1] != '-' || header[spanAt-1] != '-' || header[flagsAt-1] != '-' {
		return trace.SpanContext{}, false
	}
	version, ok := octet(header[:traceAt-1])
	if !ok || version == 0xff || version == 0 && len(header) > wholeLen || len(header) > wholeLen && header[wholeLen] != '-' {
		return trace.SpanContext{}, false
	}
	traceID, err := trace.TraceIDFromHex(header[traceAt : spanAt-1])
	if err != nil {
		return trace.SpanContext{}, false
	}
	spanID, err := trace.SpanIDFromHex(header[spanAt : flagsAt-1])
	if err != nil {
		return trace.SpanContext{}, false
	}
	flags, ok := octet(header[flagsAt:wholeLen])
	if !ok {
		return trace.SpanContext{}, false
	}
	return trace.NewSpanContext(trace.SpanContextConfig{
		TraceID: traceID, SpanID: spanID, TraceFlags: trace.TraceFlags(flags) & trace.FlagsSampled, Remote: true,
	}), true
}

// octet parses two lower-case hexadecimal digits.
func octet(s string) (byte, bool) {
	high, ok := digit(s[0])
	low, ok2 := digit(s[1])
	return high<<4 | low, ok && ok2
}

func digit(c byte) (byte, bool) {
	switch {
	case c >= '0' && c <= '9':
		return c - '0', true
	case c >= 'a' && c <= 'f':
		return c - 'a' + 10, true
	}
	return 0, false
}

// render returns the traceparent header of a span.
func render(s trace.SpanContext) string {
	b := make([]byte, 0, wholeLen)
	traceID, spanID := s.TraceID(), s.SpanID()
	b = append(b, "00-"...)
	b = hex.AppendEncode(b, traceID[:])
	b = append(b, '-')
	b = hex.AppendEncode(b, spanID[:])
	b = append(b, '-')
	b = hex.AppendEncode(b, []byte{byte(s.TraceFlags())})
	return string(b)
}

// decide decides whether a request is traced. It returns the request's own span and its client's
// span, which is empty if the client has none.
func (t *Tracer) decide(header string) (own, client trace.SpanContext, traced bool) {
	client, ok := parse(header)
	traceID := client.TraceID()
	switch {
	case ok:
		traced = client.IsSampled()
	default:
		traceID = newTraceID()
		p := sdktrace.SamplingParameters{ParentContext: context.Background(), TraceID: traceID}
		traced = t.sample.ShouldSample(p).Decision == sdktrace.RecordAndSample
	}
	if !traced {
		return trace.SpanContext{}, trace.SpanContext{}, false
	}
	own = trace.NewSpanContext(trace.SpanContextConfig{TraceID: traceID, SpanID: newSpanID(), TraceFlags: trace.FlagsSampled})
	return own, client, true
}

func newTraceID() (id trace.TraceID) {
	for !id.IsValid() {
		binary.BigEndian.PutUint64(id[:8], rand.Uint64())
		binary.BigEndian.PutUint64(id[8:], rand.Uint64())
	}
	return id
}

func newSpanID() (id trace.SpanID) {
	for !id.IsValid() {
		binary.BigEndian.PutUint64(id[:], rand.Uint64())
	}
	return id
}

// ids is an ID generator. It gives a span the ids in its context (withIDs), and random ids if the
// context has none.
type ids struct{}

// presetIDs is the context key of withIDs.
type presetIDs struct{}

// withIDs sets the ids of the next span of the context.
func withIDs(ctx context.Context, own trace.SpanContext) context.Context {
	return context.WithValue(ctx, presetIDs{}, own)
}

// NewIDs implements sdktrace.IDGenerator.
func (ids) NewIDs(ctx context.Context) (trace.TraceID, trace.SpanID) {
	if own, ok := ctx.Value(presetIDs{}).(trace.SpanContext); ok {
		return own.TraceID(), own.SpanID()
	}
	return newTraceID(), newSpanID()
}

// NewSpanID implements sdktrace.IDGenerator.
func (ids) NewSpanID(ctx context.Context, _ trace.TraceID) trace.SpanID {
	if own, ok := ctx.Value(presetIDs{}).(trace.SpanContext); ok {
		return own.SpanID()
	}
	return newSpanID()
}
