package streams

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-gateway/sluice/internal/sim"
	"github.com/sluice-gateway/sluice/tests/e2e/harness"
)

// used is what the ledger says of one group.
type used struct {
	Tenant, Key, Model        string
	Requests                  int
	PromptTokens              int `json:"prompt_tokens"`
	CachedTokens              int `json:"cached_tokens"`
	CompletionTokens          int `json:"completion_tokens"`
	EstimatedRequests         int `json:"estimated_requests"`
	EstimatedPromptTokens     int `json:"estimated_prompt_tokens"`
	EstimatedCompletionTokens int `json:"estimated_completion_tokens"`
}

// ledger returns what the gateway's ledger has.
func ledger(t *testing.T, g *harness.Gateway, query string) []used {
	t.Helper()
	var answer struct{ Usage []used }
	if err := g.TryGet("/api/v1/usage?"+query, &answer); err != nil {
		t.Fatal(err)
	}
	return answer.Usage
}

// counted returns what the ledger says that engines have told.
func counted(t *testing.T, g *harness.Gateway) (told sim.Used, estimated int) {
	t.Helper()
	for _, u := range ledger(t, g, "") {
		told.Requests += u.Requests - u.EstimatedRequests
		told.PromptTokens += u.PromptTokens - u.EstimatedPromptTokens
		told.CachedTokens += u.CachedTokens
		told.CompletionTokens += u.CompletionTokens - u.EstimatedCompletionTokens
		estimated += u.EstimatedRequests
	}
	return told, estimated
}

// engines returns what the simulated engines have counted for the requests that they have finished.
func engines(t *testing.T, g *harness.Gateway) (finished sim.Used) {
	t.Helper()
	for _, r := range g.Replicas() {
		response, err := http.Get("http://" + r.Address + "/sim/usage")
		if err != nil {
			t.Fatal(err)
		}
		var told struct{ Finished sim.Used }
		err = json.NewDecoder(response.Body).Decode(&told)
		response.Body.Close()
		if err != nil {
			t.Fatal(err)
		}
		finished.Requests += told.Finished.Requests
		finished.PromptTokens += told.Finished.PromptTokens
		finished.CachedTokens += told.Finished.CachedTokens
		finished.CompletionTokens += told.Finished.CompletionTokens
	}
	return finished
}

// awaitLedger waits until the ledger has what the engines have counted, and so many estimates.
func awaitLedger(t *testing.T, g *harness.Gateway, estimates int) {
	t.Helper()
	harness.Eventually(t, "the ledger and the engines agree", func() error {
		told, estimated := counted(t, g)
		if diff := cmp.Diff(engines(t, g), told); diff != "" || estimated != estimates {
			return fmt.Errorf("%d estimates; engines (-), ledger (+):\n%s", estimated, diff)
		}
		return nil
	})
}

// awaitWritten waits until the journal of the ledger has a row of a tenant and a model. A kill
// loses what was counted a moment before. The rows that were counted before this row are written,
// too.
func awaitWritten(t *testing.T, g *harness.Gateway, tenant, model string) {
	t.Helper()
	row := regexp.MustCompile(fmt.Sprintf(`"tenant":%q,"key":"[^"]*","model":%q`, tenant, model))
	harness.Eventually(t, "the ledger is written", func() error {
		journals, err := filepath.Glob(filepath.Join(g.Dir, "usage", "*.jsonl"))
		for _, path := range journals {
			text, failed := os.ReadFile(path)
			if row.Match(text) {
				return nil
			}
			err = errors.Join(err, failed)
		}
		return errors.Join(err, fmt.Errorf("%d journals have no row of %s and %s", len(journals), tenant, model))
	})
}

// ledgerModels are two models of two replicas each, whose streams are native and managed.
const ledgerModels = `
auth: {mode: keys}
models:
  - {name: native, engine: sim, launcher: local, replicas: {min: 2, max: 2}, stream: {mode: native}, variables: {prefill_rate: 0, token_interval: 1ms}}
  - {name: managed, engine: sim, launcher: local, replicas: {min: 2, max: 2}, stream: {mode: managed}, variables: {prefill_rate: 0, token_interval: 1ms}}
  - {name: embed, task: embedding, engine: sim, launcher: local}
`

// askForUsage is a body of a stream whose client wants its usage.
func askForUsage(model string, tokens int, text string) string {
	return strings.Replace(harness.ChatBody(model, true, tokens, text), "{", `{"stream_options":{"include_usage":true},`, 1)
}

// The ledger agrees with the engines over requests of all kinds, a kill -9 and a restart. Nothing
// is missing and nothing counts twice. What no engine has told is marked as an estimate.
func TestE2E_B3_O4_LedgerAgainstTheEngines(t *testing.T) {
	t.Parallel()
	keys, tenants := harness.TenantKeys("acme", "beta")
	g := harness.Start(t, ledgerModels+tenants)
	acme, beta := "authorization: Bearer "+keys["acme"], "authorization: Bearer "+keys["beta"]
	estimates := 0
	for _, model := range []string{"native", "managed"} {
		for n := range 5 {
			text := strings.Repeat(fmt.Sprint("a conversation of ", model, " "), n+1)
			must(t, g.Post(harness.ChatPath, harness.ChatBody(model, false, 3+n, text), acme))
			must(t, g.Post(harness.ChatPath, askForUsage(model, 4+n, text), beta))
		}
		must(t, g.Post("/v1/responses", fmt.Sprintf(`{"model":%q,"input":"hello","stream":true,"max_output_tokens":9}`, model), acme))
		must(t, g.Post("/v1/messages", fmt.Sprintf(`{"model":%q,"max_tokens":8,"messages":[{"role":"user","content":"hello"}]}`, model), acme))
		abandon(t, g, askForUsage(model, 9, "an abort"), acme, "x-sim-fault: stall=3")
		_, _ = g.TryPost(t.Context(), harness.ChatPath, askForUsage(model, 9, "a broken stream"), beta, "x-sim-fault: cut=3")
		estimates += 2
		g.Post(harness.ChatPath, harness.ChatBody(model, false, 9, "a fault"), beta, "x-sim-fault: status=400")
		g.Post(harness.ChatPath, harness.ChatBody("unknown", false, 9, "a fault"), beta)
		failOnce(t, g.Replicas()[model+"-0"].Address)
		for n := range 6 { // one of them is repeated at the other replica
			g.Post(harness.ChatPath, harness.ChatBody(model, false, 3+n, fmt.Sprint("a retry ", n)), acme)
		}
	}
	must(t, g.Post("/v1/embeddings", `{"model":"embed","input":["one two","three"]}`, acme))
	awaitLedger(t, g, estimates)
	must(t, g.Post("/v1/embeddings", `{"model":"embed","input":"the last of all"}`, beta))
	awaitWritten(t, g, "beta", "embed")
	surviveKill(t, g, acme)
	awaitLedger(t, g, estimates)
	must(t, g.Post(harness.ChatPath, harness.ChatBody("native", false, 5, "afterwards"), beta))
	awaitLedger(t, g, estimates)
	must(t, g.Post(harness.ChatPath, harness.ChatBody("native", true, 5, "a native stream whose client wants no usage"), acme))
	harness.Eventually(t, "it is an estimate", func() error {
		if _, estimated := counted(t, g); estimated != estimates+1 {
			return fmt.Errorf("%d estimates", estimated)
		}
		return nil
	})
	for _, u := range ledger(t, g, "") {
		if !strings.HasPrefix(u.Key, u.Tenant+"/") || len(u.Key) != len(u.Tenant)+1+8 {
			t.Errorf("key %q of tenant %q", u.Key, u.Tenant)
		}
	}
	table, err := g.RunCommand("usage", "-c", g.Config, "--by", "tenant,model")
	if err != nil || strings.Count(table, "\n") != 10 || !strings.Contains(table, "beta") {
		t.Errorf("%v\n%s", err, table)
	}
}

// A stream with a request_id whose client leaves is in the ledger and in the metrics, once, whether
// the client comes back for the rest or not. Its record shows the tokens.
func TestE2E_B3_NamedStreamsOfClientsThatLeave(t *testing.T) {
	t.Parallel()
	keys, tenants := harness.TenantKeys("acme")
	g := harness.Start(t, `
auth: {mode: keys}
models: [{name: m, engine: sim, launcher: local, variables: {prefill_rate: 0, token_interval: 20ms}, stream: {resume: 10m}}]
`+tenants)
	acme := "authorization: Bearer " + keys["acme"]
	for _, name := range []string{"resumed", "left"} {
		abandon(t, g, withFields(askForUsage("m", 40, name), fmt.Sprintf(`"request_id":%q`, name)), acme)
	}
	if a := g.Fetch("/v1/streams/resumed", acme); a.StatusCode != 200 || harness.CheckWholeStream(a.Content) != nil {
		t.Errorf("%s", a)
	}
	g.AwaitIdle("m")
	awaitLedger(t, g, 0)
	if told, _ := counted(t, g); told.Requests != 2 || told.CompletionTokens != 80 {
		t.Errorf("%+v", told)
	}
	harness.Eventually(t, "the metrics have the tokens", func() error {
		if n := g.Metric(`sluice_tokens_total{kind="completion",model="m",tenant="acme"}`); n != 80 {
			return fmt.Errorf("%v tokens", n)
		}
		return nil
	})
	harness.Eventually(t, "the records have ended with their tokens", func() error {
		var list struct {
			Running  int
			Requests []struct {
				Cause     string
				TokensOut int `json:"tokens_out"`
			}
		}
		g.Get("/api/v1/requests", &list)
		tokens := 0
		for _, r := range list.Requests {
			if r.Cause == "client" {
				tokens += r.TokensOut
			}
		}
		if list.Running != 0 || tokens != 80 {
			return fmt.Errorf("%+v", list)
		}
		return nil
	})
}

// must fails the test if the answer is not a success.
func must(t *testing.T, a *harness.Answer) {
	t.Helper()
	if a.StatusCode != 200 {
		t.Fatal(a)
	}
}

// abandon begins a request and leaves after the first byte of the answer.
func abandon(t *testing.T, g *harness.Gateway, body string, headers ...string) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	r, err := g.Open(ctx, harness.ChatPath, body, headers...)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	if _, err := r.Body.Read(make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
}

// failOnce makes the next request at a simulated replica fail before its answer.
func failOnce(t *testing.T, address string) {
	t.Helper()
	r, err := http.Post("http://"+address+"/sim/fault", "application/json",
		strings.NewReader(`{"fault":"reset-before-headers","times":1,"path":"/v1/chat"}`))
	if err != nil {
		t.Fatal(err)
	}
	r.Body.Close()
}

// surviveKill kills the gateway with SIGKILL while native streams run, starts it again, and waits
// for the ends of the streams.
func surviveKill(t *testing.T, g *harness.Gateway, key string) {
	t.Helper()
	const streams, tokens = 5, 4000
	ends, begun := make(chan error, streams), make(chan bool, streams)
	for n := range streams {
		go func() {
			r, err := g.Open(context.Background(), harness.ChatPath, askForUsage("native", tokens, fmt.Sprint("it runs on ", n)), key)
			begun <- true
			if err == nil {
				var all []harness.Event
				all, err = harness.ReadEvents(r.Body)
				r.Body.Close()
				if len(all) < tokens {
					err = errors.Join(err, fmt.Errorf("%d events", len(all)))
				}
			}
			ends <- err
		}()
	}
	for range streams {
		harness.Receive(t, begun, "a stream begins")
	}
	g.Kill()
	g.Launch()
	g.AwaitReady()
	for range streams {
		if err := harness.Receive(t, ends, "a stream ends"); err != nil {
			t.Fatal(err)
		}
	}
}
