package telemetry

import (
	"strings"

	"github.com/sluice-gateway/sluice/internal/headers"
)

// Reasons of a retry: what an attempt failed by.
const (
	// ReasonConnect: the replica did not accept the connection.
	ReasonConnect = "connect"
	// ReasonReset: it dropped the request before its response had begun.
	ReasonReset = "reset"
	// Reason5xx: it answered with a status of 500 or more.
	Reason5xx = "5xx"
	// ReasonTTFTTimeout: it had not begun its response in the time that one attempt has.
	ReasonTTFTTimeout = "ttft_timeout"
	// ReasonPreempted: nothing has failed; it was pushed out of its prefill by a more urgent one.
	ReasonPreempted = "preempted"
)

func reasons() []string {
	return []string{ReasonConnect, ReasonReset, Reason5xx, ReasonTTFTTimeout, ReasonPreempted}
}

// Causes of a disconnect: who ended a streamed response before its end.
const (
	// CauseClient: it left.
	CauseClient = "client"
	// CauseEngine: it broke the response off.
	CauseEngine = "engine"
	// CauseTimeout: a limit on the response's time, the client's own or the model's.
	CauseTimeout = "timeout"
	// CauseSlowClient: it read more slowly than may be waited for.
	CauseSlowClient = "slow_client"
	// CauseCancelled: a call asked for it.
	CauseCancelled = "cancelled"
	// CauseModeration: a rule forbade what was to come.
	CauseModeration = "moderation"
	// CauseGateway: Envoy or Sluice, for reasons of their own.
	CauseGateway = "gateway"
)

func causes() []string {
	return []string{CauseClient, CauseEngine, CauseTimeout, CauseSlowClient, CauseCancelled, CauseModeration, CauseGateway}
}

// localDisconnect begins Envoy's details of a response whose connection to the client it has closed itself; the reason follows in brackets.
// Those of HTTP/2, a ping without an answer and a broken protocol, are the client's doing.
const (
	localDisconnect = "downstream_local_disconnect"
	clientsFault    = "(http2_"
)

// disconnectCause says who ended a streamed response before its end, as the relay has told, or as far as Envoy's record tells; empty when nobody
// did, or when no stream was asked for. What Envoy calls the upstream of a managed stream is the relay.
func disconnectCause(q Request) string {
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
	case anyFlag(q.Flags, "UT", "SI", "UMSDR", "DT"):
		return CauseTimeout
	case strings.HasPrefix(q.Details, localDisconnect) && !strings.Contains(q.Details, clientsFault):
		return CauseGateway
	case anyFlag(q.Flags, "DC", "DR"), begun && hasFlag(q.Flags, "DPE"):
		return CauseClient
	case begun && anyFlag(q.Flags, "UC", "UR", "UPE"):
		return upstream
	case begun && anyFlag(q.Flags, "LR", "OM"):
		return CauseGateway
	}
	return ""
}

func anyFlag(flags string, shorts ...string) bool {
	if flags == "" {
		return false
	}
	for _, s := range shorts {
		if hasFlag(flags, s) {
			return true
		}
	}
	return false
}
