package main

import (
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/sluice-gateway/sluice/authz"
	"github.com/sluice-gateway/sluice/envoy"
	"github.com/sluice-gateway/sluice/internal/bench/local"
	"github.com/sluice-gateway/sluice/internal/processors"
)

// testbed is the processes that a measurement starts.
type testbed struct {
	options
	// dir holds the configuration, the logs and the state of all processes.
	dir       string
	processes []*exec.Cmd
	// addresses are the host:port of the simulated engines, sluice is a gateway in front of them.
	// Only the parts besides the comparison have them.
	addresses []string
	sluice    *proxy
}

// engineCount is the number of engines.
const engineCount = 3

// newTestbed returns a testbed without processes. The caller must close it.
func newTestbed(o options) (*testbed, error) {
	dir, err := os.MkdirTemp("", "sluice-bench-")
	return &testbed{options: o, dir: dir}, err
}

// startSimulated starts the simulated engines and a gateway in front of them, once.
func (b *testbed) startSimulated() error {
	if b.sluice != nil {
		return nil
	}
	// The engines have no timing of their own. Requests set the speed of their responses by the
	// fault header.
	for i := range engineCount {
		port, err := local.FreePort()
		if err != nil {
			return err
		}
		b.addresses = append(b.addresses, fmt.Sprint("127.0.0.1:", port))
		if _, err := b.start(fmt.Sprint("sim-", i), nil, b.options.sluice, "sim", "--port", fmt.Sprint(port), "--served-model-name", "sim,native,managed",
			"--prefill-rate", "0", "--token-interval", "0", "--batch-slowdown", "0", "--max-num-seqs", "20000", "--keep-requests", "0"); err != nil {
			return err
		}
	}
	for _, a := range b.addresses {
		if err := local.WaitForOK("http://" + a + "/health"); err != nil {
			return err
		}
	}
	var err error
	b.sluice, err = b.startSluice("main", nil, b.addresses)
	return err
}

// close stops all processes and removes their files.
func (b *testbed) close() {
	b.stopProcesses()
	os.RemoveAll(b.dir)
}

// stopProcesses stops all processes that run.
func (b *testbed) stopProcesses() {
	for _, p := range b.processes {
		_ = p.Process.Signal(syscall.SIGTERM) // fails for a process that has ended
	}
	for _, p := range b.processes {
		_ = p.Wait() // returns the signal as an error
	}
	b.processes = nil
}

// start starts a process with the environment of this process and env. It returns the process id.
func (b *testbed) start(name string, env []string, command ...string) (int, error) {
	log, err := os.Create(filepath.Join(b.dir, name+".log"))
	if err != nil {
		return 0, err
	}
	defer log.Close()
	cmd := exec.Command(command[0], command[1:]...)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.Env = append(os.Environ(), env...)
	if err := cmd.Start(); err != nil {
		return 0, err
	}
	b.processes = append(b.processes, cmd)
	return cmd.Process.Pid, nil
}

// workersOfEach is how many workers each Envoy of a comparison has: as many as Sluice gives its own
// by itself.
func workersOfEach() int { return min(processors.Available(), envoy.MostWorkers) }

// startPlainEnvoy runs an Envoy with static clusters and no filter except the router.
func (b *testbed) startPlainEnvoy(addresses []string, workers int) (*proxy, error) {
	port, err := local.FreePort()
	if err != nil {
		return nil, err
	}
	var endpoints []string
	for _, a := range addresses {
		_, p, _ := net.SplitHostPort(a)
		endpoints = append(endpoints,
			fmt.Sprintf(`{endpoint: {address: {socket_address: {address: 127.0.0.1, port_value: %s}}}}`, p))
	}
	file := filepath.Join(b.dir, "plain.yaml")
	if err := os.WriteFile(file, []byte(fmt.Sprintf(plainEnvoyConfig, port, strings.Join(endpoints, ", "))), 0o600); err != nil {
		return nil, err
	}
	pid, err := b.start("plain", nil, b.envoy, "-c", file, "--disable-hot-restart", "--log-level", "error", "--concurrency", fmt.Sprint(workers))
	if err != nil {
		return nil, err
	}
	c := newProxy(port, pid, 0)
	return c, local.WaitForOK(c.url + "/v1/models")
}

// plainEnvoyConfig is the configuration of the plain Envoy, as one would write it by hand. Its
// circuit breakers never trigger, like those of Sluice.
const plainEnvoyConfig = `
static_resources:
  listeners:
  - address: {socket_address: {address: 127.0.0.1, port_value: %d}}
    filter_chains:
    - filters:
      - name: envoy.filters.network.http_connection_manager
        typed_config:
          "@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
          stat_prefix: plain
          route_config:
            virtual_hosts:
            - {name: all, domains: ["*"], routes: [{match: {prefix: /}, route: {cluster: engines, timeout: 0s}}]}
          http_filters:
          - name: envoy.filters.http.router
            typed_config: {"@type": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router}
  clusters:
  - name: engines
    connect_timeout: 2s
    circuit_breakers: {thresholds: [{max_connections: 100000, max_pending_requests: 100000, max_requests: 100000}]}
    load_assignment: {cluster_name: engines, endpoints: [{lb_endpoints: [%s]}]}
`

// startSluice runs Sluice with its own Envoy in front of engines, with all its functions: keys,
// admission, routing, access log.
func (b *testbed) startSluice(name string, env, addresses []string) (*proxy, error) {
	return b.startGateway(name, env, modelsOf(addresses))
}

// modelsOf returns the models of sluiceModels on these engines.
func modelsOf(addresses []string) string {
	upstreams := "http://" + strings.Join(addresses, ", http://")
	return fmt.Sprintf(sluiceModels, upstreams, upstreams, upstreams)
}

// startGateway runs Sluice with its own Envoy. rest is the configuration besides its addresses and
// its tenant.
func (b *testbed) startGateway(name string, env []string, rest string) (*proxy, error) {
	port, err := local.FreePort()
	if err != nil {
		return nil, err
	}
	adminPort, err := local.FreePort()
	if err != nil {
		return nil, err
	}
	file := filepath.Join(b.dir, name+".yaml")
	text := fmt.Sprintf(sluiceConfig, port, adminPort, filepath.Join(b.dir, name), authz.HashKey(benchKey))
	if err := os.WriteFile(file, []byte(text+rest), 0o600); err != nil {
		return nil, err
	}
	pid, err := b.start("sluice-"+name, env, b.options.sluice, "up", "-c", file, "--envoy", b.envoy)
	if err != nil {
		return nil, err
	}
	admin := fmt.Sprint("http://127.0.0.1:", adminPort)
	if err := local.WaitForOK(admin + "/readyz"); err != nil {
		said, _ := os.ReadFile(filepath.Join(b.dir, "sluice-"+name+".log"))
		return nil, fmt.Errorf("%w\n%s", err, said[max(0, len(said)-4000):])
	}
	resp, err := http.Get(admin + "/api/v1/status")
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	var status struct{ Envoy struct{ PID int } }
	if err := json.NewDecoder(resp.Body).Decode(&status); err != nil {
		return nil, err
	}
	c := newProxy(port, status.Envoy.PID, pid)
	c.admin = admin
	c.client.Transport = keyTransport{c.client.Transport}
	return c, nil
}

// benchKey is the key of the only tenant.
const benchKey = "bench"

// keyTransport adds the key to every request.
type keyTransport struct{ http.RoundTripper }

func (w keyTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	r.Header.Set("Authorization", "Bearer "+benchKey)
	return w.RoundTripper.RoundTrip(r)
}

// sluiceConfig is the beginning of each configuration.
const sluiceConfig = `
listen: 127.0.0.1:%d
admin: 127.0.0.1:%d
state_dir: %s/state
tenants:
  - name: bench
    keys: ["%s"]
`

// sluiceModels has the engines three times. Model sim has a token limit, so that Envoy reads the
// usage of all its streams. For model native Envoy reads the usage of one stream in sixteen.
const sluiceModels = `
models:
  - name: sim
    launcher: upstream
    upstreams: [%s]
    admission: {max_concurrent_requests: 100000, max_tokens_per_minute: 2000000000, max_per_replica: 20000}
    stream: {mode: native}
  - name: native
    launcher: upstream
    upstreams: [%s]
    admission: {max_concurrent_requests: 100000, max_per_replica: 20000}
    stream: {mode: native}
  - name: managed
    launcher: upstream
    upstreams: [%s]
    admission: {max_concurrent_requests: 100000, max_per_replica: 20000}
    stream: {mode: managed}
`

// comparedModels returns the configuration of the gateways that are compared: all functions are on.
// The only tenant has a key and limits, all models have admission, and requests go where the first
// token is predicted soonest. Model limited has a token limit, so that Envoy reads the usage of all
// its answers. For model native Envoy reads the usage of a sample of streams.
func comparedModels(by string, workers int, addresses []string) string {
	text := "    limits: {requests_per_minute: 1000000000, max_concurrent_streams: 1000000}\n" +
		fmt.Sprintf("envoy: {filter: %s, workers: %d}\nmodels:\n", by, workers)
	upstreams := "http://" + strings.Join(addresses, ", http://")
	for _, m := range []struct{ name, mode, limit string }{
		{"limited", "native", "max_tokens_per_minute: 1000000000000, "}, {"native", "native", ""}, {"managed", "managed", ""},
	} {
		text += fmt.Sprintf("  - name: %s\n    launcher: upstream\n    upstreams: [%s]\n    routing: {strategy: prefix}\n    stream: {mode: %s}\n"+
			"    admission: {%smax_concurrent_requests: 100000, max_per_replica: 20000}\n", m.name, upstreams, m.mode, m.limit)
	}
	return text
}

// filterFault returns why a gateway does not use the filter that its configuration names. It is
// empty if the gateway uses it, or needs none.
func (p *proxy) filterFault() (string, error) {
	resp, err := http.Get(p.admin + "/api/v1/conditions")
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	var list struct {
		Conditions []struct{ Type, Reason, Message string }
	}
	if err := json.NewDecoder(resp.Body).Decode(&list); err != nil {
		return "", fmt.Errorf("the gateway's conditions: %w", err)
	}
	for _, c := range list.Conditions {
		if c.Type == "FilterUnavailable" {
			return c.Reason + ": " + c.Message, nil
		}
	}
	return "", nil
}

// newProxy returns a proxy that listens on a port of this machine.
func newProxy(port, envoy, gateway int) *proxy {
	address := fmt.Sprint("127.0.0.1:", port)
	return &proxy{url: "http://" + address, address: address, envoyPID: envoy, gatewayPID: gateway, client: &http.Client{
		Transport: &http.Transport{MaxIdleConnsPerHost: 512, DisableCompression: true}}}
}
