package moderation_test

import (
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-gateway/sluice/internal/relay/moderation"
)

func literals(l ...string) moderation.Rule { return moderation.Rule{Name: "words", Literals: l} }

func pattern(p string) moderation.Rule {
	return moderation.Rule{Name: "pattern", Patterns: []*regexp.Regexp{regexp.MustCompile(p)}}
}

// What is sent of a stream before it ends, or is blocked; without a block all of it goes in the
// end, in its order.
func TestLiterals(t *testing.T) {
	for name, test := range map[string]struct {
		rule   moderation.Rule
		events []string
		sent   int // before the end
		block  bool
	}{
		"in one event":       {literals("secret"), []string{content("a secret")}, 1, true},
		"over three":         {literals("secret"), []string{content("the "), content("a sec"), content("r"), content("et!")}, 2, true},
		"not this time":      {literals("secret"), []string{content("sec"), content("ond")}, 2, false},
		"still open":         {literals("secret"), []string{content("x"), content("sec")}, 1, false},
		"falls back":         {literals("aab"), []string{content("a"), content("a"), content("a"), content("a")}, 2, false},
		"falls back, then":   {literals("aab"), []string{content("a"), content("a"), content("a"), content("b")}, 2, true},
		"inside another":     {literals("abcdef", "cd"), []string{content("ab"), content("cd")}, 1, true},
		"other case":         {literals("secret"), []string{content("SECRET")}, 1, false},
		"any case":           {moderation.Rule{Literals: []string{"Kies"}, IgnoreCase: true}, []string{content("\u212aI"), content("E\u017f")}, 1, true},
		"not text":           {literals("secret"), []string{`{"usage":{"x":1}}`, "[DONE]"}, 2, false},
		"other choices":      {literals("secret"), []string{chunk(0, "content", "sec"), chunk(1, "content", "ret")}, 0, false},
		"other kinds":        {literals("secret"), []string{chunk(0, "reasoning", "sec"), chunk(0, "content", "ret")}, 0, false},
		"all wait":           {literals("secret"), []string{content("sec"), `{"usage":{}}`, chunk(1, "content", "x")}, 0, false},
		"a choice that ends": {literals("secret"), []string{content("sec"), finish(0, "length")}, 2, false},
		"another ends":       {literals("secret"), []string{content("sec"), finish(1, "length")}, 0, false},
		"tools":              {literals("secret"), []string{arguments(0, "sec"), arguments(1, "sec"), arguments(0, "x"), arguments(1, "r")}, 1, false},
		"tools, found":       {literals("secret"), []string{arguments(0, "sec"), arguments(1, "x"), arguments(1, "y"), arguments(0, "ret")}, 1, true},
		"responses": {literals("secret"), []string{`{"type":"response.output_text.delta","delta":"sec"}`, `{"type":"response.in_progress"}`,
			`{"type":"response.output_text.delta","delta":"ret"}`}, 0, true}, // nothing is left of the first event
		"responses, end": {literals("secret"), []string{`{"type":"response.output_text.delta","delta":"sec"}`, `{"type":"response.completed"}`}, 2, false},
		"completion":     {literals("secret"), []string{`{"choices":[{"index":0,"text":"sec"}]}`, `{"choices":[{"index":0,"text":"ret"}]}`}, 1, true},
		"empty literal":  {literals(""), []string{content("x")}, 1, false},
	} {
		r := newRelay(test.rule).see(t, test.events...)
		if got := r.blocked(); got != test.block || len(r.sent) != test.sent {
			t.Errorf("%s: %d sent, then %+v", name, len(r.sent), r.last)
		}
		if r.end(t); !test.block {
			if d := cmp.Diff(test.events, r.sent); d != "" {
				t.Errorf("%s: not everything was sent in its order: %s", name, d)
			}
		}
	}
}

// A thought that ends with the first letter of a literal does not hold up to the end what is said
// after it.
func TestPatience(t *testing.T) {
	r := newRelay(literals("secret")).see(t, chunk(0, "reasoning", "it is"))
	for range 31 {
		r.see(t, chunk(0, "content", "x"))
	}
	if len(r.sent) != 0 {
		t.Fatalf("%d events were sent too early", len(r.sent))
	}
	r.see(t, chunk(0, "content", "y"))
	if len(r.sent) != 33 {
		t.Errorf("%d events were sent", len(r.sent))
	}
	if r.see(t, chunk(0, "reasoning", "ecret")); !r.blocked() {
		t.Error("the literal was not found after all")
	}
}

func TestVerdict(t *testing.T) {
	rules := []moderation.Rule{literals("one"), {Name: "second", Literals: []string{"two"}}, {Name: "third", Literals: []string{"two"}}}
	r := newRelay(rules...).see(t, chunk(3, "content", "two"))
	if d := cmp.Diff(moderation.Verdict{Ended: true, Rule: "second", Choice: 3}, r.last); d != "" {
		t.Error(d)
	}
	if !r.filter.HasEnded(3) || !r.filter.HasTold(3) || r.filter.HasEnded(2) {
		t.Error("another choice has ended")
	}
	if r.see(t, chunk(3, "content", "one")); r.last.Ended || len(r.sent) != 1 {
		t.Errorf("after it: %+v, %s", r.last, r.sent)
	}
	want := moderation.Verdict{Action: moderation.Block, Ended: true, Rule: "words"}
	r.see(t, `{"type":"response.output_text.delta","delta":"one"}`)
	if d := cmp.Diff(want, r.last); d != "" {
		t.Error(d)
	}
	if d := cmp.Diff(want, r.filter.Check(t.Context(), []byte(content("x")))); d != "" {
		t.Errorf("after everything: %s", d)
	}
	if d := cmp.Diff(want, r.filter.Finish(t.Context())); d != "" {
		t.Errorf("at the end: %s", d)
	}
}

func TestPatterns(t *testing.T) {
	for name, test := range map[string]struct {
		rule   moderation.Rule
		events []string
		sent   int
		block  bool
	}{
		"over three":           {pattern(`\d{3}-\d{2}-\d{4}`), []string{content("no 123-"), content("45-67"), content("89")}, 3, true},
		"not quite":            {pattern(`\d{3}-\d{2}-\d{4}`), []string{content("no 123-"), content("45-6"), content("x89")}, 3, false},
		"at once":              {pattern(`a+b`), []string{content("aa"), content("b")}, 2, true},
		"a word":               {pattern(`\bass\b`), []string{content("ass"), content("ume")}, 2, false},
		"a word, seen late":    {pattern(`\bass\b`), []string{content("ass"), content(" x")}, 2, true},
		"a word at the end":    {pattern(`\bass\b`), []string{content("x ass")}, 1, true},
		"end of the text":      {pattern(`x$`), []string{content("x"), content("y")}, 2, false},
		"end of a choice":      {pattern(`x$`), []string{content("x"), finish(0, "stop")}, 2, true},
		"beginning":            {pattern(`^b`), []string{content("a"), content("b")}, 2, false},
		"beginning of a line":  {pattern(`(?m)^b`), []string{content("a\n"), content("b")}, 2, true},
		"no wider than window": {moderation.Rule{Window: 5, Patterns: pattern(`a.*b`).Patterns}, []string{content("a1234b"), content("x")}, 2, false},
		"as wide as window":    {moderation.Rule{Window: 5, Patterns: pattern(`a.*b`).Patterns}, []string{content("a"), content("a123b")}, 2, true},
		"any case":             {moderation.Rule{IgnoreCase: true, Patterns: pattern(`secret|x`).Patterns}, []string{content("SeCret")}, 1, true},
		"nothing":              {pattern(`q*`), []string{content("a")}, 1, true},
		"other choice":         {pattern(`ab`), []string{chunk(0, "content", "a"), chunk(1, "content", "b")}, 2, false},
		"posix":                {moderation.Rule{Patterns: []*regexp.Regexp{regexp.MustCompilePOSIX(`a**b`)}}, []string{content("a"), content("b")}, 2, true},
	} {
		r := newRelay(test.rule).see(t, test.events...)
		sent := len(r.sent)
		if !r.blocked() {
			r.end(t)
		}
		if got := r.blocked(); got != test.block || sent != test.sent {
			t.Errorf("%s: %d sent, then %+v", name, sent, r.last)
		}
	}
}

// What a stream keeps does not grow with it.
func TestMemory(t *testing.T) {
	filter := moderation.New([]moderation.Rule{literals("secret", "sss"), pattern(`s.*\d`), pattern(`s\s\d`)}).NewFilter()
	event := []byte(content(strings.Repeat("ss ", 20)))
	for range 1000 {
		filter.Check(t.Context(), event)
	}
	if allocs := testing.AllocsPerRun(1000, func() { filter.Check(t.Context(), event) }); allocs != 0 {
		t.Errorf("%v allocations for each event", allocs)
	}
}

// A stream with more texts than the filter tells apart is refused.
func TestManyTexts(t *testing.T) {
	r := newRelay(literals("secret"))
	for i := range 3000 {
		r.see(t, chunk(i, "content", "x"))
	}
	if len(r.sent) < 500 || len(r.sent) >= 3000 || r.last.Action != moderation.Refuse {
		t.Errorf("%d sent, then %+v", len(r.sent), r.last)
	}
}

func benchmarkRules() []moderation.Rule {
	return []moderation.Rule{
		{Name: "words", IgnoreCase: true, Literals: []string{"project bluebird", "internal use only", "do not distribute"}},
		{Name: "keys", Patterns: []*regexp.Regexp{regexp.MustCompile(`\bsk-[A-Za-z0-9]{20,}`)}},
		{Name: "numbers", Patterns: []*regexp.Regexp{regexp.MustCompile(`\b\d{3}-\d{2}-\d{4}\b`)}},
	}
}

func BenchmarkSee(b *testing.B) {
	filter := moderation.New(benchmarkRules()).NewFilter()
	var events [][]byte
	for _, word := range strings.SplitAfter("The quick brown fox said: sketch 12 of 100 things, in any order you like. ", " ") {
		events = append(events, []byte(`{"id":"chatcmpl-0123456789abcdef","object":"chat.completion.chunk","created":1700000000,"model":"llama-3-8b",`+
			`"choices":[{"index":0,"delta":{"content":"`+word+`"},"logprobs":null,"finish_reason":null}]}`))
	}
	ctx := b.Context()
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		filter.Check(ctx, events[i%len(events)])
	}
}
