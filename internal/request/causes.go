package request

import (
	"strings"

	"github.com/sluice-gateway/sluice/internal/failover"
	"github.com/sluice-gateway/sluice/internal/headers"
)

// Reasons of a retry: what an attempt failed by. Package failover says what each means.
const (
	ReasonConnect     = failover.Connect
	ReasonReset       = failover.Reset
	Reason5xx         = failover.ServerError
	ReasonTTFTTimeout = failover.TTFTTimeout
	ReasonPreempted   = failover.Preempted
)

// Reasons returns the list of them.
func Reasons() []string { return failover.Reasons() }

// Causes of a disconnect: who ended a streamed response before its end.
const (
	// CauseClient: the client left.
	CauseClient = "client"
	// CauseEngine: the engine broke the response off.
	CauseEngine = "engine"
	// CauseTimeout: a limit on the response's time, the client's own or the model's.
	CauseTimeout = "timeout"
	// CauseSlowClient: the client read more slowly than may be waited for.
	CauseSlowClient = "slow_client"
	// CauseCancelled: a call of the client's asked for it.
	CauseCancelled = "cancelled"
	// CauseModeration: a rule forbade what was to come.
	CauseModeration = "moderation"
	// CauseGateway: Envoy or Sluice, for reasons of their own.
	CauseGateway = "gateway"
)

// Causes returns the list of them.
func Causes() []string {
	return []string{CauseClient, CauseEngine, CauseTimeout, CauseSlowClient, CauseCancelled, CauseModeration, CauseGateway}
}

// localDisconnect begins Envoy's details of a response whose connection to the client Envoy has
// closed itself; the reason follows in brackets. Reasons of HTTP/2, a ping without an answer and a
// broken protocol, are the client's doing.
const (
	localDisconnect = "downstream_local_disconnect"
	clientsFault    = "(http2_"
)

// DisconnectCause says who ended a streamed response before its end. It is what the relay has told,
// or what Envoy's log entry tells. It is empty when nobody did, or when no stream was asked for.
// What Envoy calls the upstream of a managed stream is the relay.
func (q *Summary) DisconnectCause() string {
	if !q.Stream {
		return ""
	}
	if q.Cause != "" {
		return q.Cause
	}
	begun, upstream := q.Source == headers.SourceEngine, CauseEngine
	if q.Route == RouteManaged {
		begun, upstream = q.Status > 0 && q.Status < 400, CauseGateway
	}
	switch {
	case hasAnyFlag(q.Flags, "UT", "SI", "UMSDR", "DT"):
		return CauseTimeout
	case strings.HasPrefix(q.Details, localDisconnect) && !strings.Contains(q.Details, clientsFault):
		return CauseGateway
	case hasAnyFlag(q.Flags, "DC", "DR"), begun && hasFlag(q.Flags, "DPE"):
		return CauseClient
	case begun && hasAnyFlag(q.Flags, "UC", "UR", "UPE"):
		return upstream
	case begun && hasAnyFlag(q.Flags, "LR", "OM"):
		return CauseGateway
	case begun && q.Flags == "" && q.Reading.isTruncated():
		return CauseEngine
	}
	return ""
}
