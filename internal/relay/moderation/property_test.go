package moderation_test

import (
	"encoding/json"
	"math/rand/v2"
	"regexp"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/sluice-gateway/sluice/internal/openai/delta"
	"github.com/sluice-gateway/sluice/internal/relay/moderation"
)

// alphabet is small, so that literals are nearly found often, and has runes of one to four bytes.
var alphabet = []string{"a", "a", "b", "é", "😀", "\u212a", "k", "\n", `"`}

func word(rnd *rand.Rand, n int) string {
	var b strings.Builder
	for range n {
		b.WriteString(alphabet[rnd.IntN(len(alphabet))])
	}
	return b.String()
}

// splitRunes cuts a text between runes.
func splitRunes(rnd *rand.Rand, text string) (parts []string) {
	part := ""
	for _, r := range text {
		if part += string(r); rnd.IntN(3) > 0 {
			parts, part = append(parts, part), ""
		}
	}
	return append(parts, part)
}

// split cuts a text anywhere, in runes too.
func split(rnd *rand.Rand, text string) (parts []string) {
	for len(text) > 0 {
		n := min(rnd.IntN(6), len(text))
		parts, text = append(parts, text[:n]), text[n:]
	}
	return parts
}

func event(rnd *rand.Rand, text string) string {
	return `{"choices":[{"index":0,"delta":{"content":"` + quoted(text, rnd) + `"}}]}`
}

// Clients that join strings of UTF-16 see the pair.
func TestSplitPairs(t *testing.T) {
	half := func(text string) string { return `{"choices":[{"index":0,"delta":{"content":"` + text + `"}}]}` }
	for name, test := range map[string]struct {
		events []string
		sent   int
		block  bool
	}{
		"a pair":           {[]string{half(`x`), half(`a\ud83d`), half(`\ude00b`)}, 2, true},
		"the literal left": {[]string{half(`a\ud83d`), half(`\ude01b`)}, 2, false},
		"alone":            {[]string{half(`a\ud83d`), half(`b`)}, 2, false},
		"alone, found":     {[]string{half(`q\ud83d`), half(`q`)}, 1, true},
		"at the end":       {[]string{half(`q\ud83d`), finish(0, "stop")}, 2, false},
		"low alone":        {[]string{half(`a`), half(`\ude00b`)}, 2, false},
		"behind half":      {[]string{half("a\xf0\\ud83d"), half(`\ude00b`)}, 2, false},
	} {
		r := newRelay(literals("a😀b", "q\ufffdq")).see(t, test.events...)
		if len(r.sent) != test.sent || (r.blocked()) != test.block {
			t.Errorf("%s: %d sent, %+v", name, len(r.sent), r.last)
		}
	}
	p := newRelay(pattern(`^a😀$`)).see(t, half(`a\ud83d`), half(`\ude00`)).end(t)
	if !p.blocked() {
		t.Errorf("pattern: %+v", p.last)
	}
}

// said is the text of events.
func said(events []string) string {
	var r delta.Reader
	var b strings.Builder
	for _, e := range events {
		deltas, _ := r.Read([]byte(e))
		for _, d := range deltas {
			b.Write(d.Text)
		}
	}
	return b.String()
}

// Wherever a text is cut, a literal in it is found, and nothing is sent of the one that ends first.
func TestLiteralsProperty(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	found := 0
	for range 5_000 {
		rule := moderation.Rule{IgnoreCase: rnd.IntN(2) == 0}
		for range 1 + rnd.IntN(3) {
			rule.Literals = append(rule.Literals, word(rnd, 1+rnd.IntN(5)))
		}
		text := word(rnd, rnd.IntN(20))
		first := len(text)
		if at, ok := firstLiteral(text, &rule); ok {
			found, first = found+1, at
		}
		r := newRelay(rule)
		for _, part := range split(rnd, text) {
			r.see(t, event(rnd, part))
		}
		sent := said(r.sent)
		blocked := r.blocked()
		if (first < len(text)) != blocked {
			t.Fatalf("%q with %q: %+v", text, rule.Literals, r.last)
		}
		if len(sent) > first || !strings.HasPrefix(text, sent) {
			t.Fatalf("%q with %q: %q was sent", text, rule.Literals, sent)
		}
		if !blocked && !r.end(t).blocked() && said(r.sent) != text {
			t.Fatalf("%q with %q: %q was sent in the end", text, rule.Literals, said(r.sent))
		}
	}
	if found < 500 {
		t.Errorf("only %d texts had a literal", found)
	}
}

// firstLiteral is where the literal that ends first begins, the longest of those.
func firstLiteral(text string, rule *moderation.Rule) (at int, ok bool) {
	for end := range len(text) + 1 {
		for start := range end {
			for _, l := range rule.Literals {
				if part := text[start:end]; utf8.ValidString(part) && (part == l || rule.IgnoreCase && strings.EqualFold(part, l)) {
					return start, true
				}
			}
		}
	}
	return 0, false
}

// What is held is what may begin a literal, and no event before it.
func TestHoldsNoMore(t *testing.T) {
	rnd := rand.New(rand.NewPCG(3, 4))
	for range 5_000 {
		rule := moderation.Rule{Literals: []string{word(rnd, 1+rnd.IntN(5)), word(rnd, 2)}}
		r := newRelay(rule)
		text := ""
		for _, part := range splitRunes(rnd, word(rnd, 12)) {
			text += part
			if r.see(t, event(rnd, part)); r.blocked() {
				break
			}
			open := opening(text, rule.Literals)
			held := said(r.held)
			if len(held) < open {
				t.Fatalf("%q with %q: only %q is held", text, rule.Literals, held)
			}
			if len(r.held) > 0 && len(said(r.held[1:])) >= open {
				t.Fatalf("%q with %q: %q is held", text, rule.Literals, r.held)
			}
		}
	}
}

// opening is how many bytes at the end of the text may begin a literal.
func opening(text string, literals []string) (n int) {
	for _, l := range literals {
		for i := 1; i < len(l); i++ {
			if utf8.RuneStart(l[i]) && strings.HasSuffix(text, l[:i]) {
				n = max(n, i)
			}
		}
	}
	return n
}

// Wherever a text is cut, a pattern is found as regexp finds it in the whole.
func TestPatternsProperty(t *testing.T) {
	rnd := rand.New(rand.NewPCG(5, 6))
	patterns := []string{`ab`, `a+b{2}`, `^a`, `k$`, `\bk`, `k\b`, `\Bk`, `a.b`, `(?s)a.b`, `(?m)^b`, `(?m)a$`, `é|😀b`, `[^ab]{3}`, `(?i)kK`, `a(b|é)*k`, `(?:a|aa){3}b`,
		`\x{1F600}{2}`, `[^a]\z`, `\Aa|b\b`}
	found := 0
	for range 5_000 {
		p := regexp.MustCompile(patterns[rnd.IntN(len(patterns))])
		text := word(rnd, 1+rnd.IntN(14))
		r := newRelay(moderation.Rule{Patterns: []*regexp.Regexp{p}})
		for _, part := range split(rnd, text) {
			r.see(t, event(rnd, part))
		}
		if !r.blocked() {
			r.end(t)
		}
		want := p.MatchString(text)
		if got := r.blocked(); got != want {
			t.Fatalf("%q in %q: %v", p, text, r.last)
		}
		if want {
			found++
		}
	}
	if found < 500 {
		t.Errorf("only %d texts had a match", found)
	}
}

func FuzzSee(f *testing.F) {
	f.Add("secret", "s+e", "a secret s", uint64(1))
	f.Add("é", `\bk`, "\xc3\xa9 \xc3", uint64(2))
	f.Fuzz(func(t *testing.T, literal, pattern, text string, seed uint64) {
		p, err := regexp.Compile(pattern)
		if err != nil || text == "" || len(text) > 1000 || strings.Count(pattern, "{") > 1 {
			return
		}
		rnd := rand.New(rand.NewPCG(seed, 0))
		r := newRelay(moderation.Rule{Literals: []string{literal}, Patterns: []*regexp.Regexp{p}})
		for _, part := range split(rnd, text) {
			r.see(t, event(rnd, part))
		}
		if !r.blocked() {
			r.end(t)
		}
		seen, forbidden := string([]rune(text)), string([]rune(literal)) // as clients see them
		want := forbidden != "" && strings.Contains(seen, forbidden) || p.MatchString(text)
		if got := r.blocked(); got != want {
			t.Fatalf("%q and %q in %q: %v", literal, pattern, text, r.last)
		}
	})
}

// Whatever an answer is, it stays JSON.
func FuzzBody(f *testing.F) {
	f.Add([]byte(`{"choices":[{"index":0,"message":{"content":"secret","audio":{}},"logprobs":[],"finish_reason":"stop"}]}`))
	f.Add([]byte(`{"output":[{"content":[{"text":"secret","logprobs":[]}],"input":"x"}],"status":"completed","x":[{"arguments":"secret"}]}`))
	set := moderation.New([]moderation.Rule{{Name: "words", Literals: []string{"secret", "é"}, Patterns: []*regexp.Regexp{regexp.MustCompile(`\d$`)}}})
	f.Fuzz(func(t *testing.T, body []byte) {
		got, v := set.CheckAnswer(t.Context(), "m", body)
		if v.Action != moderation.Pass {
			if got != nil {
				t.Fatalf("%s is left", got)
			}
			return
		}
		if !json.Valid(got) || v.Ended && !strings.Contains(string(got), `content_filter"`) {
			t.Fatalf("%s", got)
		}
		if again, v := set.CheckAnswer(t.Context(), "m", got); v.Ended && string(again) == string(got) {
			t.Fatalf("%s is blocked and stays", got)
		}
	})
}
