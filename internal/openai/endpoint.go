package openai

import (
	"mime"
	"strings"
)

// Endpoint is an inference endpoint of the API.
type Endpoint uint8

// The endpoints, and the paths they are served at.
const (
	Chat            Endpoint = iota // /v1/chat/completions
	Completions                     // /v1/completions
	Responses                       // /v1/responses
	Embeddings                      // /v1/embeddings
	Rerank                          // /v1/rerank
	Score                           // /v1/score
	Transcriptions                  // /v1/audio/transcriptions
	Translations                    // /v1/audio/translations
	Speech                          // /v1/audio/speech
	Images                          // /v1/images/generations
	ImageEdits                      // /v1/images/edits
	ImageVariations                 // /v1/images/variations
	Tokenize                        // /tokenize
	Detokenize                      // /detokenize
	Messages                        // /v1/messages
	CountTokens                     // /v1/messages/count_tokens
	InputTokens                     // /v1/responses/input_tokens
	Compact                         // /v1/responses/compact
)

// endpoints has the short name of each endpoint, as in a log line or a metric's label, and the path
// at which engines serve it.
var endpoints = [...]struct{ name, path string }{
	Chat:            {"chat", "/v1/chat/completions"},
	Completions:     {"completions", "/v1/completions"},
	Responses:       {"responses", "/v1/responses"},
	Embeddings:      {"embeddings", "/v1/embeddings"},
	Rerank:          {"rerank", "/v1/rerank"},
	Score:           {"score", "/v1/score"},
	Transcriptions:  {"transcriptions", "/v1/audio/transcriptions"},
	Translations:    {"translations", "/v1/audio/translations"},
	Speech:          {"speech", "/v1/audio/speech"},
	Images:          {"images", "/v1/images/generations"},
	ImageEdits:      {"image_edits", "/v1/images/edits"},
	ImageVariations: {"image_variations", "/v1/images/variations"},
	Tokenize:        {"tokenize", "/tokenize"},
	Detokenize:      {"detokenize", "/detokenize"},
	Messages:        {"messages", "/v1/messages"},
	CountTokens:     {"count_tokens", "/v1/messages/count_tokens"},
	InputTokens:     {"input_tokens", "/v1/responses/input_tokens"},
	Compact:         {"compact", "/v1/responses/compact"},
}

// byPath has the endpoint of each path: that of the engines, and the aliases that clients may use.
// Every path below /v1 has an alias without it.
var byPath = func() map[string]Endpoint {
	all := map[string]Endpoint{"/v2/rerank": Rerank}
	for e, data := range endpoints {
		all[data.path] = Endpoint(e)
		if short, ok := strings.CutPrefix(data.path, "/v1"); ok {
			all[short] = Endpoint(e)
		} else {
			all["/v1"+data.path] = Endpoint(e)
		}
	}
	return all
}()

// EndpointOf returns the endpoint of a request's path, which may be an alias. A query string is
// ignored; apart from it the path must be exact.
func EndpointOf(path string) (Endpoint, bool) {
	path, _, _ = strings.Cut(path, "?")
	e, ok := byPath[path]
	return e, ok
}

// Path returns the path at which engines serve the endpoint.
func (e Endpoint) Path() string { return endpoints[e].path }

// EnginePath returns a client's path of the endpoint, with its query, as engines know it.
func (e Endpoint) EnginePath(path string) string {
	alias, _, _ := strings.Cut(path, "?")
	if alias == e.Path() {
		return path
	}
	return e.Path() + path[len(alias):]
}

// EndpointSet is a set of endpoints. The zero value is empty.
type EndpointSet uint32

// Has reports whether e is in the set.
func (s EndpointSet) Has(e Endpoint) bool { return s&(1<<e) != 0 }

// Add adds e to the set.
func (s *EndpointSet) Add(e Endpoint) { *s |= 1 << e }

// String returns the endpoint's short name, as in a log line or a metric's label.
func (e Endpoint) String() string {
	if int(e) < len(endpoints) {
		return endpoints[e].name
	}
	return "unknown"
}

// The media types of bodies.
const (
	mediaJSON = "application/json"
	mediaForm = "multipart/form-data"
)

// form reports whether the endpoint accepts a form, because a file comes with the request. All
// others accept JSON alone.
func (e Endpoint) form() bool { return e.Transcribes() || e == ImageEdits || e == ImageVariations }

// formOrJSON reports whether the endpoint accepts JSON besides a form: the images of an edit may be
// URLs.
func (e Endpoint) formOrJSON() bool { return e == ImageEdits }

// Generates reports whether the endpoint generates text, so that the options which bound it apply.
func (e Endpoint) Generates() bool {
	return e == Chat || e == Completions || e == Responses || e == Messages || e == Compact
}

// OfMessages reports whether the endpoint belongs to Anthropic's Messages API, whose errors have a
// form of their own.
func (e Endpoint) OfMessages() bool { return e == Messages || e == CountTokens }

// OfResponses reports whether the endpoint belongs to the Responses API, so that a request may
// continue a response.
func (e Endpoint) OfResponses() bool { return e == Responses || e.BesideResponses() }

// BesideResponses reports whether the endpoint is a call of the Responses API besides the creation
// of a response. Many engines lack these calls.
func (e Endpoint) BesideResponses() bool { return e == InputTokens || e == Compact }

// Chunked reports whether the endpoint's streams are chunks with choices.
func (e Endpoint) Chunked() bool { return e == Chat || e == Completions }

// Transcribes reports whether the endpoint turns speech into text. Its answers may be plain text.
func (e Endpoint) Transcribes() bool { return e == Transcriptions || e == Translations }

// Draws reports whether the endpoint makes images.
func (e Endpoint) Draws() bool { return e == Images || e == ImageEdits || e == ImageVariations }

// NoOutput reports whether the answer holds nothing that was generated, so that the estimate of a
// request is its prompt alone.
func (e Endpoint) NoOutput() bool {
	return e == Embeddings || e == Rerank || e == Score || e.Free()
}

// Free reports whether the model computes nothing for the answer, so that a request costs no
// tokens unless the engine reports some.
func (e Endpoint) Free() bool {
	return e == Tokenize || e == Detokenize || e == CountTokens || e == InputTokens
}

// CheckEncoding refuses a request whose body is encoded (gzip and the like). Sluice cannot route a
// body that it cannot read, and a small body may unpack to a huge one. An empty value and
// "identity" are accepted. The fault has status 415.
func CheckEncoding(contentEncoding string) *Error {
	e := strings.Trim(contentEncoding, " \t")
	if e == "" || strings.EqualFold(e, "identity") {
		return nil
	}
	return unsupported("The request body must not be encoded: send it without Content-Encoding.")
}

// CheckContentType compares the media type with those that the endpoint accepts, and refuses a text
// in another encoding than UTF-8. The fault has status 415. Scan checks the same; a caller
// that has the headers before the body need not wait for the body.
func CheckContentType(e Endpoint, contentType string) *Error {
	accepted, want := isMedia(contentType, mediaJSON), mediaJSON
	switch {
	case e.formOrJSON():
		accepted, want = accepted || isMedia(contentType, mediaForm), mediaForm+" or "+mediaJSON
	case e.form():
		accepted, want = isMedia(contentType, mediaForm), mediaForm
	}
	if !accepted {
		return unsupported("The Content-Type of this request must be " + want + ".")
	}
	return CheckCharset(contentType)
}

func isMedia(contentType, want string) bool {
	media, _, _ := strings.Cut(contentType, ";")
	return media == want || strings.EqualFold(strings.Trim(media, " \t"), want)
}

// CheckCharset refuses a Content-Type that names another charset than UTF-8, or names it in a way
// that readers could understand differently. The engine might read another text than Sluice has
// read. The fault has status 415.
func CheckCharset(contentType string) *Error {
	_, parameters, found := strings.Cut(contentType, ";")
	if !found || !strings.Contains(strings.ToLower(parameters), "charset") {
		return nil
	}
	_, values, err := mime.ParseMediaType(contentType)
	if err == nil && isUTF8(values["charset"]) {
		return nil
	}
	return unsupported("The charset in the Content-Type must be utf-8.")
}

// isUTF8 reports whether a charset is UTF-8. Some clients leave out the hyphen.
func isUTF8(charset string) bool {
	return strings.EqualFold(charset, "utf-8") || strings.EqualFold(charset, "utf8")
}

func unsupported(message string) *Error {
	return &Error{Code: CodeInvalidRequest, Status: 415, Message: message}
}
