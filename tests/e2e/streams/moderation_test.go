package streams

import (
	"bytes"
	"io"
	"mime/multipart"
	"net/http"
	"strings"
	"testing"

	llmv1 "github.com/sluice-gateway/sluice/api/llm/v1"
	"github.com/sluice-gateway/sluice/tests/e2e/harness"
)

// sideDoor is an answer of an engine that says the word secret in one of the ways that a list of
// shapes forgets.
type sideDoor struct{ name, contentType, body string }

var sideDoors = []sideDoor{
	{"an unknown field", "text/event-stream", `data: {"choices":[{"index":0,"delta":{"musing":"sec"}}]}` + "\n\n" + `data: {"choices":[{"index":0,"delta":{"musing":"ret"}}]}` + "\n\n"},
	{"a whole message in a stream", "text/event-stream", `data: {"choices":[{"index":0,"message":{"content":"secret"},"finish_reason":"stop"}]}` + "\n\ndata: [DONE]\n\n"},
	{"reasoning details", "text/event-stream", `data: {"choices":[{"index":0,"delta":{"reasoning_details":[{"text":"secret"}]}}]}` + "\n\n"},
	{"the name of a tool", "text/event-stream", `data: {"choices":[{"index":0,"delta":{"tool_calls":[{"index":0,"id":"a","function":{"name":"secret"}}]}}]}` + "\n\n"},
	{"escapes in arguments", "application/json", `{"choices":[{"index":0,"message":{"tool_calls":[{"id":"a","function":{"name":"f","arguments":"{\"q\":\"\\u0073ecret\"}"}}]},"finish_reason":"stop"}]}`},
	{"another media type", "application/octet-stream", "secret"},
	{"lines of JSON", "application/x-ndjson", `{"text":"secret"}`},
	{"an error event", "text/event-stream", `data: {"error":{"message":"secret"}}` + "\n\n"},
	{"a comment", "text/event-stream", ": secret\n\n" + `data: {"choices":[{"index":0,"delta":{"content":"x"},"finish_reason":"stop"}]}` + "\n\nevent: secret\ndata: [DONE]\n\n"},
	{"completed without deltas", "text/event-stream", `data: {"type":"response.completed","response":{"output":[{"content":[{"text":"secret"}]}]}}` + "\n\n"},
	{"text", "text/plain", "a secret"},
	{"srt", "application/x-subrip", "1\n00:00:00,000 --> 00:00:01,000\na secret\n"},
	{"json", "application/json", `{"text":"a secret"}`},
	{"a document", "application/json", `{"results":[{"index":0,"document":{"text":"secret"},"relevance_score":1}]}`},
}

// Whatever an engine answers, at whatever path: what a rule forbids does not pass through Envoy.
func TestE2E_X4_SideDoors(t *testing.T) {
	t.Parallel()
	doors := make(chan sideDoor, 1)
	upstream := harness.StartUpstream(t, func(w http.ResponseWriter, r *http.Request) {
		if harness.ServeModelList(w, r, "m") {
			return
		}
		io.Copy(io.Discard, r.Body)
		door := <-doors
		w.Header().Set("content-type", door.contentType)
		io.WriteString(w, door.body)
	})
	g := harness.Start(t, `
models:
  - {name: m, launcher: upstream, upstreams: ["`+upstream+`"]}
moderation:
  - {name: words, literals: [secret]}
`)
	form, formType := speechForm()
	for _, door := range sideDoors {
		for _, path := range []string{harness.ChatPath, "/v1/completions", "/v1/responses", "/v1/embeddings", "/v1/rerank", "/v1/score"} {
			doors <- door
			body := `{"model":"m","messages":[{"role":"user","content":"x"}],"prompt":"x","input":"x","query":"x","documents":["x"],"text_1":"x","text_2":"x"}`
			checkModerated(t, door.name+" at "+path, g.Post(path, body))
		}
		for _, path := range []string{"/v1/audio/transcriptions", "/v1/audio/translations"} {
			doors <- door
			checkModerated(t, door.name+" at "+path, g.Post(path, form, "Content-Type: "+formType))
		}
	}
	doors <- sideDoor{contentType: "text/plain", body: "a clean text"}
	if a := g.Post("/v1/audio/transcriptions", form, "Content-Type: "+formType); a.StatusCode != 200 || string(a.Content) != "a clean text" {
		t.Errorf("a clean transcription: %s", a)
	}
	g.AwaitIdle("m")
}

func checkModerated(t *testing.T, name string, a *harness.Answer) {
	t.Helper()
	if bytes.Contains(a.Content, []byte("secret")) || bytes.Contains(a.Content, []byte(`u0073ecret`)) {
		t.Errorf("%s: %s", name, a)
	}
}

func speechForm() (body, contentType string) {
	var b bytes.Buffer
	form := multipart.NewWriter(&b)
	form.WriteField("model", "m")
	file, _ := form.CreateFormFile("file", "a.wav")
	io.WriteString(file, "RIFF")
	form.Close()
	return b.String(), form.FormDataContentType()
}

// A rule ends a turn on a WebSocket and a call over gRPC as it ends other streams, also when the
// engine answers without a stream or refuses.
func TestE2E_X4_RealtimeAndGRPC(t *testing.T) {
	t.Parallel()
	const part = `data: {"choices":[{"index":0,"delta":{"content":"a clean "}}]}` + "\n\n"
	answers := map[string]sideDoor{
		"stream":  {contentType: "text/event-stream", body: part + `data: {"choices":[{"index":0,"delta":{"content":"sec"}}]}` + "\n\n" + `data: {"choices":[{"index":0,"delta":{"content":"ret"}}]}` + "\n\n"},
		"whole":   {contentType: "application/json", body: `{"choices":[{"index":0,"message":{"content":"a clean secret"},"finish_reason":"stop"}]}`},
		"refusal": {contentType: "application/json", body: `{"error":{"message":"the secret"}}`},
	}
	upstream := harness.StartUpstream(t, func(w http.ResponseWriter, r *http.Request) {
		if harness.ServeModelList(w, r, "m") {
			return
		}
		body, _ := io.ReadAll(r.Body)
		for name, a := range answers {
			if strings.Contains(string(body), "answer "+name) {
				w.Header().Set("content-type", a.contentType)
				if name == "refusal" {
					w.WriteHeader(http.StatusBadRequest)
				}
				io.WriteString(w, a.body)
			}
		}
	})
	g := harness.Start(t, `
models:
  - {name: m, task: text-generation, launcher: upstream, upstreams: ["`+upstream+`"]}
moderation:
  - {name: words, literals: [secret]}
`)
	ws, c := g.Realtime(""), dialGRPC(g)
	for name := range answers {
		harness.SendMessage(t, ws, harness.Message{"type": "start", "request_id": name, "model": "m",
			"messages": []harness.Message{{"role": "user", "content": "answer " + name}}})
		until := "final"
		if name == "refusal" {
			until = "error"
		}
		said := ""
		all := readMessages(t, ws, until)
		for _, m := range all {
			if delta, ok := m["delta"].(string); ok {
				said += delta
			}
		}
		last := all[len(all)-1]
		if strings.Contains(said, "secret") || name != "refusal" && (said != "a clean " || last["finish_reason"] != "content_filter") {
			t.Errorf("realtime, %s: %q, %v", name, said, last)
		}
		if told, _ := last["error"].(map[string]any); told != nil && strings.Contains(told["message"].(string), "secret") {
			t.Errorf("realtime, %s: %v", name, last)
		}
		text, final, err := generate(t.Context(), c, &llmv1.StartRequest{Model: "m", Messages: []string{"answer " + name}})
		switch {
		case name == "refusal" && (err == nil || strings.Contains(err.Error(), "secret")),
			name != "refusal" && (err != nil || text != "a clean " || final.GetFinishReason() != "content_filter"):
			t.Errorf("gRPC, %s: %q %v %v", name, text, final, err)
		}
	}
	g.AwaitIdle("m")
}
