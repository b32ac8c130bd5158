package api

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/sluice-gateway/sluice/internal/openai"
)

// maxBody is more than any call of the batch API needs, in bytes.
const maxBody = 64 << 10

// member reads the value of one field of a body and says what is wrong with it; "" is nothing.
type member func(value json.RawMessage) (wrong string)

// readObject reads the request's body, which must be one JSON object with known fields only: a field with a slip in its name would
// otherwise silently do nothing. A null is the same as no field. Any content type will do, because curl -d says it sends a form.
func readObject(w http.ResponseWriter, r *http.Request, known map[string]member) *openai.Error {
	if fault := openai.CheckEncoding(r.Header.Get("content-encoding")); fault != nil {
		return fault
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
	if tooLarge := (*http.MaxBytesError)(nil); errors.As(err, &tooLarge) {
		return openai.Errorf(openai.CodeRequestTooLarge, "The request body is larger than %d bytes.", maxBody)
	}
	if err != nil {
		return openai.Errorf(openai.CodeInvalidRequest, "The request body could not be read.")
	}
	return parseObject(body, known)
}

func parseObject(body []byte, known map[string]member) *openai.Error {
	if fault := checkObject(body); fault != nil {
		return fault
	}
	d := json.NewDecoder(bytes.NewReader(body))
	if _, err := d.Token(); err != nil { // the brace
		return notJSON()
	}
	seen := map[string]bool{}
	for d.More() {
		name, value, err := nextMember(d)
		if err != nil {
			return notJSON()
		}
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

// checkObject says whether the body is a JSON object at all.
func checkObject(body []byte) *openai.Error {
	text := bytes.Trim(body, " \t\r\n")
	switch {
	case len(text) == 0:
		return openai.Errorf(openai.CodeInvalidRequest, "The request body is empty.")
	case !utf8.Valid(text):
		return openai.Errorf(openai.CodeInvalidRequest, "The request body is not valid UTF-8.")
	case !json.Valid(text):
		return notJSON()
	case text[0] != '{':
		return openai.Errorf(openai.CodeInvalidRequest, "The request body must be a JSON object.")
	}
	return nil
}

func notJSON() *openai.Error {
	return openai.Errorf(openai.CodeInvalidRequest, "The request body is not valid JSON.")
}

func nextMember(d *json.Decoder) (name string, value json.RawMessage, err error) {
	token, err := d.Token()
	if err != nil {
		return "", nil, err
	}
	name, _ = token.(string)
	return name, value, d.Decode(&value)
}

func invalid(param, what string) *openai.Error {
	shown := param
	if len(shown) > 100 {
		shown = strings.ToValidUTF8(shown[:100], "") + "…"
	}
	return &openai.Error{Code: openai.CodeInvalidRequest, Param: shown, Message: shown + " " + what + "."}
}

// name reads a string that names something.
func name(to *string) member {
	return func(value json.RawMessage) string {
		var s string
		if json.Unmarshal(value, &s) != nil {
			return "must be a string"
		}
		if wrong := nameable(s); wrong != "" {
			return wrong
		}
		*to = s
		return ""
	}
}

// nameable says what keeps the string from naming something; "" is nothing.
func nameable(s string) string {
	const most = 256
	switch {
	case s == "":
		return "must not be empty"
	case len(s) > most:
		return fmt.Sprintf("must not be longer than %d bytes", most)
	case strings.ContainsFunc(s, unicode.IsControl):
		return "must not have control characters"
	case strings.ContainsRune(s, utf8.RuneError):
		// The decoder puts it in place of half a surrogate pair, so two names could become one. A header may be any bytes.
		return "must be valid Unicode"
	}
	return ""
}

// count reads a whole number from 0 to most. 1800.0 is one too: that is how callers whose numbers are all floats write it.
func count(to **int64, most int64) member {
	return func(value json.RawMessage) string {
		text := string(value)
		if whole, fraction, ok := strings.Cut(text, "."); ok && strings.Trim(fraction, "0") == "" {
			text = whole
		}
		n, err := strconv.ParseInt(text, 10, 64)
		if err != nil || n < 0 || n > most {
			return fmt.Sprintf("must be a whole number from 0 to %d", most)
		}
		*to = &n
		return ""
	}
}
