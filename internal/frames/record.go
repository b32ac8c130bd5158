package frames

import (
	"strconv"
	"strings"
	"time"

	"github.com/sluice-gateway/sluice/internal/headers"
	"github.com/sluice-gateway/sluice/internal/request"
	"github.com/sluice-gateway/sluice/internal/routes"
	"github.com/sluice-gateway/sluice/internal/telemetry"
)

// metadataMark begins the name of a value of the dynamic metadata.
const metadataMark = '@'

// entryOf returns what a record tells of a request that has ended.
func entryOf(p *payload, w *request.Words) request.Entry {
	number := func() int64 { return max(0, int64(p.uint64())) }
	span := func() time.Duration {
		return time.Duration(min(number(), int64(maxAge/time.Microsecond))) * time.Microsecond
	}
	e := request.Entry{Log: headers.LogRequests, Status: int(number()), BytesIn: number(), BytesOut: number(), Attempts: int(number()),
		Duration: span(), FirstByte: span(), LastByte: span()}
	firstSent := span()
	if e.LastByte > 0 {
		e.UpstreamDuration = max(0, e.LastByte-firstSent)
	}
	if began := number(); began > 0 {
		e.Start = time.UnixMicro(began).UTC()
	}
	readList(&e, p, w)
	return e
}

// readList sets the fields of an entry that the list of a record tells.
func readList(e *request.Entry, p *payload, w *request.Words) {
	p.pairs(func(name string, value []byte) { setField(e, w, name, value) })
	if model, ok := headers.ClusterModel(e.Cluster); ok {
		e.Model = model
	}
	e.Streamed = routes.IsStreamed(e.Route)
}

// setField sets the field of an entry that has this name in a record.
func setField(e *request.Entry, w *request.Words, name string, value []byte) {
	switch name {
	case "id":
		e.RequestID = string(value)
	case "method":
		e.Method = w.Of(value)
	case "path":
		e.Path = request.CleanPath(string(value))
	case "route":
		e.Route = w.Of(value)
	case "details":
		e.Details = w.Of(value)
	case "flags":
		e.Flags = w.Of(value)
	case "upstream":
		e.Upstream = w.Of(value)
	case "cluster":
		e.Cluster = w.Of(value)
	case "replica":
		e.Replica = w.Of(value)
	case "usage":
		e.Usage = usageOf(string(value))
	case "unframed":
		e.CloseDelimited = string(value) == "1"
	case "read":
		e.Reading = telemetry.ReadingOf(string(value))
	default:
		setMetadata(e, w, name, value)
	}
}

// usageOf returns the usage of a response from its text. The text has the tokens of the prompt, of
// the answer, and those of the prompt that came from the cache, or -1 if that is not known. An
// answer of -1 means that the first number is the total. It returns the zero value if the text is
// not as expected.
func usageOf(text string) request.Usage {
	var n [3]int64
	fields := strings.Fields(text)
	if len(fields) != len(n) {
		return request.Usage{}
	}
	for i, f := range fields {
		var err error
		if n[i], err = strconv.ParseInt(f, 10, 64); err != nil || n[i] < -1 || n[i] > request.MaxTokens {
			return request.Usage{}
		}
	}
	if n[1] < 0 {
		return request.TotalUsage(n[0])
	}
	return request.UsageOf(n[0], n[1], n[2])
}

// setMetadata sets a value of the metadata. Names that nobody reads are ignored, such as those of
// the tenant's quota: they are there for the response.
func setMetadata(e *request.Entry, w *request.Words, name string, value []byte) {
	if len(name) < 2 || name[0] != metadataMark {
		return
	}
	for _, known := range [...]string{headers.MetadataTenant, headers.MetadataKey, headers.MetadataLease, headers.MetadataTokens, headers.MetadataTask} {
		if name[1:] != known {
			continue
		}
		if e.Metadata == nil {
			e.Metadata = make(map[string]string, 4)
		}
		if known != headers.MetadataTenant && known != headers.MetadataKey {
			w = nil // each request has its own
		}
		e.Metadata[known] = w.Of(value)
	}
}

// liveOf returns what a Live tells of a request that runs: the entry as the access log would write
// it meanwhile.
func liveOf(p *payload, now time.Time, w *request.Words) request.Entry {
	e := request.Entry{Log: headers.LogRequests, Interim: true}
	e.Start = now.Add(-time.Duration(min(p.uint64(), uint64(maxAge/time.Microsecond))) * time.Microsecond)
	readList(&e, p, w)
	return e
}

// maxAge is more than any request runs.
const maxAge = 1000 * time.Hour
