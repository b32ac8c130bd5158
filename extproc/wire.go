package extproc

import (
	"cmp"
	"fmt"
	"time"
	"unsafe"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/sluice-gateway/sluice/internal/decide"
	"github.com/sluice-gateway/sluice/internal/headers"
	"github.com/sluice-gateway/sluice/internal/protofields"
)

// The messages of ext_proc are parsed in place and written by hand, since each request has three
// each way. The numbers of the fields are those of envoy.service.ext_proc.v3.

// kind is what a ProcessingRequest is about: the number of its field.
type kind protowire.Number

const (
	requestHeaders   kind = 2
	responseHeaders  kind = 3
	requestBody      kind = 4
	responseBody     kind = 5
	requestTrailers  kind = 6
	responseTrailers kind = 7
)

// kindNames are the names of the fields.
var kindNames = map[kind]string{
	requestHeaders: "request_headers", responseHeaders: "response_headers", requestBody: "request_body", responseBody: "response_body",
	requestTrailers: "request_trailers", responseTrailers: "response_trailers",
}

func (k kind) String() string { return cmp.Or(kindNames[k], "unknown") }

// message is a ProcessingRequest. Its slices belong to the bytes that it was parsed from.
type message struct {
	kind kind
	// headers is a HeaderMap, body a body. Only one of them is there.
	headers, body []byte
	// ended means that the request has no body, or that the body is complete.
	ended bool
	// attributes is the last entry of the attributes: a name and a Struct.
	attributes []byte
}

// Fields of the messages.
const (
	fieldAttributes  = 9 // of ProcessingRequest
	fieldHeaders     = 1 // of HttpHeaders: the HeaderMap; of HeaderMap: a HeaderValue
	fieldHeadersEnd  = 3 // of HttpHeaders
	fieldBody        = 1 // of HttpBody
	fieldBodyEnd     = 2 // of HttpBody
	fieldHeaderKey   = 1 // of HeaderValue
	fieldHeaderValue = 2
	fieldHeaderRaw   = 3
	fieldKey         = 1 // of an entry of a map
	fieldValue       = 2
)

// parse parses a ProcessingRequest. Envoy fills one of the kinds once: other messages are refused.
func parse(b []byte) (m message, err error) {
	err = protofields.Each(b, func(field protowire.Number, content []byte, _ uint64) error {
		switch {
		case content == nil:
			return nil
		case field == fieldAttributes:
			m.attributes = content
			return nil
		case field < protowire.Number(requestHeaders) || field > protowire.Number(responseTrailers):
			return nil
		case m.kind != 0:
			return fmt.Errorf("the message has %v and %v", m.kind, kind(field))
		}
		m.kind = kind(field)
		switch m.kind {
		case requestHeaders, responseHeaders:
			return m.parsePart(content, fieldHeaders, fieldHeadersEnd, &m.headers)
		case requestBody, responseBody:
			return m.parsePart(content, fieldBody, fieldBodyEnd, &m.body)
		}
		return nil
	})
	return m, err
}

// parsePart parses an HttpHeaders or an HttpBody, with the numbers of their fields.
func (m *message) parsePart(b []byte, part, end protowire.Number, to *[]byte) error {
	return protofields.Each(b, func(field protowire.Number, content []byte, n uint64) error {
		switch {
		case field == part && content != nil && *to != nil:
			return fmt.Errorf("%v has two parts", m.kind)
		case field == part && content != nil:
			*to = content
		case field == end && content == nil:
			m.ended = n != 0
		}
		return nil
	})
}

// eachHeader calls yield for each header of a HeaderMap. The name and the value are good until
// yield returns.
func eachHeader(b []byte, yield func(name string, value []byte)) error {
	return protofields.Each(b, func(field protowire.Number, content []byte, _ uint64) error {
		if field != fieldHeaders || content == nil {
			return nil
		}
		var key, value, raw []byte
		err := protofields.Each(content, func(field protowire.Number, content []byte, _ uint64) error {
			switch {
			case content == nil:
			case field == fieldHeaderKey:
				key = content
			case field == fieldHeaderValue:
				value = content
			case field == fieldHeaderRaw:
				raw = content
			}
			return nil
		})
		if err != nil {
			return err
		}
		if len(raw) > 0 {
			value = raw
		}
		yield(unsafe.String(unsafe.SliceData(key), len(key)), value)
		return nil
	})
}

func appendBytes[B ~string | ~[]byte](out []byte, field protowire.Number, content B) []byte {
	out = protowire.AppendVarint(protowire.AppendTag(out, field, protowire.BytesType), uint64(len(content)))
	return append(out, content...)
}

func appendNumber(out []byte, field protowire.Number, n uint64) []byte {
	return protowire.AppendVarint(protowire.AppendTag(out, field, protowire.VarintType), n)
}

// nest appends a message as a field. content appends the fields of the message.
func nest(out []byte, field protowire.Number, content func(out []byte) []byte) []byte {
	out = protowire.AppendTag(out, field, protowire.BytesType)
	return endNested(content(append(out, 0)), len(out))
}

// endNested sets the length of the message that begins after from, where there is one byte for it.
func endNested(out []byte, from int) []byte {
	size := len(out) - from - 1
	if size < 0x80 {
		out[from] = byte(size)
		return out
	}
	more := protowire.SizeVarint(uint64(size)) - 1
	out = append(out, make([]byte, more)...)
	copy(out[from+1+more:], out[from+1:len(out)-more])
	protowire.AppendVarint(out[:from], uint64(size))
	return out
}

// appendContinue appends the answer to headers, which removes headers of these names.
func appendContinue(out []byte, remove []string) []byte {
	return nest(out, 1, func(out []byte) []byte { // request_headers
		if len(remove) == 0 {
			return out
		}
		return nest(out, 1, func(out []byte) []byte { // response
			return nest(out, 2, func(out []byte) []byte { // header_mutation
				for _, name := range remove {
					out = appendBytes(out, 2, name) // remove_headers
				}
				return out
			})
		})
	})
}

// The answers to trailers, which change nothing.
const (
	requestTrailersAnswer  = "\x2a\x00" // request_trailers
	responseTrailersAnswer = "\x32\x00" // response_trailers
)

// appendGo appends the answer to a body with which Envoy sends the request on.
func appendGo(out []byte, a *decide.Answer) []byte {
	out = nest(out, 3, func(out []byte) []byte { // request_body
		return nest(out, 1, func(out []byte) []byte { // response
			out = nest(out, 2, func(out []byte) []byte { return appendSet(out, a.Set) }) // header_mutation
			if a.Body != nil {
				out = protowire.AppendTag(out, 3, protowire.BytesType) // body_mutation
				out = protowire.AppendVarint(out, uint64(1+protowire.SizeBytes(len(a.Body))))
				out = appendBytes(out, 1, a.Body)
			}
			return appendNumber(out, 5, 1) // clear_route_cache
		})
	})
	return nest(out, 8, func(out []byte) []byte { // dynamic_metadata
		return appendEntry(out, headers.Metadata, func(out []byte) []byte {
			return nest(out, 5, func(out []byte) []byte { // struct_value
				for name, value := range a.Metadata.All {
					out = appendEntry(out, name, func(out []byte) []byte { return appendBytes(out, 3, value) }) // string_value
				}
				return out
			})
		})
	})
}

func appendEntry(out []byte, name string, value func(out []byte) []byte) []byte {
	return nest(out, 1, func(out []byte) []byte { return nest(appendBytes(out, fieldKey, name), fieldValue, value) })
}

// appendSet appends headers that replace any of the same names, as fields of a HeaderMutation.
func appendSet(out []byte, set []decide.Header) []byte {
	for _, h := range set {
		out = nest(out, 1, func(out []byte) []byte { // set_headers
			out = nest(out, 1, func(out []byte) []byte { // header
				return appendBytes(appendBytes(out, fieldHeaderKey, h.Name), fieldHeaderRaw, h.Value)
			})
			return appendNumber(out, 3, 2) // append_action: OVERWRITE_IF_EXISTS_OR_ADD
		})
	}
	return out
}

// appendReply appends the answer with which Envoy replies to the client without calling an
// upstream.
func appendReply(out []byte, a *decide.Answer) []byte {
	return nest(out, 7, func(out []byte) []byte { // immediate_response
		out = nest(out, 1, func(out []byte) []byte { return appendNumber(out, 1, uint64(a.Status)) })
		out = nest(out, 2, func(out []byte) []byte { return appendSet(out, a.Set) })
		out = appendBytes(out, 3, a.Body)
		return appendBytes(out, 5, a.Details)
	})
}

// appendWait appends the message that sets Envoy's timeout for the pending answer to d.
func appendWait(out []byte, d time.Duration) []byte {
	return nest(out, 10, func(out []byte) []byte { // override_message_timeout
		return appendNumber(appendNumber(out, 1, uint64(d/time.Second)), 2, uint64(d%time.Second))
	})
}
