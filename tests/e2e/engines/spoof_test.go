package engines

import (
	"fmt"
	"io"
	"net/http"
	"sync/atomic"
	"testing"

	"github.com/sluice-gateway/sluice/tests/e2e/harness"
)

// TestE2E_X14_EnginesDoNotSpeakAsTheGateway: an engine sends headers that belong to the gateway or
// to an Envoy, on the native way, on the managed one and for a stored response. No client gets one.
func TestE2E_X14_EnginesDoNotSpeakAsTheGateway(t *testing.T) {
	t.Parallel()
	forged := []string{"X-Sluice-Anything", "X-Sluice-Messages", "X-Sluice-Budget", "X-Envoy-Immediate-Health-Check-Fail", "X-Envoy-Degraded",
		"X-Envoy-Upstream-Service-Time", "Via", "X-Powered-By", "Server"}
	g := harness.Start(t, fmt.Sprintf("models: [{name: m, launcher: upstream, upstreams: [%q]}]\n",
		harness.StartUpstream(t, func(w http.ResponseWriter, r *http.Request) {
			if harness.ServeModelList(w, r, "m") {
				return
			}
			for _, name := range append(forged, "X-Sluice-Source", "X-Sluice-Replica", "X-Of-Engine") {
				w.Header().Set(name, "forged")
			}
			w.Header().Set("Content-Type", "application/json")
			io.WriteString(w, `{"id":"resp_1","object":"response","choices":[]}`)
		})))
	check := func(way string, a *harness.Answer) {
		t.Helper()
		if a.StatusCode != http.StatusOK || a.Header.Get("X-Of-Engine") != "forged" {
			t.Errorf("%s: %v with the headers %v", way, a, a.Header)
		}
		if a.Header.Get("X-Sluice-Source") != "engine" || a.Header.Get("X-Sluice-Replica") == "forged" {
			t.Errorf("%s: source %q, replica %q", way, a.Header["X-Sluice-Source"], a.Header["X-Sluice-Replica"])
		}
		for _, name := range forged {
			if got := a.Header.Get(name); got != "" {
				t.Errorf("%s: the client got %s: %s", way, name, got)
			}
		}
	}
	check("native", g.Post(harness.ChatPath, harness.ChatBody("m", false, 1, "x")))
	check("managed", g.Post(harness.ChatPath, `{"model":"m","request_id":"one","messages":[]}`))
	check("a response", g.Post("/v1/responses", `{"model":"m","input":"x"}`))
	harness.Eventually(t, "the response is known", func() error {
		if a := g.Fetch("/v1/responses/resp_1"); a.StatusCode != http.StatusOK {
			return fmt.Errorf("%v", a)
		}
		return nil
	})
	check("a stored response", g.Fetch("/v1/responses/resp_1"))
}

// TestE2E_X14_RedirectsOfEnginesEndAtTheGateway: the client of an engine that redirects gets an
// error on each way, and no address that it would send its prompt to.
func TestE2E_X14_RedirectsOfEnginesEndAtTheGateway(t *testing.T) {
	t.Parallel()
	var redirects atomic.Bool
	g := harness.Start(t, fmt.Sprintf("models: [{name: m, launcher: upstream, upstreams: [%q]}]\n",
		harness.StartUpstream(t, func(w http.ResponseWriter, r *http.Request) {
			switch {
			case harness.ServeModelList(w, r, "m"):
			case redirects.Load():
				http.Redirect(w, r, "http://127.0.0.1:1/elsewhere", http.StatusTemporaryRedirect)
			default:
				w.Header().Set("Content-Type", "application/json")
				io.WriteString(w, `{"id":"resp_1","object":"response"}`)
			}
		})))
	g.Post("/v1/responses", `{"model":"m","input":"x"}`)
	harness.Eventually(t, "the response is known", func() error {
		if a := g.Fetch("/v1/responses/resp_1"); a.StatusCode != http.StatusOK {
			return fmt.Errorf("%v", a)
		}
		return nil
	})
	redirects.Store(true)
	for way, a := range map[string]*harness.Answer{
		"native":            g.Post(harness.ChatPath, harness.ChatBody("m", false, 1, "x")),
		"a stream":          g.Post(harness.ChatPath, harness.ChatBody("m", true, 1, "x")),
		"managed":           g.Post(harness.ChatPath, `{"model":"m","request_id":"one","messages":[]}`),
		"a stored response": g.Fetch("/v1/responses/resp_1"),
	} {
		if a.StatusCode != http.StatusBadGateway || a.Code() != "upstream_error" || a.Header.Get("Location") != "" {
			t.Errorf("%s: %v with the headers %v", way, a, a.Header)
		}
	}
}

// TestE2E_X14_AQueryAsksAnUpstreamForNoOtherModel: LiteLLM obeys the parameter model of a query in
// the place of the model that the gateway has checked. Other parameters reach the engine.
func TestE2E_X14_AQueryAsksAnUpstreamForNoOtherModel(t *testing.T) {
	t.Parallel()
	var asked atomic.Pointer[string]
	g := harness.Start(t, fmt.Sprintf("models: [{name: m, launcher: upstream, upstreams: [%q]}]\n",
		harness.StartUpstream(t, func(w http.ResponseWriter, r *http.Request) {
			if harness.ServeModelList(w, r, "m") {
				return
			}
			asked.Store(&r.RequestURI)
			w.Header().Set("Content-Type", "application/json")
			io.WriteString(w, `{"choices":[]}`)
		})))
	for _, body := range []string{harness.ChatBody("m", false, 1, "x"), `{"model":"m","request_id":"one","messages":[]}`} {
		if a := g.Post(harness.ChatPath+"?beta=1&%6Dodel=secret", body); a.StatusCode != http.StatusBadRequest || asked.Load() != nil {
			t.Errorf("%s: %v", body, a)
		}
	}
	if a := g.Post(harness.ChatPath+"?beta=1", harness.ChatBody("m", false, 1, "x")); a.StatusCode != http.StatusOK || *asked.Load() != harness.ChatPath+"?beta=1" {
		t.Errorf("%v for %s", a, *asked.Load())
	}
}
