package edge

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
	"time"

	"github.com/sluice-gateway/sluice/authz"
	"github.com/sluice-gateway/sluice/internal/condition"
	"github.com/sluice-gateway/sluice/internal/redistest"
	"github.com/sluice-gateway/sluice/internal/testutil"
	"github.com/sluice-gateway/sluice/tests/e2e/harness"
)

// newKeyBy runs `sluice keys new` at a gateway and returns the key and its id.
func newKeyBy(t *testing.T, g *harness.Gateway, args ...string) (key, id string) {
	t.Helper()
	key, id, err := tryNewKey(g, args...)
	if err != nil {
		t.Fatal(err)
	}
	return key, id
}

// tryNewKey is newKeyBy for a gateway that may not store keys yet.
func tryNewKey(g *harness.Gateway, args ...string) (key, id string, err error) {
	out, err := g.RunCommand(append([]string{"keys", "new", "--admin", strings.TrimPrefix(g.Admin, "http://"), "--tenant", "acme"}, args...)...)
	if _, scanErr := fmt.Sscanf(out, "key (shown only once): %s\nid: %s\n", &key, &id); err != nil || scanErr != nil {
		return "", "", fmt.Errorf("%s: %w", out, errors.Join(err, scanErr))
	}
	return key, id, nil
}

// awaitStatus waits until a request with the key gets a status and a code at the gateway.
func awaitStatus(t *testing.T, g *harness.Gateway, key string, status int, code string) {
	t.Helper()
	harness.Eventually(t, fmt.Sprint("status ", status), func() error {
		if a := g.Fetch("/v1/models", "authorization: Bearer "+key); a.StatusCode != status || a.Code() != code {
			return fmt.Errorf("%v", a)
		}
		return nil
	})
	wantAll(t, "every way", asks(g, "authorization: Bearer "+key), status, code)
}

// TestE2E_B4_KeysOfRunTimeAtTwoGateways makes, lists and revokes keys at one of two gateways that
// share a Redis. The other one follows.
func TestE2E_B4_KeysOfRunTimeAtTwoGateways(t *testing.T) {
	t.Parallel()
	config := "\nauth: {mode: keys}\ntenants: [{name: acme}]\nredis: " + redistest.URL(redistest.Start(t)) + small
	one, two := harness.Start(t, config), harness.Start(t, config)
	key, id := newKeyBy(t, one, "--name", "ci")
	for _, g := range []*harness.Gateway{one, two} {
		awaitStatus(t, g, key, 200, "")
	}
	admin := strings.TrimPrefix(two.Admin, "http://")
	if out, err := two.RunCommand("keys", "list", "--admin", admin); err != nil || !strings.Contains(out, id) || !strings.Contains(out, "ci") {
		t.Errorf("list: %s, %v", out, err)
	}
	end := time.Now().Add(5 * time.Second) // it ends later than that
	short, _ := newKeyBy(t, one, "--expires", "5s")
	if a := one.Fetch("/v1/models", "authorization: Bearer "+short); time.Now().Before(end) && a.StatusCode != 200 {
		t.Errorf("a key before its end: %v", a)
	}
	awaitStatus(t, two, short, 401, "expired_api_key")
	if out, err := two.RunCommand("keys", "revoke", id, "--admin", admin); err != nil {
		t.Fatal(out, err)
	}
	for _, g := range []*harness.Gateway{one, two} {
		awaitStatus(t, g, key, 401, "invalid_api_key")
	}
	if text := one.LogText() + two.LogText(); strings.Contains(text, key) || strings.Contains(text, short) || !strings.Contains(text, "/api/v1/keys") {
		t.Error("the audit line is missing, or a log has a key")
	}
}

// TestE2E_B4_KeysOutliveARestart keeps keys in the state directory, as hashes.
func TestE2E_B4_KeysOutliveARestart(t *testing.T) {
	t.Parallel()
	g := harness.Start(t, "\nauth: {mode: keys}\ntenants: [{name: acme}]\n"+small)
	key, _ := newKeyBy(t, g)
	awaitStatus(t, g, key, 200, "")
	g.Kill()
	g.Launch()
	g.AwaitReady()
	awaitStatus(t, g, key, 200, "")
	text, err := os.ReadFile(filepath.Join(g.Dir, "keys.json"))
	if err != nil || strings.Contains(string(text), key) || !strings.Contains(string(text), "sha256:") {
		t.Errorf("%s, %v", text, err)
	}
	for body, want := range map[string]string{
		`{"tenant":"nobody"}`: "tenant", `{"tenant":"acme","expires":"2001-01-01T00:00:00Z"}`: "expires", `{"tenant":"acme","model":"x"}`: "model",
		`{"tenant":"acme","models":["chat","none"]}`: "none", `{"tenant":"acme","models":[]}`: "models", `{"tenant":"acme","name":"sk-secret"}`: "name",
	} {
		a := (&harness.Gateway{T: t, URL: g.Admin}).Post("/api/v1/keys", body)
		if a.StatusCode != 400 || !strings.Contains(string(a.Content), want) {
			t.Errorf("%s: %v", body, a)
		}
	}
}

// TestE2E_B4_KeysAreGoodFromTheFirstRequest: a process takes over and has yet to read the keys,
// from a Redis that is far away. It does not refuse a key of run time. If it cannot read them, the
// caller is told to come back, and not that the key is wrong.
func TestE2E_B4_KeysAreGoodFromTheFirstRequest(t *testing.T) {
	t.Parallel()
	redis := redistest.Start(t)
	g := harness.Start(t, "\nauth: {mode: keys}\ntenants: [{name: acme}]\nredis: "+redistest.Slow(redis, 100*time.Millisecond)+small)
	key, _ := newKeyBy(t, g)
	awaitStatus(t, g, key, 200, "")
	restarted := make(chan error, 1)
	go func() {
		_, err := g.RunCommand("restart", "-c", g.Config)
		restarted <- err
	}()
	for running := true; running; time.Sleep(5 * time.Millisecond) {
		select {
		case err := <-restarted:
			if running = false; err != nil {
				t.Fatal(err)
			}
		default:
		}
		if a := g.Fetch("/v1/models", "authorization: Bearer "+key); a.StatusCode != 200 {
			t.Fatalf("during the restart: %v", a)
		}
	}
	redis.Pause()
	g.Kill()
	g.Launch()
	g.AwaitReady()
	awaitStatus(t, g, key, 503, "gateway_unavailable")
	redis.Resume()
	awaitStatus(t, g, key, 200, "")
}

// twoModels are models that a key may be kept from.
const twoModels = small + `  - {name: other, engine: sim, task: text-generation, variables: {prefill_rate: 0}, stream: {resume: 10m}}
`

// TestE2E_B4_AKeyHasModelsOfItsOwn makes a key with models at one of two gateways, and has one in
// the file. Each is kept from the other model, by every way.
func TestE2E_B4_AKeyHasModelsOfItsOwn(t *testing.T) {
	t.Parallel()
	config := "\nauth: {mode: keys}\ntenants: [{name: acme, keys: [{hash: '" + authz.HashKey("fixed") + "', name: fixed, models: [chat]}]}]\nredis: " +
		redistest.URL(redistest.Start(t)) + twoModels
	one, two := harness.Start(t, config), harness.Start(t, config)
	made, id := newKeyBy(t, one, "--models", "chat", "--name", "narrow")
	whole, _ := newKeyBy(t, two)
	for i, g := range []*harness.Gateway{one, two} {
		awaitStatus(t, g, made, 200, "")
		awaitStatus(t, g, whole, 200, "")
		stream := fmt.Sprintf("stream-%d", i)
		g.Post("/v1/chat/completions", `{"model":"other","messages":[{"role":"user","content":"x"}],"max_tokens":5,"stream":true,"request_id":"`+stream+`"}`,
			"authorization: Bearer "+whole)
		for key, want := range map[string]int{made: 404, "fixed": 404, whole: 200} {
			header := "authorization: Bearer " + key
			for _, body := range []string{`{"model":"other","messages":[{"role":"user","content":"x"}],"max_tokens":1}`,
				`{"model":"other","messages":[{"role":"user","content":"x"}],"max_tokens":1,"stream":true,"heartbeat_ms":1000}`} {
				if a := g.Post("/v1/chat/completions", body, header); a.StatusCode != want || want == 404 && a.Code() != "model_not_found" {
					t.Errorf("%s: %v, want %d", body, a, want)
				}
			}
			if a := g.Fetch("/v1/streams/"+stream, header); a.StatusCode != want {
				t.Errorf("the stream of another key's model: %v, want %d", a, want)
			}
			if a := g.Post("/v1/streams/"+stream+"/cancel", "", header); a.StatusCode != want {
				t.Errorf("the end of the stream of another key's model: %v, want %d", a, want)
			}
			if list := string(g.Fetch("/v1/models", header).Content); strings.Contains(list, `"other"`) != (want == 200) || !strings.Contains(list, `"chat"`) {
				t.Errorf("models: %s", list)
			}
		}
	}
	fixed := authz.FileKeyID(authz.HashKey("fixed"))
	harness.Eventually(t, "the other gateway knows the last use", func() error {
		out, err := two.RunCommand("keys", "list", "--admin", strings.TrimPrefix(two.Admin, "http://"))
		const moment = " +20[0-9-]{8}T[0-9:]{8}Z"
		for _, want := range []string{"acme/" + id + " +narrow +chat +-" + moment + " +-" + moment, "acme/" + fixed + " +fixed +chat +- +- +-" + moment + " +file"} {
			if err != nil || !regexp.MustCompile(want).MatchString(out) {
				return fmt.Errorf("%s is not in %s, %v", want, out, err)
			}
		}
		return nil
	})
	for _, shown := range []string{fixed, "acme/" + fixed} {
		out, err := two.RunCommand("keys", "revoke", shown, "--admin", strings.TrimPrefix(two.Admin, "http://"))
		if err == nil || !strings.Contains(out, "remove its hash") {
			t.Errorf("a key of the file was revoked: %s, %v", out, err)
		}
	}
	if out, err := two.RunCommand("keys", "revoke", "acme/"+id, "--admin", strings.TrimPrefix(two.Admin, "http://")); err != nil {
		t.Errorf("the key by the name that the list shows: %s, %v", out, err)
	}
}

// TestE2E_B4_TheLastUseAndTheLedgerNameAKeyAlike uses a key at one of two gateways. The other one
// lists the use, and the ledger names the key as the list does.
func TestE2E_B4_TheLastUseAndTheLedgerNameAKeyAlike(t *testing.T) {
	t.Parallel()
	config := "\nauth: {mode: keys}\ntenants: [{name: acme}]\nredis: " + redistest.URL(redistest.Start(t)) + small
	one, two := harness.Start(t, config), harness.Start(t, config)
	key, _ := newKeyBy(t, one, "--name", "ci")
	type shown struct {
		UsageKey string    `json:"usage_key"`
		LastUsed time.Time `json:"last_used"`
	}
	list := func(g *harness.Gateway) shown { // zero while the gateway does not know the key
		var found struct{ Keys []shown }
		a := (&harness.Gateway{T: t, URL: g.Admin}).Fetch("/api/v1/keys")
		if err := json.Unmarshal(a.Content, &found); err != nil {
			t.Fatal(a, err)
		}
		return append(found.Keys, shown{})[0]
	}
	if !list(one).LastUsed.IsZero() {
		t.Error("a new key was used")
	}
	start := time.Now().Add(-time.Minute)
	awaitStatus(t, one, key, 200, "")
	harness.Eventually(t, "the last use at the other gateway", func() error {
		if at := list(two).LastUsed; !at.After(start) {
			return fmt.Errorf("last used %v", at)
		}
		return nil
	})
	harness.Eventually(t, "the key in the ledger", func() error {
		a := (&harness.Gateway{T: t, URL: one.Admin}).Fetch("/api/v1/usage?group_by=key")
		if !strings.Contains(string(a.Content), `"`+list(one).UsageKey+`"`) {
			return fmt.Errorf("%v", a)
		}
		return nil
	})
}

// awaitKey waits until a gateway lists the key.
func awaitKey(t *testing.T, g *harness.Gateway, id string) {
	t.Helper()
	harness.Eventually(t, "the key at the gateway", func() error {
		if a := (&harness.Gateway{T: t, URL: g.Admin}).Fetch("/api/v1/keys"); !strings.Contains(string(a.Content), `"`+id+`"`) {
			return fmt.Errorf("%v", a)
		}
		return nil
	})
}

// TestE2E_B4_AKeyHasLimitsOfItsOwn gives limits per minute to a key of run time and to one of the
// file. Two gateways enforce them together, and other keys of the tenant are not limited.
func TestE2E_B4_AKeyHasLimitsOfItsOwn(t *testing.T) {
	t.Parallel()
	config := "\nauth: {mode: keys}\ntenants: [{name: acme, limits: {requests_per_minute: 1000}, keys: [{hash: '" + authz.HashKey("fixed") +
		"', limits: {requests_per_minute: 2}}]}]\nredis: " + redistest.URL(redistest.Start(t)) + "\nredis_timeout: 500ms" + small
	one, two := harness.Start(t, config), harness.Start(t, config)
	made, id := newKeyBy(t, one, "--requests-per-minute", "2")
	free, freeID := newKeyBy(t, one)
	for _, id := range []string{id, freeID} {
		awaitKey(t, two, id)
	}
	ask := func(g *harness.Gateway, key string) *harness.Answer {
		return g.Post("/v1/chat/completions", harness.ChatBody("chat", false, 1, "x"), "authorization: Bearer "+key)
	}
	for key, shown := range map[string]string{made: "sk-sluice-" + id, "fixed": authz.FileKeyID(authz.HashKey("fixed"))} {
		for _, g := range []*harness.Gateway{two, one} {
			if a := ask(g, key); a.StatusCode != 200 || a.Header.Get("x-ratelimit-limit-requests") != "2" {
				t.Errorf("%s: %v, %v", shown, a, a.Header)
			}
		}
		harness.Eventually(t, "refusals at both gateways", func() error {
			for _, g := range []*harness.Gateway{one, two} {
				a := ask(g, key)
				if a.StatusCode != 429 || a.Code() != "rate_limited" || !strings.Contains(string(a.Content), "requests per minute of the key `"+shown+"`") ||
					a.Header.Get("retry-after") == "" || a.Header.Get("x-ratelimit-limit-requests") != "2" {
					return fmt.Errorf("%v, %v", a, a.Header)
				}
			}
			return nil
		})
		stream := one.Post("/v1/chat/completions", `{"model":"chat","messages":[{"role":"user","content":"x"}],"stream":true,"heartbeat_ms":1000}`, "authorization: Bearer "+key)
		if stream.StatusCode != 429 {
			t.Errorf("a managed stream: %v", stream)
		}
	}
	for _, g := range []*harness.Gateway{one, two} {
		if a := ask(g, free); a.StatusCode != 200 || a.Header.Get("x-ratelimit-limit-requests") != "1000" {
			t.Errorf("another key: %v, %v", a, a.Header)
		}
	}
	if a := (&harness.Gateway{T: t, URL: two.Admin}).Fetch("/api/v1/keys"); !strings.Contains(string(a.Content), `"limits":{"requests_per_minute":2}`) {
		t.Errorf("list: %v", a)
	}
}

// TestE2E_B4_AKeyHasRequestsAtOnceOfItsOwn holds a stream at one of two gateways, so that the other
// refuses the key. The end of the stream, or of its client, gives the place back.
func TestE2E_B4_AKeyHasRequestsAtOnceOfItsOwn(t *testing.T) {
	t.Parallel()
	config := "\nauth: {mode: keys}\ntenants: [{name: acme}]\nredis: " + redistest.URL(redistest.Start(t)) + "\nredis_timeout: 500ms" + small
	one, two := harness.Start(t, config), harness.Start(t, config)
	key, id := newKeyBy(t, one, "--max-concurrent", "1")
	awaitKey(t, two, id)
	header := "authorization: Bearer " + key
	ctx, leave := context.WithCancel(t.Context())
	defer leave()
	stream, err := one.Open(ctx, "/v1/chat/completions", harness.ChatBody("chat", true, 100_000, "x"), header)
	if err != nil || stream.StatusCode != 200 {
		t.Fatal(stream, err)
	}
	defer stream.Body.Close()
	for _, g := range []*harness.Gateway{one, two} { // a Redis that was slow once has the gateways decide alone for a while
		harness.Eventually(t, "a refusal beside the stream", func() error {
			if a := g.Post("/v1/chat/completions", harness.ChatBody("chat", false, 1, "x"), header); a.StatusCode != 429 ||
				!strings.Contains(string(a.Content), "sk-sluice-"+id+"` has as many requests at once as it may") {
				return fmt.Errorf("%v", a)
			}
			return nil
		})
	}
	leave()
	for _, g := range []*harness.Gateway{two, one} {
		harness.Eventually(t, "the place is free", func() error {
			if a := g.Post("/v1/chat/completions", harness.ChatBody("chat", false, 1, "x"), header); a.StatusCode != 200 {
				return fmt.Errorf("%v", a)
			}
			return nil
		})
	}
	if out, err := two.RunCommand("keys", "revoke", id, "--admin", strings.TrimPrefix(two.Admin, "http://")); err != nil {
		t.Fatal(out, err)
	}
	for _, g := range []*harness.Gateway{one, two} {
		awaitStatus(t, g, key, 401, "invalid_api_key")
	}
}

// TestE2E_O11_TheExampleOfKeysRuns runs the example with a certificate and keys, and calls it as
// its comments say.
func TestE2E_O11_TheExampleOfKeysRuns(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile(filepath.Join(testutil.Root(), "examples", "keys", "sluice.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	s := &secured{dir: t.TempDir(), authority: testutil.NewAuthority(t, "authority")}
	s.authority.Write(t, s.path("ca.crt"))
	s.issue(t)
	config := regexp.MustCompile(`(?m)^(listen|admin): .*\n`).ReplaceAllString(string(text), "") // the test has ports of its own
	for old, now := range map[string]string{
		"server.crt": s.path("server.crt"), "server.key": s.path("server.key"),
		"sha256:" + strings.Repeat("0", 64): authz.HashKey("people"), "sha256:" + strings.Repeat("3", 64): authz.HashKey("student"),
	} {
		config = strings.Replace(config, old, now, 1)
	}
	s.Gateway = harness.Start(t, config)
	client := s.client(t, nil, true)
	ask := func(key, model string) *harness.Answer {
		request, err := http.NewRequest(http.MethodPost, strings.Replace(s.URL, "http:", "https:", 1)+"/v1/chat/completions", strings.NewReader(harness.ChatBody(model, false, 1, "x")))
		if err != nil {
			t.Fatal(err)
		}
		request.Header.Set("authorization", "Bearer "+key)
		request.Header.Set("content-type", "application/json")
		return s.Do(client, request)
	}
	if a := ask("nobody", "chat"); a.StatusCode != 401 {
		t.Errorf("an unknown key: %v", a)
	}
	if a := ask("people", "chat"); a.StatusCode != 200 || a.Header.Get("x-ratelimit-limit-requests") != "600" {
		t.Errorf("a key without limits: %v, %v", a, a.Header)
	}
	if a := ask("student", "embed"); a.StatusCode != 404 {
		t.Errorf("a model that the key may not use: %v", a)
	}
	harness.Eventually(t, "the limit of the key", func() error {
		if a := ask("student", "chat"); a.StatusCode != 429 || !strings.Contains(string(a.Content), "of the key `"+authz.FileKeyID(authz.HashKey("student"))+"`") {
			return fmt.Errorf("%v", a)
		}
		return nil
	})
}

// TestE2E_B4_KeysThatCannotBeRead: the file of the keys is damaged before a start. The gateway does
// not claim that a key does not exist, and says what is wrong until the file is readable.
func TestE2E_B4_KeysThatCannotBeRead(t *testing.T) {
	t.Parallel()
	g := harness.Start(t, "\nauth: {mode: keys}\ntenants: [{name: acme}]\n"+small)
	key, id := newKeyBy(t, g)
	g.Kill()
	file := filepath.Join(g.Dir, "keys.json")
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, text[:len(text)/2], 0o600); err != nil {
		t.Fatal(err)
	}
	g.Launch()
	g.AwaitReady()
	awaitStatus(t, g, key, 503, "gateway_unavailable")
	g.AwaitCondition(condition.KeysUnavailable, "")
	admin := strings.TrimPrefix(g.Admin, "http://")
	if out, err := g.RunCommand("keys", "list", "--admin", admin); err != nil || !strings.Contains(out, "cannot be read") || strings.Contains(out, "There is no key") {
		t.Errorf("the list: %s, %v", out, err)
	}
	if out, err := g.RunCommand("keys", "revoke", id, "--admin", admin); err == nil || !strings.Contains(out, "cannot be read") {
		t.Errorf("revoking: %s, %v", out, err)
	}
	if err := os.WriteFile(file, text, 0o600); err != nil {
		t.Fatal(err)
	}
	awaitStatus(t, g, key, 200, "")
	g.AwaitNoCondition(condition.KeysUnavailable)
}

// TestE2E_B4_KeysOutliveAnEmptiedRedis: FLUSHALL takes no key of run time, and a condition tells of
// it. A damaged key can be revoked.
func TestE2E_B4_KeysOutliveAnEmptiedRedis(t *testing.T) {
	t.Parallel()
	redis := redistest.Start(t)
	g := harness.Start(t, "\nauth: {mode: keys}\ntenants: [{name: acme}]\nredis: "+redistest.URL(redis)+small)
	key, id := newKeyBy(t, g)
	awaitStatus(t, g, key, 200, "")
	client := redis.Client()
	if err := client.FlushAll(t.Context()).Err(); err != nil {
		t.Fatal(err)
	}
	harness.Eventually(t, "the key is in Redis again", func() error { return client.HGet(t.Context(), "sluice:keys", id).Err() })
	if c := g.AwaitCondition(condition.RedisLostData, ""); c.Reason != "KeysRestored" {
		t.Errorf("%+v", c)
	}
	awaitStatus(t, g, key, 200, "")
	if err := client.HSet(t.Context(), "sluice:keys", "bad", "{").Err(); err != nil {
		t.Fatal(err)
	}
	if c := g.AwaitCondition(condition.KeysDamaged, ""); c.Severity != condition.Warning || !strings.Contains(c.Message, "bad") {
		t.Errorf("%+v", c)
	}
	admin := strings.TrimPrefix(g.Admin, "http://")
	for _, revoked := range []string{id, "bad"} {
		if out, err := g.RunCommand("keys", "revoke", revoked, "--admin", admin); err != nil {
			t.Error(out, err)
		}
	}
	awaitStatus(t, g, key, 401, "invalid_api_key")
}
