package relay

import (
	"bytes"
	"slices"

	"github.com/sluice-gateway/sluice/internal/openai/jsonscan"
)

// injectUsage adds stream_options.include_usage to the body of a request. Other options of the
// client stay. A body that has include_usage itself is returned as it is.
func injectUsage(body []byte) []byte {
	var r jsonscan.Reader
	r.Reset(body)
	if !r.Open('{') {
		return body
	}
	first := r.Pos()
	for more := true; more; more = r.More('{') {
		if string(r.Name()) != "stream_options" {
			r.Skip()
			continue
		}
		if r.Kind() != '{' {
			return body // null, or something that the engine refuses
		}
		at := r.Pos()
		r.Skip()
		options := body[at:r.Pos()]
		if bytes.Contains(options, []byte(`include_usage`)) {
			return body
		}
		comma := []byte{','}
		if isEmptyObject(options) {
			comma = nil
		}
		return slices.Concat(body[:at+1], []byte(`"include_usage":true`), comma, body[at+1:])
	}
	if !r.Valid() {
		return body
	}
	return slices.Concat(body[:first], []byte(`"stream_options":{"include_usage":true},`), body[first:])
}

func isEmptyObject(object []byte) bool { return len(bytes.Trim(object, "{} \t\r\n")) == 0 }
