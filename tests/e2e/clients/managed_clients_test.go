package clients

import (
	"context"
	"maps"
	"net/http"
	"net/http/httptest"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/sluice-gateway/sluice/internal/testutil"
	"github.com/sluice-gateway/sluice/tests/e2e/harness"
)

// managedClients starts a gateway with managed streams. It returns the environment variables that
// the client scripts need.
func managedClients(t *testing.T) (*harness.Gateway, map[string]string) {
	t.Helper()
	keys, text := harness.TenantKeys("acme")
	g := harness.Start(t, "\nauth: {mode: keys}\n"+text+`
models:
  - name: managed
    engine: sim
    launcher: local
    variables: {prefill_rate: 0, token_interval: 10ms}
    stream: {mode: managed, heartbeat: 200ms}
  - name: auto
    engine: sim
    launcher: local
    variables: {prefill_rate: 0, token_interval: 10ms}
    stream: {mode: auto, heartbeat: 200ms, resume: 10m}
`)
	return g, map[string]string{
		"BASE_URL": g.URL + "/v1", "API_KEY": keys["acme"], "MANAGED_MODEL": "managed", "AUTO_MODEL": "auto",
		"ENGINE_URL":   "http://" + g.Replicas()["auto-0"].Address,
		"NODE_MODULES": filepath.Join(testutil.Root(), ".tools", "node", "node_modules"),
	}
}

// The official clients, unmodified, read managed streams as any other, and what is new in them by
// means that they have.
func TestE2E_S1_S2_S5_S6_S8_S16_OfficialClientsOfManagedStreams(t *testing.T) {
	t.Parallel()
	g, settings := managedClients(t)
	t.Run("python", func(t *testing.T) {
		t.Parallel()
		harness.RunScript(t, []string{testutil.Tool(t, "venv/bin/python"), filepath.Join(testutil.Root(), "tests/clients/managed.py")}, settings)
	})
	t.Run("node", func(t *testing.T) {
		t.Parallel()
		testutil.Tool(t, "node/node_modules/openai")
		harness.RunScript(t, []string{"node", filepath.Join(testutil.Root(), "tests/clients/managed.mjs")}, settings)
	})
	t.Cleanup(func() { g.AwaitIdle("managed"); g.AwaitIdle("auto") })
}

// A browser reads streams piece by piece, from a page of the gateway's host or of an origin of
// cors. It speaks over a WebSocket from any, with its key as a subprotocol.
func TestE2E_S1_S2_S8_S9_Chromium(t *testing.T) {
	t.Parallel()
	keys, text := harness.TenantKeys("acme")
	listed, unlisted := httptest.NewServer(http.NotFoundHandler()), httptest.NewServer(http.NotFoundHandler())
	defer listed.Close()
	defer unlisted.Close()
	g := harness.Start(t, "\nauth: {mode: keys}\ncors: {origins: ["+listed.URL+"]}\n"+text+`
models:
  - name: m
    engine: sim
    launcher: local
    variables: {prefill_rate: 0, token_interval: 100ms}
    stream: {mode: managed, heartbeat: 300ms}
`)
	testutil.Tool(t, "node/node_modules/playwright-core")
	harness.RunScript(t, []string{"node", filepath.Join(testutil.Root(), "tests/clients/browser.mjs")}, map[string]string{
		"GATEWAY_URL": g.URL, "MODEL": "m", "API_KEY": keys["acme"], "PAGE": "file://" + filepath.Join(testutil.Root(), "examples/realtime/chat.html"),
		"LISTED": listed.URL, "UNLISTED": unlisted.URL,
		"NODE_MODULES": filepath.Join(testutil.Root(), ".tools", "node", "node_modules"),
	})
	g.AwaitIdle("m")
}

// websockets, grpcio and grpcurl are what people have at hand for the other two protocols. The
// engine is seen to stop when they leave.
func TestE2E_S4_S5_S8_S9_S10_ClientsOfRealtimeAndGRPC(t *testing.T) {
	t.Parallel()
	g, settings := managedClients(t)
	with := func(more map[string]string) map[string]string {
		all := maps.Clone(settings)
		maps.Copy(all, more)
		return all
	}
	target := strings.TrimPrefix(g.URL, "http://")
	t.Run("websockets", func(t *testing.T) {
		t.Parallel()
		harness.RunScript(t, []string{testutil.Tool(t, "venv/bin/python"), filepath.Join(testutil.Root(), "tests/clients/realtime.py")}, with(map[string]string{
			"REALTIME_URL": "ws://" + target + "/v1/realtime", "MODEL": "auto",
		}))
	})
	t.Run("example", func(t *testing.T) {
		t.Parallel()
		out := commandOutput(t, testutil.Tool(t, "venv/bin/python"), filepath.Join(testutil.Root(), "examples/realtime/chat.py"), "--once", "--model", "managed",
			"--url", "ws://"+target+"/v1/realtime", "--key", settings["API_KEY"], "hello")
		if !regexp.MustCompile(`\n\((stop|length), [1-9]\d* tokens\)\n$`).MatchString(out) {
			t.Errorf("%q", out)
		}
	})
	t.Run("grpcio", func(t *testing.T) {
		t.Parallel()
		stubs := t.TempDir()
		commandOutput(t, testutil.Tool(t, "venv/bin/python"), "-m", "grpc_tools.protoc", "--proto_path="+filepath.Join(testutil.Root(), "api"),
			"--python_out="+stubs, "--grpc_python_out="+stubs, "llm/v1/inference.proto")
		harness.RunScript(t, []string{testutil.Tool(t, "venv/bin/python"), filepath.Join(testutil.Root(), "tests/clients/llmv1.py")}, with(map[string]string{
			"GRPC_TARGET": target, "MODEL": "managed", "STUBS": stubs, "ENGINE_URL": "http://" + g.Replicas()["managed-0"].Address,
		}))
	})
	t.Run("grpcurl", func(t *testing.T) {
		t.Parallel()
		grpcurl(t, target, settings["API_KEY"])
	})
	t.Cleanup(func() { g.AwaitIdle("managed"); g.AwaitIdle("auto") })
}

// grpcurl calls the gateway by the program grpcurl. It passes the proto file, because the gateway
// offers no reflection.
func grpcurl(t *testing.T, target, key string) {
	command := []string{testutil.Tool(t, "grpcurl"), "-plaintext", "-import-path", filepath.Join(testutil.Root(), "api"), "-proto", "llm/v1/inference.proto",
		"-H", "authorization: Bearer " + key, "-d", `{"model": "managed", "messages": ["hello"], "max_tokens": 5}`}
	out := commandOutput(t, append(command, target, "llm.v1.Inference/Stream")...)
	if !strings.Contains(out, `"text": "`) || !strings.Contains(out, `"finishReason": "`) {
		t.Errorf("%s", out)
	}
	command[7] = "authorization: Bearer wrong"
	refused, err := exec.CommandContext(t.Context(), command[0], append(command[1:], target, "llm.v1.Inference/Stream")...).CombinedOutput()
	if err == nil || !strings.Contains(string(refused), "Code: Unauthenticated") {
		t.Errorf("%v: %s", err, refused)
	}
}

// commandOutput returns the output of a program. The test fails if the program does not exit with
// status 0.
func commandOutput(t *testing.T, command ...string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*testutil.Patience)
	defer cancel()
	out, err := exec.CommandContext(ctx, command[0], command[1:]...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %v\n%s", command[0], err, out)
	}
	return string(out)
}
