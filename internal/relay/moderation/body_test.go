package moderation_test

import (
	"encoding/json"
	"math/rand/v2"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-gateway/sluice/internal/relay/moderation"
)

func TestBody(t *testing.T) {
	words, digits := literals("secret", "abcdef", "cd"), pattern(`\d+-\d`)
	for name, test := range map[string]struct {
		body, want string
		action     moderation.Action
	}{
		"chat": {
			body: `{"id":"c", "choices":[{"index":0,"message":{"role":"assistant","content":"a \"secret\" x"},"logprobs":{"content":[{"token":"secret"}]},"finish_reason":"stop"}],"usage":{"n":1.50}}`,
			want: `{"id":"c", "choices":[{"index":0,"message":{"role":"assistant","content":"a \""},"logprobs":null,"finish_reason":"content_filter"}],"usage":{"n":1.50}}`,
		},
		"the other choice stays": {
			body: `{"choices":[{"index":0,"message":{"content":"\u00e9 fine"},"finish_reason":"stop"},{"finish_reason":"length","index":1,"message":{"content":"<b> 12-3"}}]}`,
			want: `{"choices":[{"index":0,"message":{"content":"\u00e9 fine"},"finish_reason":"stop"},{"finish_reason":"content_filter","index":1,"message":{"content":"<b> "}}]}`,
		},
		"what comes later is empty": {
			body: `{"choices":[{"index":0,"message":{"content":"x","tool_calls":[{"id":"i","function":{"name":"f","arguments":"{}"}}],"reasoning":"my secret"},"finish_reason":"stop"}]}`,
			want: `{"choices":[{"index":0,"message":{"content":"","tool_calls":[{"id":"","function":{"name":"","arguments":""}}],"reasoning":"my "},"finish_reason":"content_filter"}]}`,
		},
		"what came before stays": {
			body: `{"choices":[{"index":0,"message":{"content":"x","tool_calls":[{"id":"i","function":{"name":"f","arguments":"secret"}}]},"finish_reason":"stop"}]}`,
			want: `{"choices":[{"index":0,"message":{"content":"x","tool_calls":[{"id":"i","function":{"name":"f","arguments":""}}]},"finish_reason":"content_filter"}]}`,
		},
		"one inside another": {
			body: `{"choices":[{"message":{"content":"xabcdef"},"finish_reason":null}]}`,
			want: `{"choices":[{"message":{"content":"x"},"finish_reason":"content_filter"}]}`,
		},
		"no finish_reason": {body: `{"choices":[{"message":{"content":"secret"}}]}`, want: `{"choices":[{"message":{"content":""},"finish_reason":"content_filter"}]}`},
		"completion": {
			body: `{"choices":[{"text":"x 12345-6","token_ids":[1,2],"logprobs":{"tokens":["secret"]},"finish_reason":"stop"}]}`,
			want: `{"choices":[{"text":"x ","token_ids":[],"logprobs":null,"finish_reason":"content_filter"}]}`,
		},
		"responses": {
			body: `{"status":"completed","incomplete_details":null,"output":[{"type":"reasoning","summary":[{"type":"summary_text","text":"hm"}],"encrypted_content":"e"},` +
				`{"type":"message","content":[{"type":"output_text","text":"the secret","logprobs":[1]},{"type":"refusal","refusal":"No"}]},` +
				`{"type":"function_call","name":"f","arguments":"{}"}]}`,
			want: `{"status":"incomplete","incomplete_details":{"reason":"content_filter"},"output":[{"type":"reasoning","summary":[{"type":"summary_text","text":"hm"}],"encrypted_content":null},` +
				`{"type":"message","content":[{"type":"output_text","text":"the ","logprobs":[]},{"type":"refusal","refusal":""}]},` +
				`{"type":"function_call","name":"","arguments":""}]}`,
		},
		"responses, no details": {
			body: `{"output":[{"type":"message","content":[{"text":"secret"}]}]}`,
			want: `{"output":[{"type":"message","content":[{"text":""}]}],"status":"incomplete","incomplete_details":{"reason":"content_filter"}}`,
		},
		"fine":    {body: `{"choices":[{"message":{"content":"sec"},"finish_reason":"stop"},{"message":{"content":"ret"}}]}`},
		"outside": {body: `{"choices":[{"message":{"content":null},"finish_reason":"stop"}],"note":"secret"}`, action: moderation.Block},
		"error":   {body: `{"error":{"message":"secret"}}`, action: moderation.Block},
		"no JSON": {body: `secret`, action: moderation.Refuse},
	} {
		got, v := moderation.New([]moderation.Rule{words, digits}).CheckAnswer(t.Context(), "m", []byte(test.body))
		if cut := test.want != ""; cut != (v.Action == moderation.Pass && v.Ended) && v.Action != test.action {
			t.Errorf("%s: %+v", name, v)
		}
		if test.want == "" && test.action == moderation.Pass {
			test.want = test.body
		}
		if d := cmp.Diff(test.want, string(got)); d != "" {
			t.Errorf("%s: %s", name, d)
		}
	}
}

func TestBodyVerdict(t *testing.T) {
	body := `{"choices":[{"index":4,"message":{"content":"two"}},{"index":5,"message":{"content":"one"}}]}`
	set := moderation.New([]moderation.Rule{literals("one"), {Name: "second", Literals: []string{"two"}}})
	_, got := set.CheckAnswer(t.Context(), "m", []byte(body))
	if d := cmp.Diff(moderation.Verdict{Ended: true, Rule: "second", Choice: 4}, got); d != "" {
		t.Error(d)
	}
}

// A whole answer is cut where a stream of the same would have been.
func TestBodyProperty(t *testing.T) {
	rnd := rand.New(rand.NewPCG(7, 8))
	for range 3_000 {
		rules := []moderation.Rule{{Name: "words", Literals: []string{word(rnd, 1+rnd.IntN(4)), word(rnd, 3)}, IgnoreCase: rnd.IntN(2) == 0},
			{Patterns: []*regexp.Regexp{regexp.MustCompile(`a{3,}|kk$`)}}}
		text := word(rnd, 1+rnd.IntN(15))
		r := newRelay(rules...)
		for _, part := range split(rnd, text) {
			r.see(t, event(rnd, part))
		}
		if !r.blocked() {
			r.end(t)
		}
		out, v := moderation.New(rules).CheckAnswer(t.Context(), "m", []byte(`{"choices":[{"message":{"content":"`+quoted(text, rnd)+`"}}]}`))
		var answer struct {
			Choices []struct {
				Message struct{ Content string }
			}
		}
		if err := json.Unmarshal(out, &answer); err != nil {
			t.Fatalf("%s: %v", out, err)
		}
		cut := answer.Choices[0].Message.Content
		if (v.Ended) != r.blocked() || !strings.HasPrefix(text, cut) {
			t.Fatalf("%q with %q: %q, %+v, streamed %+v", text, rules[0].Literals, cut, v, r.last)
		}
		if v.Rule == "words" && len(said(r.sent)) > len(cut) {
			t.Fatalf("%q with %q: %q is left, a stream has sent %q", text, rules[0].Literals, cut, said(r.sent))
		}
		if newRelay(rules[0]).see(t, event(rnd, cut)).blocked() {
			t.Fatalf("%q with %q: what is left, %q, has a literal", text, rules[0].Literals, cut)
		}
	}
}
