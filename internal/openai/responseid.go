package openai

import (
	"bytes"

	"github.com/sluice-gateway/sluice/internal/openai/jsonscan"
)

// ResponseID returns the id of a response of the Responses API, from the beginning of its body: a
// JSON document, or a stream of events. It is empty if the beginning has no good id; a longer
// beginning may have one.
func ResponseID(begin []byte) string {
	begin = bytes.TrimLeft(begin, " \t\r\n")
	if len(begin) > 0 && begin[0] == '{' {
		return idIn(begin, false)
	}
	for line := range bytes.Lines(begin) {
		if data, ok := bytes.CutPrefix(line, []byte("data:")); ok {
			if id := idIn(data, true); id != "" {
				return id
			}
		}
	}
	return ""
}

// idIn returns the id of the response in the beginning of a JSON document: the document itself, or
// the response in an event.
func idIn(document []byte, isEvent bool) (id string) {
	var r jsonscan.Reader
	r.Reset(document)
	if r.Kind() != '{' {
		return ""
	}
	for more := r.Open('{'); more; more = r.More('{') {
		switch name := r.Name(); {
		case isEvent && string(name) == "response" && r.Kind() == '{':
			return memberID(&r)
		case !isEvent && string(name) == "id":
			return goodID(r.Text())
		}
		r.Skip()
	}
	return ""
}

// memberID returns the member id of the object that comes next.
func memberID(r *jsonscan.Reader) string {
	for more := r.Open('{'); more; more = r.More('{') {
		if string(r.Name()) == "id" {
			return goodID(r.Text())
		}
		r.Skip()
	}
	return ""
}

// goodID returns the id, and nothing for one that no client may send back.
func goodID(id []byte) string {
	if checkName(id, maxRequestID) != "" {
		return ""
	}
	return string(id)
}
