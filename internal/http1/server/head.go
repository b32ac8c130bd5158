package h1server

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

// appendHeader appends the lines of what the handler has set, and returns the length that it promises. Framing and whether the connection
// stays are this package's: of what the handler says of them it takes the length, and that the connection is to end.
func (w *Writer) appendHeader(out []byte, code int) (head []byte, length int64) {
	length = unknown
	for name, values := range w.header {
		if len(values) == 0 || !httpguts.ValidHeaderFieldName(name) {
			continue
		}
		switch http.CanonicalHeaderKey(name) {
		case "Content-Length":
			if n, err := strconv.ParseUint(textproto.TrimString(values[0]), 10, 63); err == nil && allowsLength(code) && length == unknown {
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

// allowsLength says whether a response of this status may have a Content-Length (RFC 9110, section 8.6; one of a 304 is optional and is left out).
func allowsLength(code int) bool {
	return code >= http.StatusOK && code != http.StatusNoContent && code != http.StatusNotModified
}

// appendLine appends a header. As net/http does it, line breaks in a value become spaces: they would be the end of the header.
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
