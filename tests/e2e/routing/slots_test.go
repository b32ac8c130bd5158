package routing

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/sluice-gateway/sluice/tests/e2e/harness"
)

// slotServer is a server with one model that answers no request before it is released.
type slotServer struct {
	*httptest.Server
	running atomic.Int64
	release chan struct{}
}

// startSlotServer starts a slotServer that answers questions about its engine by texts, by path.
func startSlotServer(t *testing.T, model string, texts map[string]string) *slotServer {
	s := &slotServer{release: make(chan struct{})}
	s.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		text, ok := texts[r.URL.Path]
		switch {
		case ok:
			io.WriteString(w, text)
		case harness.AsksForEngine(r):
			http.NotFound(w, r)
		case harness.ServeModelList(w, r, model):
		default:
			io.Copy(io.Discard, r.Body)
			s.running.Add(1)
			defer s.running.Add(-1)
			select {
			case <-s.release:
			case <-r.Context().Done():
			}
			io.WriteString(w, `{"choices":[{"text":"ok"}]}`)
		}
	}))
	t.Cleanup(s.Close)
	return s
}

// id is the id of the server as a replica.
func (s *slotServer) id() string { return strings.TrimPrefix(s.URL, "http://") }

// TestE2E_U1_DiscoveredServersWorkOnTheirSlots: a discovered server gets as many requests at once
// as it says, as its engine usually takes, or as the file says. A server that nobody knows gets
// one. Further requests wait in the gateway.
func TestE2E_U1_DiscoveredServersWorkOnTheirSlots(t *testing.T) {
	t.Parallel()
	llama := startSlotServer(t, "told", map[string]string{"/props": `{"total_slots":4}`})
	vllm := startSlotServer(t, "usual", map[string]string{"/metrics": "vllm:num_requests_running 0\nvllm:num_requests_waiting 0\n"})
	set, unknown := startSlotServer(t, "set", map[string]string{"/props": `{"total_slots":4}`}), startSlotServer(t, "unknown", nil)
	g := harness.Start(t, fmt.Sprintf("upstreams: [%s, %s, {url: %s, slots: 3}, %s]\n", llama.URL, vllm.URL, set.URL, unknown.URL))
	for _, tt := range []struct {
		model     string
		on        *slotServer
		most      int
		from      string
		run, wait int
	}{
		{"told", llama, 4, "engine", 4, 2},
		{"usual", vllm, 256, "catalogue", 40, 0},
		{"set", set, 3, "slots", 3, 1},
		{"unknown", unknown, 1, "unknown", 1, 1},
	} {
		harness.Eventually(t, "the slots of "+tt.model, func() error {
			if r := g.Replicas()[tt.on.id()]; r.Max != tt.most || r.MaxFrom != tt.from {
				text, _ := json.Marshal(r)
				return fmt.Errorf("%s, want %d from %s", text, tt.most, tt.from)
			}
			return nil
		})
		all := tt.run + tt.wait
		answers := make(chan error, all)
		for range all {
			go func() {
				a, err := g.TryPost(context.Background(), "/v1/completions", `{"model":"`+tt.model+`","prompt":"x"}`)
				if err == nil && a.StatusCode != 200 {
					err = fmt.Errorf("%s", a)
				}
				answers <- err
			}()
		}
		g.AwaitQueued(tt.model, tt.wait)
		harness.Eventually(t, "requests run on "+tt.model, func() error {
			if n := tt.on.running.Load(); n != int64(tt.run) {
				return fmt.Errorf("%d run, want %d", n, tt.run)
			}
			return nil
		})
		close(tt.on.release)
		for range all {
			if err := harness.Receive(t, answers, "a request is answered"); err != nil {
				t.Errorf("%s: %v", tt.model, err)
			}
		}
	}
}
