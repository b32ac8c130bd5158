package telemetry

import datav3 "github.com/envoyproxy/go-control-plane/envoy/data/accesslog/v3"

type responseFlag struct {
	short string
	set   func(*datav3.ResponseFlags) bool
}

// responseFlags is the list of Envoy's documentation (%RESPONSE_FLAGS%), without the flags of TCP.
// It is never changed.
var responseFlags = []responseFlag{
	{"UH", (*datav3.ResponseFlags).GetNoHealthyUpstream},
	{"UF", (*datav3.ResponseFlags).GetUpstreamConnectionFailure},
	{"UO", (*datav3.ResponseFlags).GetUpstreamOverflow},
	{"NR", (*datav3.ResponseFlags).GetNoRouteFound},
	{"URX", (*datav3.ResponseFlags).GetUpstreamRetryLimitExceeded},
	{"NC", (*datav3.ResponseFlags).GetNoClusterFound},
	{"DT", (*datav3.ResponseFlags).GetDurationTimeout},
	{"DC", (*datav3.ResponseFlags).GetDownstreamConnectionTermination},
	{"LH", (*datav3.ResponseFlags).GetFailedLocalHealthcheck},
	{"UT", (*datav3.ResponseFlags).GetUpstreamRequestTimeout},
	{"LR", (*datav3.ResponseFlags).GetLocalReset},
	{"UR", (*datav3.ResponseFlags).GetUpstreamRemoteReset},
	{"UC", (*datav3.ResponseFlags).GetUpstreamConnectionTermination},
	{"DI", (*datav3.ResponseFlags).GetDelayInjected},
	{"FI", (*datav3.ResponseFlags).GetFaultInjected},
	{"RL", (*datav3.ResponseFlags).GetRateLimited},
	{"UAEX", func(f *datav3.ResponseFlags) bool { return f.GetUnauthorizedDetails() != nil }},
	{"RLSE", (*datav3.ResponseFlags).GetRateLimitServiceError},
	{"IH", (*datav3.ResponseFlags).GetInvalidEnvoyRequestHeaders},
	{"SI", (*datav3.ResponseFlags).GetStreamIdleTimeout},
	{"DPE", (*datav3.ResponseFlags).GetDownstreamProtocolError},
	{"UPE", (*datav3.ResponseFlags).GetUpstreamProtocolError},
	{"UMSDR", (*datav3.ResponseFlags).GetUpstreamMaxStreamDurationReached},
	{"RFCF", (*datav3.ResponseFlags).GetResponseFromCacheFilter},
	{"NFCF", (*datav3.ResponseFlags).GetNoFilterConfigFound},
	{"OM", (*datav3.ResponseFlags).GetOverloadManager},
	{"DF", (*datav3.ResponseFlags).GetDnsResolutionFailure},
	{"DR", (*datav3.ResponseFlags).GetDownstreamRemoteReset},
}

// flags renders the flags that are set; it allocates only when there are two or more.
func flags(f *datav3.ResponseFlags) string {
	if f == nil {
		return ""
	}
	set := ""
	for i := range responseFlags {
		switch {
		case !responseFlags[i].set(f):
		case set == "":
			set = responseFlags[i].short
		default:
			set += "," + responseFlags[i].short
		}
	}
	return set
}
