package trace

import (
	"cmp"
	"context"
	"strconv"
	"strings"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	semconv "go.opentelemetry.io/otel/semconv/v1.41.0"
	"go.opentelemetry.io/otel/trace"

	"github.com/sluice-gateway/sluice/internal/request"
)

// Attributes without an OpenTelemetry convention. batchSize is the number of requests on the
// replica, this one included. seqLen is in tokens.
const (
	batchSize    = attribute.Key("batch_size")
	seqLen       = attribute.Key("seq_len")
	requestID    = attribute.Key("sluice.request_id")
	clientID     = attribute.Key("sluice.client_request_id")
	tenant       = attribute.Key("sluice.tenant")
	route        = attribute.Key("sluice.route")
	replica      = attribute.Key("sluice.replica")
	attempts     = attribute.Key("sluice.attempts")
	disconnected = attribute.Key("sluice.disconnect_cause")
	perToken     = attribute.Key("sluice.time_per_output_token")
)

// provider is the gen_ai.provider.name of all spans, because the provider of an upstream's model is
// not known.
const provider = "sluice"

// send makes the spans of a request and adds them to the exporter's queue, which never blocks.
func (t *Tracer) send(r *recorded) {
	r.close()
	ctx := trace.ContextWithRemoteSpanContext(withIDs(context.Background(), r.own), r.client)
	operation := operation(r.path)
	ctx, root := t.spans.Start(ctx, strings.TrimSpace(operation+" "+text(r.model)), trace.WithTimestamp(r.began), trace.WithSpanKind(trace.SpanKindServer))
	root.SetAttributes(r.attributes(operation)...)
	if failure := r.failure(); failure != "" {
		root.SetAttributes(semconv.ErrorTypeKey.String(failure))
		root.SetStatus(codes.Error, failure)
	}
	ctx = context.WithValue(ctx, presetIDs{}, nil) // the other spans have random ids
	for _, p := range r.phases {
		r.sendPhase(ctx, t.spans, p)
	}
	root.End(trace.WithTimestamp(r.ended))
}

// sendPhase makes the span of a phase. The spans of steps and chunks are children of decode.
func (r *recorded) sendPhase(ctx context.Context, spans trace.Tracer, p phase) {
	name := p.name
	if name == phasePrefill && !r.stream {
		name = phaseGenerate
	}
	ctx, span := spans.Start(ctx, name, trace.WithTimestamp(p.began))
	span.SetAttributes(r.phaseAttributes(p)...)
	if p.name == phaseDecode {
		for _, m := range r.steps.kept {
			child(ctx, spans, "decode_step["+strconv.Itoa(m.n)+"]", m)
		}
		for _, m := range r.chunks.kept {
			child(ctx, spans, "emit_chunk["+strconv.Itoa(m.n)+"]", m)
		}
	}
	span.End(trace.WithTimestamp(p.ended))
}

func child(ctx context.Context, spans trace.Tracer, name string, m moment) {
	_, span := spans.Start(ctx, name, trace.WithTimestamp(m.began))
	span.End(trace.WithTimestamp(m.ended))
}

// close ends the last phase and moves all times into the request's, because two clocks may have
// measured them.
func (r *recorded) close() {
	if r.ended.Before(r.began) {
		r.ended = r.began
	}
	for i := range r.phases {
		p := &r.phases[i]
		if p.ended.IsZero() {
			p.ended = r.ended
		}
		p.began = within(p.began, r.began, r.ended)
		p.ended = within(p.ended, p.began, r.ended)
	}
}

func within(at, from, to time.Time) time.Time {
	switch {
	case at.Before(from):
		return from
	case at.After(to):
		return to
	}
	return at
}

// attributes returns the attributes of the request's own span.
func (r *recorded) attributes(operation string) []attribute.KeyValue {
	c := r.result
	all := []attribute.KeyValue{
		semconv.GenAIOperationNameKey.String(operation), semconv.GenAIProviderNameKey.String(provider),
		semconv.GenAIRequestStreamKey.Bool(r.stream),
		requestID.String(text(r.id)), route.String(r.route()), attempts.Int(c.Attempts),
	}
	for _, word := range []struct {
		key   attribute.Key
		value string
	}{
		{semconv.GenAIRequestModelKey, r.model}, {semconv.GenAIResponseModelKey, cmp.Or(c.Model, r.decided)}, {tenant, r.tenant},
		{clientID, r.clientID}, {replica, c.Replica},
		{disconnected, c.Cause},
	} {
		if word.value != "" {
			all = append(all, word.key.String(text(word.value)))
		}
	}
	if r.status > 0 {
		all = append(all, semconv.HTTPResponseStatusCode(r.status))
	}
	if c.Finish != "" {
		all = append(all, semconv.GenAIResponseFinishReasonsKey.StringSlice([]string{text(c.Finish)}))
	}
	if c.TTFT > 0 {
		all = append(all, semconv.GenAIResponseTimeToFirstChunkKey.Float64(c.TTFT.Seconds()))
	}
	return append(all, usage(c)...)
}

// usage returns the attributes of the known token usage.
func usage(c request.Outcome) (all []attribute.KeyValue) {
	u := c.Usage
	if u.Known {
		all = append(all, semconv.GenAIUsageInputTokens(int(u.Prompt)), semconv.GenAIUsageOutputTokens(int(u.Completion)))
	}
	if u.CachedKnown {
		all = append(all, semconv.GenAIUsageCacheReadInputTokens(int(u.Cached)))
	}
	return all
}

// phaseAttributes returns the replica, batch size and token counts of a phase.
func (r *recorded) phaseAttributes(p phase) (all []attribute.KeyValue) {
	if p.replica != "" {
		all = append(all, replica.String(text(p.replica)))
	}
	if p.batch > 0 {
		all = append(all, batchSize.Int(p.batch))
	}
	c := r.result
	switch {
	case p.name == phaseQueue || !c.Usage.Known:
	case p.name == phaseDecode:
		all = append(all, seqLen.Int64(c.Usage.Prompt+c.Usage.Completion))
		if c.Usage.Completion > 1 && c.Decode > 0 {
			all = append(all, perToken.Float64(c.Decode.Seconds()/float64(c.Usage.Completion-1)))
		}
	default:
		all = append(all, seqLen.Int64(c.Usage.Prompt))
	}
	return all
}

// failure returns the class of the error, empty if there was none. It is empty too if the client
// disconnected or its request was invalid.
func (r *recorded) failure() string {
	switch c := r.result; c.Cause {
	case request.CauseClient, request.CauseCancelled, request.CauseModeration:
		return ""
	case "":
		switch {
		case r.status > 0 && r.status < 500, r.codeStatus > 0 && r.codeStatus < 500:
			return ""
		case r.code != "":
			return text(r.code)
		case r.status >= 500:
			return strconv.Itoa(r.status)
		}
		return ""
	default:
		if r.code != "" {
			return text(r.code)
		}
		return c.Cause
	}
}

// route returns the way that the request took.
func (r *recorded) route() string {
	if r.managed {
		return request.RouteManaged
	}
	return request.RouteNative
}

// operation returns the operation of a request by its path, in the words of the conventions where
// they have one.
func operation(path string) string {
	path, _, _ = strings.Cut(path, "?")
	switch {
	case strings.HasSuffix(path, "/embeddings"):
		return "embeddings"
	case strings.HasSuffix(path, "/chat/completions"):
		return "chat"
	case strings.HasSuffix(path, "/completions"):
		return "text_completion"
	case strings.HasSuffix(path, "/rerank"), strings.HasSuffix(path, "/score"):
		return "rerank"
	case strings.HasSuffix(path, "/transcriptions"), strings.HasSuffix(path, "/translations"):
		return "transcription"
	}
	return "chat"
}

// maxText bounds a text in an attribute, in bytes.
const maxText = 200

// text cuts a string to maxText bytes and makes it valid UTF-8. With an invalid string, OTLP would
// lose the whole batch.
func text(s string) string {
	if len(s) > maxText {
		s = s[:maxText]
	}
	return strings.ToValidUTF8(s, "?")
}
