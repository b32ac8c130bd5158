package openai

import (
	"bytes"
	"mime"
	"strings"

	"github.com/sluice-gateway/sluice/internal/openai/jsonscan"
)

// Bounds of a form.
const (
	maxParts      = 256
	maxPartHeader = 16 << 10 // bytes
	maxBoundary   = 70       // RFC 2046, 5.1.1
)

// formScanner reads a form (multipart/form-data, RFC 7578). It goes from boundary to boundary and
// does not read the content of the file.
//
// It accepts only what all readers agree on. There is no preamble or epilogue, and the boundary is
// nowhere but in delimiters. Header lines end by CRLF and are not folded. Each part has one plain
// name and no transfer encoding. Clients send nothing else.
type formScanner struct {
	body  []byte
	dash  []byte // "--" and the boundary
	req   Request
	seen  uint32 // bit set of fields
	found mediaURLs
	fault *Error
}

// scanForm reads the body of a request with a file.
func scanForm(e Endpoint, contentType string, body []byte) (Request, *Error) {
	boundary, fault := boundaryOf(contentType)
	if fault != nil {
		return Request{}, fault
	}
	f := formScanner{body: body, dash: []byte("--" + boundary)}
	f.req.Endpoint, f.req.Size, f.req.delimiter = e, len(body), uint32(len(f.dash))
	if f.parts(); f.fault == nil {
		f.fault = f.req.noteMedia(&f.found)
	}
	if f.fault != nil {
		return Request{}, f.fault
	}
	return f.req, nil
}

// Pieces returns the pieces of the body between the delimiters of a form. A body that is no form is
// one piece.
func (r *Request) Pieces(body []byte) [][]byte {
	if !r.isForm() {
		return [][]byte{body}
	}
	return bytes.Split(body, body[:r.delimiter])
}

// boundaryOf returns the boundary of a Content-Type. An encoded boundary (boundary*=…) is refused,
// because readers differ in how they decode it.
func boundaryOf(contentType string) (string, *Error) {
	_, params, err := mime.ParseMediaType(contentType)
	boundary := params["boundary"]
	if err != nil || boundary == "" || strings.Contains(strings.ToLower(contentType), "boundary*") {
		return "", Errorf(CodeInvalidRequest, "The Content-Type must name the boundary of the form.")
	}
	if len(boundary) > maxBoundary || strings.HasSuffix(boundary, " ") || strings.ContainsFunc(boundary, notInBoundary) {
		return "", Errorf(CodeInvalidRequest, "The boundary in the Content-Type is not a valid one.")
	}
	return boundary, nil
}

func notInBoundary(r rune) bool {
	return (r < '0' || r > '9') && (r|0x20 < 'a' || r|0x20 > 'z') && !strings.ContainsRune("'()+_,-./:=? ", r)
}

// parts reads the form part by part.
func (f *formScanner) parts() {
	if len(f.body) == 0 {
		f.fail("is empty", 0)
		return
	}
	if !bytes.HasPrefix(f.body, f.dash) {
		f.fail("does not begin with its boundary", 0)
		return
	}
	start := 0
	for n := 0; f.fault == nil; n++ {
		i := start + len(f.dash)
		rest := f.body[i:]
		if bytes.HasPrefix(rest, []byte("--")) {
			if end := rest[2:]; len(end) > 0 && string(end) != "\r\n" {
				f.fail("goes on behind its last boundary", i+2)
			}
			return
		}
		if n == maxParts {
			f.fault = Errorf(CodeInvalidRequest, "The form has more than %d parts.", maxParts)
			return
		}
		start = f.part(start, i)
	}
}

// part reads the part whose delimiter is at start and ends at i. It returns the offset of the next
// delimiter.
func (f *formScanner) part(start, i int) (next int) {
	if !bytes.HasPrefix(f.body[i:], []byte("\r\n")) {
		return f.fail("has a bad boundary line", i)
	}
	i += 2
	window := f.body[i:min(len(f.body), i+maxPartHeader)]
	length := bytes.Index(window, []byte("\r\n\r\n"))
	if length < 0 {
		return f.fail("has a part whose header does not end", i)
	}
	name, isFile, what := partName(window[:length])
	if what != "" {
		return f.fail(what, i)
	}
	i += length + 4
	content := f.body[i:]
	length = bytes.Index(content, f.dash)
	if length < 0 {
		return f.fail("ends without its last boundary", len(f.body))
	}
	if next = i + length; length < 2 || string(content[length-2:length]) != "\r\n" {
		return f.fail("has its boundary inside of a part", next)
	}
	if known, found := disguised(f.req.Endpoint, name); found {
		f.fault = &Error{Code: CodeInvalidRequest, Param: known,
			Message: "A part of the form is named like " + known + " but for its case; engines may take it for that."}
		return next
	}
	if value := content[:length-2]; string(name) == "_charset_" && !isUTF8(string(value)) { // RFC 7578, 4.6
		return f.fail("is in another charset than utf-8", i)
	}
	id := partField(f.req.Endpoint, name)
	f.field(id, content[:length-2], isFile)
	if guard := guardOf(bytes.TrimSuffix(name, []byte("[]"))); guard != 0 && guard.First().Above == 0 && length > 2 {
		f.req.Guarded |= guard // LiteLLM takes the parts of a form for fields
	}
	if source := sourceField(name); source != "" && !isFile {
		f.found.add(source, content[:length-2], false)
	}
	if id == fieldModel {
		f.req.modelAt = jsonscan.Span{From: i, To: next - 2}
	}
	if id.own() {
		f.req.remove(start, next)
	}
	return next
}

// field reads the value of a part.
func (f *formScanner) field(id field, value []byte, isFile bool) {
	if id == fieldOther {
		return
	}
	bit := uint32(1) << id
	switch {
	case f.seen&bit != 0:
		f.fault = id.invalid("is there twice")
		return
	case isFile:
		f.fault = id.invalid("must not be a file")
		return
	}
	f.seen |= bit
	switch r := &f.req; id {
	case fieldModel:
		r.Model = f.name(id, value, maxModel)
	case fieldRequestID:
		r.RequestID = f.name(id, value, maxRequestID)
	case fieldStream:
		r.Stream = f.boolean(id, value)
	case fieldStreamUsage:
		r.IncludeUsage = f.boolean(id, value)
	case fieldTimeout:
		r.Timeout = millis(f.integer(id, value, maxMillis))
	case fieldMaxDuration:
		r.MaxDuration = millis(f.integer(id, value, maxMillis))
	case fieldPrompt:
		r.promptBytes = len(value)
	case fieldChoices:
		r.Choices = int(f.integer(id, value, maxCount))
	case fieldSize:
		r.imageTokens = imageTokens(value)
	}
}

func (f *formScanner) name(id field, value []byte, limit int) string {
	if what := id.checkName(value, limit); what != "" {
		f.fault = id.invalid(what)
		return ""
	}
	return string(value)
}

func (f *formScanner) boolean(id field, value []byte) bool {
	switch string(value) {
	case "true", "True", "1":
		return true
	case "false", "False", "0":
		return false
	}
	f.fault = id.invalid("must be true or false")
	return false
}

func (f *formScanner) integer(id field, value []byte, limit int64) int64 {
	// A number as in JSON, though a form may have zeros in front.
	if len(value) == 0 || value[0] < '0' || value[0] > '9' || len(bytes.Trim(value, "0123456789.eE+-")) > 0 {
		f.fault = id.invalid(mustBeInteger(0))
		return 0
	}
	n, what := wholeNumber(value, 0, limit)
	if what != "" {
		f.fault = id.invalid(what)
	}
	return n
}

// fail records a fault of the form itself.
func (f *formScanner) fail(what string, i int) int {
	f.fault = Errorf(CodeInvalidRequest, "The form %s, at byte %d.", what, i)
	return 0
}
