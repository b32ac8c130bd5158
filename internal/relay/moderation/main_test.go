package moderation_test

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"unicode/utf16"
	"unicode/utf8"

	"go.uber.org/goleak"

	"github.com/sluice-gateway/sluice/internal/relay/moderation"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// chunk is an event that adds to one field of a choice.
func chunk(choice int, field, text string) string {
	return fmt.Sprintf(`{"choices":[{"index":%d,"delta":{"%s":"%s"},"finish_reason":null}]}`, choice, field, quoted(text, nil))
}

func content(text string) string { return chunk(0, "content", text) }

func finish(choice int, reason string) string {
	return fmt.Sprintf(`{"choices":[{"index":%d,"delta":{},"finish_reason":"%s"}]}`, choice, reason)
}

func arguments(tool int, text string) string {
	return fmt.Sprintf(`{"choices":[{"index":0,"delta":{"tool_calls":[{"index":%d,"function":{"arguments":"%s"}}]}}]}`, tool, quoted(text, nil))
}

// quoted writes a text between the quotes of JSON; with rnd some of its runes become escapes, and
// parts of runes stay as they are.
func quoted(text string, rnd *rand.Rand) string {
	var b strings.Builder
	for i := 0; i < len(text); {
		r, n := utf8.DecodeRuneInString(text[i:])
		whole := r != utf8.RuneError || n > 1
		switch {
		case whole && (r < ' ' || r == '"' || r == '\\' || rnd != nil && rnd.IntN(4) == 0):
			for _, u := range utf16.Encode([]rune{r}) {
				fmt.Fprintf(&b, `\u%04x`, u)
			}
		default:
			b.WriteString(text[i : i+n])
		}
		i += n
	}
	return b.String()
}

// relay does with events what a relay does: it sends what passes and keeps what is held.
type relay struct {
	filter *moderation.Filter
	held   []string
	sent   []string
	next   int64 // the number of the next event to send
	last   moderation.Verdict
	// ended says that a rule has applied.
	ended bool
}

func newRelay(rules ...moderation.Rule) *relay {
	return &relay{filter: moderation.New(rules).NewFilter(), next: 1}
}

// blocked reports whether a rule has applied, or an event was refused.
func (r *relay) blocked() bool { return r.ended || r.last.Action == moderation.Refuse }

// see gives events to the filter until everything is blocked.
func (r *relay) see(t *testing.T, events ...string) *relay {
	t.Helper()
	for _, e := range events {
		if r.last.Action >= moderation.Block {
			return r
		}
		r.held = append(r.held, e)
		if e == "[DONE]" {
			r.do(t, r.filter.Skip())
			continue
		}
		r.do(t, r.filter.Check(t.Context(), []byte(e)))
	}
	return r
}

func (r *relay) end(t *testing.T) *relay {
	t.Helper()
	r.do(t, r.filter.Finish(t.Context()))
	return r
}

func (r *relay) do(t *testing.T, v moderation.Verdict) {
	t.Helper()
	r.last = v
	r.ended = r.ended || v.Ended
	switch {
	case v.Action == moderation.Refuse:
		r.held = nil
		return
	case (v.Action == moderation.Hold) != (v.Keep > 0), v.Keep > len(r.held):
		t.Fatalf("verdict %+v with %d events held", v, len(r.held))
	}
	n := len(r.held) - v.Keep
	for _, e := range r.held[:n] {
		if out, send := r.filter.Rewrite(r.next, []byte(e)); send {
			r.sent = append(r.sent, string(out))
		}
		r.next++
	}
	r.held = r.held[n:]
}
