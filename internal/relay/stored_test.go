package relay

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sluice-gateway/sluice/admission"
	"github.com/sluice-gateway/sluice/internal/headers"
	"github.com/sluice-gateway/sluice/internal/request"
	"github.com/sluice-gateway/sluice/internal/testutil"
)

// A stored response is read at the replica that has given it, by its tenant alone. A model with
// moderation rules serves none, because nothing would moderate it.
func TestR7_StoredResponses(t *testing.T) {
	for _, rules := range [][]Moderation{nil, literalRule("secret")} {
		h := newHarness(t, options{replicas: 2, rules: rules, handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("content-type", "application/json")
			io.WriteString(w, `{"id":"resp_1","object":"response","asked":"`+r.Method+" "+r.URL.Path+`","tenant":"`+r.Header.Get(headers.Tenant)+`"}`)
		})})
		if status, text := h.postFor("/v1/responses", false); status != 200 {
			t.Fatalf("%d %s", status, text)
		}
		want, status := `"asked":"GET /v1/responses/resp_1","tenant":""`, 200
		if rules != nil {
			want, status = "Moderation rules apply", 400
		}
		h.getStored("acme", status, want)
		h.getStored("stranger", 404, `"code":"response_not_found"`)
	}
}

// Each path below /v1/responses/ is that of a stored response, unless it names another call.
func TestR7_CallsOfStoredResponses(t *testing.T) {
	h := newHarness(t, options{replicas: 1})
	for path, want := range map[string]int{
		"/v1/responses/resp_1": 405, "/v1/responses/resp_1/cancel": 404, "/v1/responses/input%5Ftokens": 405, "/v1/responses/a/b": 404,
	} {
		response, err := http.Post(h.url+path, "application/json", strings.NewReader(`{"model":"m","input":"x"}`))
		if err != nil {
			t.Fatal(err)
		}
		response.Body.Close()
		if response.StatusCode != want {
			t.Errorf("%s: %d, want %d", path, response.StatusCode, want)
		}
	}
}

// An engine that wants to change the protocol has not answered. The client is told so.
func TestR7_NoProtocolSwitchForAStoredResponse(t *testing.T) {
	h := newHarness(t, options{handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodGet {
			w.Header().Set("connection", "upgrade")
			w.Header().Set("upgrade", "other")
			w.WriteHeader(http.StatusSwitchingProtocols)
			return
		}
		w.Header().Set("content-type", "application/json")
		io.WriteString(w, `{"id":"resp_1","object":"response"}`)
	})})
	if status, text := h.postFor("/v1/responses", false); status != 200 {
		t.Fatalf("%d %s", status, text)
	}
	h.getStored("acme", 502, "wants to change the protocol")
}

// A model with moderation rules generates no response in the background that its client could not
// read. The events of a stream are moderated.
func TestR7_NoModeratedResponseInTheBackground(t *testing.T) {
	var asked atomic.Int32
	h := newHarness(t, options{rules: literalRule("secret"), handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		asked.Add(1)
		writeEvents(w, `data: {"type":"response.completed","sequence_number":0,"response":{"id":"resp_1","status":"completed","output":[]}}`+"\n\n")
	})})
	status, text := h.postBody("/v1/responses", "application/json", []byte(`{"model":"m","input":"x","background":true}`))
	if status != 400 || !strings.Contains(text, `"param":"background"`) || asked.Load() > 0 {
		t.Errorf("%d %s, and the engine was asked %d times", status, text, asked.Load())
	}
	status, text = h.postBody("/v1/responses", "application/json", []byte(`{"model":"m","input":"x","background":true,"stream":true}`))
	if status != 200 || !strings.Contains(text, "response.completed") {
		t.Errorf("%d %s", status, text)
	}
}

// A request that continues a response is tried at the replica of that response alone: any other one
// would answer that there is no such response.
func TestR7_APinnedCallStaysAtItsReplica(t *testing.T) {
	var mu sync.Mutex
	var asked []string
	h := newHarness(t, options{replicas: 2, handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		asked = append(asked, r.Host)
		w.Header().Set("content-type", "application/json")
		if len(asked) > 1 {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
		io.WriteString(w, `{"id":"resp_1","object":"response","error":{"message":"too busy"}}`)
	})})
	if status, text := h.postFor("/v1/responses", false); status != 200 {
		t.Fatalf("%d %s", status, text)
	}
	body := `{"model":"m","input":"x","previous_response_id":"resp_1"}`
	if status, text := h.postBody("/v1/responses", "application/json", []byte(body)); status != 503 || !strings.Contains(text, "too busy") {
		t.Errorf("%d %s", status, text)
	}
	mu.Lock()
	defer mu.Unlock()
	if len(asked) != 2 || asked[0] != asked[1] || len(h.retries) > 0 {
		t.Errorf("asked %q, retries for %q", asked, h.retries)
	}
}

// The client of a response in the background is told its id before the first token, and can come
// back to it from then on. No other replica generates the response again. A response that is not in
// the background begins with its first token, because another replica may take over until then.
func TestR7_TheIDOfABackgroundResponseComesAtOnce(t *testing.T) {
	for _, background := range []bool{true, false} {
		fail := make(chan struct{})
		h := newHarness(t, options{replicas: 2, policy: Policy{TTFTTimeout: time.Minute}, handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.Method == http.MethodGet {
				w.Header().Set("content-type", "application/json")
				io.WriteString(w, `{"id":"resp_1","status":"queued"}`)
				return
			}
			w.Header().Set("content-type", "text/event-stream")
			io.WriteString(w, `data: {"type":"response.created","sequence_number":0,"response":{"id":"resp_1","status":"queued","output":[]}}`+"\n\n")
			_ = http.NewResponseController(w).Flush()
			select {
			case <-fail:
			case <-r.Context().Done():
			}
		})})
		if !background {
			close(fail)
			if status, text := h.postBody("/v1/responses", "application/json", []byte(`{"model":"m","input":"x","stream":true}`)); status != 502 || len(h.retries) != 1 {
				t.Errorf("%d %s, retries for %q", status, text, h.retries)
			}
			continue
		}
		response := h.open("/v1/responses", "application/json", []byte(`{"model":"m","input":"x","stream":true,"background":true}`))
		defer response.Body.Close()
		events := bufio.NewReader(response.Body)
		if line, err := events.ReadString('\n'); err != nil || !strings.Contains(line, `"resp_1"`) {
			t.Fatalf("%v: %q", err, line)
		}
		h.getStored("acme", 200, "queued")
		close(fail)
		rest, err := io.ReadAll(events)
		if err != nil || !strings.Contains(string(rest), `"type":"response.failed"`) || !strings.Contains(string(rest), "upstream_truncated") || len(h.retries) > 0 {
			t.Errorf("%v, retries for %q: %s", err, h.retries, rest)
		}
	}
}

// TestX2_AResponseInTheBackgroundCostsWhatItHasUsed: whoever reads the response first after its end
// lets its engine tell the usage. The request is then charged that instead of its estimate, once.
func TestX2_AResponseInTheBackgroundCostsWhatItHasUsed(t *testing.T) {
	const ended = `{"id":"resp_1","object":"response","status":"completed","usage":{"input_tokens":1000,"output_tokens":30000,"total_tokens":31000}}`
	for name, asked := range map[string]struct{ media, text string }{
		"a document": {"application/json", ended},
		"events":     {"text/event-stream", `data: {"type":"response.completed","sequence_number":9,"response":` + ended + "}\n\n"},
	} {
		var done atomic.Bool
		h := newHarness(t, options{limits: admission.Limits{TokensPerMinute: 100_000}, handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("content-type", "application/json")
			if r.Method == http.MethodPost || !done.Load() {
				io.WriteString(w, `{"id":"resp_1","object":"response","status":"queued","usage":null}`)
				return
			}
			w.Header().Set("content-type", asked.media)
			io.WriteString(w, asked.text)
		})})
		h.postBody("/v1/responses", "application/json", []byte(`{"model":"m","input":"x","background":true}`))
		charged := func() float64 { return 100_000 - h.admission.Stats("m").Tokens }
		estimate := h.result(1).Usage
		h.getStored("acme", 200, "queued")
		if now := charged(); now > 1000 || estimate.Known || estimate.Completion == 0 {
			t.Errorf("%s: %+v, and %v tokens are charged at first", name, estimate, now)
		}
		done.Store(true)
		h.getStored("stranger", 404, "response_not_found")
		var used []request.Usage
		h.result(1).Late.Await(func(u request.Usage) { used = append(used, u) })
		h.getStored("acme", 200, `"completed"`)
		h.getStored("acme", 200, `"completed"`)
		if now := charged(); now < 25_000 || now > 31_000 { // the bucket fills meanwhile
			t.Errorf("%s: %v tokens are charged in the end", name, now)
		}
		if len(used) != 1 || !used[0].Known || used[0].Prompt != 1000 || used[0].Completion != 30_000 {
			t.Errorf("%s: told %+v", name, used)
		}
	}
}

// getStored asks for the stored response of a tenant.
func (h *harness) getStored(tenant string, status int, want string) {
	h.t.Helper()
	get, err := http.NewRequestWithContext(h.t.Context(), http.MethodGet, h.url+"/v1/responses/resp_1", http.NoBody)
	if err != nil {
		h.t.Fatal(err)
	}
	get.Header.Set(headers.Tenant, tenant)
	response, err := http.DefaultTransport.RoundTrip(get)
	if err != nil {
		h.t.Fatal(err)
	}
	defer response.Body.Close()
	if text, err := io.ReadAll(response.Body); err != nil || response.StatusCode != status || !strings.Contains(string(text), want) {
		h.t.Errorf("%s: %v %d %s", tenant, err, response.StatusCode, text)
	}
}

// An engine that does not answer a request for a stored response, or not to the end, keeps nobody
// waiting for longer than the model's responses may take.
func TestR7_AStoredResponseHasAnEnd(t *testing.T) {
	for _, begins := range []bool{false, true} {
		h := newHarness(t, options{maxDuration: time.Second, handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("content-type", "application/json")
			if r.Method == http.MethodPost {
				io.WriteString(w, `{"id":"resp_1","object":"response"}`)
				return
			}
			if begins {
				io.WriteString(w, `{"id":`)
				_ = http.NewResponseController(w).Flush()
			}
			select {
			case <-r.Context().Done():
			case <-time.After(testutil.Patience): // it ends as if it were whole
			}
		})})
		if status, text := h.postFor("/v1/responses", false); status != 200 {
			t.Fatalf("%d %s", status, text)
		}
		if begins {
			get, _ := http.NewRequestWithContext(t.Context(), http.MethodGet, h.url+"/v1/responses/resp_1", http.NoBody)
			get.Header.Set(headers.Tenant, "acme")
			response, err := http.DefaultTransport.RoundTrip(get)
			if err != nil {
				t.Fatal(err)
			}
			if text, err := io.ReadAll(response.Body); err == nil {
				t.Errorf("the answer %q is said to be whole", text)
			}
			response.Body.Close()
		} else {
			h.getStored("acme", 504, "upstream_timeout")
		}
	}
}

// A client that neither reads a stored response nor leaves is cut off, and its replica is free.
func TestStoredResponseForAStalledClient(t *testing.T) {
	left := make(chan struct{})
	h := newHarness(t, options{write: 100 * time.Millisecond, handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPost {
			w.Header().Set("content-type", "application/json")
			io.WriteString(w, `{"id":"resp_1","object":"response"}`)
			return
		}
		defer close(left)
		for r.Context().Err() == nil {
			if _, err := w.Write(make([]byte, 64<<10)); err != nil {
				return
			}
		}
	})})
	if status, text := h.postFor("/v1/responses", false); status != 200 {
		t.Fatalf("%d %s", status, text)
	}
	client, err := net.Dial("tcp", strings.TrimPrefix(h.url, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	fmt.Fprintf(client, "GET /v1/responses/resp_1 HTTP/1.1\r\nHost: x\r\n%s: acme\r\n\r\n", headers.Tenant)
	select {
	case <-left:
	case <-time.After(testutil.Patience):
		t.Error("the replica still writes")
	}
}
