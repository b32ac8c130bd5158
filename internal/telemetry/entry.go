package telemetry

import (
	"cmp"
	"net"
	"strconv"
	"strings"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	datav3 "github.com/envoyproxy/go-control-plane/envoy/data/accesslog/v3"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/sluice-gateway/sluice/internal/headers"
	"github.com/sluice-gateway/sluice/internal/openai"
	"github.com/sluice-gateway/sluice/internal/protofields"
	"github.com/sluice-gateway/sluice/internal/request"
	"github.com/sluice-gateway/sluice/internal/routes"
)

// The records of the access log are read in place, since each request has at least one. The numbers
// of fields are those of envoy.data.accesslog.v3.

// record is a record of the access log while it is read. Its slices belong to the message.
type record struct {
	request.Entry
	words *request.Words
	// original and path are the path before and after Envoy has changed it.
	original, path string
	// usage, stream, own and authz are messages of the metadata. They hold what the response has
	// cost, what Envoy has read of it, and what Sluice and ext_authz have attached to the request.
	usage, stream, own, authz []byte
	// firstSent is when the first byte was sent to the upstream.
	firstSent time.Duration
	// retryAfter is that header of the response, answeredID its x-request-id. framed means that the
	// response has a length.
	retryAfter, answeredID string
	framed                 bool
}

// newEntry reads a record of the named log. The error says that b is none.
func newEntry(log string, b []byte, known *request.Words) (request.Entry, error) {
	r := record{words: known}
	r.Log = log
	err := protofields.Each(b, func(field protowire.Number, content []byte, _ uint64) error {
		switch {
		case field == 1 && content != nil:
			return protofields.Each(content, r.common)
		case field == 3 && content != nil:
			return protofields.Each(content, r.asked)
		case field == 4 && content != nil:
			return protofields.Each(content, r.response)
		}
		return nil
	})
	if err != nil {
		return request.Entry{}, err
	}
	r.complete()
	return r.Entry, nil
}

// complete sets what follows from several fields.
func (r *record) complete() {
	asked := cmp.Or(r.original, r.path) // what the client asked for
	r.Path = request.CleanPath(asked)
	r.Streamed = routes.IsStreamed(r.Route)
	r.Metadata = plainValues(r.own, r.words)
	if told := plainValues(r.authz, r.words); told[headers.MetadataCode] != "" {
		r.Details = headers.DetailsPrefix + told[headers.MetadataCode] // as in a refusal by the filter or ext_proc
	} else if r.Metadata == nil {
		r.Metadata = told
	}
	if model, ok := headers.ClusterModel(r.Cluster); ok {
		r.Model = model
	}
	if r.Route == routes.Streams {
		path, _, _ := strings.Cut(asked, "?")
		r.ClientID, _, _ = routes.StreamID(path)
	}
	if r.LastByte > 0 {
		r.UpstreamDuration = max(0, r.LastByte-r.firstSent)
	}
	r.trustID()
	if r.Interim {
		return
	}
	switch r.Log {
	case headers.LogRequests:
		r.Usage, r.Reading = usageOfAny(r.usage), reading(r.stream)
	case headers.LogAttempts:
		r.RetryAfter = openai.ParseRetryAfter(r.retryAfter, time.Now())
		r.CloseDelimited = isCloseDelimited(r.Status, r.framed)
	}
}

// trustID gives a request that Envoy could not read the id of its answer. Envoy gives each request
// its own x-request-id just before it looks for the route. An id without a route is a header of the
// client, which may name another request.
func (r *record) trustID() {
	switch {
	case r.RequestID == "":
		r.RequestID = r.answeredID
	case r.Route == "":
		r.RequestID = ""
	}
}

// common reads a field of AccessLogCommon.
func (r *record) common(field protowire.Number, content []byte, n uint64) error {
	if content == nil {
		switch field {
		case 24: // upstream_request_attempt_count
			r.Attempts = int(uint32(n))
		case 33: // access_log_type
			r.Interim = interim(datav3.AccessLogType(n))
		}
		return nil
	}
	switch field {
	case 5: // start_time
		seconds, nanos := secondsOf(content)
		r.Start = time.Unix(seconds, int64(nanos)).UTC()
	case 7: // time_to_first_upstream_tx_byte
		r.firstSent = durationOf(content)
	case 10: // time_to_last_upstream_rx_byte
		r.LastByte = durationOf(content)
	case 13: // upstream_remote_address
		r.Upstream = address(content, r.words)
	case 15: // upstream_cluster
		r.Cluster = r.words.Of(content)
	case 16: // response_flags
		r.Flags = flags(content)
	case 17: // metadata
		return protofields.Each(content, r.metadata)
	case 19: // route_name
		r.Route = r.words.Of(content)
	case 22: // custom_tags
		r.tag(content)
	case 23: // duration
		r.Duration = durationOf(content)
	}
	return nil
}

// metadata reads a field of Metadata.
func (r *record) metadata(field protowire.Number, content []byte, _ uint64) error {
	name, value := protofields.Pair(content)
	switch {
	case field == 1 && string(name) == headers.Metadata: // filter_metadata
		r.own = value
	case field == 1 && string(name) == headers.MetadataAuthz:
		r.authz = value
	case field == 1 && string(name) == headers.MetadataStream:
		r.stream = value
	case field == 2 && string(name) == headers.MetadataUsage: // typed_filter_metadata
		r.usage = value
	}
	return nil
}

// tag reads a custom tag. Envoy writes a dash for what it does not know.
func (r *record) tag(entry []byte) {
	name, value := protofields.Pair(entry)
	if string(value) == "-" {
		return
	}
	switch string(name) {
	case headers.TagReplica:
		r.Replica = r.words.Of(value)
	case headers.TagFirstByte:
		if us, err := strconv.ParseInt(string(value), 10, 64); err == nil && us > 0 {
			r.FirstByte = time.Duration(us) * time.Microsecond
		}
	}
}

// asked reads a field of HTTPRequestProperties.
func (r *record) asked(field protowire.Number, content []byte, n uint64) error {
	switch {
	case field == 1 && content == nil: // request_method
		r.Method = method(corev3.RequestMethod(n))
	case field == 5 && content != nil: // path
		r.path = string(content)
	case field == 9 && content != nil: // request_id
		r.RequestID = string(content)
	case field == 10 && content != nil: // original_path
		r.original = string(content)
	case field == 12 && content == nil: // request_body_bytes
		r.BytesIn = int64(n)
	}
	return nil
}

// response reads a field of HTTPResponseProperties.
func (r *record) response(field protowire.Number, content []byte, n uint64) error {
	switch {
	case field == 1 && content != nil: // response_code
		r.Status = int(uint32(wrapped(content)))
	case field == 3 && content == nil: // response_body_bytes
		r.BytesOut = int64(n)
	case field == 4 && content != nil: // response_headers
		name, value := protofields.Pair(content)
		switch string(name) {
		case "retry-after":
			r.retryAfter = string(value)
		case "content-length", "transfer-encoding":
			r.framed = true
		case headers.RequestID:
			r.answeredID = string(value)
		}
	case field == 6 && content != nil: // response_code_details
		r.Details = r.words.Of(content)
	}
	return nil
}

// isCloseDelimited reports whether only the end of the connection ends a response with this status.
// The response is framed if it has a length or is chunked (RFC 9112, section 6.3). Responses to
// HEAD do not come here.
func isCloseDelimited(status int, framed bool) bool {
	return status >= 200 && status != 204 && status != 304 && !framed
}

// wrapped returns the number in a UInt32Value or UInt64Value.
func wrapped(b []byte) (value uint64) {
	_ = protofields.Each(b, func(field protowire.Number, content []byte, n uint64) error { // what comes before a fault counts
		if field == 1 && content == nil {
			value = n
		}
		return nil
	})
	return value
}

// secondsOf reads a Timestamp or a Duration.
func secondsOf(b []byte) (seconds int64, nanos int32) {
	_ = protofields.Each(b, func(field protowire.Number, content []byte, n uint64) error { // what comes before a fault counts
		switch {
		case content != nil:
		case field == 1:
			seconds = int64(n)
		case field == 2:
			nanos = int32(n)
		}
		return nil
	})
	return seconds, nanos
}

func durationOf(b []byte) time.Duration {
	seconds, nanos := secondsOf(b)
	return (&durationpb.Duration{Seconds: seconds, Nanos: nanos}).AsDuration()
}

// plainValues returns the strings, numbers and booleans of a Struct, as text.
func plainValues(s []byte, known *request.Words) map[string]string {
	var all map[string]string
	_ = protofields.Each(s, func(field protowire.Number, entry []byte, _ uint64) error { // what comes before a fault counts
		if field != 1 || entry == nil {
			return nil
		}
		if all == nil {
			all = make(map[string]string, 4)
		}
		name, value := protofields.Pair(entry)
		if number, ok := protofields.Double(value, 2); ok { // number_value
			all[known.Of(name)] = strconv.FormatFloat(number, 'f', -1, 64)
			return nil
		}
		return protofields.Each(value, func(field protowire.Number, content []byte, n uint64) error {
			switch {
			case field == 3 && content != nil: // string_value
				all[known.Of(name)] = string(content)
			case field == 4 && content == nil: // bool_value
				all[known.Of(name)] = strconv.FormatBool(n != 0)
			}
			return nil
		})
	})
	return all
}

func interim(t datav3.AccessLogType) bool {
	switch t {
	case datav3.AccessLogType_DownstreamStart, datav3.AccessLogType_DownstreamPeriodic,
		datav3.AccessLogType_UpstreamPoolReady, datav3.AccessLogType_UpstreamPeriodic:
		return true
	}
	return false
}

func method(m corev3.RequestMethod) string {
	if m == corev3.RequestMethod_METHOD_UNSPECIFIED {
		return ""
	}
	return corev3.RequestMethod_name[int32(m)]
}

// address renders an Address like netip.AddrPort does; empty for anything but ip and port.
func address(b []byte, known *request.Words) string {
	var host []byte
	port := uint64(0)
	_ = protofields.Each(protofields.Bytes(b, 1), func(field protowire.Number, content []byte, n uint64) error { // SocketAddress
		switch {
		case field == 2 && content != nil:
			host = content
		case field == 3 && content == nil:
			port = n
		}
		return nil
	})
	if len(host) == 0 {
		return ""
	}
	return net.JoinHostPort(known.Of(host), strconv.FormatUint(port, 10))
}
