package headers

// Envoy's access log: xds says what is written, internal/telemetry reads it.
const (
	// LogRequests has a record for every request at its end, and periodic ones while it runs.
	LogRequests = "sluice_requests"
	// LogAttempts has records of upstream attempts that failed and of those that followed a failed one, sent at once. A request
	// that succeeds at its first try has none.
	LogAttempts = "sluice_attempts"
	// TagReplica is the id of the replica, from the endpoint's metadata, in both logs.
	TagReplica = "sluice_replica"
	// TagFirstByte is the time from the first byte of the request to the first byte of the response's body in microseconds,
	// "-" when there was none.
	TagFirstByte = "sluice_first_byte_us"
	// DetailsPrefix begins the response code details of every answer that ext_proc gave; the error's code follows.
	DetailsPrefix = "sluice_"
)

// Metadata is the namespace of all that Sluice puts into Envoy's metadata: the replica's id on an endpoint, the body limit on a
// route, and what ext_proc notes about a request.
const Metadata = "sluice"

// MetadataUsage is the namespace of the typed metadata in which Envoy tells what a response has cost (envoy.data.ai.v3.TokenUsage).
const MetadataUsage = "sluice_usage"

// What ext_proc notes about a request.
const (
	// NoteTenant is who calls.
	NoteTenant = "tenant"
	// NoteLease is the id of the lease that the request holds; a gateway that was restarted resumes it.
	NoteLease = "lease"
	// NoteTokens is how many tokens the request was estimated to cost.
	NoteTokens = "tokens"
)
