package api

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/sluice-gateway/sluice/internal/openai"
	"github.com/sluice-gateway/sluice/internal/routes"
)

// maxBody is the largest request body in bytes, as Envoy enforces it on these routes.
const maxBody = routes.MaxSmallBody

// fieldParser parses the value of one field of a body. It returns what is wrong with the value, or
// "".
type fieldParser func(value json.RawMessage) (wrong string)

// readObject reads the request's body, which must be one JSON object. It refuses unknown fields,
// because a misspelt name would otherwise leave its option without effect.
func readObject(w http.ResponseWriter, r *http.Request, known map[string]fieldParser) *openai.Error {
	if fault := openai.CheckEncoding(r.Header.Get("content-encoding")); fault != nil {
		return fault
	}
	if fault := openai.CheckCharset(r.Header.Get("content-type")); fault != nil {
		return fault
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
	if tooLarge := (*http.MaxBytesError)(nil); errors.As(err, &tooLarge) {
		return openai.Errorf(openai.CodeRequestTooLarge, "The request body is larger than %d bytes.", maxBody)
	}
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return openai.Errorf(openai.CodeRequestTimeout, "The body of the request did not arrive in time.")
	}
	if err != nil {
		return openai.Errorf(openai.CodeInvalidRequest, "The request body could not be read.")
	}
	return parseObject(body, known)
}

// parseObject parses the body, which must be one JSON object with known fields only. A null leaves
// its field unset.
func parseObject(body []byte, known map[string]fieldParser) *openai.Error {
	if fault := checkObject(body); fault != nil {
		return fault
	}
	d := json.NewDecoder(bytes.NewReader(body)) // it has no error, because checkObject has read the body
	_, _ = d.Token()                            // the opening brace
	seen := map[string]bool{}
	for d.More() {
		token, _ := d.Token()
		name, _ := token.(string)
		var value json.RawMessage
		_ = d.Decode(&value)
		read, ok := known[name]
		if !ok {
			return invalid(name, "is not a field of this request")
		}
		if seen[name] {
			return invalid(name, "is there twice")
		}
		seen[name] = true
		if string(value) == "null" {
			continue
		}
		if wrong := read(value); wrong != "" {
			return invalid(name, wrong)
		}
	}
	return nil
}

func checkObject(body []byte) *openai.Error {
	text := bytes.Trim(body, " \t\r\n")
	switch {
	case len(text) == 0:
		return openai.Errorf(openai.CodeInvalidRequest, "The request body is empty.")
	case !utf8.Valid(text):
		return openai.Errorf(openai.CodeInvalidRequest, "The request body is not valid UTF-8.")
	case !json.Valid(text):
		return openai.Errorf(openai.CodeInvalidRequest, "The request body is not valid JSON.")
	case text[0] != '{':
		return openai.Errorf(openai.CodeInvalidRequest, "The request body must be a JSON object.")
	}
	return nil
}

// invalid returns the error of a field or header whose value is wrong. Its message is the name and
// what is wrong.
func invalid(param, wrong string) *openai.Error {
	shown := param
	if len(shown) > 100 {
		shown = strings.ToValidUTF8(shown[:100], "") + "…"
	}
	return &openai.Error{Code: openai.CodeInvalidRequest, Param: shown, Message: shown + " " + wrong + "."}
}

// name parses a string that is a name or an id.
func name(to *string) fieldParser {
	return func(value json.RawMessage) string {
		var s string
		if json.Unmarshal(value, &s) != nil {
			return "must be a string"
		}
		if wrong := nameFault(s); wrong != "" {
			return wrong
		}
		*to = s
		return ""
	}
}

// nameFault returns what makes a string unusable as a name, or "".
func nameFault(s string) string {
	const maxBytes = 256
	switch {
	case s == "":
		return "must not be empty"
	case len(s) > maxBytes:
		return fmt.Sprintf("must not be longer than %d bytes", maxBytes)
	case strings.ContainsFunc(s, unicode.IsControl):
		return "must not have control characters"
	case strings.ContainsRune(s, utf8.RuneError):
		// The JSON decoder replaces half of a surrogate pair by this rune, so two different names
		// could become one. A header may hold any bytes.
		return "must be valid Unicode"
	}
	return ""
}

// count parses a whole number from 0 to limit. It accepts 1800.0, because callers whose numbers are
// all floats send that.
func count(to **int64, limit int64) fieldParser {
	return func(value json.RawMessage) string {
		text := string(value)
		if whole, fraction, ok := strings.Cut(text, "."); ok && strings.Trim(fraction, "0") == "" {
			text = whole
		}
		n, err := strconv.ParseInt(text, 10, 64)
		if err != nil || n < 0 || n > limit {
			return fmt.Sprintf("must be a whole number from 0 to %d", limit)
		}
		*to = &n
		return ""
	}
}

// bodyTime is how long a body may take. Each call that is being received keeps one of the
// connections that Envoy may open to the API, also on paths that need no key.
const bodyTime = 10 * time.Second

// timed gives the bodies of a handler's requests bodyTime. The server also reads what the handler
// has left of a body, within the same time.
func timed(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.ContentLength == 0 {
			h.ServeHTTP(w, r)
			return
		}
		connection := http.NewResponseController(w)
		// A recorder of a test has no deadlines.
		if connection.SetReadDeadline(time.Now().Add(bodyTime)) == nil {
			r.Body = &timedBody{r.Body, connection}
		}
		h.ServeHTTP(w, r)
	})
}

// timedBody is a body with a deadline. It lifts the deadline at its end: a read of the connection
// that fails while the handler works would end the request.
type timedBody struct {
	io.ReadCloser
	connection *http.ResponseController
}

func (b *timedBody) Read(p []byte) (n int, err error) {
	n, err = b.ReadCloser.Read(p)
	if err == io.EOF {
		_ = b.connection.SetReadDeadline(time.Time{}) // an error means that the caller has left
	}
	return n, err
}
