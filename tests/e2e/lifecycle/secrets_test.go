package lifecycle

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sluice-gateway/sluice/authz"
	"github.com/sluice-gateway/sluice/internal/testutil"
	"github.com/sluice-gateway/sluice/tests/e2e/harness"
)

// The keys in the environment of the gateway reach Envoy, the guard and the engines only as far as
// the file says so.
func TestE2E_X11_ChildrenDoNotInheritKeys(t *testing.T) {
	t.Parallel()
	g := harness.Prepare(t, `
models:
  - {name: plain, engine: sim}
  - name: given
    engine: sim
    env: {LEVEL: debug}
    env_from: {variables: [HF_TOKEN], files: [given.env]}
`)
	g.Env = []string{"OPENAI_API_KEY=sk-upstream-key", "AWS_SECRET_ACCESS_KEY=aws", "HF_TOKEN=hf_gateway_token"}
	if err := os.WriteFile(filepath.Join(filepath.Dir(g.Config), "given.env"), []byte("# of this model\nOWN_KEY=own-secret\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(g.Stop)
	g.Launch()
	g.AwaitReady()
	given := g.Replicas()["given-0"].PID
	checked := 0
	for pid, command := range g.Processes() {
		if pid == g.Process.Process.Pid {
			continue
		}
		checked++
		env, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", pid))
		if err != nil {
			t.Fatal(err)
		}
		for _, secret := range []string{"OPENAI_API_KEY", "AWS_SECRET_ACCESS_KEY", "HF_TOKEN", "OWN_KEY", "LEVEL"} {
			has := strings.Contains("\x00"+string(env), "\x00"+secret+"=")
			want := pid == given && (secret == "HF_TOKEN" || secret == "OWN_KEY" || secret == "LEVEL")
			if has != want {
				t.Errorf("%s has %s: %v, want %v", command, secret, has, want)
			}
		}
	}
	if checked != 4 {
		t.Errorf("%d processes beside the gateway, want Envoy, the guard and two engines", checked)
	}
}

// adminToken makes a token with the command and returns it with the lines for the file.
func adminToken(t *testing.T, g *harness.Gateway, name, role string) (token, hash string) {
	t.Helper()
	out, err := g.RunCommand("admin", "token", name, "--role", role)
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	_, rest, _ := strings.Cut(out, "token (shown only once): ")
	token, rest, _ = strings.Cut(rest, "\n")
	_, rest, _ = strings.Cut(rest, `hash: "`)
	hash, _, _ = strings.Cut(rest, `"`)
	return token, hash
}

// call sends a request to the admin listener and returns the status and the body.
func call(t *testing.T, g *harness.Gateway, method, path, body, token string) (int, string) {
	t.Helper()
	r, err := http.NewRequest(method, g.Admin+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Content-Type", "application/json")
	if token != "" {
		r.Header.Set("Authorization", "Bearer "+token)
	}
	answer, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err != nil {
		t.Fatal(err)
	}
	return answer.StatusCode, string(text)
}

// The admin listener is refused off loopback without admin_auth. With it, strangers see nothing,
// viewers read, operators change, and sluice restart needs a token.
func TestE2E_X12_AdminAuthentication(t *testing.T) {
	t.Parallel()
	g := harness.Prepare(t, harness.OneSim)
	operator, hash := adminToken(t, g, "ops", "operator")
	viewer, viewerHash := adminToken(t, g, "board", "viewer")
	health := fmt.Sprint("127.0.0.1:", testutil.FreePort(t))
	g.Configure(harness.OneSim + fmt.Sprintf("\nhealth: %s\nadmin_auth:\n  tokens:\n    - {name: ops, role: operator, hash: %q}\n    - {name: board, role: viewer, hash: %q}\n",
		health, hash, viewerHash))
	open := filepath.Join(filepath.Dir(g.Config), "open.yaml")
	if err := os.WriteFile(open, []byte("state_dir: state\n\nadmin: 0.0.0.0:9090\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := g.RunCommand("check", "-c", open); err == nil || !strings.Contains(out, "open.yaml:3: admin: 0.0.0.0:9090 can be reached from other machines") {
		t.Errorf("an open listener off loopback: %v, %s", err, out)
	}
	t.Cleanup(g.Stop)
	g.AdminToken = viewer
	g.Launch()
	g.AwaitReady()
	const limits = "/api/v1/models/chat/limits"
	for _, c := range []struct {
		method, path, token string
		status              int
	}{
		{"GET", "/api/v1/models", "", 401}, {"GET", "/metrics", "", 401}, {"PATCH", limits, "", 401}, {"GET", "/", "", 200},
		{"GET", "/api/v1/models", viewer, 200}, {"PATCH", limits, viewer, 403}, {"PATCH", limits, operator, 200},
	} {
		if status, body := call(t, g, c.method, c.path, `{"max_concurrent_requests":5}`, c.token); status != c.status {
			t.Errorf("%s %s: %d, want %d: %s", c.method, c.path, status, c.status, body)
		}
	}
	for path, want := range map[string]int{"/readyz": 200, "/metrics": 200, "/api/v1/models": 404} {
		answer, err := http.Get("http://" + health + path)
		if err != nil {
			t.Fatal(err)
		}
		answer.Body.Close()
		if answer.StatusCode != want {
			t.Errorf("%s of the health listener: %d, want %d", path, answer.StatusCode, want)
		}
	}
	log := g.LogText()
	for _, want := range []string{"admin call done", `"who":"ops"`, `"old":{"max_concurrent_requests":0}`, `"new":{"max_concurrent_requests":5}`, "admin call refused", `"who":"board"`} {
		if !strings.Contains(log, want) {
			t.Errorf("the log lacks %s", want)
		}
	}
	if strings.Contains(log, operator) || strings.Contains(log, viewer) {
		t.Error("the log has a token")
	}
	if out, err := g.RunCommand("restart", "-c", g.Config); err == nil || !strings.Contains(out, "--admin-token-file") {
		t.Errorf("restart without a token: %v, %s", err, out)
	}
	file := filepath.Join(filepath.Dir(g.Config), "token")
	if err := os.WriteFile(file, []byte(viewer+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := g.RunCommand("restart", "-c", g.Config, "--admin-token-file", file); err != nil {
		t.Errorf("restart with a token: %v, %s", err, out)
	}
}

// What an engine logs while it starts reaches the API, the log and heartbeats without its secrets,
// and heartbeats only of tenants that may read it.
func TestE2E_X15_SecretsInLinesOfEngines(t *testing.T) {
	t.Parallel()
	curious, other := authz.NewKey(), authz.NewKey()
	g := harness.Prepare(t, `
auth: {mode: keys}
tenants:
  - {name: curious, keys: ["`+curious.Hash+`"], engine_log: true}
  - {name: other, keys: ["`+other.Hash+`"]}
engines:
  - name: talkative
    versions:
      - version: "1"
        tasks: [text-generation]
        command: [sh, -c, 'echo "loading with $OPAQUE and api_key=hunter22 from 10.9.8.7"; exec sleep 1000']
models:
  - name: chat
    engine: talkative
    env_from: {files: [opaque.env]}
    stream: {mode: managed, heartbeat: 300ms}
`)
	if err := os.WriteFile(filepath.Join(filepath.Dir(g.Config), "opaque.env"), []byte("OPAQUE=very-secret-value\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(g.Stop)
	g.Launch()
	g.AwaitLogged(`"msg":"serving"`, 1) // Envoy listens, although no replica is ready
	const shown = "loading with … and api_key=… from 10.9.8.7"
	harness.Eventually(t, "the replica shows the line", func() error {
		if r := g.Replicas()["chat-0"]; r.Reason != shown {
			return fmt.Errorf("%+v", r)
		}
		return nil
	})
	for key, want := range map[string]bool{curious.Secret: true, other.Secret: false} {
		line := firstHeartbeat(t, g, key)
		if strings.Contains(line, "starting") != true || strings.Contains(line, shown) != want {
			t.Errorf("a heartbeat is %q, want the line: %v", line, want)
		}
	}
	for what, text := range map[string]string{"log": g.LogText(), "status": g.AdminText("/api/v1/status"), "list of conditions": g.AdminText("/api/v1/conditions")} {
		if strings.Contains(text, "very-secret-value") || strings.Contains(text, "hunter22") {
			t.Errorf("the %s has a secret: %s", what, text)
		}
	}
}

// firstHeartbeat sends a request that waits for a replica, and returns the first heartbeat that
// says so.
func firstHeartbeat(t *testing.T, g *harness.Gateway, key string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), testutil.Patience)
	defer cancel()
	answer, err := g.Open(ctx, "/v1/chat/completions", harness.ChatBody("chat", true, 5, "hello"), "Authorization: Bearer "+key)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	lines := bufio.NewScanner(answer.Body)
	for lines.Scan() {
		if line := lines.Text(); strings.HasPrefix(line, ":") && strings.Contains(line, "starting") {
			return line
		}
	}
	t.Fatalf("the stream ends without a heartbeat: %d, %v", answer.StatusCode, lines.Err())
	return ""
}
