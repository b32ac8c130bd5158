package routing

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
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
	// asked is told of a request with the input of inputOfSlow, which waits for finish. They may be
	// nil.
	asked, finish chan struct{}
}

func (s *responseStore) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if harness.ServeModelList(w, r, "m") {
		return
	}
	if r.Method != http.MethodPost || strings.HasSuffix(r.URL.Path, "/cancel") {
		s.serveStored(w, r)
		return
	}
	var body struct {
		Stream     bool   `json:"stream"`
		Input      string `json:"input"`
		PreviousID string `json:"previous_response_id"`
	}
	if err := json.NewDecoder(r.Body).Decode(&body); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	w.Header().Set("content-type", "application/json")
	if body.Input == inputOfBusy && s.has(body.PreviousID) {
		w.WriteHeader(http.StatusServiceUnavailable)
		fmt.Fprintf(w, `{"error":{"message":"%s is busy","type":"server_error","code":null,"param":null}}`, s.name)
		return
	}
	if body.Input == inputOfSlow {
		s.asked <- struct{}{}
		<-s.finish
	}
	id, ok := s.add(body.PreviousID)
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

// inputOfBusy is the input that the server refuses which has the previous response.
const inputOfBusy = "Be busy."

// inputOfSlow is the input of a request that the server answers later.
const inputOfSlow = "Be slow."

// has reports whether the server has a response.
func (s *responseStore) has(id string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.known[id]
}

// storedTokens are the tokens that a store tells of a response that is read. They are more than all
// others together, and as many as an engine may have generated at once.
const storedTokens = 100_000

// serveStored answers with the name of the server, if it has the response.
func (s *responseStore) serveStored(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	id, sub, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, "/v1/responses/"), "/")
	w.Header().Set("content-type", "application/json")
	if !s.known[id] {
		w.WriteHeader(http.StatusNotFound)
		fmt.Fprintf(w, `{"error":{"message":"%s has no such response","type":"invalid_request_error","code":null,"param":null}}`, s.name)
		return
	}
	if r.Method == http.MethodDelete {
		delete(s.known, id)
	}
	fmt.Fprintf(w, `{"id":%q,"object":"response","status":"completed","server":%q,"did":%q,"usage":{"input_tokens":7,"output_tokens":%d}}`,
		id, s.name, strings.TrimSpace(r.Method+" "+sub+" "+r.URL.RawQuery), storedTokens)
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
// has the response, natively and managed, streamed or not. The prompts have nothing in common.
func TestE2E_B2_ResponsesAreContinued(t *testing.T) {
	t.Parallel()
	for _, mode := range []string{"native", "managed"} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			g := harness.Start(t, responseStores(t, mode, "prefix"))
			g.AwaitReplicas("m", 4)
			at := map[string]int{}
			for conversation := range 16 {
				at[converse(g, fmt.Sprint("topic ", conversation), mode)]++
			}
			if len(at) < 2 {
				t.Errorf("all conversations are at one replica, so this test shows nothing: %v", at)
			}
		})
	}
}

// TestE2E_B2_ABusyReplicaKeepsItsResponse: a client whose response is at a replica that refuses the
// next request for now is told that, and not that there is no such response.
func TestE2E_B2_ABusyReplicaKeepsItsResponse(t *testing.T) {
	t.Parallel()
	for _, mode := range []string{"native", "managed"} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			g := harness.Start(t, responseStores(t, mode, "prefix"))
			g.AwaitReplicas("m", 4)
			first := g.Post("/v1/responses", `{"model":"m","input":"Hello."}`, "Idempotency-Key: first")
			previous := responseID(t, first)
			awaitSession(g, previous)
			body := fmt.Sprintf(`{"model":"m","input":%q,"previous_response_id":%q}`, inputOfBusy, previous)
			var headers []string
			if mode == "managed" {
				headers = append(headers, "Idempotency-Key: next")
			}
			if a := g.Post("/v1/responses", body, headers...); a.StatusCode != 503 || !strings.Contains(string(a.Content), "is busy") {
				t.Errorf("the next request: %s", a)
			}
		})
	}
}

// responseStores returns the configuration of a model with four servers that keep their responses.
func responseStores(t *testing.T, mode, strategy string) (config string) {
	config = "models:\n  - name: m\n    launcher: upstream\n    stream: {mode: " + mode + "}\n    admission: {max_per_replica: 16}\n" +
		"    routing: {strategy: " + strategy + "}\n    upstreams:\n"
	for n := range 4 {
		s := &responseStore{known: map[string]bool{}, name: fmt.Sprint("s", n)}
		config += fmt.Sprintf("      - {url: %q}\n", harness.StartUpstream(t, s.ServeHTTP))
	}
	return config
}

// converse continues a response four times and returns the replica that served all five requests.
// With the mode managed each request has an id of the client, so that it is managed even if it does
// not stream.
func converse(g *harness.Gateway, topic, mode string) (home string) {
	g.T.Helper()
	previous := ""
	for turn := range 5 {
		name := fmt.Sprint(topic, " of turn ", turn)
		body := map[string]any{"model": "m", "instructions": strings.Repeat(name+" ", 20), "input": "And then?", "stream": turn%2 == 0}
		headers := []string{"Accept-Encoding: gzip"}
		if mode == "managed" {
			headers = append(headers, "Idempotency-Key: "+name)
		}
		if previous != "" {
			body["previous_response_id"] = previous
		}
		b, _ := json.Marshal(body)
		a := g.Post("/v1/responses", string(b), headers...)
		now := a.Header.Get("X-Sluice-Replica")
		if turn == 0 {
			home = now
		}
		if a.StatusCode != 200 || now != home {
			g.T.Fatalf("turn %d of %s went to %s and not to %s: %s", turn, topic, now, home, a)
		}
		previous = responseID(g.T, a)
		if mode == "native" {
			awaitSession(g, previous)
		}
	}
	return home
}

// awaitSession waits until the gateway would continue the response where it is. Of a native
// response the gateway learns while the client reads it.
func awaitSession(g *harness.Gateway, previous string) {
	g.T.Helper()
	body := fmt.Sprintf(`{"model":"m","input":"And then?","previous_response_id":%q}`, previous)
	harness.Eventually(g.T, "the response is known", func() error {
		answer, err := http.Post(g.Admin+"/api/v1/models/m/pick?tenant=anyone", "application/json", strings.NewReader(body))
		if err != nil {
			return err
		}
		defer answer.Body.Close()
		var p picked
		if err := json.NewDecoder(answer.Body).Decode(&p); err != nil || p.Reason != "session" {
			return fmt.Errorf("%v: %s", err, p.Why)
		}
		return nil
	})
}

func responseID(t *testing.T, a *harness.Answer) string {
	t.Helper()
	from := a.Content
	if strings.HasPrefix(a.Header.Get("content-type"), "text/event-stream") {
		events, err := harness.ReadEvents(strings.NewReader(string(a.Content)))
		if err != nil && err != io.EOF {
			t.Fatalf("%v: %s", err, a.Content)
		}
		first := slices.IndexFunc(events, func(e harness.Event) bool { return e.Data != "" }) // heartbeats may come before
		var event struct{ Response json.RawMessage }
		if first < 0 || json.Unmarshal([]byte(events[first].Data), &event) != nil {
			t.Fatalf("no first event: %s", a.Content)
		}
		from = event.Response
	}
	var response struct{ ID string }
	if err := json.Unmarshal(from, &response); err != nil || response.ID == "" {
		t.Fatalf("%v: %s", err, a.Content)
	}
	return response.ID
}
