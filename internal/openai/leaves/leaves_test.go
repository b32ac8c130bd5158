package leaves_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-gateway/sluice/internal/openai/leaves"
)

var classes = map[leaves.Class]string{leaves.Text: "text", leaves.Brief: "brief", leaves.Complete: "complete", leaves.Meta: "meta",
	leaves.Tokens: "tokens", leaves.Opaque: "opaque", leaves.Number: "number"}

// said describes what a reader has read.
func said(r *leaves.Reader) (all []string) {
	for _, l := range r.Leaves {
		all = append(all, fmt.Sprintf("%d %s %s", l.Choice, classes[l.Path.Class], l.Text))
	}
	return all
}

// TestX4_EveryStringIsALeaf shows for each shape of an answer which strings there are, and what
// they are taken for.
func TestX4_EveryStringIsALeaf(t *testing.T) {
	for name, test := range map[string]struct {
		data string
		want []string
	}{
		"chunk": {`{"id":"c","object":"chat.completion.chunk","created":1,"model":"m","choices":[{"index":2,"delta":{"role":"assistant","content":"a\n"},"logprobs":null,"finish_reason":"stop"}]}`,
			[]string{"-1 meta c", "-1 meta chat.completion.chunk", "-1 meta m", "2 meta assistant", "2 text a\n", "2 meta stop"}},
		"unknown fields": {`{"choices":[{"index":0,"delta":{"musing":{"deep":["x"]},"reasoning_details":[{"type":"t","text":"y","data":"z"}]},"note":"n"}],"secret":"s"}`,
			[]string{"0 meta t", "0 text y", "0 opaque z", "-1 complete secret", "-1 brief s", "0 complete musing", "0 complete deep", "0 text x", "0 complete note", "0 brief n"}},
		"order": {`{"choices":[{"message":{"content":"b","tool_calls":[{"id":"i","type":"function","function":{"name":"f","arguments":"{}"}}],"refusal":"r","reasoning":"a"}}]}`,
			[]string{"0 text a", "0 text b", "0 text r", "0 brief i", "0 meta function", "0 brief f", "0 text {}"}},
		"log probabilities": {`{"choices":[{"text":"a","logprobs":{"tokens":["a"],"top_logprobs":[{"a":-1,"b":-2}],"content":[{"token":"a","logprob":0,"bytes":[97]}]}}]}`,
			[]string{"0 text a", "0 tokens a", "0 tokens a", "0 tokens b", "0 tokens a"}},
		"event": {`{"type":"response.output_text.delta","item_id":"i","delta":"x","obfuscation":"o"}`,
			[]string{"-1 meta response.output_text.delta", "-1 meta i", "-1 text x", "-1 meta o"}},
		"event, type last": {`{"delta":"x","type":"response.output_text.delta"}`, []string{"-1 text x", "-1 meta response.output_text.delta"}},
		"whole event":      {`{"type":"response.output_text.done","text":"x"}`, []string{"-1 meta response.output_text.done", "-1 complete x"}},
		"completed": {`{"type":"response.completed","response":{"id":"r","instructions":"be nice","output":[{"type":"message","content":[{"type":"output_text","text":"x"}]}],"tools":[{"name":"t"}]}}`,
			[]string{"-1 meta response.completed", "-1 meta r", "-1 meta be nice", "-1 meta message", "-1 meta output_text", "-1 complete x", "-1 meta t"}},
		"error":         {`{"error":{"message":"m","code":"c"}}`, []string{"-1 complete m", "-1 complete c"}},
		"transcription": {`{"text":"a","segments":[{"id":0,"text":"b"}],"language":"english"}`, []string{"-1 text a", "-1 text b", "-1 brief english"}},
		"rank":          {`{"results":[{"index":0,"document":{"text":"d"},"relevance_score":1}]}`, []string{"-1 meta d"}},
		"embedding":     {`{"data":[{"embedding":"AAAA","index":0}],"model":"m"}`, []string{"-1 number AAAA", "-1 meta m"}},
		"audio": {`{"choices":[{"delta":{"audio":{"data":"AAAA","transcript":"x"}}}]}`,
			[]string{"0 opaque AAAA", "0 text x"}},
	} {
		var r leaves.Reader
		if !r.Read([]byte(test.data)) {
			t.Errorf("%s: not read", name)
		}
		if d := cmp.Diff(test.want, said(&r)); d != "" {
			t.Errorf("%s: %s", name, d)
		}
	}
}

// The same place has the same path in every event, whatever the order of its members.
func TestPaths(t *testing.T) {
	for name, test := range map[string]struct {
		a, b string
		same bool
	}{
		"again":           {`{"choices":[{"index":1,"delta":{"content":"x"}}]}`, `{"choices":[{"delta":{"content":"y"},"index":1}]}`, true},
		"other choice":    {`{"choices":[{"index":1,"delta":{"content":"x"}}]}`, `{"choices":[{"index":0,"delta":{"content":"y"}}]}`, false},
		"position":        {`{"choices":[{"delta":{"content":"x"}}]}`, `{"choices":[{"index":0,"delta":{"content":"y"}}]}`, true},
		"parts":           {`{"choices":[{"delta":{"content":[{"text":"x"}]}}]}`, `{"choices":[{"delta":{"content":[1,{"text":"y"}]}}]}`, true},
		"tool calls":      {`{"choices":[{"delta":{"tool_calls":[{"function":{"arguments":"x"},"index":1}]}}]}`, `{"choices":[{"delta":{"tool_calls":[{"index":1,"function":{"arguments":"x"}}]}}]}`, true},
		"other tool call": {`{"choices":[{"delta":{"tool_calls":[{"index":0,"function":{"arguments":"x"}}]}}]}`, `{"choices":[{"delta":{"tool_calls":[{"index":1,"function":{"arguments":"x"}}]}}]}`, false},
		"events":          {`{"delta":"x","type":"a.delta","output_index":1}`, `{"type":"a.delta","output_index":1,"delta":"y"}`, true},
		"other item":      {`{"delta":"x","type":"a.delta","output_index":1}`, `{"type":"a.delta","output_index":2,"delta":"y"}`, false},
		"other type":      {`{"delta":"x","type":"a.delta"}`, `{"type":"b.delta","delta":"y"}`, false},
		"another id":      {`{"type":"a.delta","output_index":0,"item_id":"i","delta":"x"}`, `{"type":"a.delta","output_index":0,"item_id":"j","delta":"y"}`, true},
		"only an id":      {`{"type":"a.delta","item_id":"i","delta":"x"}`, `{"type":"a.delta","item_id":"j","delta":"y"}`, false},
		"negative index":  {`{"type":"a.delta","output_index":-1,"delta":"x"}`, `{"type":"a.delta","output_index":-1,"delta":"y"}`, true},
		"typed choices":   {`{"type":"a","choices":[{"index":0,"delta":{"content":"x"}}]}`, `{"choices":[{"delta":{"content":"y"}}],"type":"b"}`, true},
		"choices, a type": {`{"choices":[{"index":0,"delta":{"content":"x"}}]}`, `{"type":"b","choices":[{"delta":{"content":"y"}}]}`, true},
	} {
		var r leaves.Reader
		if path := func(data string) *leaves.Path {
			if !r.Read([]byte(data)) {
				t.Fatalf("%s: not read: %s", name, data)
			}
			for _, l := range r.Leaves {
				if l.Path.Class == leaves.Text {
					return l.Path
				}
			}
			return nil
		}; (path(test.a) == path(test.b)) != test.same {
			t.Errorf("%s: same is %v", name, !test.same)
		}
	}
}

func TestUnreadable(t *testing.T) {
	many := make([]string, leaves.MaxPaths)
	for i := range many {
		many[i] = fmt.Sprintf(`"n%d":1`, i)
	}
	for _, data := range []string{``, `x`, `[]`, `"x"`, `{"choices":[{"delta":{"content":"x"}}]`, `{"a":1}x`, `{"choices":[{"index":"0"}]}`,
		`{"choices":[{"index":0,"index":1}]}`, `{"choices":[{"delta":{"content":"a","content":"b"}}]}`, `{"choices":[],"choices":[]}`,
		`{"delta":"a","type":"x","type":"y"}`, `{"delta":"a","type":"x","output_index":0.0}`, `{"delta":"a","type":"x","output_index":"0"}`,
		`{"delta":"a","type":"x","content_index":-0}`, `{"choices":[],"type":"x","choices":[]}`, `{` + strings.Join(many, ",") + `}`} {
		var r leaves.Reader
		if r.Read([]byte(data)) || len(r.Leaves) > 0 {
			t.Errorf("%.100s was read", data)
		}
	}
}

// Events that begin alike are read alike, except that the names before the choices come once.
func TestSameBeginning(t *testing.T) {
	begin := `{"id":"c","created":1,"model":"m","choices":[`
	var r, full leaves.Reader
	full.Full = true
	for _, data := range []string{begin + `{"index":0,"delta":{"content":"a"}}]}`, begin + `{"index":0,"delta":{"content":"b"}}],"note":"n"}`,
		strings.Replace(begin, `"c"`, `"d"`, 1) + `{"delta":{"content":"c"}}]}`, begin + `{"delta":{"content":"d"}}],"usage":{}}`, begin + `]}`, `{"id":"c"}`,
		`{"choices":[{"delta":{"content":"e"}}],"id":"c"}`, begin + `{"delta":{"content":"f"}}]}`} {
		if !r.Read([]byte(data)) || !full.Read([]byte(data)) {
			t.Fatalf("%s was not read", data)
		}
		if len(r.Choices) != len(full.Choices) || r.HasUsage != full.HasUsage {
			t.Errorf("%s: %+v, want %+v", data, r.Choices, full.Choices)
		}
		want := said(&full)
		if len(r.Leaves) < len(full.Leaves) {
			want = want[len(full.Leaves)-len(r.Leaves):]
		}
		if d := cmp.Diff(strings.Join(want, "|"), strings.Join(said(&r), "|")); d != "" {
			t.Errorf("%s: %s", data, d)
		}
	}
	for _, data := range []string{begin + `],"id":"x"}`, begin + `],"choices":[]}`, begin + `]`, begin} {
		if r.Read([]byte(data)) {
			t.Errorf("%s was read", data)
		}
	}
}

// What is known of a place is found where it stands.
func TestPlaces(t *testing.T) {
	data := `{"choices":[{"index":3,"delta":{"content":"x"},"logprobs":[1],"token_ids":null,"finish_reason":"stop"}],"usage":{}}`
	var r leaves.Reader
	if !r.Read([]byte(data)) || len(r.Choices) != 1 || len(r.Spares) != 1 || !r.HasUsage {
		t.Fatalf("%+v", r)
	}
	c, in := r.Choices[0], func(from, to int) string { return data[from:to] }
	if in(c.Finish.From, c.Finish.To) != `"stop"` || !c.Finished || c.Index != 3 || !json.Valid([]byte(in(c.At.From, c.At.To))) || in(r.Spares[0].At.From, r.Spares[0].At.To) != `[1]` {
		t.Errorf("%+v %+v", c, r.Spares)
	}
	data = `{"output":[],"status":"completed","incomplete_details":null}`
	if !r.Read([]byte(data)) || r.Response == nil || in(r.Response.Status.From, r.Response.Status.To) != `"completed"` || in(r.Response.Details.From, r.Response.Details.To) != `null` {
		t.Errorf("%+v", r.Response)
	}
}

func TestNoAllocations(t *testing.T) {
	for _, data := range []string{chunk200, `{"type":"response.output_text.delta","item_id":"i","output_index":0,"content_index":0,"delta":"x"}`} {
		var r leaves.Reader
		if allocs := testing.AllocsPerRun(100, func() { r.Read([]byte(data)[:len(data):len(data)]) }); allocs > 1 { // the conversion
			t.Errorf("%v allocations", allocs)
		}
	}
}

const chunk200 = `{"id":"chatcmpl-0123456789abcdef","object":"chat.completion.chunk","created":1700000000,"model":"llama-3-8b",` +
	`"choices":[{"index":0,"delta":{"content":" token\n"},"logprobs":null,"finish_reason":null}]}`

func BenchmarkRead(b *testing.B) {
	var r leaves.Reader
	data := []byte(chunk200)
	b.SetBytes(int64(len(data)))
	b.ReportAllocs()
	for b.Loop() {
		r.Read(data)
	}
}

// Every string value of any object is a leaf, with its place and its text.
func FuzzRead(f *testing.F) {
	for _, s := range []string{chunk200, `{"type":"response.completed","response":{"output":[{"content":[{"text":"x"}]}]}}`, `{"a":[["x",{"index":1,"b":"\u0041"}]]}`} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		var r leaves.Reader
		if !r.Read(data) {
			return
		}
		var v any
		if err := json.Unmarshal(data, &v); err != nil {
			t.Fatalf("%s was read: %v", data, err)
		}
		values := 0
		for _, l := range r.Leaves {
			if l.Path.IsName || l.At.To == 0 {
				continue
			}
			values++
			var s string
			if err := json.Unmarshal(data[l.At.From:l.At.To], &s); err != nil || s != string([]rune(string(l.Text))) {
				t.Fatalf("%q stands at %s", l.Text, data[l.At.From:l.At.To])
			}
		}
		if n := countStrings(v); n > values { // encoding/json keeps the last one of log probabilities of the same token
			t.Fatalf("%d of %d strings: %s", values, n, data)
		}
	})
}

func countStrings(v any) (n int) {
	switch v := v.(type) {
	case string:
		return 1
	case []any:
		for _, e := range v {
			n += countStrings(e)
		}
	case map[string]any:
		for _, e := range v {
			n += countStrings(e)
		}
	}
	return n
}
