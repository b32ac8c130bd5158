package relay

import (
	"net/http"
	"strings"
	"testing"
)

func TestRerankInTheDialectOfTEI(t *testing.T) {
	r, fault := readRerank([]byte(`{"model":"m","query":"q","documents":["a",{"text":"b"},"c"],"top_n":2,"raw_scores":true}`))
	if fault != nil {
		t.Fatal(fault)
	}
	if got, want := string(r.tei()), `{"query":"q","texts":["a","b","c"],"raw_scores":true}`; got != want {
		t.Errorf("%s", got)
	}
	scores := &Answer{Body: []byte(`[{"index":2,"score":0.1},{"index":1,"score":0.9},{"index":0,"score":0.5}]`)}
	got, ok := r.fromTEI("m", scores)
	want := `{"model":"m","object":"list","results":[{"index":1,"relevance_score":0.9,"document":{"text":"b"}},{"index":0,"relevance_score":0.5,"document":{"text":"a"}}]}`
	if !ok || string(got) != want {
		t.Errorf("%s", got)
	}
	for header, want := range map[string]string{"31": `],"usage":{"prompt_tokens":31,"total_tokens":31}}`, "0": "]}", "-1": "]}", "99999999999": "]}", "x": "]}"} {
		scores.Header = http.Header{"X-Compute-Tokens": {header}}
		if got, ok := r.fromTEI("m", scores); !ok || !strings.HasSuffix(string(got), "}"+want) {
			t.Errorf("%s tokens: %s", header, got)
		}
	}
	for _, bad := range []string{`{"index":0}`, `[{"index":7,"score":1}]`, `nonsense`} {
		if _, ok := r.fromTEI("m", &Answer{Body: []byte(bad)}); ok {
			t.Errorf("%s is taken for an answer", bad)
		}
	}
	for _, bad := range []string{`{"query":"q"}`, `{"documents":["a"]}`, `{"query":"q","documents":[1]}`, `{"query":1,"documents":["a"]}`, `{"query":"q","documents":[{}]}`} {
		if _, fault := readRerank([]byte(bad)); fault == nil || fault.HTTPStatus() != 400 {
			t.Errorf("%s: %v", bad, fault)
		}
	}
}
