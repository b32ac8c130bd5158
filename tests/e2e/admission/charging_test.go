package admission

import (
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/coder/websocket/wsjson"

	"github.com/sluice-gateway/sluice/internal/condition"
	"github.com/sluice-gateway/sluice/tests/e2e/harness"
)

// chatOf is a chat with a prompt of so many bytes and one token of answer.
func chatOf(bytes int, more string) string {
	return fmt.Sprintf(`{"model":"chat","max_tokens":1,"messages":[{"role":"user","content":"%s"}]%s}`, strings.Repeat("word ", bytes/5), more)
}

// remainingTokens is what the response says is left of the tenant's tokens.
func remainingTokens(t *testing.T, a *harness.Answer) int {
	t.Helper()
	n, err := strconv.Atoi(a.Header.Get("x-ratelimit-remaining-tokens"))
	if err != nil {
		t.Fatalf("%s: %v, %v", a, a.Header, err)
	}
	return n
}

func TestE2E_X2_ATaskPassesNoLimit(t *testing.T) {
	t.Parallel()
	tenants, key := tenantsOf(map[string]string{
		"greedy":  ", limits: {requests_per_minute: 3, tokens_per_minute: 2000}",
		"patient": ", limits: {requests_per_minute: 3}",
		"large":   ", limits: {tokens_per_minute: 100000}",
		"mallory": "",
	})
	g := harness.Start(t, tenants+harness.SlowSims)
	ask := func(tenant, task, body string) *harness.Answer {
		return g.Post("/v1/chat/completions", body, key[tenant], "x-sluice-task-id: "+task)
	}
	task := admitTask(g, `{"estimated_tokens": 1}`, key["greedy"]).Task
	for range 20 {
		if a := ask("greedy", task, chatOf(200_000, "")); a.StatusCode == 200 {
			t.Fatal("50,000 tokens passed a limit of 2,000")
		}
	}
	passed := 0
	patient := admitTask(g, `{"estimated_tokens": 1}`, key["patient"]).Task
	for range 20 {
		switch a := ask("patient", patient, chatOf(100, "")); {
		case a.StatusCode == 200:
			passed++
		case a.StatusCode != 429 || a.Code() != "rate_limited" || a.Header.Get("retry-after") == "":
			t.Fatalf("%s, want 429 with a time to come back", a)
		}
	}
	if passed != 3 {
		t.Errorf("%d of 20 requests under a task passed a limit of 3", passed)
	}
	large := admitTask(g, `{"estimated_tokens": 1}`, key["large"]).Task
	// So much that the tokens which come back in a minute do not hide it on a busy machine.
	if a := ask("large", large, chatOf(390_000, "")); a.StatusCode != 200 {
		t.Fatal(a)
	}
	harness.Eventually(t, "the request is charged, whatever /complete says", func() error {
		a := g.Post("/v1/chat/completions", chatOf(10, ""), key["large"])
		if left := remainingTokens(t, a); left > 90_000 {
			return fmt.Errorf("%d tokens are left of 100,000 after one of some 78,000", left)
		}
		return nil
	})
	if a := g.Post("/complete", fmt.Sprintf(`{"task_id": %q, "actual_tokens": 0}`, large), key["large"]); a.StatusCode != 200 {
		t.Fatal(a)
	}
	if left := remainingTokens(t, g.Post("/v1/chat/completions", chatOf(10, ""), key["large"])); left > 95_000 {
		t.Errorf("/complete of 0 gave the tokens back: %d are left", left)
	}

	// The tasks of others do not exist.
	other := admitTask(g, `{"estimated_tokens": 1}`, key["patient"]).Task
	for _, path := range []string{"/renew", "/complete", "/v1/chat/completions"} {
		answers := map[string]bool{}
		for _, id := range []string{other, "tsk_" + strings.Repeat("a", 26)} {
			body, header := fmt.Sprintf(`{"task_id": %q}`, id), "x-none: 1"
			if path == "/v1/chat/completions" {
				body, header = chatOf(10, ""), "x-sluice-task-id: "+id
			}
			a := g.Post(path, body, key["mallory"], header)
			answers[a.String()] = true
			if a.StatusCode < 400 {
				t.Errorf("%s of another tenant's task: %s", path, a)
			}
		}
		if len(answers) != 1 {
			t.Errorf("%s tells another's task from none: %v", path, answers)
		}
	}
}

// holdingUpstream answers chats, except those with "hold" in them, whose headers never come.
func holdingUpstream(t *testing.T) (url string, held chan struct{}) {
	held = make(chan struct{}, 10)
	return harness.StartUpstream(t, func(w http.ResponseWriter, r *http.Request) {
		if harness.ServeModelList(w, r, "chat") {
			return
		}
		if body, _ := io.ReadAll(r.Body); strings.Contains(string(body), "hold") {
			held <- struct{}{}
			<-r.Context().Done()
			return
		}
		w.Header().Set("Content-Type", "application/json")
		io.WriteString(w, `{"choices":[{"message":{"content":"ok"}}],"usage":{"prompt_tokens":1,"completion_tokens":1,"total_tokens":2}}`)
	}), held
}

func TestE2E_X2_AbandonedRequestsAreCharged(t *testing.T) {
	t.Parallel()
	up, held := holdingUpstream(t)
	tenants, key := tenantsOf(map[string]string{
		"native": ", limits: {tokens_per_minute: 100000}", "managed": ", limits: {tokens_per_minute: 100000}", "timed": ", limits: {tokens_per_minute: 100000}",
	})
	g := harness.Start(t, tenants+fmt.Sprintf(`
models:
  - {name: chat, launcher: upstream, upstreams: [%s], admission: {max_per_replica: 8}, stream: {resume: 0s}}
`, up))
	for tenant, more := range map[string]string{"native": "", "managed": `,"request_id":"one"`, "timed": `,"timeout_ms":1000`} {
		body := strings.Replace(chatOf(380_000, more), "word", "hold", 1)
		ctx, leave := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() {
			defer close(done)
			if r, err := g.Open(ctx, "/v1/chat/completions", body, key[tenant]); err == nil {
				io.Copy(io.Discard, r.Body)
				r.Body.Close()
			}
		}()
		harness.Receive(t, held, "the engine holds the request")
		if tenant != "timed" {
			leave()
		}
		harness.Receive(t, done, "the client has left")
		leave()
		harness.Eventually(t, tenant+" has ended and is corrected", func() error { // the line comes after the correction
			if !strings.Contains(g.LogText(), `"tenant":"`+tenant+`"`) {
				return errors.New("no line of the request log")
			}
			return nil
		})
		if left := remainingTokens(t, g.Post("/v1/chat/completions", chatOf(10, ""), key[tenant])); left > 90_000 {
			t.Errorf("%s: the engine had 95,000 tokens when the client left, %d of 100,000 are left", tenant, left)
		}
	}
}

func TestE2E_X2_TurnsOfAWebSocketAreRequests(t *testing.T) {
	t.Parallel()
	tenants, key := tenantsOf(map[string]string{"few": ", limits: {requests_per_minute: 2}"})
	g := harness.Start(t, tenants+harness.SlowSims)
	ws := g.Realtime(strings.TrimPrefix(key["few"], "Authorization: Bearer "))
	for turn := 1; turn <= 3; turn++ {
		harness.SendMessage(t, ws, harness.Message{"type": "start", "request_id": fmt.Sprint("t", turn), "model": "chat",
			"messages": []harness.Message{{"role": "user", "content": "Hello"}}, "params": harness.Message{"max_tokens": 2}})
		for end := ""; end != "final"; {
			var m struct {
				Type  string
				Error struct{ Code string }
			}
			if err := wsjson.Read(t.Context(), ws, &m); err != nil {
				t.Fatal(err)
			}
			end = m.Type
			if m.Type == "error" {
				if turn != 3 || m.Error.Code != "rate_limited" {
					t.Fatalf("turn %d: %+v", turn, m)
				}
				return
			}
		}
	}
	t.Error("three turns passed a limit of two requests a minute")
}

// A stream that outlives the gateway is charged to its tenant when it ends.
func TestE2E_X19_AStreamOfBeforeARestartIsCharged(t *testing.T) {
	t.Parallel()
	tenants, key := tenantsOf(map[string]string{"acme": ", limits: {tokens_per_minute: 100000}"})
	g := harness.Start(t, tenants+strings.Replace(harness.SlowSims, "20ms", "10ms", 1))
	stream, err := g.Open(t.Context(), "/v1/chat/completions", strings.Replace(chatOf(380_000, `,"stream":true,"ignore_eos":true`), `"max_tokens":1`, `"max_tokens":1000`, 1), key["acme"]) // ten seconds, for a start
	if err != nil || stream.StatusCode != 200 {
		t.Fatal(stream, err)
	}
	defer stream.Body.Close()
	if _, err := io.ReadFull(stream.Body, make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	g.Kill()
	g.Launch()
	g.AwaitReady()
	if _, err := io.Copy(io.Discard, stream.Body); err != nil {
		t.Fatal(err)
	}
	harness.Eventually(t, "the stream is charged", func() error {
		a := g.Post("/v1/chat/completions", chatOf(10, ""), key["acme"])
		if left := remainingTokens(t, a); left > 95_000 {
			return fmt.Errorf("%d tokens are left of 100,000 after a stream of 76,000 to 95,000", left)
		}
		return nil
	})
	g.AwaitIdle("chat")
}

// An Envoy that does not answer at the start leaves no request uncounted for ever: a condition says
// that some may be, and the access log counts them.
func TestE2E_X19_ASilentEnvoyLeavesNothingUncounted(t *testing.T) {
	t.Parallel()
	g := harness.Start(t, harness.SlowSims)
	stream, err := g.Open(t.Context(), "/v1/chat/completions", harness.ChatBody("chat", true, 100_000, "Hello"))
	if err != nil || stream.StatusCode != 200 {
		t.Fatal(stream, err)
	}
	defer stream.Body.Close()
	if _, err := io.ReadFull(stream.Body, make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	g.Kill()
	var stopped []int
	for pid, command := range g.Processes() {
		if strings.Contains(command, "envoy") {
			syscall.Kill(pid, syscall.SIGSTOP)
			stopped = append(stopped, pid)
		}
	}
	g.Launch()
	if c := g.AwaitCondition(condition.RequestsUncounted, ""); c.Reason != "EnvoySilent" {
		t.Errorf("%+v, %d processes are stopped", c, len(stopped))
	}
	if n := g.Model("chat").InFlight; n != 0 {
		t.Errorf("%d in flight, Envoy was asked in vain", n)
	}
	for _, pid := range stopped {
		syscall.Kill(pid, syscall.SIGCONT)
	}
	harness.Eventually(t, "the stream is counted", func() error {
		if n := g.Model("chat").InFlight; n != 1 {
			return fmt.Errorf("%d in flight", n)
		}
		return nil
	})
	g.AwaitNoCondition(condition.RequestsUncounted)
	stream.Body.Close()
	g.AwaitIdle("chat")
}

// A client that asks for a compressed answer does not hide what the answer has cost.
func TestE2E_X2_CompressionHidesNoUsage(t *testing.T) {
	t.Parallel()
	encodings := make(chan string, 1000)
	up := harness.StartUpstream(t, func(w http.ResponseWriter, r *http.Request) {
		if harness.ServeModelList(w, r, "chat") {
			return
		}
		encodings <- r.Header.Get("Accept-Encoding")
		w.Header().Set("Content-Type", "application/json")
		var out io.Writer = w
		if strings.Contains(r.Header.Get("Accept-Encoding"), "gzip") {
			w.Header().Set("Content-Encoding", "gzip")
			packed := gzip.NewWriter(w)
			defer packed.Close()
			out = packed
		}
		io.WriteString(out, `{"choices":[{"message":{"content":"ok"}}],"usage":{"prompt_tokens":10,"completion_tokens":30000,"total_tokens":30010}}`)
	})
	tenants, key := tenantsOf(map[string]string{"limited": ", limits: {tokens_per_minute: 100000}"})
	g := harness.Start(t, tenants+fmt.Sprintf("\nmodels: [{name: chat, launcher: upstream, upstreams: [%s]}]\n", up))
	if a := g.Post("/v1/chat/completions", chatOf(10, ""), key["limited"], "Accept-Encoding: gzip"); a.StatusCode != 200 {
		t.Fatal(a)
	}
	if got := harness.Receive(t, encodings, "the engine gets the request"); got != "identity" {
		t.Errorf("the engine was asked for %q", got)
	}
	harness.Eventually(t, "the answer is charged", func() error {
		left := remainingTokens(t, g.Post("/v1/chat/completions", chatOf(10, `,"n":1`), key["limited"]))
		if left > 75_000 {
			return fmt.Errorf("%d tokens are left of 100,000 after an answer of 30,000", left)
		}
		return nil
	})
}

// A request whose body comes while the gateway is restarted is decided by the new process, and
// charged once. It began before the new process did, and is none of those that outlive a gateway.
func TestE2E_X19_X20_ARequestThatIsSentDuringARestartIsChargedOnce(t *testing.T) {
	t.Parallel()
	tenants, key := tenantsOf(map[string]string{"acme": ", limits: {tokens_per_minute: 100000}"})
	g := harness.Start(t, tenants+harness.SlowSims)
	body := chatOf(160_000, "")
	half := len(body) / 2
	sent, rest := io.Pipe()
	answered := make(chan error, 1)
	go func() {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, g.URL+harness.ChatPath, sent)
		if err != nil {
			answered <- err
			return
		}
		name, value, _ := strings.Cut(key["acme"], ": ")
		r.Header.Set(name, value)
		r.Header.Set("Content-Type", "application/json")
		r.ContentLength = int64(len(body))
		a, err := http.DefaultClient.Do(r)
		if err == nil {
			defer a.Body.Close()
			if _, err = io.Copy(io.Discard, a.Body); err == nil && a.StatusCode != 200 {
				err = errors.New(a.Status)
			}
		}
		answered <- err
	}()
	if _, err := io.WriteString(rest, body[:half]); err != nil {
		t.Fatal(err)
	}
	if out, err := g.RunCommand("restart", "-c", g.Config); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if _, err := io.WriteString(rest, body[half:]); err != nil {
		t.Fatal(err)
	}
	rest.Close()
	if err := harness.Receive(t, answered, "the request is answered"); err != nil {
		t.Fatal(err)
	}
	g.AwaitIdle("chat")
	a := g.Post(harness.ChatPath, chatOf(10, ""), key["acme"])
	if left := remainingTokens(t, a); left < 55_000 || left > 95_000 {
		t.Errorf("%d tokens are left of 100,000 after a request of 32,000 to 40,000", left)
	}
}
