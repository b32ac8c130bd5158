package gateway

import (
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

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
