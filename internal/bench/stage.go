package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/sluice-gateway/sluice/authz"
)

// stage is three engines and the two chains in front of them.
type stage struct {
	options
	dir           string
	processes     []*exec.Cmd
	addresses     []string // of the engines
	plain, sluice *chain
}

const engines = 3

// build starts everything. The stage must be closed even when it fails.
func build(o options) (*stage, error) {
	s := &stage{options: o}
	var err error
	if s.dir, err = os.MkdirTemp("", "sluice-bench-"); err != nil {
		return s, err
	}
	// The engines keep no time of their own: requests say by sim's header how slowly they are to be answered.
	for i := range engines {
		port, err := freePort()
		if err != nil {
			return s, err
		}
		s.addresses = append(s.addresses, fmt.Sprint("127.0.0.1:", port))
		if _, err := s.start(fmt.Sprint("sim-", i), nil, o.sluice, "sim", "--port", fmt.Sprint(port), "--served-model-name", "sim,native,managed",
			"--prefill-rate", "0", "--token-interval", "0", "--batch-slowdown", "0", "--max-num-seqs", "20000", "--keep-requests", "0"); err != nil {
			return s, err
		}
	}
	for _, a := range s.addresses {
		if err := await("http://" + a + "/health"); err != nil {
			return s, err
		}
	}
	if s.plain, err = s.startPlain(); err != nil {
		return s, err
	}
	s.sluice, err = s.startSluice("main", nil, s.addresses)
	return s, err
}

func (s *stage) close() {
	for _, p := range s.processes {
		_ = p.Process.Signal(syscall.SIGTERM) // one that has ended already needs none
	}
	for _, p := range s.processes {
		_ = p.Wait() // says that it ended by a signal
	}
	os.RemoveAll(s.dir)
}

// start starts a process; its environment is ours and env.
func (s *stage) start(name string, env []string, command ...string) (int, error) {
	log, err := os.Create(filepath.Join(s.dir, name+".log"))
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
	s.processes = append(s.processes, cmd)
	return cmd.Process.Pid, nil
}

// startPlain runs an Envoy that knows the engines from its file and has no filter but the router.
func (s *stage) startPlain() (*chain, error) {
	port, err := freePort()
	if err != nil {
		return nil, err
	}
	var endpoints []string
	for _, a := range s.addresses {
		_, p, _ := net.SplitHostPort(a)
		endpoints = append(endpoints,
			fmt.Sprintf(`{endpoint: {address: {socket_address: {address: 127.0.0.1, port_value: %s}}}}`, p))
	}
	file := filepath.Join(s.dir, "plain.yaml")
	if err := os.WriteFile(file, []byte(fmt.Sprintf(plainEnvoy, port, strings.Join(endpoints, ", "))), 0o600); err != nil {
		return nil, err
	}
	pid, err := s.start("plain", nil, s.envoy, "-c", file, "--disable-hot-restart", "--log-level", "error")
	if err != nil {
		return nil, err
	}
	c := newChain(port, pid, 0)
	return c, await(c.url + "/health")
}

// plainEnvoy is the other chain: what one would write by hand, with breakers out of the way as in Sluice's.
const plainEnvoy = `
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

// startSluice runs Sluice with its own Envoy in front of engines, everything on: keys, admission, routing, access log.
func (s *stage) startSluice(name string, env, addresses []string) (*chain, error) {
	port, err := freePort()
	if err != nil {
		return nil, err
	}
	adminPort, err := freePort()
	if err != nil {
		return nil, err
	}
	file := filepath.Join(s.dir, name+".yaml")
	upstreams := "http://" + strings.Join(addresses, ", http://")
	text := fmt.Sprintf(sluiceFile, port, adminPort, filepath.Join(s.dir, name), authz.HashKey(benchKey), upstreams, upstreams, upstreams)
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		return nil, err
	}
	pid, err := s.start("sluice-"+name, env, s.options.sluice, "up", "-c", file, "--envoy", s.envoy)
	if err != nil {
		return nil, err
	}
	admin := fmt.Sprint("http://127.0.0.1:", adminPort)
	if err := await(admin + "/readyz"); err != nil {
		return nil, err
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
	c := newChain(port, status.Envoy.PID, pid)
	c.admin = admin
	c.client.Transport = withKey{c.client.Transport}
	return c, nil
}

// benchKey is the key of the one tenant.
const benchKey = "bench"

type withKey struct{ http.RoundTripper }

func (w withKey) RoundTrip(r *http.Request) (*http.Response, error) {
	r.Header.Set("Authorization", "Bearer "+benchKey)
	return w.RoundTripper.RoundTrip(r)
}

// sluiceFile has the engines three times: "sim" has a limit of tokens, so that Envoy reads the usage of all its streams; of "native" it reads
// that of one in sixteen.
const sluiceFile = `
listen: 127.0.0.1:%d
admin: 127.0.0.1:%d
state_dir: %s/state
tenants:
  - {name: bench, keys: ["%s"]}
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

func newChain(port, envoy, gateway int) *chain {
	return &chain{url: fmt.Sprint("http://127.0.0.1:", port), envoy: envoy, gateway: gateway, client: &http.Client{
		Transport: &http.Transport{MaxIdleConnsPerHost: 512, DisableCompression: true}}}
}

func freePort() (int, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, err
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port, nil
}

// await waits until the URL answers 200.
func await(url string) error {
	for range 600 {
		if resp, err := http.Get(url); err == nil {
			resp.Body.Close()
			if resp.StatusCode == http.StatusOK {
				return nil
			}
		}
		time.Sleep(50 * time.Millisecond)
	}
	return errors.New(url + " does not answer 200")
}
