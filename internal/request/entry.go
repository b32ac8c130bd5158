package request

import (
	"slices"
	"strings"
	"time"

	"github.com/sluice-gateway/sluice/internal/failover"
	"github.com/sluice-gateway/sluice/internal/headers"
	"github.com/sluice-gateway/sluice/internal/openai"
)

// Entry is one entry of Envoy's access log in plain types. What Envoy did not send is zero. An
// Entry shares no memory with Envoy's message.
type Entry struct {
	// Log is headers.LogRequests or headers.LogAttempts.
	Log string
	// Interim marks an entry for what is not over yet. In LogRequests it is a periodic one, with
	// the figures so far and no Duration. In LogAttempts it says that a replica has taken over a
	// request from one that failed: see Moved.
	Interim bool
	// PID is the process of the Envoy that has sent the entry; 0: not known.
	PID int

	// RequestID is Envoy's x-request-id; empty for requests that were too broken to have one.
	RequestID string
	// Method and Path as the client sent them; the path without its query, and at most 200 bytes of
	// it.
	Method, Path string
	// ClientID is the client's own id of the stream that a request to resume or cancel names in its
	// path; empty for all others.
	ClientID string
	// Route is the name of Envoy's route; empty when Envoy looked none up.
	Route string

	// Status is the HTTP status sent to the client; 0 when the client left before there was one. In
	// LogAttempts it is 0 when the attempt failed before its response headers.
	Status int
	// Details are Envoy's response code details, such as via_upstream; a machine's words, not a
	// client's.
	Details string
	// Flags are Envoy's response flags in short form, separated by commas: "UF,URX"; empty when
	// nothing was out of the ordinary. Ask with HasFlag.
	Flags string

	// Upstream is the ip:port that served, after retries; empty when none was reached.
	Upstream string
	// Cluster is the Envoy cluster of Upstream.
	Cluster string
	// Model is the model whose cluster it was; empty for clusters that belong to no model.
	Model string
	// Replica is the id of the replica that served, or that was tried last.
	Replica string
	// Attempts is how often the request was tried upstream; 0 when it never was, and always in
	// LogAttempts.
	Attempts int
	// Streamed is true when the client had asked for a streamed response.
	Streamed bool
	// Metadata is what ext_proc attached to the request as dynamic metadata in the namespace
	// "sluice"; nil when nothing.
	Metadata map[string]string

	// Usage is what the response has cost; known at the end only.
	Usage Usage
	// Reading is what Envoy has read of the response; nil if the response is not in the sample.
	Reading *Reading

	// BytesIn and BytesOut are the bytes of the request's and the response's body. In LogAttempts
	// they mean nothing.
	BytesIn, BytesOut int64
	// Start is when Envoy received the first byte of the request, or when the attempt began.
	Start time.Time
	// Duration is from Start to the end.
	Duration time.Duration
	// FirstByte is from Start to the first byte of the upstream's response body; 0 when there was
	// none. An engine may send headers long before it has a token, so header times would not do.
	FirstByte time.Duration
	// LastByte is from Start to the last byte received from the upstream; 0 when the response did
	// not end.
	LastByte time.Duration
	// RetryAfter is when the replica wants the next request, by its header Retry-After; 0: it does
	// not say. CloseDelimited says that the replica has answered without a length, so that only the
	// end of its connection ends the response. Only LogAttempts has the two; the filter inside
	// Envoy tells CloseDelimited by LogRequests.
	RetryAfter     time.Duration
	CloseDelimited bool
	// UpstreamDuration is from the first byte sent to the upstream that served to the last byte
	// received from it; 0 when the response did not end.
	UpstreamDuration time.Duration
}

// Moved says that a replica has taken over the request from one that failed: Replica and Upstream
// are the new ones.
func (e *Entry) Moved() bool { return e.Log == headers.LogAttempts && e.Interim }

// FailedAttempt says why an attempt failed before the response began, so that Envoy could try
// another replica: ReasonConnect and so on. It is empty for every other entry.
func (e *Entry) FailedAttempt() string {
	switch {
	case e.Log != headers.LogAttempts || e.Interim:
		return ""
	case e.Status != 0:
		return failover.ReasonOf(e.Status)
	case e.HasFlag("UF"):
		return ReasonConnect
	case hasAnyFlag(e.Flags, "UC", "UR", "UPE"):
		return ReasonReset
	case e.HasFlag("UT"):
		return ReasonTTFTTimeout
	}
	return ""
}

// HasFlag says whether the response flag, in short form, is among the entry's Flags.
func (e *Entry) HasFlag(short string) bool { return hasFlag(e.Flags, short) }

func hasFlag(flags, short string) bool {
	for f := range strings.SplitSeq(flags, ",") {
		if f == short {
			return true
		}
	}
	return false
}

func hasAnyFlag(flags string, shorts ...string) bool {
	if flags == "" {
		return false
	}
	return slices.ContainsFunc(shorts, func(s string) bool { return hasFlag(flags, s) })
}

// byRelay says that one of Sluice's own listeners for managed streams has answered the request.
func (e *Entry) byRelay() bool {
	return e.Cluster == headers.RelayCluster || e.Cluster == headers.GRPCCluster
}

// answeredByEngine tells a replica's answer, whole or cut short, from one that Sluice or Envoy gave
// in its stead. Those are errors, and no byte of them came from a replica.
func (e *Entry) answeredByEngine() bool {
	if e.Model == "" || e.Status == 0 {
		return false
	}
	return e.Status < 400 || e.FirstByte > 0 || e.Details == "via_upstream"
}

// abandoned says that a replica had the request and had not begun to answer when the client left or
// the request's time was over.
func (e *Entry) abandoned() bool {
	return e.Upstream != "" && e.FirstByte == 0 && !e.answeredByEngine() && hasAnyFlag(e.Flags, "DC", "DR", "DPE", "UT", "SI", "UMSDR", "DT")
}

// dropTotal drops a usage that tells the total alone, unless the endpoint has no output: then the
// total is the prompt. Of other endpoints nobody knows the parts, whose prices differ.
func (e *Entry) dropTotal() {
	if !e.Usage.OnlyTotal {
		return
	}
	if endpoint, ok := openai.EndpointOf(e.Path); !ok || !endpoint.NoOutput() {
		e.Usage = Usage{}
	}
}

// Response is what the entry tells of a native request's response.
func (e *Entry) Response() Response {
	r := Response{
		Bytes: e.BytesOut, Stream: e.Streamed, Failed: e.Status == 0 || e.Status >= 400, Abandoned: e.abandoned(),
		Prompt: e.Usage.Prompt, Completion: e.Usage.Completion, Cached: e.Usage.Cached, Known: e.Usage.Known,
		TTFT: e.ttft(),
	}
	if !r.Known {
		r.Completion = e.Reading.tokens(e.BytesOut)
	}
	return r
}

// responsesPath is where the Responses API is. Its streams begin with events that have no token.
const responsesPath = "/v1/responses"

// ttft is the time from when a streamed request left for its replica to the first byte of the
// response; 0 when it is not known.
func (e *Entry) ttft() time.Duration {
	if !e.Streamed || e.UpstreamDuration == 0 || e.FirstByte == 0 || e.Path == responsesPath {
		return 0
	}
	return max(0, e.FirstByte-(e.LastByte-e.UpstreamDuration))
}

// Bounds of what a client chooses and Sluice keeps, in bytes.
const (
	maxPath = 200
	maxName = 200
)

// CleanPath cuts off a path what may be secret (a key in a query) and what may be huge.
func CleanPath(path string) string {
	if i := strings.IndexAny(path, "?#"); i >= 0 {
		path = path[:i]
	}
	if len(path) > maxPath {
		path = path[:maxPath]
	}
	return strings.ToValidUTF8(path, "?")
}

// clip bounds a name that a client chose, and makes it valid UTF-8.
func clip(name string) string {
	if len(name) > maxName {
		return strings.ToValidUTF8(name[:maxName], "")
	}
	return strings.ToValidUTF8(name, "?")
}
