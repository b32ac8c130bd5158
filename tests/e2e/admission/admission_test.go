package admission

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sluice-gateway/sluice/authz"
	"github.com/sluice-gateway/sluice/internal/testutil"
	"github.com/sluice-gateway/sluice/tests/e2e/harness"
)

// tenantsOf returns a configuration with one tenant and key for each name, and the Authorization
// headers by name. The value of a name is more fields of its tenant.
func tenantsOf(names map[string]string) (config string, headers map[string]string) {
	headers = map[string]string{}
	config = "\nauth: {mode: keys}\ntenants:\n"
	for name, more := range names {
		key := authz.NewKey()
		config += fmt.Sprintf("  - {name: %s, keys: [%q]%s}\n", name, key.Hash, more)
		headers[name] = "Authorization: Bearer " + key.Secret
	}
	return config, headers
}

const oneSlot = `
models:
  - name: m
    launcher: upstream
    upstreams: [%s]
    admission: {max_per_replica: 1, max_queue: %d}
`

func TestE2E_S11_TenantsShareByWeightHoweverManyTheyAsk(t *testing.T) {
	t.Parallel()
	up := harness.StartSerialUpstream(t)
	tenants, key := tenantsOf(map[string]string{"heavy": ", weight: 3", "light": ", weight: 1"})
	g := harness.Start(t, tenants+fmt.Sprintf(oneSlot, up.URL, 1000))
	var callers sync.WaitGroup
	ask := func(tenant string) {
		callers.Go(func() {
			a, err := g.TryPost(context.Background(), "/v1/completions", `{"model":"m","max_tokens":100,"prompt":"`+tenant+`"}`, key[tenant])
			if err != nil || a.StatusCode != 200 {
				t.Errorf("%s: %v %v", tenant, a, err)
			}
		})
	}
	// The light one floods, the heavy one asks a quarter as often; both always have something
	// waiting for the first 40.
	for range 120 {
		ask("light")
	}
	g.AwaitQueued("m", 119)
	for range 30 {
		ask("heavy")
	}
	g.AwaitQueued("m", 149)
	for range 150 {
		up.Next <- struct{}{}
	}
	callers.Wait()
	heavy := 0
	for _, name := range up.Served()[1:33] { // the first one found the slot free
		if name == "heavy" {
			heavy++
		}
	}
	if heavy < 22 || heavy > 26 {
		t.Errorf("the heavy tenant had %d of the first 32 turns, its share is 3 of 4: %v", heavy, up.Served())
	}
	g.AwaitIdle("m")
}

func TestE2E_S11_EqualTenantsAreServedAlike(t *testing.T) {
	t.Parallel()
	up := harness.StartSerialUpstream(t)
	tenants, key := tenantsOf(map[string]string{"one": "", "two": "", "three": "", "flood": ""})
	g := harness.Start(t, tenants+fmt.Sprintf(oneSlot, up.URL, 400))
	var callers sync.WaitGroup
	ctx, leave := context.WithCancel(context.Background())
	defer leave()
	for tenant, n := range map[string]int{"one": 20, "two": 20, "three": 20, "flood": 300} {
		for range n {
			callers.Go(func() {
				g.TryPost(ctx, "/v1/completions", `{"model":"m","max_tokens":100,"prompt":"`+tenant+`"}`, key[tenant])
			})
		}
	}
	g.AwaitQueued("m", 359)
	for range 80 {
		up.Next <- struct{}{}
	}
	harness.Eventually(t, "80 are served", func() error {
		if n := len(up.Served()); n < 80 {
			return fmt.Errorf("%d", n)
		}
		return nil
	})
	leave()
	callers.Wait()
	served := map[string]float64{}
	for _, name := range up.Served()[:80] {
		served[name]++
	}
	var sum, squares float64
	for _, n := range served {
		sum += n
		squares += n * n
	}
	if jain := sum * sum / (4 * squares); jain < 0.98 || math.IsNaN(jain) {
		t.Errorf("Jain's index is %.3f: %v", jain, served)
	}
	g.AwaitIdle("m")
}

func TestE2E_S11_PriorityOvertakesAndEvicts(t *testing.T) {
	t.Parallel()
	up := harness.StartSerialUpstream(t)
	tenants, key := tenantsOf(map[string]string{"people": ", priority: interactive", "night": ", priority: batch"})
	g := harness.Start(t, tenants+fmt.Sprintf(oneSlot, up.URL, 3))
	answers := make(chan *harness.Answer, 10)
	ask := func(tenant, prompt string, more ...string) {
		answer := g.PostLater("/v1/completions", `{"model":"m","prompt":"`+prompt+`"}`, append(more, key[tenant])...)
		go func() { answers <- <-answer }()
	}
	ask("night", "first")
	harness.Eventually(t, "the slot is taken", func() error {
		if n := g.Model("m").InFlight; n != 1 {
			return fmt.Errorf("%d in flight", n)
		}
		return nil
	})
	ask("night", "old")
	g.AwaitQueued("m", 1)
	ask("night", "young")
	g.AwaitQueued("m", 2)
	ask("people", "urgent")
	g.AwaitQueued("m", 3)
	ask("people", "urgent2") // the queue is full: the youngest of the night makes way
	evicted := harness.Receive(t, answers, "a request is evicted")
	if evicted.StatusCode != 429 || evicted.Code() != "queue_full" || evicted.Header.Get("Retry-After") == "" {
		t.Errorf("evicted with %s", evicted)
	}
	ask("people", "modest", "X-Sluice-Priority: batch") // a client can lower its priority; it finds nobody below it
	if a := harness.Receive(t, answers, "the modest request is refused"); a.StatusCode != 429 || a.Code() != "queue_full" {
		t.Errorf("a request of low priority before a full queue: %s", a)
	}
	for range 4 {
		up.Next <- struct{}{}
		harness.Receive(t, answers, "a request is answered")
	}
	if got := strings.Join(up.Served(), " "); got != "first urgent urgent2 old" {
		t.Errorf("served in the order %s", got)
	}
	if a := g.Post("/v1/completions", `{"model":"m","prompt":"x"}`, "X-Sluice-Priority: highest", key["people"]); a.StatusCode != 400 {
		t.Errorf("a priority that is none: %s", a)
	}
	g.AwaitIdle("m")
}

// startUntilToken starts an upstream with the model m. Its headers come at once, the first token
// when the test says so, and the end when the client leaves.
func startUntilToken(t *testing.T) (up string, tokens chan struct{}) {
	tokens = make(chan struct{}, 10)
	return harness.StartUpstream(t, func(w http.ResponseWriter, r *http.Request) {
		if harness.ServeModelList(w, r, "m") {
			return
		}
		io.Copy(io.Discard, r.Body)
		w.Header().Set("Content-Type", "text/event-stream")
		w.(http.Flusher).Flush()
		select {
		case <-tokens:
			io.WriteString(w, "data: {\"choices\":[{\"text\":\"token\"}]}\n\n")
			w.(http.Flusher).Flush()
			<-r.Context().Done()
		case <-r.Context().Done():
		}
	}), tokens
}

// TestE2E_S11_PrefillIsCappedUntilTheFirstToken: a tenant, and a replica, have only so many
// requests without a token. One more may go when one of them has its first token.
func TestE2E_S11_PrefillIsCappedUntilTheFirstToken(t *testing.T) {
	t.Parallel()
	for name, caps := range map[string][2]string{"tenant": {", limits: {max_prefill: 2}", ""}, "replica": {"", ", max_prefill_per_replica: 2"}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			checkPrefillIsCapped(t, caps[0], caps[1])
		})
	}
}

func checkPrefillIsCapped(t *testing.T, ofTenant, ofReplica string) {
	t.Helper()
	up, tokens := startUntilToken(t)
	tenants, key := tenantsOf(map[string]string{"acme": ofTenant})
	g := harness.Start(t, tenants+fmt.Sprintf("models: [{name: m, launcher: upstream, upstreams: [%s], admission: {max_per_replica: 10%s}}]\n", up, ofReplica))
	ctx, leave := context.WithCancel(context.Background())
	defer leave()
	var callers sync.WaitGroup
	for range 3 {
		callers.Go(func() {
			if r, err := g.Open(ctx, "/v1/completions", `{"model":"m","stream":true,"prompt":"x"}`, key["acme"]); err == nil {
				io.Copy(io.Discard, r.Body)
				r.Body.Close()
			}
		})
	}
	g.AwaitQueued("m", 1)
	if n := g.Model("m").InFlight; n != 2 {
		t.Errorf("%d in prefill, two may be", n)
	}
	tokens <- struct{}{}
	g.AwaitQueued("m", 0)
	if n := g.Model("m").InFlight; n != 3 {
		t.Errorf("%d in flight: one decodes, two are in prefill", n)
	}
	leave()
	callers.Wait()
	g.AwaitIdle("m")
}

// TestE2E_S11_AKeyHasAPriority: a key may have a lower priority than its tenant. A request with it
// waits behind those of the tenant's other keys.
func TestE2E_S11_AKeyHasAPriority(t *testing.T) {
	t.Parallel()
	up := harness.StartSerialUpstream(t)
	usual, night := authz.NewKey(), authz.NewKey()
	g := harness.Start(t, fmt.Sprintf("\nauth: {mode: keys}\ntenants: [{name: acme, keys: [%q, {hash: %q, priority: batch}]}]\n", usual.Hash, night.Hash)+
		fmt.Sprintf(oneSlot, up.URL, 10))
	var answers []<-chan *harness.Answer
	for i, request := range []struct{ prompt, key string }{{"first", usual.Secret}, {"night", night.Secret}, {"day", usual.Secret}} {
		answers = append(answers, g.PostLater("/v1/completions", `{"model":"m","prompt":"`+request.prompt+`"}`, "Authorization: Bearer "+request.key))
		g.AwaitModel("m", request.prompt+" is there", func(m harness.Model) bool { return m.InFlight+m.Queued == i+1 })
	}
	for range answers {
		up.Next <- struct{}{}
	}
	for _, answer := range answers {
		if a := harness.Receive(t, answer, "a request is answered"); a.StatusCode != 200 {
			t.Error(a)
		}
	}
	if got := strings.Join(up.Served(), " "); got != "first day night" {
		t.Errorf("served in the order %s", got)
	}
}

func TestE2E_S11_WaitingBodiesOfATenantAreBounded(t *testing.T) {
	t.Parallel()
	up := harness.StartSerialUpstream(t)
	tenants, key := tenantsOf(map[string]string{"wide": ", limits: {max_queue_bytes: 64KiB}", "slim": ""})
	g := harness.Start(t, tenants+fmt.Sprintf(oneSlot, up.URL, 100))
	var callers sync.WaitGroup
	body := `{"model":"m","prompt":"x ` + strings.Repeat("y", 40<<10) + `"}`
	ask := func(tenant string) {
		callers.Go(func() {
			if a, err := g.TryPost(context.Background(), "/v1/completions", body, key[tenant]); err != nil || a.StatusCode != 200 {
				t.Errorf("%s: %v %v", tenant, a, err)
			}
		})
	}
	ask("slim")
	harness.Eventually(t, "the slot is taken", func() error {
		if n := g.Model("m").InFlight; n != 1 {
			return fmt.Errorf("%d in flight", n)
		}
		return nil
	})
	ask("wide")
	g.AwaitQueued("m", 1)
	if a := g.Post("/v1/completions", body, key["wide"]); a.StatusCode != 429 || a.Code() != "queue_full" || a.Header.Get("Retry-After") == "" {
		t.Errorf("40 KiB more for a tenant whose waiting requests may hold 64: %s", a)
	}
	ask("slim")
	g.AwaitQueued("m", 2)
	for range 3 {
		up.Next <- struct{}{}
	}
	callers.Wait()
	g.AwaitIdle("m")
}

func TestE2E_S14_TenantsAreLimited(t *testing.T) {
	t.Parallel()
	tenants, key := tenantsOf(map[string]string{
		"few":  ", limits: {requests_per_minute: 3}",
		"thin": ", limits: {max_concurrent_streams: 2}",
		"poor": ", limits: {tokens_per_minute: 2000}",
		"free": "",
	})
	g := harness.Start(t, tenants+harness.SlowSims)
	limited := func(a *harness.Answer) time.Duration {
		t.Helper()
		after, err := strconv.Atoi(a.Header.Get("Retry-After"))
		if a.StatusCode != 429 || a.Code() != "rate_limited" || err != nil || after < 1 {
			t.Fatalf("want 429 rate_limited with Retry-After: %s, %v", a, a.Header)
		}
		return time.Duration(after) * time.Second
	}
	t.Run("requests", func(t *testing.T) {
		began := time.Now()
		for i := range 3 {
			a := g.Post("/v1/chat/completions", harness.ChatBody("chat", false, 1, "Hello"), key["few"])
			if a.StatusCode != 200 || a.Header.Get("X-Ratelimit-Limit-Requests") != "3" ||
				a.Header.Get("X-Ratelimit-Remaining-Requests") != fmt.Sprint(2-i) || a.Header.Get("X-Ratelimit-Reset-Requests") == "" {
				t.Fatalf("request %d: %s %v", i, a, a.Header)
			}
		}
		a := g.Post("/v1/chat/completions", harness.ChatBody("chat", false, 1, "Hello"), key["few"])
		// It is less by the time that the four requests have taken.
		if after := limited(a); after < 15*time.Second-time.Since(began) || after > 30*time.Second {
			t.Errorf("Retry-After %v: one request comes every 20 s", after)
		}
		if a.Header.Get("X-Ratelimit-Remaining-Requests") != "0" {
			t.Errorf("headers of the refusal: %v", a.Header)
		}
	})
	t.Run("streams", func(t *testing.T) {
		ctx, leave := context.WithCancel(context.Background())
		defer leave()
		for range 2 {
			r, err := g.Open(ctx, "/v1/chat/completions", harness.ChatBody("chat", true, 10_000, "Hello"), key["thin"])
			if err != nil || r.StatusCode != 200 {
				t.Fatal(r, err)
			}
			defer r.Body.Close()
		}
		limited(g.Post("/v1/chat/completions", harness.ChatBody("chat", true, 1, "Hello"), key["thin"]))
		if a := g.Post("/v1/chat/completions", harness.ChatBody("chat", false, 1, "Hello"), key["free"]); a.StatusCode != 200 || a.Header.Get("X-Ratelimit-Limit-Requests") != "" {
			t.Errorf("another tenant: %s %v", a, a.Header)
		}
		leave()
		harness.Eventually(t, "the streams are free again", func() error {
			if a := g.Post("/v1/chat/completions", harness.ChatBody("chat", true, 1, "Hello"), key["thin"]); a.StatusCode != 200 {
				return fmt.Errorf("%s", a)
			}
			return nil
		})
	})
	t.Run("tokens", func(t *testing.T) {
		a := g.Post("/v1/chat/completions", harness.ChatBody("chat", false, 5, "Hello"), key["poor"])
		if left, err := strconv.Atoi(a.Header.Get("X-Ratelimit-Remaining-Tokens")); a.StatusCode != 200 || err != nil || left < 1900 || left >= 2000 {
			t.Fatalf("a small request: %s %v", a, a.Header)
		}
		if a := g.Post("/v1/chat/completions", harness.ChatBody("chat", false, 5, strings.Repeat("long ", 2000)), key["poor"]); a.StatusCode != 400 {
			t.Errorf("a prompt that can never fit: %s", a)
		}
		var last *harness.Answer
		for range 100 {
			if last = g.Post("/v1/chat/completions", harness.ChatBody("chat", false, 5, strings.Repeat("long ", 400)), key["poor"]); last.StatusCode != 200 {
				break
			}
		}
		limited(last)
	})
}

func TestE2E_W3_UsageSettlesTheEstimate(t *testing.T) {
	t.Parallel()
	// An engine whose requests cost far fewer tokens than their bytes look like, and that says so.
	const usage = `"usage":{"prompt_tokens":10,"completion_tokens":10,"total_tokens":20}`
	up := harness.StartUpstream(t, func(w http.ResponseWriter, r *http.Request) {
		var body struct{ Stream bool }
		if harness.ServeModelList(w, r, "m") || json.NewDecoder(r.Body).Decode(&body) != nil {
			return
		}
		if !body.Stream {
			w.Header().Set("Content-Type", "application/json")
			io.WriteString(w, `{"choices":[{"text":"ok"}],`+usage+`}`)
			return
		}
		w.Header().Set("Content-Type", "text/event-stream")
		io.WriteString(w, "data: {\"choices\":[{\"text\":\"ok\"}]}\n\ndata: {\"choices\":[],"+usage+"}\n\ndata: [DONE]\n\n")
	})
	g := harness.Start(t, fmt.Sprintf(`
models: [{name: m, launcher: upstream, upstreams: [%s], admission: {max_tokens_per_minute: 1400, queue_timeout: 50ms}}]
`, up))
	// Each looks like 4,000 bytes / 4 + 256 tokens at first, and still like hundreds when the first
	// have taught better. Uncorrected, the bucket would need minutes for all of them.
	deadline := time.Now().Add(testutil.Patience)
	for i := range 16 {
		body := fmt.Sprintf(`{"model":"m","stream":%v,"prompt":%q}`, i%2 == 0, strings.Repeat("word ", 800))
		for {
			a := g.Post("/v1/completions", body)
			if a.StatusCode == 200 {
				break
			}
			if a.StatusCode != 429 || time.Now().After(deadline) {
				t.Fatalf("request %d: %s", i, a)
			}
			time.Sleep(20 * time.Millisecond) // the correction comes with Envoy's log
		}
	}
	harness.Eventually(t, "the tokens that Envoy has read out of the answers are counted", func() error {
		if text := g.AdminText("/metrics"); !strings.Contains(text, `sluice_tokens_total{kind="completion",model="m",tenant="anyone"} 160`) {
			return fmt.Errorf("%s", text)
		}
		return nil
	})
}

func TestE2E_W7_PoolsPickAModelAndFallOver(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	got := map[string][]string{}
	engine := func(name string) string {
		return harness.StartUpstream(t, func(w http.ResponseWriter, r *http.Request) {
			if harness.ServeModelList(w, r, name) {
				return
			}
			body, err := io.ReadAll(r.Body)
			mu.Lock()
			got[name] = append(got[name], string(body))
			mu.Unlock()
			if err != nil || int64(len(body)) != r.ContentLength {
				http.Error(w, "length", 500)
				return
			}
			io.WriteString(w, `{"choices":[{"text":"ok"}]}`)
		})
	}
	up := harness.StartHeldUpstream(t)
	g := harness.Start(t, fmt.Sprintf(`
models:
  - {name: small, launcher: upstream, upstreams: [%s], admission: {weight: 1, max_per_replica: 4}}
  - {name: a-model-with-a-long-name, launcher: upstream, upstreams: [%s], admission: {weight: 3, max_per_replica: 4}}
  - {name: m, launcher: upstream, upstreams: [%s], admission: {max_per_replica: 1}}
pools:
  - {name: auto, models: [small, a-model-with-a-long-name]}
  - {name: spare, models: [m, small]}
`, engine("small"), engine("a-model-with-a-long-name"), up.URL))
	body := func(model string) string {
		return `{"prompt": "x",  "model" : "` + model + `", "max_tokens": 100, "note": "ünïcode"}`
	}
	for range 40 {
		if a := g.Post("/v1/completions", body("auto")); a.StatusCode != 200 {
			t.Fatal(a)
		}
	}
	for name, bodies := range got {
		for _, b := range bodies {
			if b != body(name) {
				t.Fatalf("%s got %s", name, b)
			}
		}
	}
	if n := len(got["small"]); n < 8 || n > 12 {
		t.Errorf("small has had %d of 40, its weight is 1 of 4", n)
	}
	// m is busy: the pool goes on with the other.
	ctx, leave := context.WithCancel(context.Background())
	defer leave()
	r, err := g.Open(ctx, "/v1/completions", `{"model":"m","prompt":"x","stream":true}`)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	before := len(got["small"])
	for range 10 {
		if a := g.Post("/v1/completions", body("spare")); a.StatusCode != 200 {
			t.Fatal(a)
		}
	}
	if n := len(got["small"]) - before; n != 10 {
		t.Errorf("%d of 10 went to the model that has room", n)
	}
	if list := string(g.Fetch("/v1/models").Content); !strings.Contains(list, `"id":"auto"`) {
		t.Errorf("the pool is not listed: %s", list)
	}
}

func TestE2E_W7_ARequestOfATaskIsNotAdmittedAgain(t *testing.T) {
	t.Parallel()
	g := harness.Start(t, strings.Replace(harness.SlowSims, "variables:", "admission: {max_concurrent_requests: 1, queue_timeout: 200ms}\n    variables:", 1))
	task := admitTask(g, `{"estimated_tokens": 50}`)
	if a := g.Post("/v1/chat/completions", harness.ChatBody("chat", false, 1, "Hello")); a.StatusCode != 503 {
		t.Errorf("the task holds the only place; a request beside it: %s", a)
	}
	for range 2 {
		a := g.Post("/v1/chat/completions", harness.ChatBody("chat", false, 1, "Hello"), "X-Sluice-Task-Id: "+task.Task)
		if a.StatusCode != 200 {
			t.Errorf("the task's own request: %s", a)
		}
	}
	if a := completeTask(g, task.Task); a.StatusCode != 200 {
		t.Error(a)
	}
	if a := g.Post("/v1/chat/completions", harness.ChatBody("chat", false, 1, "Hello"), "X-Sluice-Task-Id: "+task.Task); a.StatusCode != 400 {
		t.Errorf("with a task that is over: %s", a)
	}
	g.AwaitIdle("chat")
}

// patchLimits changes limits on the admin listener.
func patchLimits(g *harness.Gateway, path, body string) *harness.Answer {
	g.T.Helper()
	req, err := http.NewRequest(http.MethodPatch, g.Admin+path, strings.NewReader(body))
	if err != nil {
		g.T.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	return g.Do(http.DefaultClient, req)
}

func TestE2E_W2_LimitsChangeAtRunTime(t *testing.T) {
	t.Parallel()
	g := harness.Start(t, twoUpstreams)
	if a := patchLimits(g, "/api/v1/models/b/limits", `{"max_concurrent_requests": 2, "max_tokens_per_minute": null}`); a.StatusCode != 200 {
		t.Fatal(a)
	}
	one, two := admitTask(g, `{"estimated_tokens": 1, "model": "b"}`), admitTask(g, `{"estimated_tokens": 1, "model": "b"}`)
	if d := scheduleTask(g, `{"estimated_tokens": 1, "model": "b"}`); d.Wait == nil {
		t.Errorf("a third task: %+v", d)
	}
	limit := func() any {
		var limits map[string]any
		g.Get("/api/v1/models/b/limits", &limits)
		return limits["max_concurrent_requests"]
	}
	// A restart keeps it.
	g.Kill()
	g.Launch()
	g.AwaitReady()
	if limit() != 2.0 {
		t.Errorf("after a crash the limit is %v", limit())
	}
	// A change of the file for another field leaves it, one for this field wins.
	g.Configure(strings.Replace(twoUpstreams, "max_tokens_per_minute: 1000}", "max_tokens_per_minute: 2000}", 1))
	harness.Eventually(t, "the file is read", func() error {
		var limits map[string]any
		if g.Get("/api/v1/models/b/limits", &limits); limits["max_tokens_per_minute"] != 2000.0 {
			return fmt.Errorf("%v", limits)
		}
		return nil
	})
	if limit() != 2.0 {
		t.Errorf("after a change of another field the limit is %v", limit())
	}
	g.Configure(strings.Replace(twoUpstreams, "max_concurrent_requests: 1,", "max_concurrent_requests: 3,", 1))
	harness.Eventually(t, "the file wins", func() error {
		if limit() != 3.0 {
			return fmt.Errorf("%v", limit())
		}
		return nil
	})
	for _, d := range []decision{one, two} {
		completeTask(g, d.Task)
	}
	for _, body := range []string{`{"max_concurrent_requests": -1}`, `{"max_queue": 5}`, `{"nothing": 1}`, `{`} {
		if a := patchLimits(g, "/api/v1/models/b/limits", body); a.StatusCode != 400 {
			t.Errorf("%s: %s", body, a)
		}
	}
	if a := patchLimits(g, "/api/v1/models/nope/limits", `{"weight": 2}`); a.StatusCode != 404 {
		t.Error(a)
	}
}

func TestE2E_W2_TenantsLimitsChangeAtRunTime(t *testing.T) {
	t.Parallel()
	tenants, key := tenantsOf(map[string]string{"acme": ", limits: {requests_per_minute: 1}"})
	g := harness.Start(t, tenants+harness.SlowSims)
	ask := func() int {
		return g.Post("/v1/chat/completions", harness.ChatBody("chat", false, 1, "Hello"), key["acme"]).StatusCode
	}
	if first, second := ask(), ask(); first != 200 || second != 429 {
		t.Fatalf("one request a minute: %d, %d", first, second)
	}
	if a := patchLimits(g, "/api/v1/tenants/acme/limits", `{"requests_per_minute": 0}`); a.StatusCode != 200 {
		t.Fatal(a)
	}
	if status := ask(); status != 200 {
		t.Errorf("without the limit: %d", status)
	}
	if a := patchLimits(g, "/api/v1/tenants/acme/limits", `{"requests_per_minute": null}`); a.StatusCode != 200 || !strings.Contains(string(a.Content), `"requests_per_minute":1`) {
		t.Errorf("back to the file's: %s", a)
	}
}
