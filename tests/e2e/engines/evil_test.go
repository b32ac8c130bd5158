package engines

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"syscall"
	"testing"

	"github.com/sluice-gateway/sluice/tests/e2e/harness"
)

// sims is a configuration with the models m, worker (by gRPC) and strict, of two simulated
// replicas, and one, of one. unhealthy_on keeps a failing replica in rotation.
const sims = `
models:
  - name: m
    task: text-generation
    engine: sim
    launcher: local
    replicas: {min: 2, max: 2}
    variables: {prefill_rate: 0, token_interval: 0s}
    unhealthy_on: ["503"]
    routing: {strategy: round_robin}
  - name: worker
    task: text-generation
    engine: sim
    launcher: local
    protocol: grpc
    replicas: {min: 2, max: 2}
    variables: {prefill_rate: 0, token_interval: 0s}
    unhealthy_on: ["503"]
    routing: {strategy: round_robin}
  - name: one
    task: text-generation
    engine: sim
    launcher: local
    variables: {prefill_rate: 0, token_interval: 0s}
  - name: strict
    task: text-generation
    engine: sim
    launcher: local
    replicas: {min: 2, max: 2}
    variables: {prefill_rate: 0, token_interval: 0s}
    unhealthy_on: [connect]
    fail_over_on: []
    routing: {strategy: round_robin}
`

// setFault makes a replica have a fault until the next call.
func setFault(g *harness.Gateway, replica, fault string) {
	g.T.Helper()
	r, err := http.Post("http://"+g.Replicas()[replica].Address+"/sim/fault", "application/json", strings.NewReader(`{"fault":"`+fault+`"}`))
	if err != nil {
		g.T.Fatal(err)
	}
	r.Body.Close()
	if r.StatusCode != 200 {
		g.T.Fatalf("fault %s: %s", fault, r.Status)
	}
}

// candidate reports whether a new request to the model may go to the replica.
func candidate(g *harness.Gateway, model, replica string) bool {
	var pick struct {
		Order []struct {
			ID        string
			Candidate bool
		}
	}
	g.Get("/api/v1/models/"+model+"/pick?key=a", &pick)
	for _, r := range pick.Order {
		if r.ID == replica {
			return r.Candidate
		}
	}
	return false
}

// retries returns how many requests were tried again for this reason.
func retries(g *harness.Gateway, reason string) (n int) {
	for line := range strings.Lines(g.AdminText("/metrics")) {
		fmt.Sscanf(line, `stream_retries_total{reason="`+reason+`"} %d`, &n)
	}
	return n
}

// ways are requests that take the native way, streamed or not, and the managed one.
func ways(model string) map[string][]string {
	named := strings.Replace(harness.ChatBody(model, true, 5, "Hello"), "{", `{"request_id":"NAME",`, 1)
	return map[string][]string{
		"native":         {harness.ChatBody(model, false, 5, "Hello")},
		"native stream":  {harness.ChatBody(model, true, 5, "Hello")},
		"managed":        {strings.Replace(named, `"stream":true`, `"stream":false`, 1)},
		"managed stream": {named},
	}
}

// TestE2E_R9_AnotherReplicaAnswers: whatever a replica does in place of an answer, the client gets
// the answer of another one, on each way.
func TestE2E_R9_AnotherReplicaAnswers(t *testing.T) {
	t.Parallel()
	g := harness.Start(t, sims)
	g.AwaitReplicas("m", 2)
	n := 0
	for _, c := range []struct{ fault, reason string }{
		{"status=500", "5xx"}, {"status=502", "5xx"}, {"reset-before-headers", "reset"}, {"early-close", "reset"},
		{"endless-header", "reset"}, {"status=429:0", "429"}, {"status=503:0", "5xx"},
	} {
		setFault(g, "m-0", c.fault)
		for way, bodies := range ways("m") {
			before := retries(g, c.reason)
			send := func() {
				n++
				a := g.Post(harness.ChatPath, strings.Replace(bodies[0], "NAME", fmt.Sprint("n", n), 1))
				if a.StatusCode != 200 || a.Header.Get("X-Sluice-Replica") != "m-1" {
					t.Errorf("%s, %s: %s %v", c.fault, way, a, a.Header)
				}
			}
			for range 4 { // about half of them begin at the faulty one, as long as it is picked
				send()
			}
			if c.fault == "status=429:0" || c.fault == "status=503:0" {
				continue // the replica rests, or is suspended
			}
			harness.Eventually(t, c.fault+" is counted", func() error {
				now := retries(g, c.reason)
				if now >= before+2 {
					return nil
				}
				send()
				return fmt.Errorf("%s: %d retries for %s after %d", way, now, c.reason, before)
			})
		}
	}
	if retries(g, "429") == 0 {
		t.Error("nothing was tried again for a 429")
	}
}

// TestE2E_R9_RestAfter429: a replica that has said 429 gets no new request for a while. When all
// refuse, the client is told what the engine said and when to come back.
func TestE2E_R9_RestAfter429(t *testing.T) {
	t.Parallel()
	g := harness.Start(t, sims)
	g.AwaitReplicas("m", 2)
	setFault(g, "m-0", "status=429:60")
	harness.Eventually(t, "the replica rests", func() error {
		if a := g.Post(harness.ChatPath, harness.ChatBody("m", true, 5, "Hello")); a.StatusCode != 200 {
			t.Fatal(a)
		}
		if candidate(g, "m", "m-0") {
			return errors.New("it is picked")
		}
		return nil
	})
	if !candidate(g, "m", "m-1") {
		t.Error("the other one rests too")
	}
	for _, replica := range []string{"m-0", "m-1"} {
		setFault(g, replica, "status=429:7")
	}
	n := 0
	for way, bodies := range ways("m") {
		n++
		a := g.Post(harness.ChatPath, strings.Replace(bodies[0], "NAME", fmt.Sprint("r", n), 1))
		if a.StatusCode != 429 || a.Header.Get("Retry-After") != "7" || a.Header.Get("X-Sluice-Source") != "engine" ||
			!strings.Contains(string(a.Content), "simulated fault") {
			t.Errorf("%s: %s %v", way, a, a.Header)
		}
		if strings.HasPrefix(way, "managed") && a.Code() != "rate_limited" {
			t.Errorf("%s: %s", way, a)
		}
	}
}

// TestE2E_R9_OneReplica: a model's only replica is not asked again after a status, and a status
// that fail_over_on does not name is the client's.
func TestE2E_R9_OneReplica(t *testing.T) {
	t.Parallel()
	g := harness.Start(t, sims)
	g.AwaitReplicas("one", 1)
	g.AwaitReplicas("m", 2)
	setFault(g, "one-0", "status=429")
	for range 3 {
		before := g.Generations("one-0")
		if a := g.Post(harness.ChatPath, harness.ChatBody("one", false, 5, "Hello")); a.StatusCode != 429 || g.Generations("one-0") != before+1 {
			t.Errorf("%s, asked %d times", a, g.Generations("one-0")-before)
		}
	}
	if !candidate(g, "one", "one-0") {
		t.Error("the only replica rests")
	}
	g.AwaitReplicas("strict", 2)
	setFault(g, "strict-0", "status=500")
	for way, bodies := range ways("strict") {
		told := map[int]int{}
		for i := range 4 {
			told[g.Post(harness.ChatPath, strings.Replace(bodies[0], "NAME", fmt.Sprint(way, i), 1)).StatusCode]++
		}
		if told[500] != 2 || told[200] != 2 {
			t.Errorf("%s: %v", way, told)
		}
	}
}

// closing returns the replicas that are known to end responses by closing their connections.
func closing(g *harness.Gateway) map[string]bool {
	g.T.Helper()
	var list struct {
		Replicas []struct {
			ID             string
			CloseDelimited bool `json:"close_delimited"`
		}
	}
	g.Get("/api/v1/replicas", &list)
	all := map[string]bool{}
	for _, r := range list.Replicas {
		if r.CloseDelimited {
			all[r.ID] = true
		}
	}
	return all
}

// TestE2E_X6_CutsOfCloseDelimitedAnswers: a replica that ends its responses by closing is learned
// from its first one. From then on a cut is an error, though no byte on the wire says so, and
// before the first token another replica answers. A restart forgets what was learned.
func TestE2E_X6_CutsOfCloseDelimitedAnswers(t *testing.T) {
	t.Parallel()
	g := harness.Start(t, sims)
	g.AwaitReplicas("one", 1)
	g.AwaitReplicas("m", 2)
	plain, stream := harness.ChatBody("one", false, 5, "Hello"), harness.ChatBody("one", true, 5, "Hello")
	for range 3 {
		for _, body := range []string{plain, stream} {
			if a := g.Post(harness.ChatPath, body); a.StatusCode != 200 {
				t.Fatal(a)
			}
		}
	}
	if all := closing(g); len(all) > 0 {
		t.Fatalf("%v: their responses have a length", all)
	}
	for model, replica := range map[string]string{"one": "one-0", "m": "m-0"} {
		setFault(g, replica, "close")
		harness.Eventually(t, replica+" is learned", func() error {
			a := g.Post(harness.ChatPath, harness.ChatBody(model, false, 5, "Hello"))
			if a.StatusCode != 200 || !strings.HasSuffix(strings.TrimSpace(string(a.Content)), "}") {
				t.Fatal(a)
			}
			if all := closing(g); !all[replica] || all["m-1"] {
				return fmt.Errorf("%v", all)
			}
			return nil
		})
	}
	setFault(g, "one-0", "close,cut=0")
	if a := g.Post(harness.ChatPath, plain); a.StatusCode != 502 || a.Code() != "upstream_truncated" {
		t.Errorf("an answer that was cut: %s", a)
	}
	setFault(g, "one-0", "close,cut=4")
	if a := g.Post(harness.ChatPath, stream); a.StatusCode != 200 || !strings.Contains(string(a.Content), `"code":"upstream_truncated"`) ||
		strings.Contains(string(a.Content), "[DONE]") {
		t.Errorf("a stream that was cut: %s", a)
	}
	for _, body := range []string{harness.ChatBody("m", false, 5, "Hello"), harness.ChatBody("m", true, 5, "Hello")} {
		setFault(g, "m-0", "close,cut=1") // before the first token
		for range 4 {
			if a := g.Post(harness.ChatPath, body); a.StatusCode != 200 || a.Header.Get("X-Sluice-Replica") != "m-1" {
				t.Errorf("cut at the beginning: %s %v", a, a.Header)
			}
		}
	}
	syscall.Kill(g.Replicas()["one-0"].PID, syscall.SIGKILL)
	harness.Eventually(t, "a new process", func() error {
		if all := closing(g); all["one-0"] || g.Model("one").Ready != 1 {
			return fmt.Errorf("%v, %+v", all, g.Model("one"))
		}
		return nil
	})
}

// TestE2E_X6_EvilAnswers: answers that are not what they claim end as an error on the managed way,
// whatever is wrong with them, and leave nothing behind.
func TestE2E_X6_EvilAnswers(t *testing.T) {
	t.Parallel()
	g := harness.Start(t, sims)
	g.AwaitReplicas("one", 1)
	n := 0
	for fault, code := range map[string]string{
		"1xx": "upstream_error", "endless-header": "upstream_error", "early-close": "upstream_error", "length=9": "upstream_truncated",
		"length=-9": "upstream_truncated", "eof=0": "upstream_truncated", "close,garbage": "upstream_truncated",
		"gzip,cut=0": "upstream_truncated", "type=text/html,eof=0": "upstream_error", "gzip-bomb": "upstream_error", "malformed=0": "upstream_truncated",
	} {
		n++
		setFault(g, "one-0", fault)
		body := strings.Replace(harness.ChatBody("one", false, 5, "Hello"), "{", fmt.Sprintf(`{"request_id":"e%d",`, n), 1)
		if a := g.Post(harness.ChatPath, body); a.StatusCode != 502 || a.Code() != code || a.Header.Get("Retry-After") == "" {
			t.Errorf("%s: %s", fault, a)
		}
	}
	setFault(g, "one-0", "none")
	if a := g.Post(harness.ChatPath, harness.ChatBody("one", true, 5, "Hello")); a.StatusCode != 200 || harness.CheckWholeStream(a.Content) != nil {
		t.Errorf("afterwards: %s", a)
	}
	g.AwaitIdle("one")
}

// TestE2E_R9_GRPCEngines: engines that speak gRPC follow the same rule, and their errors have the
// same form.
func TestE2E_R9_GRPCEngines(t *testing.T) {
	t.Parallel()
	g := harness.Start(t, sims)
	g.AwaitReplicas("worker", 2)
	for _, fault := range []string{"status=500", "reset-before-headers", "error=0", "status=429"} {
		setFault(g, "worker-0", fault)
		for i := range 8 {
			a := g.Post(harness.ChatPath, harness.ChatBody("worker", i%2 == 0, 5, "Hello"))
			if a.StatusCode != 200 || a.Header.Get("X-Sluice-Replica") != "worker-1" {
				t.Errorf("%s: %s %v", fault, a, a.Header)
			}
		}
	}
	for _, replica := range []string{"worker-0", "worker-1"} {
		setFault(g, replica, "status=429")
	}
	for _, stream := range []bool{true, false} {
		a := g.Post(harness.ChatPath, harness.ChatBody("worker", stream, 5, "Hello"))
		if a.StatusCode != 429 || a.Code() != "rate_limited" || a.Header.Get("Retry-After") != "1" || !strings.Contains(string(a.Content), "simulated fault") {
			t.Errorf("stream %v: %s %v", stream, a, a.Header)
		}
	}
}

// TestE2E_X6_EvilAnswersOnTheNativeWay: what Envoy can see ends as an error there too. The client
// never gets a clean 200 with a part of an answer, and a request that hangs ends with its client.
func TestE2E_X6_EvilAnswersOnTheNativeWay(t *testing.T) {
	t.Parallel()
	g := harness.Start(t, sims)
	g.AwaitReplicas("one", 1)
	for _, fault := range []string{"endless-header", "early-close", "length=9", "cut=0", "gzip,cut=0"} {
		setFault(g, "one-0", fault)
		a, err := g.TryPost(t.Context(), harness.ChatPath, harness.ChatBody("one", false, 5, "Hello"))
		if err == nil && a.StatusCode < 500 {
			t.Errorf("%s: %s", fault, a)
		}
	}
	setFault(g, "one-0", "1xx")
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() {
		_, err := g.TryPost(ctx, harness.ChatPath, harness.ChatBody("one", false, 5, "Hello"))
		ended <- err
	}()
	g.AwaitModel("one", "it runs", func(m harness.Model) bool { return m.InFlight == 1 })
	cancel()
	if err := harness.Receive(t, ended, "the request that was cancelled has ended"); err == nil {
		t.Error("interim responses became an answer")
	}
	g.AwaitIdle("one")
}

// TestE2E_R9_EnginesSeeNoRetryHeaders: what tells Envoy when to try again does not reach an engine.
func TestE2E_R9_EnginesSeeNoRetryHeaders(t *testing.T) {
	t.Parallel()
	seen := make(chan http.Header, 10)
	upstream := func() string {
		return harness.StartUpstream(t, func(w http.ResponseWriter, r *http.Request) {
			if !harness.ServeModelList(w, r, "m") {
				seen <- r.Header
				fmt.Fprint(w, "{}")
			}
		})
	}
	g := harness.Start(t, fmt.Sprintf("upstreams: [%s, %s]\n", upstream(), upstream()))
	g.Post(harness.ChatPath, harness.ChatBody("m", false, 5, "Hello"))
	for name := range <-seen {
		if lower := strings.ToLower(name); strings.HasPrefix(lower, "x-envoy-retr") || lower == "x-envoy-max-retries" || strings.HasPrefix(lower, "x-sluice-") {
			t.Errorf("the engine sees %s", name)
		}
	}
}
