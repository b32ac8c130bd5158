package xds

import (
	"bytes"
	"compress/gzip"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"testing"

	aidata "github.com/envoyproxy/go-control-plane/envoy/data/ai/v3"
	"github.com/google/go-cmp/cmp"

	"github.com/sluice-gateway/sluice/internal/headers"
)

// costly is a response of an engine.
type costly struct {
	contentType, encoding string
	status                int
	// pieces are sent one by one. A single piece is sent with its length.
	pieces []string
	// cut means that the connection ends in the middle of the response. trailed means that the
	// response has trailers.
	cut, trailed bool
	// want is what Envoy finds: prompt and completion tokens. Empty means nothing reliable.
	want string
}

const (
	typeJSON  = "application/json"
	typeSSE   = "text/event-stream"
	someChunk = `data: {"id":"c","object":"chat.completion.chunk","model":"m","choices":[{"index":0,"delta":{"content":"ü"}},{"index":1}]%s}` + "\n\n"
	lastChunk = `data: {"id":"c","object":"chat.completion.chunk","choices":[],"usage":{"prompt_tokens":7,"completion_tokens":11,"total_tokens":18}}` + "\n\n"
	doneChunk = "data: [DONE]\n\n"
	wholeChat = `{"id":"c","object":"chat.completion","model":"m","choices":[{"index":0,"message":{"role":"assistant","content":"hi"}},{"index":1}],` +
		`"usage":{"prompt_tokens":7,"completion_tokens":11,"total_tokens":18,"prompt_tokens_details":null}}`
)

// chunks returns a stream of five chunks and a last one. The first chunks have the members more.
func chunks(last string, more ...string) []string {
	more = append(more, make([]string, 5)...)
	var pieces []string
	for _, m := range more[:5] {
		pieces = append(pieces, fmt.Sprintf(someChunk, m))
	}
	return append(pieces, last, doneChunk)
}

func zipped(t *testing.T, text string) string {
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	if _, err := io.WriteString(w, text); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

func wholeResponses(t *testing.T) map[string]costly {
	one := func(body, want string) costly {
		return costly{contentType: typeJSON, pieces: []string{body}, want: want}
	}
	numbers := func(n int) string {
		return `{"object":"list","data":[{"embedding":[` + strings.Repeat("0.012345,", n) + `1]}],"usage":{"prompt_tokens":7,"total_tokens":7}}`
	}
	words := func(size int) string {
		return `{"choices":[{"message":{"content":"` + strings.Repeat("x", size) + `"}}],"usage":{"prompt_tokens":7,"completion_tokens":11}}`
	}
	return map[string]costly{
		"chat":             one(wholeChat, "7 11"),
		"charset":          {contentType: typeJSON + "; charset=utf-8", pieces: []string{wholeChat}, want: "7 11"},
		"in pieces":        {contentType: typeJSON, pieces: strings.SplitAfter(wholeChat, ","), want: "7 11"},
		"trailers":         {contentType: typeJSON, pieces: []string{wholeChat, "\n"}, trailed: true, want: "7 11"},
		"completion":       one(`{"object":"text_completion","choices":[{"text":"a"}],"usage":{"prompt_tokens":3,"completion_tokens":4}}`, "3 4"),
		"embeddings":       one(`{"object":"list","data":[{"embedding":[0.1]}],"usage":{"prompt_tokens":7,"total_tokens":7}}`, "7 0"),
		"score":            one(`{"data":[{"score":0.1}],"usage":{"prompt_tokens":7,"total_tokens":7,"completion_tokens":0}}`, "7 0"),
		"rerank":           one(`{"results":[],"usage":{"total_tokens":7}}`, ""),
		"responses":        one(`{"object":"response","output":[],"usage":{"input_tokens":5,"output_tokens":6,"total_tokens":11}}`, "5 6"),
		"no usage":         one(`{"object":"chat.completion","choices":[]}`, ""),
		"null":             one(`{"object":"chat.completion","choices":[],"usage":null}`, ""),
		"error":            {contentType: typeJSON, status: 400, pieces: []string{`{"error":{"message":"no"}}`}},
		"error with usage": {contentType: typeJSON, status: 500, pieces: []string{wholeChat}},
		"half":             one(wholeChat[:len(wholeChat)-40], ""),
		"nonsense":         one(`{"usage":{"prompt_tokens":"many","completion_tokens":-1}}`, ""),
		"array":            one(`[`+wholeChat+`]`, "7 11"),
		"deep":             one(strings.Repeat("[", 200_000), ""),
		"empty":            one("", ""),
		"text":             {contentType: "text/plain", pieces: []string{wholeChat}},
		"gzip":             {contentType: typeJSON, encoding: "gzip", pieces: []string{zipped(t, wholeChat)}},
		"5 MB":             one(words(5<<20), "7 11"),
		"20 MB":            one(words(20<<20), ""),
		"20 MB in pieces":  {contentType: typeJSON, pieces: []string{words(20 << 20), "\n"}},
		"200,000 numbers":  one(numbers(200_000), "7 0"),
		// Envoy stops reading beyond 2^18 values.
		"300,000 numbers": one(numbers(300_000), ""),
	}
}

func streamedResponses(t *testing.T) map[string]costly {
	some := func(want string, pieces ...string) costly {
		return costly{contentType: typeSSE, pieces: pieces, want: want}
	}
	all := strings.Join(chunks(lastChunk), "")
	first := fmt.Sprintf(someChunk, "")
	first1, second2 := `,"usage":{"prompt_tokens":7,"completion_tokens":1}`, `,"usage":{"prompt_tokens":7,"completion_tokens":2}`
	return map[string]costly{
		"plain":          some("7 11", chunks(lastChunk)...),
		"charset":        {contentType: typeSSE + "; charset=utf-8", pieces: chunks(lastChunk), want: "7 11"},
		"in one":         some("7 11", all),
		"split":          some("7 11", strings.SplitAfter(all, "t")...),
		"trailers":       {contentType: typeSSE, pieces: chunks(lastChunk), trailed: true, want: "7 11"},
		"CRLF":           some("7 11", strings.SplitAfter(strings.ReplaceAll(all, "\n", "\r\n"), "\r")...),
		"CR":             some("7 11", strings.ReplaceAll(all, "\n", "\r")),
		"no usage":       some("", chunks("")...),
		"null":           some("", chunks("", `,"usage":null`)...),
		"null at first":  some("7 11", chunks(lastChunk, `,"usage":null`, `,"usage":null`)...),
		"in each":        some("7 11", chunks(lastChunk, first1, second2)...),
		"in each but":    some("7 2", chunks("", first1, second2)...),
		"no DONE":        some("7 11", first, lastChunk),
		"no last LF":     some("", first, strings.TrimSuffix(lastChunk, "\n")),
		"comments":       some("7 11", ": ping\n\n", "\n", first, ": ping\n\n", lastChunk, doneChunk),
		"a broken event": some("", chunks(lastChunk, `,"x":`)...),
		"an error":       some("", first, `data: {"error":{"message":"no","code":500}}`+"\n\n", doneChunk),
		"a big event":    some("", `data: {"x":"`+strings.Repeat("y", 2<<20)+"\"}\n\n", lastChunk, doneChunk),
		"empty":          some("", ""),
		"cut":            {contentType: typeSSE, cut: true, pieces: []string{fmt.Sprintf(someChunk, first1), lastChunk}},
		"gzip":           {contentType: typeSSE, encoding: "gzip", pieces: []string{zipped(t, all)}},
		"completions": some("1 2", `data: {"object":"text_completion","choices":[{"text":"a"}]}`+"\n\n",
			`data: {"object":"text_completion","choices":[],"usage":{"prompt_tokens":1,"completion_tokens":2}}`+"\n\n", doneChunk),
		"responses": some("5 6", `event: response.created`+"\n"+`data: {"type":"response.created","response":{"usage":null}}`+"\n\n",
			`event: response.output_text.delta`+"\n"+`data: {"type":"response.output_text.delta","delta":"x"}`+"\n\n",
			`event: response.completed`+"\n"+`data: {"type":"response.completed","response":{"usage":{"input_tokens":5,"output_tokens":6}}}`+"\n\n"),
	}
}

// costlyEngine answers as the header x-test-response asks.
func costlyEngine(t testing.TB, all map[string]costly) net.Addr {
	return serve(t, func(w http.ResponseWriter, r *http.Request) {
		io.Copy(io.Discard, r.Body) //nolint:errcheck // a test
		c := all[r.Header.Get("x-test-response")]
		w.Header().Set("Content-Type", c.contentType)
		if c.encoding != "" {
			w.Header().Set("Content-Encoding", c.encoding)
		}
		if c.trailed {
			w.Header().Set("Trailer", "x-test-trailer")
			defer w.Header().Set("x-test-trailer", "1")
		}
		if len(c.pieces) == 1 {
			w.Header().Set("Content-Length", strconv.Itoa(len(c.pieces[0])))
		}
		if c.status != 0 {
			w.WriteHeader(c.status)
		}
		for _, p := range c.pieces {
			io.WriteString(w, p) //nolint:errcheck // the client sees
			if len(c.pieces) > 1 {
				w.(http.Flusher).Flush()
			}
		}
		if c.cut {
			panic(http.ErrAbortHandler)
		}
	})
}

// The access log has the usage of a response if ext_proc asked for it, and the response is what the
// engine sent.
func TestUsage(t *testing.T) {
	t.Parallel()
	g := newGateway(t, Config{Listen: "127.0.0.1:0"}, nil)
	for kind, all := range map[string]map[string]costly{"whole": wholeResponses(t), "stream": streamedResponses(t)} {
		engine := costlyEngine(t, all)
		g.settle(t, kind, replica(kind+"-0", engine))
		for name, c := range all {
			t.Run(kind+"/"+name, func(t *testing.T) {
				t.Parallel()
				ask := []string{"x-test-cluster", "model/" + kind, "x-test-response", name, "Accept-Encoding", "identity", "x-test-tenant", "acme"}
				if kind == "stream" {
					ask = append(ask, "x-test-stream", "1")
				}
				plain := g.reads(t, c, ask...)
				checkUsage(t, g, plain, "")
				for _, also := range []string{"", "1", "read"} {
					usage := headers.UsageOfOpenAI
					if also == "read" {
						usage += headers.UsageAndStream
					}
					counted := g.reads(t, c, append(ask, "x-test-usage", usage, "x-test-observe", also)...)
					checkUsage(t, g, counted, c.want)
					if d := cmp.Diff(lasting(plain.Header), lasting(counted.Header)); d != "" {
						t.Errorf("the headers have changed (-plain +counted):\n%s", d)
					}
				}
			})
		}
	}
}

// reads gets a response and checks that it is what the engine sent.
func (g *gateway) reads(t *testing.T, c costly, pairs ...string) answer {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+g.addr+chatPath, strings.NewReader("{}"))
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i < len(pairs); i += 2 {
		request.Header.Set(pairs[i], pairs[i+1])
	}
	response, err := g.client.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if (err != nil) != c.cut {
		t.Errorf("reading: %v", err)
	}
	if want := strings.Join(c.pieces, ""); string(body) != want {
		t.Errorf("%d bytes have become %d others", len(want), len(body))
	}
	return answer{response, body}
}

// lasting returns the headers that are the same in every response.
func lasting(h http.Header) http.Header {
	h = h.Clone()
	h.Del("Date")
	h.Del(headers.RequestID)
	return h
}

func checkUsage(t *testing.T, g *gateway, a answer, want string) {
	t.Helper()
	m := g.log.wait(t, a.Header.Get(headers.RequestID)).GetCommonProperties().GetMetadata()
	var u aidata.TokenUsage
	if packed := m.GetTypedFilterMetadata()[headers.MetadataUsage]; packed != nil {
		if err := packed.UnmarshalTo(&u); err != nil {
			t.Fatal(err)
		}
	}
	got := ""
	if u.GetExtractionStatus() == aidata.TokenUsage_COMPLETE && u.GetInputTokens() != nil {
		got = fmt.Sprint(u.GetInputTokens().GetValue(), u.GetOutputTokens().GetValue())
	}
	if got != want {
		t.Errorf("usage %q, want %q: %v", got, want, &u)
	}
	if m.GetFilterMetadata()[headers.Metadata].GetFields()[headers.MetadataTenant].GetStringValue() != "acme" {
		t.Errorf("the dynamic metadata became %v", m)
	}
}
