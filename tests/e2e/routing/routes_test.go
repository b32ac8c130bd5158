package routing

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"

	"github.com/sluice-gateway/sluice/tests/e2e/harness"
)

// routeModels has a model of every task. The model managed takes the way through the relay, because
// its answers are moderated.
const routeModels = `
models:
  - {name: chat, engine: sim}
  - {name: embed, task: embedding, engine: sim}
  - {name: rank, task: rerank, engine: sim}
  - {name: voice, task: speech, engine: sim}
  - {name: draw, task: image-generation, engine: sim}
  - {name: managed, engine: sim}
  - {name: bare, engine: sim, routes: []}
moderation:
  - {name: none, models: [managed], literals: [never said]}
`

// TestE2E_R12_Routes sends a request to each of the routes, by every path, through Envoy.
func TestE2E_R12_Routes(t *testing.T) {
	t.Parallel()
	g := harness.Start(t, routeModels)
	chat := `"messages":[{"role":"user","content":"hello"}],"max_tokens":3}`
	for path, c := range map[string]struct{ body, want string }{
		"/v1/chat/completions":        {`{"model":"chat",` + chat, `"chat.completion"`},
		"/chat/completions":           {`{"model":"managed",` + chat, `"chat.completion"`},
		"/chat/completions?query=/v1": {`{"model":"chat","stream":true,` + chat, "data: [DONE]"},
		"/completions":                {`{"model":"chat","prompt":"hello","max_tokens":3}`, `"text_completion"`},
		"/responses":                  {`{"model":"chat","input":"hello","max_output_tokens":3}`, `"response"`},
		"/embeddings":                 {`{"model":"embed","input":"hello"}`, `"embedding"`},
		"/v1/rerank":                  {`{"model":"rank","query":"a","documents":["a","b"]}`, `"relevance_score"`},
		"/rerank":                     {`{"model":"rank","query":"a","documents":["a","b"]}`, `"relevance_score"`},
		"/v2/rerank":                  {`{"model":"rank","query":"a","documents":["a","b"]}`, `"relevance_score"`},
		"/score":                      {`{"model":"rank","text_1":"a","text_2":"b"}`, `"score"`},
		"/v1/audio/speech":            {`{"model":"voice","input":"hello","voice":"alloy"}`, "WAVEfmt"},
		"/audio/speech":               {`{"model":"voice","input":"hello","voice":"alloy"}`, "WAVEfmt"},
		"/v1/images/generations":      {`{"model":"draw","prompt":"a cat","n":2}`, `"b64_json"`},
		"/images/generations":         {`{"model":"draw","prompt":"a cat"}`, `"b64_json"`},
		"/tokenize":                   {`{"model":"chat","prompt":"hello world"}`, `"count":2`},
		"/v1/tokenize":                {`{"model":"managed","prompt":"hello world"}`, `"count":2`},
	} {
		if a := g.Post(path, c.body); a.StatusCode != http.StatusOK || !strings.Contains(string(a.Content), c.want) {
			t.Errorf("%s: %s", path, a)
		}
	}
	for _, model := range []string{"chat", "embed", "rank", "voice", "draw", "managed"} {
		g.AwaitIdle(model)
	}
}

// TestE2E_R12_TokensAndForms: what an engine tokenizes it also detokenizes, images are edited by
// forms, and what no engine of the model can do is refused.
func TestE2E_R12_TokensAndForms(t *testing.T) {
	t.Parallel()
	g := harness.Start(t, routeModels)
	var tokens struct{ Tokens []int }
	if err := json.Unmarshal(g.Post("/tokenize", `{"model":"chat","prompt":"hello world"}`).Content, &tokens); err != nil {
		t.Fatal(err)
	}
	ids, _ := json.Marshal(tokens.Tokens) // integers always marshal
	if a := g.Post("/v1/detokenize", `{"model":"chat","tokens":`+string(ids)+`}`); !strings.Contains(string(a.Content), `"hello world"`) {
		t.Errorf("detokenize %s: %s", ids, a)
	}
	form := "--x\r\nContent-Disposition: form-data; name=\"model\"\r\n\r\ndraw\r\n" +
		"--x\r\nContent-Disposition: form-data; name=\"prompt\"\r\n\r\na cat\r\n" +
		"--x\r\nContent-Disposition: form-data; name=\"image\"; filename=\"a.png\"\r\n\r\nimage\r\n--x--\r\n"
	for _, path := range []string{"/v1/images/edits", "/images/variations"} {
		if a := g.Post(path, form, "Content-Type: multipart/form-data; boundary=x"); !strings.Contains(string(a.Content), `"b64_json"`) {
			t.Errorf("%s: %s", path, a)
		}
	}
	for path, body := range map[string]string{
		"/tokenize":              `{"model":"bare","prompt":"hello"}`,
		"/audio/speech":          `{"model":"chat","input":"hello"}`,
		"/v1/images/generations": `{"model":"voice","prompt":"hello"}`,
		"/chat/completions":      `{"model":"draw","messages":[]}`,
	} {
		if a := g.Post(path, body); a.StatusCode != http.StatusBadRequest || a.Code() != "model_not_capable" {
			t.Errorf("%s %s: %s", path, body, a)
		}
	}
	for path, want := range map[string]string{"/models": `"chat"`, "/models/draw": `"draw"`} {
		if a := g.Fetch(path); a.StatusCode != http.StatusOK || !strings.Contains(string(a.Content), want) {
			t.Errorf("%s: %s", path, a)
		}
	}
	if a := g.Post("/v2/chat/completions", `{}`); a.StatusCode != http.StatusNotFound {
		t.Errorf("an unknown path: %s", a)
	}
}
