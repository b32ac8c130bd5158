package openai

import (
	"mime"
	"strings"
)

// Endpoint is an inference endpoint of the API.
type Endpoint uint8

// The endpoints, and the paths they are served at.
const (
	Chat           Endpoint = iota // /v1/chat/completions
	Completions                    // /v1/completions
	Responses                      // /v1/responses
	Embeddings                     // /v1/embeddings
	Rerank                         // /v1/rerank
	Score                          // /v1/score
	Transcriptions                 // /v1/audio/transcriptions
	Translations                   // /v1/audio/translations
)

// EndpointOf returns the endpoint of a request's path. A query string is ignored; apart from it the
// path must be exact.
func EndpointOf(path string) (Endpoint, bool) {
	path, _, _ = strings.Cut(path, "?")
	switch path {
	case "/v1/chat/completions":
		return Chat, true
	case "/v1/completions":
		return Completions, true
	case "/v1/responses":
		return Responses, true
	case "/v1/embeddings":
		return Embeddings, true
	case "/v1/rerank":
		return Rerank, true
	case "/v1/score":
		return Score, true
	case "/v1/audio/transcriptions":
		return Transcriptions, true
	case "/v1/audio/translations":
		return Translations, true
	}
	return 0, false
}

// String returns the endpoint's short name, as in a log line or a metric's label.
func (e Endpoint) String() string {
	switch e {
	case Chat:
		return "chat"
	case Completions:
		return "completions"
	case Responses:
		return "responses"
	case Embeddings:
		return "embeddings"
	case Rerank:
		return "rerank"
	case Score:
		return "score"
	case Transcriptions:
		return "transcriptions"
	case Translations:
		return "translations"
	}
	return "unknown"
}

// form reports whether the endpoint accepts a form, because a file comes with the request. All
// others accept JSON.
func (e Endpoint) form() bool { return e == Transcriptions || e == Translations }

// Generates reports whether the endpoint generates text, so that the options which bound it apply.
func (e Endpoint) Generates() bool { return e == Chat || e == Completions || e == Responses }

// Chunked reports whether the endpoint's streams are chunks with choices.
func (e Endpoint) Chunked() bool { return e == Chat || e == Completions }

// Transcribes reports whether the endpoint turns speech into text. Its answers may be plain text.
func (e Endpoint) Transcribes() bool { return e.form() }

// NoOutput reports whether the answer holds no generated text, so that the estimate of a request is
// its prompt alone.
func (e Endpoint) NoOutput() bool { return e == Embeddings || e == Rerank || e == Score }

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

// CheckContentType compares the media type with the one that the endpoint accepts, and refuses a
// text in another encoding than UTF-8. The fault has status 415. Scan checks the same; a caller
// that has the headers before the body need not wait for the body.
func CheckContentType(e Endpoint, contentType string) *Error {
	want := "application/json"
	if e.form() {
		want = "multipart/form-data"
	}
	media, _, _ := strings.Cut(contentType, ";")
	if media != want && !strings.EqualFold(strings.Trim(media, " \t"), want) {
		return unsupported("The Content-Type of this request must be " + want + ".")
	}
	return CheckCharset(contentType)
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
