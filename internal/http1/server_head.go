package http1

import (
	"net/http"
	"net/textproto"
	"strconv"
	"strings"

	"golang.org/x/net/http/httpguts"
)

func appendStatus(out []byte, code int) []byte {
	out = append(out, "HTTP/1.1 "...)
	out = strconv.AppendInt(out, int64(code), 10)
	out = append(out, ' ')
	text := http.StatusText(code)
	if text == "" {
		text = "status code " + strconv.Itoa(code)
	}
	return append(append(out, text...), "\r\n"...)
}

// appendHeader appends the headers that the handler has set, and returns the length that they
// promise. This package decides the framing and whether the connection stays open. From the handler
// it takes the length, and that the connection is to end.
func (w *ResponseWriter) appendHeader(out []byte, code int) (head []byte, length int64) {
	length = unknownLength
	for name, values := range w.header {
		if len(values) == 0 || !httpguts.ValidHeaderFieldName(name) {
			continue
		}
		switch http.CanonicalHeaderKey(name) {
		case "Content-Length":
			if n, err := strconv.ParseUint(textproto.TrimString(values[0]), 10, 63); err == nil && allowsContentLength(code) && length == unknownLength {
				length = int64(n)
				out = appendLine(out, name, strconv.FormatInt(length, 10))
			}
			continue
		case "Transfer-Encoding", "Trailer":
			continue
		case "Connection":
			if httpguts.HeaderValuesContainsToken(values, "close") {
				w.closing = true
				continue
			}
		case "Content-Type":
			if code == http.StatusNotModified {
				continue
			}
		}
		for _, v := range values {
			out = appendLine(out, name, v)
		}
	}
	return out, length
}

// allowsContentLength says whether a response with this status may have a Content-Length (RFC 9110,
// section 8.6). It is optional for 304 and is left out there.
func allowsContentLength(code int) bool {
	return code >= http.StatusOK && code != http.StatusNoContent && code != http.StatusNotModified
}

// appendLine appends a header. Line breaks in a value would end the header, so they become spaces,
// as in net/http.
func appendLine(out []byte, name, value string) []byte {
	out = append(append(out, name...), ": "...)
	value = textproto.TrimString(value)
	at := len(out)
	out = append(out, value...)
	if strings.ContainsAny(value, "\r\n") {
		for i, b := range out[at:] {
			if b == '\r' || b == '\n' {
				out[at+i] = ' '
			}
		}
	}
	return append(out, "\r\n"...)
}
