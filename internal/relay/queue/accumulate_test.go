package queue_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-gateway/sluice/internal/openai/sse"
	"github.com/sluice-gateway/sluice/internal/relay/queue"
)

// message is what a client puts together of one choice.
type message struct {
	role   string
	text   map[string]string // by member
	logs   map[string][]any  // by list
	calls  map[int]*toolCall
	order  []string // in which it learned of kinds and calls
	finish string
}

type toolCall struct{ id, typ, name, arguments string }

type answer map[int]*message

// accumulate is a naive client: everything is decoded, and added to what was there.
func accumulate(t testing.TB, stream string) answer {
	t.Helper()
	a := answer{}
	for _, e := range events(stream) {
		a.event(t, e)
	}
	return a
}

func (a answer) event(t testing.TB, e *sse.Event) {
	var c struct {
		Choices []struct {
			Index  int              `json:"index"`
			Delta  map[string]any   `json:"delta"`
			Text   *string          `json:"text"`
			Logs   map[string][]any `json:"logprobs"`
			Finish string           `json:"finish_reason"`
		} `json:"choices"`
	}
	if e.IsComment() || e.IsDone() {
		return
	}
	if err := json.Unmarshal(e.Data, &c); err != nil {
		t.Fatalf("%s: %v", e.Data, err)
	}
	for _, choice := range c.Choices {
		m := a[choice.Index]
		if m == nil {
			m = &message{text: map[string]string{}, logs: map[string][]any{}, calls: map[int]*toolCall{}}
			a[choice.Index] = m
		}
		if choice.Text != nil {
			m.add("text", *choice.Text)
		}
		m.delta(choice.Delta)
		for name, list := range choice.Logs {
			m.logs[name] = append(m.logs[name], list...)
		}
		m.finish += choice.Finish
	}
}

func (m *message) add(member, text string) {
	if text != "" && (len(m.order) == 0 || m.order[len(m.order)-1] != member) {
		m.order = append(m.order, member)
	}
	m.text[member] += text
}

func (m *message) delta(d map[string]any) {
	for _, member := range slices.Sorted(maps.Keys(d)) {
		switch v := d[member].(type) {
		case string:
			if member == "role" {
				m.role = v
				continue
			}
			m.add(member, v)
		case []any:
			for _, raw := range v {
				m.call(raw.(map[string]any))
			}
		}
	}
}

func (m *message) call(c map[string]any) {
	index := int(c["index"].(float64))
	k := m.calls[index]
	if k == nil {
		k = &toolCall{}
		m.calls[index] = k
		m.order = append(m.order, fmt.Sprint("call ", index))
	}
	str := func(v any) string { s, _ := v.(string); return s }
	f, _ := c["function"].(map[string]any)
	k.id += str(c["id"])
	k.name += str(f["name"])
	k.arguments += str(f["arguments"])
	if typ := str(c["type"]); typ != "" {
		k.typ = typ
	}
}

// script makes a random stream.
type script struct {
	*rand.Rand
	choices int
	text    bool // completions
	usage   int
}

// pieces are what tokens are made of: escapes, halves of characters, what ends a string.
var pieces = []string{`a`, ` the`, `\"`, `\\`, `\n`, `\u00e9`, `é`, `😀`, `\ud83d`, `\ude00`, `\ud83d\ude00`, `\\u`, `\\ud83d`, `ud83d`, `}]`, `data: `, "\xf0\x9f", "\x98\x80", ``}

func (s *script) piece() string { return pieces[s.IntN(len(pieces))] + pieces[s.IntN(len(pieces))] }

func (s *script) oneOf(list ...string) string { return list[s.IntN(len(list))] }

func (s *script) stream() string {
	var b strings.Builder
	b.WriteString(": first\n\n")
	for range 5 + s.IntN(300) {
		b.WriteString(s.event())
	}
	for i := range s.choices {
		b.WriteString(chunk(fmt.Sprintf(`"index":%d,"delta":{},"finish_reason":"stop%d"`, i, i), ""))
	}
	b.WriteString(done)
	return b.String()
}

func (s *script) event() string {
	switch s.IntN(60) {
	case 0:
		return ": beat\n\n"
	case 1:
		return "event: other\ndata: {\"choices\":[]}\n\n"
	case 2:
		return chunk(s.choice(), `,"new":1`)
	}
	rest := s.oneOf("", "", `,"usage":null`)
	if s.IntN(4) == 0 {
		s.usage++
		rest = fmt.Sprintf(`,"usage":{"completion_tokens":%d}`, s.usage)
	}
	choices := s.choice()
	if s.IntN(10) == 0 && s.choices > 1 {
		choices = s.choiceOf(0) + "},{" + s.choiceOf(1)
	}
	return chunk(choices, rest)
}

func (s *script) choice() string { return s.choiceOf(s.IntN(s.choices)) }

func (s *script) choiceOf(index int) string {
	logs := s.oneOf("", `,"logprobs":null`, fmt.Sprintf(`,"logprobs":{"content":[{"token":"%d","top":[1,{}]}]}`, s.IntN(100)), `,"logprobs":{"content":[],"refusal":[1]}`)
	if s.text {
		return fmt.Sprintf(`"index":%d,"text":"%s"`, index, s.piece()) + logs
	}
	return fmt.Sprintf(`"index":%d,"delta":{%s}`, index, s.delta()) + logs + s.oneOf("", `,"finish_reason":null`)
}

func (s *script) delta() string {
	switch s.IntN(12) {
	case 0:
		return `"role":"assistant","content":` + s.oneOf(`""`, `null`)
	case 1, 2:
		return fmt.Sprintf(`"%s":"%s"`, s.oneOf("reasoning_content", "reasoning", "refusal"), s.piece())
	case 3:
		return fmt.Sprintf(`"tool_calls":[{"index":%d,"id":"c%d","type":"function","function":{"name":"f%d","arguments":""}}]`, s.IntN(3), s.IntN(9), s.IntN(9))
	case 4, 5:
		return fmt.Sprintf(`"tool_calls":[{"index":%d,"function":{"arguments":"%s"}}]`, s.IntN(3), s.piece())
	case 6:
		return fmt.Sprintf(`"tool_calls":[{"index":0,"function":{"arguments":"%s"}},{"index":1,"function":{"arguments":"x"}}],"content":null`, s.piece())
	}
	return fmt.Sprintf(`"content":"%s"`, s.piece())
}

// lastUsage is the newest usage that a client saw.
func lastUsage(stream string) string {
	_, last, found := strings.Cut(stream[max(0, strings.LastIndex(stream, `"usage":{`)):], `"usage":{`)
	if !found {
		return ""
	}
	usage, _, _ := strings.Cut(last, "}")
	return usage
}

// untouched are the events that must come through as they are, in their order.
func untouched(stream string) (list []string) {
	for _, e := range events(stream) {
		if !strings.HasPrefix(string(e.Data), `{"id"`) || strings.Contains(string(e.Data), `"new":1`) || strings.Contains(string(e.Data), "stop") {
			list = append(list, string(e.Raw))
		}
	}
	return list
}

func checkSame(t *testing.T, stream, got string) {
	t.Helper()
	want, seen := accumulate(t, stream), accumulate(t, got)
	if !reflect.DeepEqual(want, seen) {
		d := cmp.Diff(want, seen, cmp.AllowUnexported(message{}, toolCall{}))
		t.Fatalf("a client sees something else: %s\nof %s\nfrom %s", d, got, stream)
	}
	if d := cmp.Diff(untouched(stream), untouched(got)); d != "" {
		t.Fatalf("foreign events: %s", d)
	}
	if a, b := lastUsage(stream), lastUsage(got); a != b {
		t.Fatalf("usage %s became %s", a, b)
	}
}

// through pushes a stream while a consumer, at times, pops some of it.
func through(t *testing.T, r *rand.Rand, stream string) (got string, merged int) {
	q := queue.New(queue.Limits{MergeAfter: 1 + r.IntN(20), MaxEvents: 1000})
	var out []byte
	next := uint64(0)
	pop := func() error {
		b, number, err := q.Pop(out)
		if err == nil {
			if number < next {
				t.Fatalf("event %d comes as the %dth", number, next)
			}
			merged += int(number - next)
			next = number + 1
		}
		out = b
		return err
	}
	pushed := events(stream)
	for _, e := range pushed {
		if err := q.Push(e); err != nil {
			t.Fatal(err)
		}
		if r.IntN(3) == 0 {
			pop()
		}
	}
	q.Close(nil)
	for {
		if err := pop(); errors.Is(err, io.EOF) {
			if next != uint64(len(pushed)) {
				t.Fatalf("%d events came of %d", next, len(pushed))
			}
			return string(out), merged
		}
	}
}

// Whatever is merged, a client puts the same together.
func TestSameAnswer(t *testing.T) {
	merged := 0
	for seed := range uint64(100) {
		r := rand.New(rand.NewPCG(seed, 7))
		s := script{Rand: r, choices: 1 + r.IntN(4), text: r.IntN(4) == 0}
		stream := s.stream()
		got, n := through(t, r, stream)
		checkSame(t, stream, got)
		merged += n
	}
	if merged < 1000 {
		t.Errorf("only %d events were merged", merged)
	}
	t.Logf("%d merged", merged)
}

func FuzzSameAnswer(f *testing.F) {
	f.Add(uint64(1), uint64(2))
	f.Fuzz(func(t *testing.T, a, b uint64) {
		r := rand.New(rand.NewPCG(a, b))
		s := script{Rand: r, choices: 1 + r.IntN(8), text: r.IntN(4) == 0}
		stream := s.stream()
		got, _ := through(t, r, stream)
		checkSame(t, stream, got)
	})
}

// FuzzMerge gives two chunks of any bytes: when they are merged, a decoder sees of both what it saw
// of each.
func FuzzMerge(f *testing.F) {
	r := script{Rand: rand.New(rand.NewPCG(1, 1)), choices: 2}
	for range 50 {
		f.Add(strings.TrimSuffix(r.event(), "\n\n"), strings.TrimSuffix(r.event(), "\n\n"))
	}
	f.Fuzz(func(t *testing.T, a, b string) {
		stream := a + "\n\n" + b + "\n\n"
		if list := events(stream); len(list) != 2 {
			return
		}
		q := queue.New(queue.Limits{MergeAfter: 1, MaxEvents: 2})
		push(t, q, stream)
		if got, numbers := popAll(t, q); len(numbers) == 2 {
			if got != stream {
				t.Fatalf("%q became %q", stream, got)
			}
		} else if d := cmp.Diff(accumulate(t, stream), accumulate(t, got), cmp.AllowUnexported(message{}, toolCall{})); d != "" {
			t.Fatalf("a client sees something else: %s\nof %s", d, got)
		}
	})
}
