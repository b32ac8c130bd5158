package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	"github.com/sluice-gateway/sluice/internal/bench/local"
)

// engines is the number of simulated engines.
const engines = 8

// gateway is a running gateway with its Envoy and its engines.
type gateway struct {
	// url is the API, admin the admin listener.
	url, admin string
	dir        string
	process    *exec.Cmd
	client     *http.Client
}

// configuration has engines with the rates of the virtual hour, divided by tokenScale and
// multiplied by the speed. The token limit makes Envoy read the usage of all answers.
const configuration = `
listen: 127.0.0.1:%d
admin: 127.0.0.1:%d
state_dir: %s/state
auth: {mode: none}
models:
  - name: chat
    task: text-generation
    engine: sim
    replicas: {min: %d, max: %d}
    routing: {strategy: %s}
    admission: {max_concurrent_requests: 100000, max_tokens_per_minute: 2000000000}
    stream: {mode: native}
    variables:
      prefill_rate: %.3f
      token_interval: %v
      batch_slowdown: 0
      max_num_batched_tokens: %d
      cache_tokens: %d
`

// The engines of the virtual hour: prefilled tokens per second, the time between two tokens, and
// the tokens of one step.
const (
	prefillRate   = 6000
	tokenInterval = 20 * time.Millisecond
	stepTokens    = 8192
)

// startGateway starts a gateway and waits until all engines are ready. The caller must stop the
// gateway even after an error.
func startGateway(o options, strategy string) (*gateway, error) {
	g := &gateway{client: &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 1024, DisableCompression: true}}}
	var err error
	if g.dir, err = os.MkdirTemp("", "routing-"); err != nil {
		return g, err
	}
	var ports [2]int
	for i := range ports {
		if ports[i], err = local.FreePort(); err != nil {
			return g, err
		}
	}
	g.url, g.admin = fmt.Sprint("http://127.0.0.1:", ports[0]), fmt.Sprint("http://127.0.0.1:", ports[1])
	text := fmt.Sprintf(configuration, ports[0], ports[1], g.dir, engines, engines, strategy,
		prefillRate*o.speed/tokenScale, time.Duration(float64(tokenInterval*tokenScale)/o.speed), stepTokens/tokenScale, o.cache/tokenScale)
	file := filepath.Join(g.dir, "sluice.yaml")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		return g, err
	}
	log, err := os.Create(filepath.Join(g.dir, "sluice.log"))
	if err != nil {
		return g, err
	}
	defer log.Close()
	process := exec.Command(o.sluice, "up", "-c", file, "--envoy", o.envoy)
	process.Stdout, process.Stderr = log, log
	if err := process.Start(); err != nil {
		return g, err
	}
	g.process = process
	return g, g.awaitEngines()
}

// awaitEngines waits until all engines are ready. Its error has what the gateway has printed.
func (g *gateway) awaitEngines() error {
	err := local.WaitForOK(g.admin + "/readyz")
	for deadline := time.Now().Add(30 * time.Second); err == nil; time.Sleep(50 * time.Millisecond) {
		var list struct{ Models []struct{ Ready int } }
		if err = g.get("/api/v1/models", &list); err != nil {
			break
		}
		if len(list.Models) == 1 && list.Models[0].Ready == engines {
			return nil
		}
		if time.Now().After(deadline) {
			err = fmt.Errorf("not all engines are ready after 30 s: %+v", list)
		}
	}
	said, _ := os.ReadFile(filepath.Join(g.dir, "sluice.log"))
	return fmt.Errorf("%w\n%s", err, said[max(0, len(said)-4000):])
}

// get decodes an answer of the admin listener.
func (g *gateway) get(path string, into any) error {
	text, err := g.read(context.Background(), path)
	if err != nil {
		return err
	}
	return json.Unmarshal(text, into)
}

// read returns an answer of the admin listener.
func (g *gateway) read(ctx context.Context, path string) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, g.admin+path, nil)
	if err != nil {
		return nil, err
	}
	resp, err := g.client.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	var b bytes.Buffer
	if _, err = b.ReadFrom(resp.Body); err == nil && resp.StatusCode != http.StatusOK {
		err = errors.New(path + ": " + resp.Status)
	}
	return b.Bytes(), err
}

// stop ends the gateway, which ends Envoy and the engines, and removes its files.
func (g *gateway) stop() {
	if g.process != nil {
		_ = g.process.Process.Signal(syscall.SIGTERM) // fails for a process that has ended
		_ = g.process.Wait()                          // returns the signal as an error
	}
	g.client.CloseIdleConnections()
	os.RemoveAll(g.dir)
}
