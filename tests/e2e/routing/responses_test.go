package routing

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/sluice-gateway/sluice/tests/e2e/harness"
)

// responseStore is an upstream that keeps its responses, as vLLM does: a request that continues a
// response of another server gets a 404.
type responseStore struct {
	mu    sync.Mutex
	known map[string]bool
	name  string
}

func (s *responseStore) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if harness.ServeModelList(w, r, "m") {
		return
	}
	var body struct {
		Stream     bool   `json:"stream"`
		PreviousID string `json:"previous_response_id"`
	}
	if err := json.NewDecoder(r.Body).Decode(&body); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	id, ok := s.add(body.PreviousID)
	w.Header().Set("content-type", "application/json")
	switch {
	case !ok:
		w.WriteHeader(http.StatusNotFound)
		fmt.Fprintf(w, `{"error":{"message":"%s has no such response","type":"invalid_request_error","code":null,"param":null}}`, s.name)
	case body.Stream:
		w.Header().Set("content-type", "text/event-stream")
		for _, event := range []string{"created", "completed"} {
			fmt.Fprintf(w, "event: response.%[1]s\ndata: {\"type\":\"response.%[1]s\",\"response\":{\"object\":\"response\",\"id\":%[2]q}}\n\n", event, id)
			http.NewResponseController(w).Flush()
		}
	default:
		fmt.Fprintf(w, `{"object":"response","status":"completed","id":%q,"output":[]}`, id)
	}
}

// add adds a response that continues an earlier one; empty: none. It returns the id of the new one;
// false: there is no such earlier one.
func (s *responseStore) add(previous string) (id string, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if previous != "" && !s.known[previous] {
		return "", false
	}
	id = fmt.Sprintf("resp_%s_%d", s.name, len(s.known))
	s.known[id] = true
	return id, true
}

// TestE2E_B2_ResponsesAreContinued: a request with previous_response_id goes to the replica that
// has the response, natively and managed, streamed or not.
func TestE2E_B2_ResponsesAreContinued(t *testing.T) {
	t.Parallel()
	for _, mode := range []string{"native", "managed"} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			config := "models:\n  - name: m\n    launcher: upstream\n    stream: {mode: " + mode + "}\n    admission: {max_per_replica: 16}\n    routing: {strategy: prefix}\n    upstreams:\n"
			for n := range 4 {
				s := &responseStore{known: map[string]bool{}, name: fmt.Sprint("s", n)}
				config += fmt.Sprintf("      - {url: %q}\n", harness.StartUpstream(t, s.ServeHTTP))
			}
			g := harness.Start(t, config)
			g.AwaitReplicas("m", 4)
			at := map[string]int{}
			for conversation := range 16 {
				previous, home := "", ""
				for turn := range 5 {
					a := continueResponse(g, fmt.Sprint("topic ", conversation), previous, turn%2 == 0)
					if home == "" {
						home = a.Header.Get("X-Sluice-Replica")
						at[home]++
					}
					if now := a.Header.Get("X-Sluice-Replica"); a.StatusCode != 200 || now != home {
						t.Fatalf("turn %d of conversation %d went to %s and not to %s: %s", turn, conversation, now, home, a)
					}
					previous = responseID(t, a)
				}
			}
			if len(at) < 2 {
				t.Errorf("all conversations are at one replica, so this test shows nothing: %v", at)
			}
		})
	}
}

func continueResponse(g *harness.Gateway, topic, previous string, stream bool) *harness.Answer {
	g.T.Helper()
	body := map[string]any{"model": "m", "instructions": strings.Repeat(topic+" ", 20), "input": "And then?", "stream": stream}
	if previous != "" {
		body["previous_response_id"] = previous
	}
	b, _ := json.Marshal(body)
	return g.Post("/v1/responses", string(b), "Accept-Encoding: gzip")
}

// responseID returns the id of the response in an answer.
func responseID(t *testing.T, a *harness.Answer) string {
	t.Helper()
	from := a.Content
	if strings.HasPrefix(a.Header.Get("content-type"), "text/event-stream") {
		events, err := harness.ReadEvents(strings.NewReader(string(a.Content)))
		if err != nil && err != io.EOF || len(events) == 0 {
			t.Fatalf("%v: %s", err, a.Content)
		}
		var event struct{ Response json.RawMessage }
		if err := json.Unmarshal([]byte(events[0].Data), &event); err != nil {
			t.Fatal(err)
		}
		from = event.Response
	}
	var response struct{ ID string }
	if err := json.Unmarshal(from, &response); err != nil || response.ID == "" {
		t.Fatalf("%v: %s", err, a.Content)
	}
	return response.ID
}
