package authz_test

import (
	"context"
	"strings"
	"testing"

	auth "github.com/envoyproxy/go-control-plane/envoy/service/auth/v3"
	"github.com/google/go-cmp/cmp"

	"github.com/sluice-gateway/sluice/authz"
	"github.com/sluice-gateway/sluice/internal/headers"
)

// outcome is the result of a check: the tenant, the subprotocols that the upstream gets, or the
// refusal.
type outcome struct {
	Tenant, Protocols, GRPC, Body string
	Refused                       int32
}

func outcomeOf(t *testing.T, path string, h map[string]string) outcome {
	t.Helper()
	s := authz.Server{Authenticator: policy(t, authz.Config{Tenants: []authz.TenantConfig{tenant("acme", "k"), tenant("beta", "b")}})}
	r, err := s.Check(context.Background(), &auth.CheckRequest{Attributes: &auth.AttributeContext{
		Request: &auth.AttributeContext_Request{Http: &auth.AttributeContext_HttpRequest{Path: path, Headers: h}}}})
	if err != nil {
		t.Fatal(err)
	}
	o := outcome{Protocols: h["sec-websocket-protocol"], Body: r.GetDeniedResponse().GetBody(), Refused: int32(r.GetDeniedResponse().GetStatus().GetCode())}
	for _, name := range r.GetOkResponse().GetHeadersToRemove() {
		if name == "sec-websocket-protocol" {
			o.Protocols = ""
		}
	}
	for _, h := range append(r.GetOkResponse().GetHeaders(), r.GetDeniedResponse().GetHeaders()...) {
		switch h := h.GetHeader(); h.GetKey() {
		case "x-sluice-tenant":
			o.Tenant = h.GetValue()
		case "sec-websocket-protocol":
			o.Protocols = h.GetValue()
		case "grpc-status":
			o.GRPC = h.GetValue()
		}
	}
	if o.Refused != 0 {
		// A refused request has no upstream.
		o.Protocols = ""
	}
	return o
}

// The key of a WebSocket may be a subprotocol. The upstream never sees the key, even if the request
// had another.
func TestABrowsersKey(t *testing.T) {
	const key, path = "openai-insecure-api-key.", "/v1/realtime"
	for name, c := range map[string]struct {
		path, protocols, bearer string
		want                    outcome
	}{
		"alone":              {path, key + "k", "", outcome{Tenant: "acme"}},
		"with a query":       {path + "?model=x", key + "k", "", outcome{Tenant: "acme"}},
		"among others":       {path, "realtime," + key + "k ,  x", "", outcome{Tenant: "acme", Protocols: "realtime, x"}},
		"the first counts":   {path, key + "b, " + key + "k", "", outcome{Tenant: "beta"}},
		"authorization wins": {path, "x, " + key + "k", "Bearer b", outcome{Tenant: "beta", Protocols: "x"}},
		"none":               {path, "realtime, x", "Bearer b", outcome{Tenant: "beta", Protocols: "realtime, x"}},
		"wrong":              {path, "x, " + key + "w", "", outcome{Refused: 401}},
		"empty":              {path, "x, " + key, "", outcome{Refused: 401}},
		"not saved by it":    {path, key + "k", "Bearer w", outcome{Refused: 401}},
		"other path":         {"/v1/models", key + "k", "", outcome{Refused: 401}},
		"longer path":        {path + "/x", key + "k", "Bearer b", outcome{Tenant: "beta", Protocols: key + "k"}},
	} {
		h := map[string]string{"sec-websocket-protocol": c.protocols}
		if c.bearer != "" {
			h["authorization"] = c.bearer
		}
		got := outcomeOf(t, c.path, h)
		got.Body = ""
		if d := cmp.Diff(c.want, got); d != "" {
			t.Errorf("%s (-want +got):\n%s", name, d)
		}
	}
}

// A refused gRPC request gets a gRPC status. It differs from the HTTP refusal in form alone.
func TestARefusedGRPCRequestGetsAStatus(t *testing.T) {
	for name, c := range map[string]struct {
		h    map[string]string
		want outcome
	}{
		"wrong key": {
			map[string]string{"authorization": "Bearer w", "content-type": "application/grpc"},
			outcome{Refused: 401, GRPC: "16", Body: "Incorrect API key provided."},
		},
		"odd priority": {
			map[string]string{"authorization": "Bearer k", "x-sluice-priority": "x", "content-type": "application/grpc+proto"},
			outcome{Refused: 400, GRPC: "3", Body: "x-sluice-priority must be interactive, default or batch."},
		},
		"not gRPC": {
			map[string]string{"authorization": "Bearer w", "content-type": "application/json"},
			outcome{Refused: 401, Body: `{"error":{"message":"Incorrect API key provided.","type":"authentication_error","code":"invalid_api_key","param":null}}`},
		},
		"Anthropic's API": {
			map[string]string{"x-api-key": "w", "anthropic-version": "2023-06-01"},
			outcome{Refused: 401, Body: `{"type":"error","error":{"type":"authentication_error","message":"Incorrect API key provided.","code":"invalid_api_key"}}`},
		},
	} {
		if d := cmp.Diff(c.want, outcomeOf(t, "/llm.v1.Inference/Stream", c.h)); d != "" {
			t.Errorf("%s (-want +got):\n%s", name, d)
		}
	}
}

func TestX8_TooManyHeadersAreRefused(t *testing.T) {
	s := &authz.Server{Authenticator: new(authz.Authenticator), MaxHeaders: headers.Limits{Count: 10, Bytes: 1000}}
	for name, value := range map[string]string{"large": strings.Repeat("x", 1000), "few": "x"} {
		req := &auth.CheckRequest{Attributes: &auth.AttributeContext{Request: &auth.AttributeContext_Request{
			Http: &auth.AttributeContext_HttpRequest{Path: "/v1/models", Headers: map[string]string{"x": value}},
		}}}
		answer, err := s.Check(t.Context(), req)
		if got := answer.GetDeniedResponse().GetStatus().GetCode() == 431; err != nil || got != (name == "large") {
			t.Errorf("%s: %v %v", name, answer, err)
		}
	}
}
