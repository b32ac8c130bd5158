package request

import "testing"

func TestDisconnectCause(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		q    Summary
		want string
	}{
		{Summary{Stream: true, Status: 200, Source: "engine"}, ""},
		{Summary{Stream: true, Flags: "DC"}, "client"},
		{Summary{Stream: true, Flags: "DR", Source: "engine"}, "client"},
		{Summary{Stream: true, Flags: "UT", Source: "engine"}, "timeout"},
		{Summary{Stream: true, Flags: "UPE", Source: "engine"}, "engine"},
		{Summary{Stream: true, Flags: "UC", Source: "engine"}, "engine"},
		{Summary{Stream: true, Flags: "UC,URX", Status: 503, Source: "gateway"}, ""}, // an error answer, no stream
		{Summary{Flags: "DC"}, ""},
		{Summary{Stream: true, Flags: "DPE", Source: "engine"}, "client"},
		{Summary{Stream: true, Flags: "DPE", Status: 400, Source: "gateway"}, ""}, // refused before it was one
		{Summary{Stream: true, Flags: "DC", Details: "downstream_remote_disconnect", Source: "engine"}, "client"},
		{Summary{Stream: true, Flags: "DC", Details: "downstream_local_disconnect(http2_ping_timeout)", Source: "engine"}, "client"},
		{Summary{Stream: true, Flags: "DC", Details: "downstream_local_disconnect(max_connection_duration_reached)", Source: "engine"}, "gateway"},
		{Summary{Stream: true, Flags: "LR", Source: "engine"}, "gateway"},
		{Summary{Stream: true, Flags: "OM", Status: 503, Source: "gateway"}, ""},
		{Summary{Stream: true, Route: RouteManaged, Status: 200, Source: "engine", Cause: "moderation", Flags: "DC"}, "moderation"}, // the relay knows
		{Summary{Stream: true, Route: RouteManaged, Status: 200, Source: "engine", Flags: "DC"}, "client"},
		{Summary{Stream: true, Route: RouteManaged, Status: 200, Source: "gateway", Flags: "UC"}, "gateway"}, // it is gone
		{Summary{Stream: true, Route: RouteManaged, Status: 503, Source: "gateway", Flags: "UC"}, ""},
		{Summary{Route: RouteManaged, Status: 200, Source: "engine", Cause: "client"}, ""},
		{Summary{Stream: true, Status: 200, Source: "engine", Reading: &Reading{Tokens: 3}}, "engine"}, // neither finish reason nor end marker
		{Summary{Stream: true, Status: 200, Source: "engine", Reading: &Reading{Tokens: 3, Ended: true}}, ""},
		{Summary{Stream: true, Status: 200, Source: "engine", Reading: &Reading{Tokens: 3, Finish: "stop"}}, ""},
		{Summary{Stream: true, Status: 200, Source: "engine", Reading: new(Reading)}, ""},
	} {
		if got := c.q.DisconnectCause(); got != c.want {
			t.Errorf("%+v: %q, want %q", c.q, got, c.want)
		}
	}
}

func TestCleanPath(t *testing.T) {
	t.Parallel()
	long := "/" + string(make([]byte, 1000))
	for _, c := range []struct{ in, want string }{
		{"/v1/models?key=sk-secret", "/v1/models"},
		{"/v1/models#sk-secret", "/v1/models"},
		{"", ""},
		{"/\xff", "/?"},
		{long, long[:maxPath]},
	} {
		if got := CleanPath(c.in); got != c.want {
			t.Errorf("CleanPath(%.20q) = %.20q, want %.20q", c.in, got, c.want)
		}
	}
}

// TestS8_CodesOfEnvoysErrors: a request that Envoy has answered with an error has the code that its
// client got.
func TestS8_CodesOfEnvoysErrors(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		e    Entry
		want string
	}{
		{Entry{Status: 408, Details: "response_timeout", Model: "m", Flags: "UT"}, "request_timeout"},
		{Entry{Status: 413, Details: "request_payload_too_large"}, "request_too_large"},
		{Entry{Status: 502, Details: "upstream_reset_before_response_started{connection_termination}", Model: "m", Flags: "UC"}, "upstream_error"},
		{Entry{Status: 503, Details: "no_healthy_upstream", Model: "m", Flags: "UH"}, "no_replica"},
		{Entry{Status: 503, Details: "cluster_not_found"}, "gateway_unavailable"},
		{Entry{Status: 401, Details: "ext_authz_denied"}, "invalid_api_key"},
		{Entry{Status: 426, Details: "low_version"}, "invalid_request"},
		{Entry{Status: 429, Details: "sluice_queue_full"}, "queue_full"},
		{Entry{Status: 404, Details: "via_upstream"}, ""},
		{Entry{Status: 500, Details: "via_upstream", Model: "m"}, ""},
		{Entry{Status: 200, Details: "via_upstream", Model: "m"}, ""},
		{Entry{Flags: "DC", Details: "downstream_remote_disconnect", Model: "m"}, ""},
	} {
		var q Summary
		if q.applyEnd(&c.e); q.Code != c.want {
			t.Errorf("%+v: %q, want %q", c.e, q.Code, c.want)
		}
	}
}
