package gateway

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/sluice-gateway/sluice/internal/headers"
	"github.com/sluice-gateway/sluice/internal/openai"
)

// During a hand-over, requests that change something wait for the successor, whichever Envoy sends
// them.
func TestX20_ChangesWaitForTheSuccessorOnAllListeners(t *testing.T) {
	t.Parallel()
	here := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusTeapot) })
	socket := func() *httpSocket { return newHTTPSocket(nil, here, time.Minute) }
	s := &sockets{api: socket(), admin: socket(), remote: &remoteSocket{api: socket()}}
	s.hold()
	for name, g := range map[string]*gate{"api": s.api.gate, "admin": s.admin.gate, "api of other hosts": s.remote.api.gate} {
		answer := func(method string) int {
			w := httptest.NewRecorder()
			g.ServeHTTP(w, httptest.NewRequest(method, "/renew", nil))
			return w.Code
		}
		if code := answer(http.MethodGet); code != http.StatusTeapot {
			t.Errorf("%s: a request that reads got %d", name, code)
		}
		changed := make(chan int)
		go func() { changed <- answer(http.MethodPost) }()
		select {
		case code := <-changed:
			t.Errorf("%s: a request that changes something got %d before the successor serves", name, code)
			continue
		case <-time.After(50 * time.Millisecond):
		}
		g.move(func(w http.ResponseWriter, _ *http.Request) *openai.Error {
			w.WriteHeader(http.StatusAccepted)
			return nil
		})
		if code := <-changed; code != http.StatusAccepted {
			t.Errorf("%s: a request that changes something got %d", name, code)
		}
	}
}

// An error about the successor has the form of the API that the request is for.
func TestX20_ErrorsAboutTheSuccessorHaveTheFormOfTheAPI(t *testing.T) {
	t.Parallel()
	to := func(http.ResponseWriter, *http.Request) *openai.Error {
		return openai.Errorf(openai.CodeGatewayUnavailable, "The gateway does not answer.")
	}
	for path, form := range map[string]string{"/v1/messages": `{"type":"error","error":{`, "/v1/chat/completions": `{"error":{`, "/schedule": `{"error":{`} {
		w := httptest.NewRecorder()
		forward(to, w, httptest.NewRequest(http.MethodPost, path, nil))
		if w.Code != http.StatusServiceUnavailable || !strings.HasPrefix(w.Body.String(), form) || w.Header().Get(headers.Source) != headers.SourceGateway {
			t.Errorf("%s: %d %s %v", path, w.Code, w.Body, w.Header())
		}
	}
}
