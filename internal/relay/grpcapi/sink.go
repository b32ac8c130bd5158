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

// maxChoices bounds what is kept for the choices of one answer; OpenAI allows 128.
const maxChoices = 1024

// sink is a stream.Sink that is a gRPC stream.
type sink struct {
	out     grpc.ServerStreamingServer[pb.StreamChunk]
	id      string
	named   bool // trailers name the replica
	several bool // several answers were asked for

	scanner  sse.Scanner
	words    delta.Reader
	chunk    sse.Chunk
	finishes []string          // by choice
	halves   map[textOf]string // beginnings of characters whose rest comes with the next event
	begun    bool              // something was sent
	engine   bool              // the engine has spoken
	refusal  *pb.Error         // what the engine answered instead of a stream
	ended    bool
	err      error // with which the call ends
}

// textOf names one of the texts of a stream.
type textOf struct {
	choice, tool int
	kind         delta.Kind
}

// Event implements relay.Sink.
func (s *sink) Event(raw []byte, _ uint64) error {
	s.engine = true
	s.scanner.Feed(raw)
	for s.scanner.Next() {
		event := s.scanner.Event()
		if event.IsComment() || event.IsDone() {
			continue
		}
		if err := s.event(event.Data); err != nil {
			return err
		}
	}
	return s.scanner.Err()
}

func (s *sink) event(data []byte) error {
	deltas, ok := s.words.Read(data)
	if !ok {
		return nil
	}
	for i := range deltas {
		if err := s.delta(&deltas[i]); err != nil {
			return err
		}
	}
	if s.chunk.Read(data) {
		for _, c := range s.chunk.Choices {
			s.finished(int(c.Index), string(c.Finish))
		}
	}
	return nil
}

func (s *sink) finished(choice int, reason string) {
	if reason == "" || choice < 0 || choice >= maxChoices {
		return
	}
	for len(s.finishes) <= choice {
		s.finishes = append(s.finishes, "")
	}
	s.finishes[choice] = reason
}

// delta sends one piece.
func (s *sink) delta(d *delta.Delta) error {
	text := s.whole(textOf{d.Choice, d.Tool, d.Kind}, d.Text)
	to := &pb.TokenDelta{Choice: int32(d.Choice)}
	if d.Kind != delta.ToolCall {
		if text == "" {
			return nil
		}
		to.Text, to.Kind = text, kindOf(d.Kind)
		return s.send(&pb.StreamChunk{Payload: &pb.StreamChunk_Delta{Delta: to}})
	}
	to.Kind = pb.TokenDelta_TOOL_CALL
	to.ToolCall = &pb.ToolCall{Index: int32(d.Tool), Id: valid(d.ID), Name: valid(d.Name), Arguments: text}
	return s.send(&pb.StreamChunk{Payload: &pb.StreamChunk_Delta{Delta: to}})
}

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

// valid is a text as protobuf wants it, in UTF-8.
func valid(b []byte) string { return strings.ToValidUTF8(string(b), "\uFFFD") }

// whole is a piece of a text in UTF-8: engines cut between bytes of a character, protobuf refuses half of one.
func (s *sink) whole(of textOf, b []byte) string {
	half, waits := s.halves[of]
	if !waits && utf8.Valid(b) {
		return string(b)
	}
	text := half + string(b)
	cut := len(text) - incomplete(text)
	if cut < len(text) && len(s.halves) < maxChoices {
		if s.halves == nil {
			s.halves = map[textOf]string{}
		}
		s.halves[of] = text[cut:]
		return strings.ToValidUTF8(text[:cut], "\uFFFD")
	}
	delete(s.halves, of)
	return strings.ToValidUTF8(text, "\uFFFD")
}

// incomplete is how many bytes at the end of a text are the beginning of a character.
func incomplete(text string) int {
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

// Flush implements relay.Sink: what is sent is on its way.
func (s *sink) Flush() error { return nil }

// Heartbeat implements relay.Sink.
func (s *sink) Heartbeat(p relay.Progress) error {
	return s.send(&pb.StreamChunk{Payload: &pb.StreamChunk_Hb{Hb: &pb.Heartbeat{
		TsUnixMs: time.Now().UnixMilli(), Phase: string(p.Phase), Position: clamp(int64(p.Position)), WaitedMs: p.Waited.Milliseconds(),
		Note: valid([]byte(p.Note)),
	}}})
}

func clamp(n int64) int32 { return int32(min(max(n, 0), math.MaxInt32)) }

func (s *sink) send(c *pb.StreamChunk) error {
	s.begun = true
	c.RequestId = s.id
	return s.out.Send(c)
}

// Finish implements relay.Sink.
func (s *sink) Finish(r relay.Result) error {
	s.trailers(&r)
	switch {
	case r.Fault != nil:
		s.err = s.refuse(errorOf(r.Fault))
	case s.refusal != nil:
		s.err = s.refuse(s.refusal)
	default:
		s.err = s.final(&r)
	}
	s.ended = true
	return s.err
}

// final sends what a stream that went well ends with.
func (s *sink) final(r *relay.Result) error {
	f := &pb.FinalResult{
		FinishReason: r.Finish, Model: r.Model, Estimated: !r.Usage.Known,
		OutputTokens: clamp(r.Usage.Completion), InputTokens: clamp(r.Usage.Prompt), CachedTokens: clamp(r.Usage.Cached),
	}
	if s.several || len(s.finishes) > 1 {
		f.FinishReasons = s.finishes
	}
	return s.send(&pb.StreamChunk{Payload: &pb.StreamChunk_Final{Final: f}})
}

// refuse tells of an error, in a chunk too when something was sent before, and gives the status to end with.
func (s *sink) refuse(e *pb.Error) error {
	if s.begun {
		if err := s.send(&pb.StreamChunk{Payload: &pb.StreamChunk_Error{Error: e}}); err != nil {
			return err
		}
	}
	return e.Status().Err()
}

// trailers say who has answered, and what headers an error has.
func (s *sink) trailers(r *relay.Result) {
	md := metadata.Pairs(headers.Source, headers.SourceGateway)
	if s.engine {
		md.Set(headers.Source, headers.SourceEngine)
		if s.named && r.Replica != "" {
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

// errorOf is an error of ours in the words of llm.v1.
func errorOf(e *openai.Error) *pb.Error {
	return &pb.Error{
		Code: int32(e.HTTPStatus()), Message: valid([]byte(e.Message)), Type: e.Type(), Retryable: e.Retryable(),
		RetryAfterMs: e.RetryAfterMillis(), Name: string(e.Code), Param: valid([]byte(e.Param)),
	}
}
