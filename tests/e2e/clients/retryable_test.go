package clients

import (
	"testing"

	"github.com/sluice-gateway/sluice/internal/condition"
	"github.com/sluice-gateway/sluice/tests/e2e/harness"
)

// TestE2E_S8_WhatMayBeRetriedSaysWhen: an error that a client may repeat has Retry-After, and no
// other has. That holds for the errors of engines, too, whose own value passes.
func TestE2E_S8_WhatMayBeRetriedSaysWhen(t *testing.T) {
	t.Parallel()
	const models = `
models:
  - {name: native, engine: sim, variables: {prefill_rate: 0, token_interval: 0s}, stream: {mode: native}}
  - {name: managed, engine: sim, variables: {prefill_rate: 0, token_interval: 0s}, stream: {mode: managed, ttft_timeout: 3s}}
`
	g := harness.Start(t, models)
	g.Configure(models + `  - {name: gone, launcher: upstream, upstreams: ["http://127.0.0.1:1"], admission: {queue_timeout: 100ms}}` + "\n")
	g.AwaitCondition(condition.UpstreamUnreachable, "http://127.0.0.1:1")
	for _, c := range []struct {
		model, fault, fields string
		status               int
		code                 string
		retry                bool
	}{
		{"managed", "status=400", "", 400, "invalid_request", false},
		{"managed", "status=403", "", 403, "upstream_error", false},
		{"managed", "status=422", "", 422, "invalid_request", false},
		{"managed", "status=429:0", "", 429, "rate_limited", true},
		{"managed", "status=500", "", 500, "upstream_error", false},
		{"managed", "status=502", "", 502, "upstream_error", true},
		{"managed", "status=503:0", "", 503, "upstream_error", true},
		{"managed", "status=504", "", 504, "upstream_timeout", true},
		{"managed", "hang", "", 504, "upstream_timeout", true},
		{"managed", "reset-before-headers", "", 502, "upstream_error", true},
		{"native", "status=400", "", 400, "", false},
		{"native", "status=429:0", "", 429, "", true},
		{"native", "status=500", "", 500, "", false},
		{"native", "status=502", "", 502, "", true},
		{"native", "status=503:0", "", 503, "", true},
		{"native", "status=504", "", 504, "", true},
		{"native", "reset-before-headers", "", 502, "upstream_error", true},
		{"native", "hang", `"timeout_ms":3000,`, 408, "request_timeout", true},
		{"native", "none", `"timeout_ms":-1,`, 400, "invalid_request", false},
		{"gone", "none", "", 503, "no_replica", true},
		{"nobody", "none", "", 404, "model_not_found", false},
	} {
		a := g.Post(harness.ChatPath, `{`+c.fields+`"model":"`+c.model+`","stream":true,"messages":[{"role":"user","content":"x"}]}`, "x-sim-fault: "+c.fault)
		if after := a.Header.Get("Retry-After"); a.StatusCode != c.status || a.Code() != c.code || (after != "") != c.retry {
			t.Errorf("%s %s %s: %s, Retry-After %q", c.model, c.fault, c.fields, a, after)
		}
	}
	for _, model := range []string{"native", "managed"} {
		a := g.Post(harness.ChatPath, harness.ChatBody(model, true, 1, "x"), "x-sim-fault: status=503:7")
		if after := a.Header.Values("Retry-After"); a.StatusCode != 503 || len(after) != 1 || after[0] != "7" {
			t.Errorf("%s: %s, Retry-After %q, want that of the engine", model, a, after)
		}
	}
}
