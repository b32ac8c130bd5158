package openai

import (
	"strings"
	"testing"
)

func TestEndpointOf(t *testing.T) {
	t.Parallel()
	known := map[string]Endpoint{
		"/v1/chat/completions":        Chat,
		"/v1/completions":             Completions,
		"/v1/responses":               Responses,
		"/v1/embeddings":              Embeddings,
		"/v1/rerank":                  Rerank,
		"/v1/score":                   Score,
		"/v1/audio/transcriptions":    Transcriptions,
		"/v1/audio/translations":      Translations,
		"/v1/audio/speech":            Speech,
		"/v1/images/generations":      Images,
		"/v1/images/edits":            ImageEdits,
		"/v1/images/variations":       ImageVariations,
		"/tokenize":                   Tokenize,
		"/detokenize":                 Detokenize,
		"/v1/messages":                Messages,
		"/messages/count_tokens":      CountTokens,
		"/responses/input_tokens":     InputTokens,
		"/v1/responses/compact":       Compact,
		"/v1/chat/completions?":       Chat,
		"/v1/embeddings?api=1&x=/v1/": Embeddings,
	}
	names := map[string]bool{}
	for path, want := range known {
		got, ok := EndpointOf(path)
		if !ok || got != want {
			t.Errorf("EndpointOf(%q) = %v, %v; want %v", path, got, ok, want)
		}
		names[got.String()] = true
	}
	if len(names) != len(endpoints) || names["unknown"] {
		t.Errorf("names of the endpoints: %v", names)
	}
	for _, path := range []string{"", "/", "/v1", "/v1/models", "/v1/chat/completions/", "/V1/chat/completions",
		"//v1/chat/completions", "/v1/chat/completions#x", "/v1/chat%2Fcompletions", "v1/completions", "?/v1/completions", "/v2/completions", "/v1/v1/completions"} {
		if got, ok := EndpointOf(path); ok {
			t.Errorf("EndpointOf(%q) = %v; want none", path, got)
		}
	}
	if s := Endpoint(200).String(); s != "unknown" {
		t.Errorf("an endpoint that is none is called %q", s)
	}
}

// TestR12_Aliases: clients may leave out /v1, and engines see the path that they know.
func TestR12_Aliases(t *testing.T) {
	t.Parallel()
	for path, want := range map[string]string{
		"/chat/completions":       "/v1/chat/completions",
		"/chat/completions?a=/b":  "/v1/chat/completions?a=/b",
		"/v1/chat/completions?a":  "/v1/chat/completions?a",
		"/rerank":                 "/v1/rerank",
		"/v2/rerank":              "/v1/rerank",
		"/v1/tokenize":            "/tokenize",
		"/tokenize":               "/tokenize",
		"/audio/speech":           "/v1/audio/speech",
		"/images/generations":     "/v1/images/generations",
		"/v1/images/generations?": "/v1/images/generations?",
	} {
		e, ok := EndpointOf(path)
		if got := e.EnginePath(path); !ok || got != want {
			t.Errorf("%s is served as %s (known %t), want %s", path, got, ok, want)
		}
	}
}

func TestCheckEncoding(t *testing.T) {
	t.Parallel()
	for encoding, want := range map[string]int{
		"": 0, "identity": 0, "Identity": 0, " identity ": 0,
		"gzip": 415, "br": 415, "zstd": 415, "deflate": 415, "identity, gzip": 415, "x": 415,
	} {
		fault := CheckEncoding(encoding)
		if fault == nil != (want == 0) || fault != nil && (fault.HTTPStatus() != want || fault.Code != CodeInvalidRequest) {
			t.Errorf("CheckEncoding(%q) = %v; want status %d", encoding, fault, want)
		}
	}
}

func TestContentType(t *testing.T) {
	t.Parallel()
	const form = "multipart/form-data"
	for _, c := range []struct {
		endpoint    Endpoint
		contentType string
		ok          bool
	}{
		{Chat, "application/json", true},
		{Chat, "Application/JSON", true},
		{Chat, "application/json; charset=utf-8", true},
		{Chat, "application/json ;charset=utf-8", true},
		{Chat, " application/json", true},
		{Chat, "", false},
		{Chat, "application/json5", false},
		{Chat, "application/vnd.api+json", false},
		{Chat, "application/json, text/plain", false},
		{Chat, "text/plain", false},
		{Chat, "application/x-www-form-urlencoded", false},
		{Chat, form + "; boundary=x", false},
		{Embeddings, "application/json", true},
		{Rerank, "application/json", true},
		{Score, "application/json", true},
		{Responses, "application/json", true},
		{Completions, "application/json", true},
		{Transcriptions, form + "; boundary=x", true},
		{Translations, "Multipart/Form-Data; boundary=x", true},
		{Transcriptions, "application/json", false},
		{Transcriptions, "multipart/mixed; boundary=x", false},
		{Translations, "", false},
		{ImageEdits, form + "; boundary=x", true},
		{ImageEdits, "application/json", true},
		{ImageEdits, "Application/JSON; charset=utf8", true},
		{ImageEdits, "application/json; charset=latin1", false},
		{ImageEdits, "text/plain", false},
		{ImageEdits, "", false},
		{ImageVariations, "application/json", false},
	} {
		body := `{"model":"m"}`
		if c.endpoint.form() && !strings.Contains(strings.ToLower(c.contentType), "json") {
			body = "--x\r\nContent-Disposition: form-data; name=\"model\"\r\n\r\nm\r\n--x--\r\n"
		}
		_, fault := Scan(c.endpoint, c.contentType, []byte(body))
		if fault == nil != c.ok {
			t.Errorf("%v with Content-Type %q: %v; want it taken: %v", c.endpoint, c.contentType, fault, c.ok)
		}
		if fault != nil && (fault.HTTPStatus() != 415 || fault.Code != CodeInvalidRequest) {
			t.Errorf("%v with Content-Type %q: %v with status %d; want 415", c.endpoint, c.contentType, fault, fault.HTTPStatus())
		}
	}
}
