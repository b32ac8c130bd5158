package openai

import (
	"cmp"
	"encoding/json"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/sluice-gateway/sluice/internal/openai/jsonscan"
)

// Request is what routing needs to know of a request. It does not hold the body. It has only copies
// of the short texts below, and 12 bytes for each message. These bytes are for the first 4,096
// messages, and for each later one that a cache key may include. It may be copied.
type Request struct {
	Endpoint Endpoint
	// Model is the model asked for: at most 256 bytes, without control characters. Empty: the body
	// names none, and the field must be set before the request is dispatched.
	Model string
	// Stream asks for the answer as server-sent events.
	Stream bool
	// IncludeUsage reports whether the client wants the event with the token usage at the end of a
	// stream (stream_options.include_usage; stream_include_usage for audio).
	IncludeUsage bool
	// Background asks for a response that the engine generates in the background (background of
	// /v1/responses).
	Background bool
	// Guarded are the fields by which the client would make some engines do what is not for clients
	// to decide. Other engines ignore such fields. ReadQuery adds what the query has.
	Guarded Guards
	// MediaURLs are the URLs in the fields for media that the engine may fetch. Data URLs, base64
	// and paths of files are none.
	MediaURLs []MediaURL
	// MaxTokens bounds the output, in tokens per choice: the largest of max_tokens,
	// max_completion_tokens, max_output_tokens and n_predict. 0: no bound given, or one of them is
	// -1.
	MaxTokens int
	// Choices is how many answers are generated (n). 0: not given, which means 1.
	Choices int
	// RequestID is the client's own name for the request (request_id): at most 256 bytes without
	// control characters. Empty: none.
	RequestID string
	// SessionID is the session that a header of the request names, see SetSessionID. Empty: none.
	SessionID string
	// PreviousResponseID is the response that the request continues (previous_response_id).
	// PromptCacheKey names the beginning that the prompt shares with others (prompt_cache_key).
	// Both are at most 256 bytes without control characters. Empty: none, or one that is not such a
	// string, which the engine may refuse.
	PreviousResponseID, PromptCacheKey string
	// Timeout bounds the whole request (timeout_ms), at most 24 h. 0: none.
	Timeout time.Duration
	// MaxDuration bounds the stream (max_duration_ms), at most 24 h. 0: none.
	MaxDuration time.Duration
	// Size of the body in bytes.
	Size int

	// modelAt is where the model's name stands: a JSON string with its quotes, or the content of a
	// form's part.
	modelAt jsonscan.Span
	// insertAt is where Rewrite inserts the model that the body does not name: in JSON behind the
	// first brace, in a form at its beginning. empty says that no other field stays in the JSON.
	// delimiter is the length of a form's delimiters.
	insertAt, delimiter uint32
	empty               bool
	promptBytes         int       // see PromptBytes
	mediaParts          int       // see MediaParts
	bestOf              int       // the larger of best_of and n_cmpl; 0: neither is given
	prompts             int       // of a completion with a list of prompts; 0: one
	imageTokens         int       // of one image by its size; 0: no good size given
	messages            []message // what the prompt consists of, in the body's order
	// rest is where the messages stand that chains have as one text, and restAt their index in
	// messages. A rest of formNone is none.
	rest   text
	restAt int
	// salt and previous are where cache_salt and previous_response_id stand.
	salt, previous text
	// cuts is what Strip removes, in the body's order: one range for each option of Sluice's own.
	cuts     [3]jsonscan.Span
	cutCount int
}

// Bounds of what is read.
const (
	maxSize      = 1 << 30 // offsets are kept in 32 bits
	maxFields    = 256     // at the top level of a JSON body: each is compared with all before it
	maxModel     = 256     // bytes
	maxRequestID = 256     // bytes
	maxCount     = 1<<31 - 1
	maxAnswers   = 1 << 14 // answers to one request with n or best_of
	maxMillis    = int64(24 * time.Hour / time.Millisecond)
)

// Scan reads the body of a request to e in one pass. Scan validates the whole body, also what is
// not of interest here, so that the engine cannot understand it differently. Scan does not keep and
// does not change the body; [Request.CacheKey] and [Request.Strip] need it again.
//
// The fault has code invalid_request and status 400, or 415 for a Content-Type that the endpoint
// does not accept. A body over 1 GiB has code request_too_large.
func Scan(e Endpoint, contentType string, body []byte) (Request, *Error) {
	if fault := CheckContentType(e, contentType); fault != nil {
		return Request{}, fault
	}
	if len(body) > maxSize {
		return Request{}, Errorf(CodeRequestTooLarge, "The request body of %d bytes is larger than the limit of %d bytes.",
			len(body), maxSize)
	}
	scan := scanJSON
	if e.form() && isMedia(contentType, mediaForm) {
		scan = func(e Endpoint, body []byte) (Request, *Error) { return scanForm(e, contentType, body) }
	}
	r, fault := scan(e, body)
	if fault == nil {
		fault = r.checkAnswers()
	}
	return r, fault
}

// checkAnswers refuses a request for so many answers that an engine would spend its memory on the
// list of them. vLLM has the same bound; SGLang has none, and a small request ends its server.
func (r *Request) checkAnswers() *Error {
	if n := max(r.Choices, r.bestOf); n > 1 && n*max(r.prompts, 1) > maxAnswers {
		return fieldChoices.invalid(fmt.Sprintf("is too large: all prompts of a request together may get %d answers by n, best_of or n_cmpl", maxAnswers))
	}
	return nil
}

// ReadQuery reads the query of the path that the client asks for. Engines get the query as it is.
// LiteLLM obeys the parameter model of a query in the place of the field model.
func (r *Request) ReadQuery(path string) {
	const model = "model"
	_, query, _ := strings.Cut(path, "?")
	for parameter := range strings.SplitSeq(query, "&") {
		name, _, _ := strings.Cut(parameter, "=")
		if name, err := url.QueryUnescape(name); err == nil && strings.EqualFold(name, model) {
			r.Guarded |= guardOf([]byte(queryModel))
		}
	}
}

// PromptBytes returns how many bytes of the body may be text for the model: the base of an estimate
// of its tokens. Parts of messages that are not text (images, audio, files) do not count. Neither
// do the file of an audio request, and data URLs of media in a request that generates no text.
func (r *Request) PromptBytes() int { return r.promptBytes }

// MediaParts returns how many parts of messages, and data URLs, are not text: images, audio, files.
func (r *Request) MediaParts() int { return r.mediaParts }

// maxGenerations bounds Generations. More answers than that fit no limit anyway.
const maxGenerations = 1 << 20

// Generations returns how many answers the engine generates: the largest of n, best_of and n_cmpl,
// for each prompt. It is at least 1 and at most 1,048,576.
func (r *Request) Generations() int {
	return min(max(r.Choices, r.bestOf, 1)*max(r.prompts, 1), maxGenerations)
}

// Answers returns how many choices the response has: n for each prompt, at most 1,048,576. 0: the
// request has one prompt and no n, which means 1.
func (r *Request) Answers() int {
	if r.prompts > 1 {
		return min(max(r.Choices, 1)*r.prompts, maxGenerations)
	}
	return min(r.Choices, maxGenerations)
}

// Strip removes the options that are Sluice's own (request_id, timeout_ms, max_duration_ms) from
// the body that was scanned. The body itself is not changed. Everything else stays byte for byte,
// except for the comma and the white space between the option and its neighbour. Without such
// options Strip returns the very body, and false.
func (r *Request) Strip(body []byte) (stripped []byte, changed bool) {
	r.mustBe(body)
	if r.cutCount == 0 {
		return body, false
	}
	size := len(body)
	for _, c := range r.cuts[:r.cutCount] {
		size -= c.To - c.From
	}
	stripped = make([]byte, 0, size)
	from := 0
	for _, c := range r.cuts[:r.cutCount] {
		stripped = append(stripped, body[from:c.From]...)
		from = c.To
	}
	return append(stripped, body[from:]...), true
}

func (r *Request) namesModel() bool { return r.modelAt != jsonscan.Span{} }

// Rewrite is Strip, and replaces the model's name by another one, because the engine knows the
// model by its own name and not by an alias. It inserts the model if the body names none. A model
// that the body names already changes nothing.
func (r *Request) Rewrite(body []byte, model string) (rewritten []byte, changed bool) {
	if model == r.Model && r.namesModel() {
		return r.Strip(body)
	}
	r.mustBe(body)
	named, name := r.modelAt, r.modelText(body, model)
	if !r.namesModel() {
		named = jsonscan.Span{From: int(r.insertAt), To: int(r.insertAt)}
	}
	rewritten = make([]byte, 0, len(body)+len(name))
	from := 0
	edits := slices.Clone(r.cuts[:r.cutCount])
	edits = append(edits, named)
	slices.SortFunc(edits, func(a, b jsonscan.Span) int { return cmp.Or(a.From-b.From, a.To-b.To) })
	for _, e := range edits {
		rewritten = append(rewritten, body[from:e.From]...)
		if e == named {
			rewritten = append(rewritten, name...)
		}
		from = e.To
	}
	return append(rewritten, body[from:]...), true
}

func (r *Request) isForm() bool { return r.delimiter > 0 }

// modelText returns what Rewrite writes for the model: its name, or the whole field if the body has
// none.
func (r *Request) modelText(body []byte, model string) []byte {
	if r.isForm() {
		if r.namesModel() {
			return []byte(model)
		}
		return []byte(string(body[:r.delimiter]) + "\r\nContent-Disposition: form-data; name=\"model\"\r\n\r\n" + model + "\r\n")
	}
	name, _ := json.Marshal(model) // a string always marshals
	if r.namesModel() {
		return name
	}
	field := append([]byte(`"model":`), name...)
	if !r.empty {
		field = append(field, ',')
	}
	return field
}

// mustBe stops a caller that passes another body than the one that was scanned: the offsets would
// mean nothing there.
func (r *Request) mustBe(body []byte) {
	if len(body) != r.Size {
		panic("openai: this is not the body that was scanned")
	}
}

// remove records a range for Strip. Each option appears once, so there is always room.
func (r *Request) remove(from, to int) {
	if r.cutCount < len(r.cuts) {
		r.cuts[r.cutCount] = jsonscan.Span{From: from, To: to}
		r.cutCount++
	}
}

// checkName returns what is wrong with a name that a client gave; empty: nothing.
func checkName(name []byte, limit int) string {
	if len(name) == 0 {
		return "must not be empty"
	}
	if len(name) > limit {
		return "is too long"
	}
	if !utf8.Valid(name) {
		return "must be UTF-8"
	}
	for _, c := range name {
		if c < 0x20 || c == 0x7f {
			return "must not hold control characters"
		}
	}
	return ""
}

// checkName is [checkName], and more for a request id.
func (f field) checkName(name []byte, limit int) string {
	if f == fieldRequestID {
		return checkRequestID(name)
	}
	return checkName(name, limit)
}

// checkRequestID says what is wrong with a client's own id of a request, as [checkName] does. The
// paths of streams end with such an id, and all programs take dots there for another path.
func checkRequestID(id []byte) string {
	if dots := string(id); dots == "." || dots == ".." {
		return "must not be one dot or two dots"
	}
	return checkName(id, maxRequestID)
}

// CheckRequestID returns the error for a client's own id of a request that is too long, is no
// UTF-8, has control characters or is . or .. It returns nil for a good id. param is the field or
// header of the id.
func CheckRequestID(param, id string) *Error {
	what := checkRequestID([]byte(id))
	if what == "" {
		return nil
	}
	return Invalid(param, what)
}

func millis(n int64) time.Duration { return time.Duration(n) * time.Millisecond }
