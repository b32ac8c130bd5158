package request

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// The size of a response tells what nobody has read of it, and is marked. What Envoy or the engine
// has told wins.
func TestR3_Estimates(t *testing.T) {
	t.Parallel()
	cost := Cost{Usage: Usage{Prompt: 30, Completion: 40}, Finish: "length"}
	reading := func(end string) *Reading {
		return &Reading{Tokens: 50, Bytes: 1000, Ended: true, Finish: end, First: time.Unix(1, 0), Last: time.Unix(3, 0)}
	}
	type seen struct {
		prompt, completion            int64
		tokensEstimated, finEstimated bool
		finish, cause                 string
	}
	for name, c := range map[string]struct {
		change func(*Entry)
		want   seen
	}{
		"nothing read":   {func(*Entry) {}, seen{30, 40, true, true, "length", ""}},
		"usage told":     {func(e *Entry) { e.Usage = Usage{Prompt: 7, Completion: 9, Known: true} }, seen{7, 9, false, true, "length", ""}},
		"read":           {func(e *Entry) { e.Reading, e.BytesOut = reading("stop"), 1000 }, seen{30, 50, true, false, "stop", ""}},
		"read and told":  {func(e *Entry) { e.Reading, e.Usage = reading("stop"), Usage{Prompt: 7, Completion: 9, Known: true} }, seen{7, 9, false, false, "stop", ""}},
		"client left":    {func(e *Entry) { e.Flags = "DC" }, seen{30, 40, true, false, "", CauseClient}},
		"read until":     {func(e *Entry) { e.Reading, e.BytesOut, e.Flags = reading(""), 2000, "DC" }, seen{30, 100, true, false, "", CauseClient}},
		"no answer":      {func(e *Entry) { e.Status, e.Flags = 503, "UF" }, seen{}},
		"engine refuses": {func(e *Entry) { e.Status = 400 }, seen{}},
	} {
		s, h := NewStore(1), &hold{cost: cost}
		s.Begin(Arrival{ID: "a", Stream: true}).SetNative(h, "chat", "chat-0", 0)
		e := final("a")
		e.Streamed, e.Flags = true, ""
		c.change(&e)
		s.Observe(e)
		rows, _ := s.List(1)
		q := rows[0]
		got := seen{q.PromptTokens, q.CompletionTokens, q.IsEstimated(), q.FinishEstimated, q.FinishReason, q.Cause}
		if diff := cmp.Diff(c.want, got, cmp.AllowUnexported(seen{})); diff != "" {
			t.Errorf("%s: (-want +got)\n%s", name, diff)
		}
		if e.Reading != nil && q.Decode != 2*time.Second {
			t.Errorf("%s: decode %v", name, q.Decode)
		}
	}
}

// The first token of a stream that Envoy has read is the event with it, not the first byte.
func TestR3_FirstTokenOfAReading(t *testing.T) {
	t.Parallel()
	began := time.Unix(100, 0)
	q := Summary{Started: began, FirstByte: time.Second, Duration: 4 * time.Second, Reading: &Reading{Tokens: 1, First: began.Add(3 * time.Second)}}
	if q.TTFT() != 3*time.Second {
		t.Errorf("first token after %v", q.TTFT())
	}
	for _, r := range []*Reading{nil, new(Reading), {Tokens: 1, First: began}, {Tokens: 1, First: began.Add(time.Hour)}} {
		if q.Reading = r; q.TTFT() != time.Second {
			t.Errorf("%+v: first token after %v, want the first byte", r, q.TTFT())
		}
	}
}

// A stream during which somebody sets the clock has no times that are longer than the stream.
func TestR3_TheClockIsSetDuringAStream(t *testing.T) {
	t.Parallel()
	for by, decode := range map[time.Duration]time.Duration{0: 2 * time.Second, time.Hour: 0, -time.Hour: 0} {
		s := NewStore(1)
		e := final("a")
		e.Streamed, e.Duration, e.FirstByte = true, 4*time.Second, time.Second
		first := e.Start.Add(2 * time.Second)
		e.Reading = &Reading{Tokens: 5, First: first, Last: first.Add(2*time.Second + by)}
		s.Observe(e)
		rows, _ := s.List(1)
		if rows[0].Decode != decode || rows[0].TTFT() != 2*time.Second {
			t.Errorf("clock set by %v: decode %v, first token after %v", by, rows[0].Decode, rows[0].TTFT())
		}
	}
}

func TestR3_GapClasses(t *testing.T) {
	t.Parallel()
	for _, gap := range []time.Duration{20 * time.Microsecond, time.Millisecond, 35 * time.Millisecond, 2 * time.Second, time.Hour} {
		if got := GapLength(GapClass(gap)); got < 0.99*gap.Seconds() || got > 1.01*gap.Seconds() {
			t.Errorf("a gap of %v counts as %v s", gap, got)
		}
	}
	if GapClass(0) != 0 || GapClass(-time.Second) != 0 {
		t.Error("the shortest gaps are of class 0")
	}
}
