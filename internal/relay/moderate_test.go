package relay

import (
	"bytes"
	"compress/gzip"
	"fmt"
	"io"
	"mime/multipart"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/sluice-gateway/sluice/admission"
	"github.com/sluice-gateway/sluice/internal/dispatch"
	"github.com/sluice-gateway/sluice/internal/headers"
	"github.com/sluice-gateway/sluice/internal/openai"
	"github.com/sluice-gateway/sluice/internal/routes"
)

// engineAnswer is one answer of an engine, and what becomes of it under a rule that forbids the
// word secret.
type engineAnswer struct {
	name        string
	contentType string // empty: application/json
	encoding    string
	status      int // 0: 200
	body        string
	// want is the status for the client, 0 for that of the engine, and part a part of what it gets.
	want int
	part string
}

// jsonAnswers are answers that every endpoint could give.
var anyAnswers = []engineAnswer{
	{name: "unknown field", body: `{"choices":[],"note":"secret"}`, want: 403, part: "content_filter"},
	{name: "no JSON", body: `secret`, want: 502},
	{name: "other media type", contentType: "application/octet-stream", body: "secret", want: 502, part: "octet-stream"},
	{name: "no media type", contentType: "-", body: "secret", want: 502},
	{name: "lines of JSON", contentType: "application/x-ndjson", body: `{"text":"secret"}`, want: 502},
	{name: "other characters", contentType: "application/json; charset=utf-16", body: `{"text":"secret"}`, want: 502},
	{name: "encoded", encoding: "br", body: `{"text":"secret"}`, want: 502},
	{name: "compressed", encoding: "gzip", body: `{"note":"secret"}`, want: 403},
	{name: "error", status: 400, body: `{"error":{"message":"no secret"}}`, part: "moderation rules"},
	{name: "clean error", status: 400, body: `{"error":{"message":"no way"}}`, part: "no way"},
	{name: "error as text", status: 404, contentType: "text/plain", body: "no secret", part: "moderation rules"},
	{name: "error as page", status: 500, contentType: "text/html", body: "<b>secret", part: "moderation rules"},
	{name: "error, encoded", status: 400, encoding: "br", body: "secret", want: 502},
	{name: "redirect", status: 302, want: 502, body: "secret", contentType: "image/png", part: "redirect"},
	{name: "events with another status", status: 201, contentType: "text/event-stream", body: "data: {\"note\":\"secret\"}\n\n", want: 502},
}

// generatedAnswers are answers of endpoints that generate text.
var generatedAnswers = []engineAnswer{
	{name: "whole", body: `{"choices":[{"index":0,"message":{"content":"a secret"},"text":"","finish_reason":"stop"}]}`, part: `"content":"a "`},
	{name: "plain text", contentType: "text/plain", body: "secret", want: 502},
	{name: "stream", contentType: "text/event-stream", part: `"content_filter"`,
		body: ": secret\n\nid: secret\nevent: secret\ndata: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"clean \"}}]}\n\ndata: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"secret\"}}]}\n\n"},
	{name: "message in a stream", contentType: "text/event-stream", body: "data: {\"choices\":[{\"index\":0,\"message\":{\"content\":\"secret\"},\"finish_reason\":\"stop\"}]}\n\ndata: [DONE]\n\n"},
	{name: "completed alone", contentType: "text/event-stream", part: `"content_filter"`,
		body: "event: response.completed\ndata: {\"type\":\"response.completed\",\"response\":{\"output\":[{\"content\":[{\"text\":\"secret\"}]}]}}\n\n"},
	{name: "error event", contentType: "text/event-stream", body: "data: {\"error\":{\"message\":\"secret\"}}\n\n"},
	{name: "error event later", contentType: "text/event-stream", part: `clean`, body: "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"clean\"}}]}\n\ndata: {\"error\":{\"message\":\"secret\"}}\n\n"},
	{name: "member twice", contentType: "text/event-stream", part: "cannot read", body: "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"a\",\"content\":\"b\"}}]}\n\n"},
	{name: "end marker with a name", contentType: "text/event-stream", part: "[DONE]",
		body: "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"clean\"},\"finish_reason\":\"stop\"}]}\n\nevent: secret\nid: secret\ndata: [DONE]\n\n"},
}

// messagesAnswers are answers to the chats that requests to the Messages API become.
var messagesAnswers = []engineAnswer{
	{name: "whole", body: `{"choices":[{"index":0,"message":{"content":"a secret"},"finish_reason":"stop"}]}`, part: `"stop_reason":"refusal"`},
	{name: "stream", contentType: "text/event-stream", part: `"stop_reason":"refusal"`,
		body: "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"clean \"}}]}\n\ndata: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"secret\"}}]}\n\n"},
	{name: "error event later", contentType: "text/event-stream", part: "clean", body: "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"clean\"}}]}\n\ndata: {\"error\":{\"message\":\"secret\"}}\n\n"},
}

// itemAnswers are answers of endpoints that generate no text.
var itemAnswers = []engineAnswer{
	{name: "embedding", body: `{"data":[{"embedding":"AAAA","index":0}],"model":"secret"}`, part: `"model":""`},
	{name: "document", body: `{"results":[{"index":0,"document":{"text":"secret"},"relevance_score":1}]}`, part: `"text":""`},
	{name: "something else", body: `{"data":[{"index":0,"score":1,"why":"secret"}]}`, want: 403},
}

// transcripts are answers of endpoints that read speech.
var transcripts = []engineAnswer{
	{name: "json", body: `{"text":"a secret"}`, want: 403},
	{name: "clean", body: `{"text":"clean"}`, part: "clean"},
	{name: "verbose_json", body: `{"task":"transcribe","text":"x","segments":[{"id":0,"text":"a sec"},{"id":1,"text":"ret"}]}`, want: 403},
	{name: "text", contentType: "text/plain; charset=utf-8", body: "a secret", want: 403},
	{name: "clean text", contentType: "text/plain", body: "clean", part: "clean"},
	{name: "srt", contentType: "application/x-subrip", body: "1\n00:00:00,000 --> 00:00:01,000\nsecret\n", want: 403},
	{name: "vtt", contentType: "text/vtt", body: "WEBVTT\n\n00:00.000 --> 00:01.000\nsecret\n", want: 403},
	{name: "other characters", contentType: "text/plain; charset=utf-16", body: "s\x00e\x00c\x00", want: 502},
	{name: "stream", contentType: "text/event-stream", part: `"a "`,
		body: "data: {\"type\":\"transcript.text.delta\",\"delta\":\"a sec\"}\n\ndata: {\"type\":\"transcript.text.delta\",\"delta\":\"ret\"}\n\ndata: {\"type\":\"transcript.text.done\",\"text\":\"a secret\"}\n\n"},
	{name: "stream without deltas", contentType: "text/event-stream", part: "content_filter", body: "data: {\"type\":\"transcript.text.done\",\"text\":\"a secret\"}\n\n"},
}

// moderatedRoutes says for each route how its answers are moderated: by the answers that the test
// below sends, or why there is nothing to moderate. A route without a row fails the test.
var moderatedRoutes = map[string]struct {
	answers [][]engineAnswer
	because string
}{
	"/v1/chat/completions":     {answers: [][]engineAnswer{anyAnswers, generatedAnswers}},
	"/v1/completions":          {answers: [][]engineAnswer{anyAnswers, generatedAnswers}},
	"/v1/responses":            {answers: [][]engineAnswer{anyAnswers, generatedAnswers}},
	"/v1/embeddings":           {answers: [][]engineAnswer{anyAnswers, itemAnswers}},
	"/v1/rerank":               {answers: [][]engineAnswer{anyAnswers, itemAnswers}},
	"/v1/score":                {answers: [][]engineAnswer{anyAnswers, itemAnswers}},
	"/v1/audio/transcriptions": {answers: [][]engineAnswer{anyAnswers, transcripts}},
	"/v1/audio/translations":   {answers: [][]engineAnswer{anyAnswers, transcripts}},
	// Sounds and images cannot be read, so a rule lets no answer of theirs pass.
	"/v1/audio/speech":           {answers: [][]engineAnswer{anyAnswers}},
	"/v1/images/generations":     {answers: [][]engineAnswer{anyAnswers}},
	"/v1/images/edits":           {answers: [][]engineAnswer{anyAnswers}},
	"/v1/images/variations":      {answers: [][]engineAnswer{anyAnswers}},
	"/tokenize":                  {answers: [][]engineAnswer{anyAnswers}},
	"/detokenize":                {answers: [][]engineAnswer{anyAnswers}},
	"/v1/messages":               {answers: [][]engineAnswer{anyAnswers, messagesAnswers}},
	"/v1/messages/count_tokens":  {answers: [][]engineAnswer{anyAnswers}},
	"/v1/responses/input_tokens": {answers: [][]engineAnswer{anyAnswers}},
	"/v1/responses/compact":      {answers: [][]engineAnswer{anyAnswers, generatedAnswers}},
	routes.RealtimePath:          {because: "its turns are chats of this relay: TestE2E_X4_RealtimeAndGRPC"},
	routes.GRPCPath:              {because: "its calls are chats of this relay: TestE2E_X4_RealtimeAndGRPC"},
	routes.StreamsPath:           {because: "it replays what was published: TestX4_ResumedStream"},
	routes.StoredPath:            {because: "responses of models with rules are not read again: TestR7_StoredResponses"},
	routes.ModelsPath:            {because: "no engine answers it"},
	routes.HealthPath:            {because: "no engine answers it"},
	routes.SchedulePath:          {because: "no engine answers it"},
	routes.CompletePath:          {because: "no engine answers it"},
	routes.RenewPath:             {because: "no engine answers it"},
}

func TestX4_EveryRoute(t *testing.T) {
	for _, route := range routes.Table() {
		row, ok := moderatedRoutes[route.Path]
		if !ok || (len(row.answers) == 0) == (row.because == "") || len(row.answers) == 0 && route.Backend == routes.Replica {
			t.Errorf("%s: moderatedRoutes does not say how its answers are moderated", route.Path)
			continue
		}
		for _, list := range row.answers {
			for _, answer := range list {
				testModerated(t, route.Path, &answer)
			}
		}
	}
}

func testModerated(t *testing.T, path string, a *engineAnswer) {
	h := newHarness(t, options{handler: a, rules: literalRule("secret")})
	status, text := h.postFor(path, a.contentType != "") // answers without a type here are JSON
	want := a.want
	if want == 0 {
		want = max(a.status, 200)
	}
	if strings.Contains(text, "secret") || !strings.Contains(text, a.part) {
		t.Errorf("%s, %s: %d %s", path, a.name, status, text)
	}
	if a.name != "whole" && status != want && !strings.Contains(a.contentType, "event-stream") { // another shape of a whole answer is possible
		t.Errorf("%s, %s: status %d: %s", path, a.name, status, text)
	}
	h.waitIdle()
}

func (a *engineAnswer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	io.Copy(io.Discard, r.Body)
	body := []byte(a.body)
	switch a.contentType {
	case "":
		w.Header().Set("content-type", "application/json")
	case "-":
		w.Header()["Content-Type"] = nil
	default:
		w.Header().Set("content-type", a.contentType)
	}
	if a.encoding != "" {
		w.Header().Set("content-encoding", a.encoding)
	}
	if a.encoding == "gzip" {
		var b bytes.Buffer
		z := gzip.NewWriter(&b)
		z.Write(body)
		z.Close()
		body = b.Bytes()
	}
	w.Header().Set("x-engine", "the secret")
	w.WriteHeader(max(a.status, 200))
	w.Write(body)
}

// A stream that answers several prompts has an answer for each. One that lacks an answer is not
// whole, and what a rule blocks of one answer ends no other.
func TestX6_SeveralPrompts(t *testing.T) {
	const body = `{"model":"m","stream":true,"prompt":["a","b"]}`
	event := func(index int, text, finish string) string {
		return fmt.Sprintf(`data: {"id":"x","object":"text_completion","model":"m","choices":[{"index":%d,"text":%q,"finish_reason":%s}]}`+"\n\n", index, text, finish)
	}
	h := newHarness(t, options{handler: engineThatSends(event(0, "one", "null"), event(0, "", `"stop"`))})
	if _, text := h.postBody("/v1/completions", "application/json", []byte(body)); !strings.Contains(text, "upstream_truncated") || strings.Contains(text, "[DONE]") {
		t.Errorf("the second answer is missing: %s", text)
	}
	h = newHarness(t, options{rules: literalRule("secret"),
		handler: engineThatSends(event(0, "a secret", "null"), event(1, "clean", "null"), event(1, "", `"stop"`), doneEvent)})
	if _, text := h.postBody("/v1/completions", "application/json", []byte(body)); !strings.Contains(text, "clean") || !strings.Contains(text, "content_filter") {
		t.Errorf("the first answer is blocked: %s", text)
	}
}

// post sends a request for a stream to the path, as a client would.
func (h *harness) post(path string) (status int, text string) {
	h.t.Helper()
	return h.postFor(path, true)
}

// postFor sends a request to the path, for a stream or for a whole answer.
func (h *harness) postFor(path string, stream bool) (status int, text string) {
	h.t.Helper()
	endpoint, ok := openai.EndpointOf(path)
	if !ok {
		h.t.Fatalf("%s is no endpoint", path)
	}
	contentType, body := "application/json", []byte(`{"model":"m","stream":true,"messages":[{"role":"user","content":"x"}],"prompt":"x","input":"x","query":"x","documents":["x"]}`)
	if endpoint.OfMessages() {
		body = []byte(`{"model":"m","stream":true,"max_tokens":9,"messages":[{"role":"user","content":"x"}]}`)
	} else if endpoint.NoOutput() {
		body = []byte(`{"model":"m","input":"x","query":"x","documents":["x"]}`)
	}
	if endpoint.Transcribes() || endpoint == openai.ImageEdits || endpoint == openai.ImageVariations {
		contentType, body = transcriptionForm()
	}
	if !stream {
		body = bytes.Replace(body, []byte(`"stream":true,`), nil, 1)
	}
	return h.postBody(path, contentType, body)
}

func (h *harness) postBody(path, contentType string, body []byte) (status int, text string) {
	h.t.Helper()
	response := h.open(path, contentType, body)
	defer response.Body.Close()
	b, err := io.ReadAll(response.Body)
	if err != nil {
		h.t.Fatal(err)
	}
	return response.StatusCode, fmt.Sprint(response.Header, "\n", string(b))
}

// open sends this body to the path and returns the response with its body unread.
func (h *harness) open(path, contentType string, body []byte) *http.Response {
	h.t.Helper()
	endpoint, _ := openai.EndpointOf(path)
	scan, fault := openai.Scan(endpoint, contentType, body)
	if fault != nil {
		h.t.Fatalf("%s: %v", path, fault)
	}
	token := h.relay.config.Handoff.Offer(&dispatch.Offer{Tenant: acme, Priority: admission.Default, Path: path, Scan: scan, Received: time.Now(), Record: h})
	request, err := http.NewRequestWithContext(h.t.Context(), http.MethodPost, h.url+path, bytes.NewReader(body))
	if err != nil {
		h.t.Fatal(err)
	}
	request.Header.Set(headers.Handoff, token)
	request.Header.Set("content-type", contentType)
	response, err := http.DefaultTransport.RoundTrip(request)
	if err != nil {
		h.t.Fatal(err)
	}
	return response
}

func transcriptionForm() (contentType string, body []byte) {
	var b bytes.Buffer
	form := multipart.NewWriter(&b)
	form.WriteField("model", "m")
	file, _ := form.CreateFormFile("file", "a.wav")
	file.Write([]byte("RIFF"))
	form.Close()
	return form.FormDataContentType(), b.Bytes()
}

// TestX4_ChoiceEndsAlone shows that a rule ends one choice: the other one goes on to its own end.
func TestX4_ChoiceEndsAlone(t *testing.T) {
	part := func(choice int, text string) string {
		return fmt.Sprintf(`data: {"choices":[{"index":%d,"delta":{"content":%q}}]}`+"\n\n", choice, text)
	}
	end := func(choice int) string {
		return fmt.Sprintf(`data: {"choices":[{"index":%d,"delta":{},"finish_reason":"stop"}]}`+"\n\n", choice)
	}
	two := strings.Replace(hello, `"stream":true`, `"stream":true,"n":2`, 1)
	h := newHarness(t, options{rules: literalRule("secret"), handler: engineThatSends(part(0, "one "), part(1, "a secret"), part(0, "two "), part(1, "more"), end(1), part(0, "three"), end(0), doneEvent)})
	_, text := h.sendAndRead(two)
	if words, marks := contentOf(text); words != "one a two three" || marks != 1 || strings.Count(text, `"content_filter"`) != 1 || strings.Count(text, `"stop"`) != 1 {
		t.Errorf("%q: %s", words, text)
	}
	if r := h.result(1); r.Cause != causeModeration || r.Fault != nil {
		t.Errorf("%+v", r)
	}
	// When the rest has ended, the engine need not write the choice that was ended.
	h = newHarness(t, options{rules: literalRule("secret"), handler: engineThatHangs(part(1, "secret"), part(0, "x"), end(0), part(1, "more"))})
	_, text = h.sendAndRead(two)
	if words, marks := contentOf(text); words != "x" || marks != 1 || strings.Count(text, `"content_filter"`) != 1 {
		t.Errorf("%s", text)
	}
	h.waitIdle()
}

// TestX4_ResumedStream shows that a client that comes back gets what was published, no more.
func TestX4_ResumedStream(t *testing.T) {
	h := newHarness(t, options{rules: literalRule("secret"), policy: Policy{Resume: time.Minute},
		handler: engineThatSends(roleEvent, tokenEvent("clean "), tokenEvent("sec"), tokenEvent("ret"), doneEvent)})
	_, first := h.sendAndRead(hello, "id: r")
	_, again := h.sendAndRead(hello, "id: r")
	if words, marks := contentOf(again); words != "clean " || marks != 1 || first != again {
		t.Errorf("%s, then %s", first, again)
	}
}
