package relay

import (
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/sluice-gateway/sluice/internal/openai"
)

// An engine answers to a call of the Responses API that it lacks as to an unknown path, or as to a
// wrong method. The client is told that the engine lacks the call. Other errors are the engine's.
func TestR7_CallsThatTheEngineLacks(t *testing.T) {
	for name, c := range map[string]struct {
		status     int
		body, want string
	}{
		"an unknown path":     {404, `{"detail":"Not Found"}`, `"code":"model_not_capable"`},
		"in another form":     {404, `{"error":{"code":404,"message":"File Not Found","type":"not_found_error"}}`, `"code":"model_not_capable"`},
		"as text":             {404, "404 page not found", `"code":"model_not_capable"`},
		"a wrong method":      {405, `{"detail":"Method Not Allowed"}`, `"code":"model_not_capable"`},
		"an unknown model":    {404, `{"error":{"message":"no such model","type":"x","code":"model_not_found","param":"model"}}`, "no such model"},
		"an unknown response": {404, `{"error":{"message":"Response with id 'resp_0' not found.","type":"NotFoundError","code":404}}`, "Response with id"},
		"a bad body":          {400, `{"error":{"message":"no input","type":"x","code":null}}`, "no input"},
		"an answer":           {200, `{"object":"response.input_tokens","input_tokens":7}`, `"input_tokens":7`},
	} {
		for _, path := range []string{"/v1/responses/input_tokens", "/v1/responses/compact"} {
			h := newHarness(t, options{replicas: 2, handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if r.URL.Path != path {
					t.Errorf("the engine was asked for %s", r.URL.Path)
				}
				w.Header().Set("content-type", "application/json")
				w.WriteHeader(c.status)
				io.WriteString(w, c.body)
			})})
			status, text := h.postBody(path, "application/json", []byte(`{"model":"m","input":"x","stream":true,"previous_response_id":"resp_0"}`))
			want := c.status
			if strings.Contains(c.want, string(openai.CodeModelNotCapable)) {
				want = 404
			}
			if status != want || !strings.Contains(text, c.want) || len(h.retries) > 0 {
				t.Errorf("%s of %s: %d %s, retries for %q", path, name, status, text, h.retries)
			}
		}
	}
}

// The server of llama.cpp refuses an input that is too long to be embedded or ranked with 500. The
// client gets a 400, no other replica is tried, and the replica is not blamed. Other failures of an
// engine stay what they are.
func TestX6_AnInputThatIsTooLongIsNoFailure(t *testing.T) {
	const tooLong = `{"error":{"code":500,"message":"input (7201 tokens) is too large to process. increase the physical batch size (current batch size: 512)","type":"server_error"}}`
	for path, body := range map[string]string{"/v1/embeddings": tooLong, "/v1/rerank": tooLong, "/v1/score": `{"error":{"code":500,"message":"broken","type":"server_error"}}`} {
		h := newHarness(t, options{replicas: 2, handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("content-type", "application/json")
			w.WriteHeader(http.StatusInternalServerError)
			io.WriteString(w, body)
		})})
		want, blamed, words := http.StatusBadRequest, 0, `{"error":{"message":"input (7201 tokens) is too large`
		if body != tooLong {
			want, blamed, words = http.StatusInternalServerError, 2, `"type":"server_error"`
		}
		status, text := h.post(path)
		h.waitIdle()
		if status != want || !strings.Contains(text, words) || strings.Contains(text, `"type":"invalid_request_error"`) != (body == tooLong) {
			t.Errorf("%s: %d %s", path, status, text)
		}
		if len(h.failures) != blamed {
			t.Errorf("%s: %q", path, h.failures)
		}
	}
}
