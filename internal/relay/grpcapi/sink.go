package grpcapi

import (
	"math"
	"strings"
	"time"
	"unicode/utf8"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	pb "github.com/sluice-gateway/sluice/api/llm/v1"
	"github.com/sluice-gateway/sluice/internal/headers"
	"github.com/sluice-gateway/sluice/internal/openai"
	"github.com/sluice-gateway/sluice/internal/openai/delta"
	"github.com/sluice-gateway/sluice/internal/openai/sse"
	"github.com/sluice-gateway/sluice/internal/relay"
)

// maxChoices bounds the choices of one answer that are tracked. OpenAI allows 128.
const maxChoices = 1024

// sink is a relay.Sink that writes to a gRPC stream.
type sink struct {
	out            grpc.ServerStreamingServer[pb.StreamChunk]
	id             string
	showReplica    bool // the trailers name the replica
	severalChoices bool // the client has asked for several choices

	scanner        sse.Scanner
	deltas         delta.Reader
	calls          delta.Calls
	chunk          sse.Chunk
	finishes       []string          // the finish reasons by choice
	incomplete     map[textOf]string // the beginnings of characters whose rest has not come
	hasSent        bool              // a chunk was sent
	passed         int64             // counts the chunks with a delta
	engineAnswered bool              // the engine has answered
	refusal        *pb.Error         // what the engine has answered instead of a stream; nil: nothing
	reported       *pb.Error         // the error that an event has reported; nil: none has
	finished       bool
	err            error // the error with which the call ends
}

// textOf identifies one of the texts of a stream.
type textOf struct {
	choice, tool int
	kind         delta.Kind
}

// Event implements relay.Sink.
func (s *sink) Event(raw []byte, _ uint64) error {
	s.engineAnswered = true
	s.scanner.Feed(raw)
	for s.scanner.Next() {
		event := s.scanner.Event()
		if event.IsComment() || event.IsDone() {
			continue
		}
		if err := s.handleEvent(event); err != nil {
			return err
		}
	}
	return s.scanner.Err()
}

// handleEvent sends the deltas of an event.
func (s *sink) handleEvent(e *sse.Event) error {
	deltas, ok := s.deltas.Read(e.Data)
	if !ok {
		return nil
	}
	if s.chunk.Read(e.Data); s.chunk.Error || string(e.Type) == "error" {
		s.reported = errorOf(openai.ReportedError(e.Data))
	}
	return s.sendDeltas(deltas)
}

// sendDeltas sends the deltas of an event or of an answer, which chunk has been read from.
func (s *sink) sendDeltas(deltas []delta.Delta) error {
	for i := range deltas {
		if err := s.sendDelta(&deltas[i]); err != nil {
			return err
		}
	}
	for _, c := range s.chunk.Choices {
		s.recordFinish(int(c.Index), string(c.Finish))
	}
	return nil
}

func (s *sink) recordFinish(choice int, reason string) {
	if reason == "" || choice < 0 || choice >= maxChoices {
		return
	}
	for len(s.finishes) <= choice {
		s.finishes = append(s.finishes, "")
	}
	s.finishes[choice] = reason
}

func (s *sink) sendDelta(d *delta.Delta) error {
	s.calls.Resolve(d)
	text := s.completeText(textOf{d.Choice, d.Tool, d.Kind}, d.Text)
	if text == "" && len(d.ID)+len(d.Name) == 0 {
		return nil
	}
	to := &pb.TokenDelta{Choice: int32(d.Choice), Kind: kindOf(d.Kind)}
	if d.Kind == delta.ToolCall {
		to.ToolCall = &pb.ToolCall{Index: int32(d.Tool), Id: validUTF8(d.ID), Name: validUTF8(d.Name), Arguments: text}
	} else {
		to.Text = text
	}
	s.passed++
	return s.send(&pb.StreamChunk{Payload: &pb.StreamChunk_Delta{Delta: to}})
}

// kindOf returns the kind of a delta in llm.v1.
func kindOf(k delta.Kind) pb.TokenDelta_Kind {
	switch k {
	case delta.Reasoning:
		return pb.TokenDelta_REASONING
	case delta.Refusal:
		return pb.TokenDelta_REFUSAL
	case delta.ToolCall:
		return pb.TokenDelta_TOOL_CALL
	}
	return pb.TokenDelta_TEXT
}

// validUTF8 returns a text in valid UTF-8, which protobuf requires.
func validUTF8(b []byte) string { return strings.ToValidUTF8(string(b), "\uFFFD") }

// completeText returns a piece of a text without the incomplete character at its end, which is sent
// with the next piece. Engines cut between the bytes of a character, and protobuf refuses a part of
// one.
func (s *sink) completeText(of textOf, b []byte) string {
	half, waits := s.incomplete[of]
	if !waits && utf8.Valid(b) {
		return string(b)
	}
	text := half + string(b)
	cut := len(text) - incompleteSuffix(text)
	if cut < len(text) && len(s.incomplete) < maxChoices {
		if s.incomplete == nil {
			s.incomplete = map[textOf]string{}
		}
		s.incomplete[of] = text[cut:]
		return strings.ToValidUTF8(text[:cut], "\uFFFD")
	}
	delete(s.incomplete, of)
	return strings.ToValidUTF8(text, "\uFFFD")
}

// incompleteSuffix returns how many bytes at the end of a text are the beginning of a character.
func incompleteSuffix(text string) int {
	for n := 1; n < utf8.UTFMax && n <= len(text); n++ {
		if tail := text[len(text)-n:]; utf8.RuneStart(tail[0]) {
			if utf8.FullRuneInString(tail) {
				return 0
			}
			return n
		}
	}
	return 0
}

// Passed implements relay.SelectiveSink.
func (s *sink) Passed() int64 { return s.passed }

// Flush implements relay.Sink. Every message was sent already.
func (s *sink) Flush() error { return nil }

// Heartbeat implements relay.Sink.
func (s *sink) Heartbeat(p relay.Progress) error {
	return s.send(&pb.StreamChunk{Payload: &pb.StreamChunk_Hb{Hb: &pb.Heartbeat{
		TsUnixMs: time.Now().UnixMilli(), Phase: string(p.Phase), Position: clamp(int64(p.Position)), WaitedMs: p.Waited.Milliseconds(),
		Note: validUTF8([]byte(p.Note)),
	}}})
}

// clamp returns n as an int32 that is not negative.
func clamp(n int64) int32 { return int32(min(max(n, 0), math.MaxInt32)) }

func (s *sink) send(c *pb.StreamChunk) error {
	s.hasSent = true
	c.RequestId = s.id
	return s.out.Send(c)
}

// Finish implements relay.Sink.
func (s *sink) Finish(r relay.Result) error {
	s.setTrailers(&r)
	switch {
	case r.Fault != nil && r.Told && s.reported != nil:
		s.err = s.refuse(s.reported)
	case r.Fault != nil:
		s.err = s.refuse(errorOf(r.Fault))
	case s.refusal != nil:
		s.err = s.refuse(s.refusal)
	default:
		s.err = s.sendFinal(&r)
	}
	s.finished = true
	return s.err
}

// sendFinal sends the end of a stream that was successful.
func (s *sink) sendFinal(r *relay.Result) error {
	f := &pb.FinalResult{
		FinishReason: r.Finish, Model: r.Model, Estimated: !r.Usage.Known,
		OutputTokens: clamp(r.Usage.Completion), InputTokens: clamp(r.Usage.Prompt), CachedTokens: clamp(r.Usage.Cached),
	}
	if s.severalChoices || len(s.finishes) > 1 {
		f.FinishReasons = s.finishes
	}
	return s.send(&pb.StreamChunk{Payload: &pb.StreamChunk_Final{Final: f}})
}

// maxErrorText bounds each text of an error, in bytes. An error is in the trailers of a call twice,
// and Envoy accepts 60 KiB of trailers. Engines may quote the whole request.
const maxErrorText = 4 << 10

// refuse reports an error: in a chunk if chunks were sent before, and in the status that it
// returns.
func (s *sink) refuse(e *pb.Error) error {
	for _, text := range []*string{&e.Message, &e.Type, &e.Name, &e.Param} {
		*text = strings.ToValidUTF8((*text)[:min(len(*text), maxErrorText)], "")
	}
	if s.hasSent {
		if err := s.send(&pb.StreamChunk{Payload: &pb.StreamChunk_Error{Error: e}}); err != nil {
			return err
		}
	}
	return e.Status().Err()
}

// setTrailers sets the trailers that say who has answered, and the headers of an error.
func (s *sink) setTrailers(r *relay.Result) {
	md := metadata.Pairs(headers.Source, headers.SourceGateway)
	if s.engineAnswered {
		md.Set(headers.Source, headers.SourceEngine)
		if s.showReplica && r.Replica != "" {
			md.Set(headers.Replica, r.Replica)
		}
	}
	if r.Fault != nil {
		for name, value := range r.Fault.Header {
			md.Set(name, value)
		}
	}
	s.out.SetTrailer(md)
}

// errorOf returns an error of the gateway or of an engine as an error of llm.v1.
func errorOf(e *openai.Error) *pb.Error {
	return &pb.Error{
		Code: int32(e.HTTPStatus()), Message: validUTF8([]byte(e.Message)), Type: e.Type(), Retryable: e.Retryable(),
		RetryAfterMs: e.RetryAfterMillis(), Name: string(e.Code), Param: validUTF8([]byte(e.Param)),
	}
}
