package telemetry

import "github.com/sluice-gateway/sluice/internal/headers"

// Reasons of a retry: what an attempt failed by.
const (
	// ReasonConnect: the replica did not accept the connection.
	ReasonConnect = "connect"
	// ReasonReset: it dropped the request before its response had begun.
	ReasonReset = "reset"
)

// Causes of a disconnect, as far as native streams can have them.
const (
	causeClient  = "client"
	causeEngine  = "engine"
	causeTimeout = "timeout"
)

// disconnectCause says who ended a streamed response before its end; empty when nobody did, or when no stream was asked for.
func disconnectCause(q Request) string {
	if !q.Stream {
		return ""
	}
	switch {
	case anyFlag(q.Flags, "DC", "DR"):
		return causeClient
	case anyFlag(q.Flags, "UT", "SI", "UMSDR", "DT"):
		return causeTimeout
	case q.Source == headers.SourceEngine && anyFlag(q.Flags, "UC", "UR", "UPE"):
		return causeEngine
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
