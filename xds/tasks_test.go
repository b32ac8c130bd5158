package xds

import (
	"bytes"
	"net/http"
	"strings"
	"testing"

	"github.com/sluice-gateway/sluice/internal/headers"
)

// Sluice itself answers the task routes. They need a key, and their bodies are bounded.
func taskRoutes(t *testing.T, g *gateway) {
	for _, path := range []string{"/schedule", "/complete", "/renew"} {
		for _, method := range []string{"POST", "GET", "DELETE"} {
			got := g.do(t, method, path+"?a=b", nil, "Authorization", "k", headers.Priority, "interactive", headers.Tenant, "root",
				headers.Observe, "1", headers.Usage, "1", "x-test-answer", "500")
			if got.StatusCode != 200 || string(got.body) != method+" "+path+" tenant=acme" {
				t.Errorf("%s %s: %d %s", method, path, got.StatusCode, got.body)
			}
			checkHeaders(t, got.Header, map[string]string{headers.Source: "gateway", "x-test-priority": "batch"})
		}
		for size, want := range map[int]string{0: "0", 1: "1", 64 << 10: "65536"} {
			got := g.do(t, http.MethodPost, path, make([]byte, size), "Authorization", "k")
			checkHeaders(t, got.Header, map[string]string{"x-test-read": want})
		}
		tooLarge(t, g, path)
		if got := g.do(t, http.MethodPost, path, make([]byte, 65<<10)); got.StatusCode != 401 {
			t.Errorf("%s without a key: %d %s", path, got.StatusCode, got.body)
		}
		if got := g.do(t, http.MethodPost, path, nil, "Authorization", "k", "x-test-drop", "1"); got.StatusCode != 503 || got.code(t) != "gateway_unavailable" {
			t.Errorf("%s when the gateway drops it: %d %s", path, got.StatusCode, got.body)
		}
		for _, other := range []string{path + "/x", path + "x", "/v1" + path} {
			if got := g.do(t, http.MethodPost, other, nil, "x-test-answer", "404"); string(got.body) != "sluice says 404" {
				t.Errorf("%s: %d %s", other, got.StatusCode, got.body)
			}
		}
	}
}

// tooLarge sends bodies with and without a declared length.
func tooLarge(t *testing.T, g *gateway, path string) {
	t.Helper()
	declared := g.do(t, http.MethodPost, path, make([]byte, 64<<10+1), "Authorization", "k")
	body := strings.Repeat("8000\r\n"+strings.Repeat("x", 0x8000)+"\r\n", 3) + "0\r\n\r\n"
	chunked := g.raw(t, "POST "+path+" HTTP/1.1\r\nHost: x\r\nAuthorization: k\r\nTransfer-Encoding: chunked\r\n\r\n"+body)
	for _, got := range []answer{declared, chunked} {
		if got.StatusCode != 413 || got.code(t) != "request_too_large" || !bytes.Contains(got.body, []byte("64 KiB")) {
			t.Errorf("%s, too large: %d %s", path, got.StatusCode, got.body)
		}
		checkHeaders(t, got.Header, map[string]string{headers.Source: "gateway"})
	}
}

// The rate limit headers of a response have the values of ext_proc's dynamic metadata. Those of the
// engine are removed.
func quotaHeaders(t *testing.T, g *gateway) {
	engine := serve(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set(headers.LimitRequests, "engine's")
		w.Header().Set(headers.LimitTokens, "engine's")
	})
	g.settle(t, "quota", replica("quota-0", engine))
	none := map[string]string{
		headers.LimitRequests: "", headers.RemainingRequests: "", headers.ResetRequests: "",
		headers.LimitTokens: "", headers.RemainingTokens: "", headers.ResetTokens: "",
	}
	for _, stream := range []string{"", "1"} {
		checkHeaders(t, g.chat(t, "quota", engine.String(), "x-test-stream", stream).Header, none)
		checkHeaders(t, g.chat(t, "quota", engine.String(), "x-test-stream", stream, "x-test-tenant", "acme").Header, none)
		some := g.chat(t, "quota", engine.String(), "x-test-stream", stream, "x-test-note-"+headers.LimitRequests, "60",
			"x-test-note-"+headers.RemainingRequests, "59", "x-test-note-"+headers.ResetRequests, "1s")
		checkHeaders(t, some.Header, map[string]string{
			headers.LimitRequests: "60", headers.RemainingRequests: "59", headers.ResetRequests: "1s",
			headers.LimitTokens: "", headers.RemainingTokens: "", headers.ResetTokens: "",
		})
		var all []string
		want := map[string]string{}
		for _, name := range headers.OfDecision() {
			all, want[name] = append(all, "x-test-note-"+name, "0"), "0"
		}
		checkHeaders(t, g.chat(t, "quota", engine.String(), append(all, "x-test-stream", stream)...).Header, want)
	}
}
