package frames

import (
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
func entryOf(p *payload) request.Entry {
	number := func() int64 { return max(0, int64(p.uint64())) }
	span := func() time.Duration { return time.Duration(number()) * time.Microsecond }
	e := request.Entry{Log: headers.LogRequests, Status: int(number()), BytesIn: number(), BytesOut: number(), Attempts: int(number()),
		Duration: span(), FirstByte: span(), LastByte: span()}
	firstSent := span()
	if e.LastByte > 0 {
		e.UpstreamDuration = max(0, e.LastByte-firstSent)
	}
	if began := number(); began > 0 {
		e.Start = time.UnixMicro(began).UTC()
	}
	p.pairs(func(name string, value []byte) { setField(&e, name, value) })
	if model, ok := headers.ClusterModel(e.Cluster); ok {
		e.Model = model
	}
	e.Streamed = routes.IsStreamed(e.Route)
	return e
}

// setField sets the field of an entry that has this name in a record.
func setField(e *request.Entry, name string, value []byte) {
	switch name {
	case "id":
		e.RequestID = string(value)
	case "method":
		e.Method = string(value)
	case "path":
		e.Path = request.CleanPath(string(value))
	case "protocol":
		e.Protocol = string(value)
	case "route":
		e.Route = string(value)
	case "details":
		e.Details = string(value)
	case "flags":
		e.Flags = string(value)
	case "upstream":
		e.Upstream = string(value)
	case "cluster":
		e.Cluster = string(value)
	case "replica":
		e.Replica = string(value)
	case "usage":
		e.Usage = telemetry.UsageOf(value)
	case "read":
		e.Reading = telemetry.ReadingOf(string(value))
	default:
		setMetadata(e, name, value)
	}
}

// setMetadata sets a value of the metadata. Unknown names are ignored.
func setMetadata(e *request.Entry, name string, value []byte) {
	if len(name) < 2 || name[0] != metadataMark {
		return
	}
	if e.Metadata == nil {
		e.Metadata = make(map[string]string, 4)
	}
	e.Metadata[strings.Clone(name[1:])] = string(value)
}

// liveOf returns what a Live tells of a request that runs: the entry as the access log would write
// it meanwhile.
func liveOf(p *payload, now time.Time) request.Entry {
	e := request.Entry{Log: headers.LogRequests, Interim: true}
	e.Start = now.Add(-time.Duration(min(p.uint64(), uint64(maxAge/time.Microsecond))) * time.Microsecond)
	p.pairs(func(name string, value []byte) {
		switch name {
		case headers.RequestID:
			e.RequestID = string(value)
		case headers.Cluster:
			e.Cluster = string(value)
		case headers.Endpoint:
			e.Upstream, _, _ = strings.Cut(string(value), ",")
		case headers.Stream:
			e.Streamed = true
		default:
			setMetadata(&e, name, value)
		}
	})
	if model, ok := headers.ClusterModel(e.Cluster); ok {
		e.Model = model
	}
	return e
}

// maxAge is more than any request runs.
const maxAge = 1000 * time.Hour
