package headers

// The names in Envoy's access log. Package xds configures what Envoy writes, and package
// internal/telemetry reads it.
const (
	// LogRequests is the log with a record of every request at its end. It also has records of
	// requests that still run, written at intervals.
	LogRequests = "sluice_requests"
	// LogAttempts is the log of attempts that failed and of attempts that followed a failed one.
	// Envoy sends each record at once. A request whose first attempt succeeds has no record.
	LogAttempts = "sluice_attempts"
	// TagReplica is the tag with the id of the replica, which comes from the endpoint's metadata.
	// Both logs have it.
	TagReplica = "sluice_replica"
	// TagFirstByte is the tag with the time from the first byte of the request to the first byte of
	// the response's body, in microseconds. It is "-" if the response has no body.
	TagFirstByte = "sluice_first_byte_us"
	// DetailsPrefix begins the response code details of every answer that ext_proc gave. The code
	// of the error follows.
	DetailsPrefix = "sluice_"
)

// Metadata is the namespace of everything that Sluice puts into Envoy's metadata. That is the id of
// the replica on an endpoint, the body limit on a route, and the dynamic metadata that ext_proc
// sets on a request.
const Metadata = "sluice"

// MetadataUsage is the namespace of the typed metadata in which Envoy reports the token usage of a
// response (envoy.data.ai.v3.TokenUsage).
const MetadataUsage = "sluice_usage"

// MetadataAuthz is the namespace in which Envoy keeps the metadata of an answer of ext_authz. A
// refusal has the code of its error there, under MetadataCode. A request that may pass has
// MetadataTenant and MetadataKey there.
const (
	MetadataAuthz = "envoy.filters.http.ext_authz"
	MetadataCode  = "code"
)

// MetadataStream is the namespace of the dynamic metadata in which the reader of responses inside
// Envoy reports what it has read. MetadataRead is its only field, and package xds has its format.
const (
	MetadataStream = "sluice_stream"
	MetadataRead   = "read"
)

// The dynamic metadata that ext_proc sets on a request. ext_authz sets MetadataTenant and
// MetadataKey.
const (
	// MetadataTold says that the filter inside Envoy has told the end of the request.
	MetadataTold = "told"
	// MetadataTenant is the name of the tenant.
	MetadataTenant = "tenant"
	// MetadataKey names the caller's key, see authz.KeyName.
	MetadataKey = "key"
	// MetadataLease is the id of the lease of the request. A gateway that was restarted resumes the
	// lease.
	MetadataLease = "lease"
	// MetadataTokens is the number of tokens that the request was estimated to cost.
	MetadataTokens = "tokens"
	// MetadataTask is the id of the task that the request belongs to.
	MetadataTask = "task"
)
