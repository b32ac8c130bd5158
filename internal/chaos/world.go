package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// world is a gateway with its Envoy, its replicas, a Redis and an engine that misbehaves.
type world struct {
	options
	// dir holds all files of the world. The state directory is a small file system of its own, if
	// the fault needs one.
	dir string
	// url is the API, admin the admin listener.
	url, admin string
	redis      *child
	redisPort  int
	gateway    *child
	evil       *evilEngine
	// mounted tells that the state directory is a file system of its own.
	mounted bool
	// models is the text of further models in the configuration file.
	models string
}

// newWorld starts all processes and waits until all models are ready. It returns the world even
// with an error, so that the caller can close it.
func newWorld(o options, f fault) (*world, error) {
	dir, err := os.MkdirTemp("", "chaos-")
	if err != nil {
		return nil, err
	}
	w := &world{options: o, dir: dir}
	ports, err := freePorts(3)
	if err != nil {
		return w, err
	}
	w.redisPort = ports[2]
	w.url, w.admin = fmt.Sprint("http://127.0.0.1:", ports[0]), fmt.Sprint("http://127.0.0.1:", ports[1])
	if err := os.Mkdir(w.path("state"), 0o700); err != nil {
		return w, err
	}
	if err := w.mount(f.disk); err != nil {
		return w, fmt.Errorf("mount a file system for the state directory (this fault needs the right to mount): %w", err)
	}
	if w.evil, err = newEvilEngine(); err != nil {
		return w, err
	}
	clock, err := f.redisEnv(w.path("clock"))
	if err != nil {
		return w, err
	}
	w.redis = &child{log: w.path("redis.log"), env: clock,
		command: []string{"redis-server", "--port", fmt.Sprint(w.redisPort), "--bind", "127.0.0.1", "--dir", dir, "--save", "", "--appendonly", "no"}}
	if err := os.WriteFile(w.path("clock"), []byte("0"), 0o600); err != nil {
		return w, err
	}
	if err := w.redis.start(); err != nil {
		return w, err
	}
	if err := awaitTCP(fmt.Sprint("127.0.0.1:", w.redisPort)); err != nil {
		return w, err
	}
	if err := w.writeConfig(); err != nil {
		return w, err
	}
	w.gateway = &child{log: w.path("gateway.log"), command: []string{o.sluice, "up", "-c", w.path("sluice.yaml"), "--envoy", o.envoy}}
	if err := w.gateway.start(); err != nil {
		return w, err
	}
	return w, w.awaitModels(time.Minute)
}

// mount gives the state directory a file system of its own, unless the type is empty.
func (w *world) mount(kind string) error {
	commands := map[string][][]string{
		"tmpfs": {{"mount", "-t", "tmpfs", "-o", "size=16m,mode=0700", "chaos", w.path("state")}},
		"ext4": {
			{"truncate", "-s", "64M", w.path("disk")},
			{"mkfs.ext4", "-q", w.path("disk")},
			{"mount", "-o", "loop", w.path("disk"), w.path("state")},
			{"chmod", "700", w.path("state")},
		},
	}[kind]
	for _, command := range commands {
		if out, err := exec.Command(command[0], command[1:]...).CombinedOutput(); err != nil {
			return fmt.Errorf("%s: %w: %s", command[0], err, out)
		}
		w.mounted = command[0] == "mount" || w.mounted
	}
	return nil
}

func (w *world) path(name string) string { return filepath.Join(w.dir, name) }

// config is the configuration of all worlds. The streams have a token each 100 ms.
const config = `
listen: %s
admin: %s
state_dir: %s
redis: redis://127.0.0.1:%d/0
orphan_grace: 60s
auth: {mode: none}
models:
  - name: native
    engine: sim
    replicas: {min: 2, max: 2}
    stream: {mode: native}
    variables: {name: sim, token_interval: 100ms, prefill_rate: 0, batch_slowdown: 0, max_num_seqs: 2000}
  - name: managed
    engine: sim
    replicas: {min: 2, max: 2}
    stream: {mode: managed, resume: 30s}
    variables: {name: sim, token_interval: 100ms, prefill_rate: 0, batch_slowdown: 0, max_num_seqs: 2000}
  - name: small
    engine: sim
    replicas: {min: 2, max: 2}
    admission: {max_concurrent_requests: 1000, max_tokens_per_minute: 100000000}
    variables: {name: sim, token_interval: 0s, prefill_rate: 0, batch_slowdown: 0}
  - name: evil
    launcher: upstream
    upstreams: [{url: %s}]
%s`

// writeConfig writes the configuration file with w.models.
func (w *world) writeConfig() error {
	text := fmt.Sprintf(config, strings.TrimPrefix(w.url, "http://"), strings.TrimPrefix(w.admin, "http://"), w.path("state"), w.redisPort,
		w.evil.url(), w.models)
	if err := os.WriteFile(w.path("sluice.yaml.new"), []byte(text), 0o600); err != nil {
		return err
	}
	return os.Rename(w.path("sluice.yaml.new"), w.path("sluice.yaml"))
}

// rewriteConfig writes the configuration file with other further models.
func (w *world) rewriteConfig(models string) error {
	w.models = models
	return w.writeConfig()
}

// close ends all processes and removes the files.
func (w *world) close() {
	if w.gateway != nil {
		w.gateway.end(30 * time.Second)
	}
	if w.redis != nil {
		w.redis.end(5 * time.Second)
	}
	if w.evil != nil {
		w.evil.close()
	}
	if w.mounted {
		_ = syscall.Unmount(w.path("state"), syscall.MNT_DETACH)
	}
	if !w.keep {
		os.RemoveAll(w.dir)
	}
}

// get reads an answer of the admin listener.
func (w *world) get(ctx context.Context, path string, answer any) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, w.admin+path, nil)
	if err != nil {
		return err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return errors.New(path + ": " + resp.Status)
	}
	return json.NewDecoder(resp.Body).Decode(answer)
}

// conditionView is a condition as the admin listener shows it.
type conditionView struct {
	Type, Subject, Severity, Status, Message string
}

// attention returns the conditions that need attention.
func (w *world) attention(ctx context.Context) ([]conditionView, error) {
	var answer struct{ Conditions []conditionView }
	if err := w.get(ctx, "/api/v1/conditions", &answer); err != nil {
		return nil, err
	}
	var all []conditionView
	for _, c := range answer.Conditions {
		if c.Severity != "info" {
			all = append(all, c)
		}
	}
	return all, nil
}

// awaitModels waits until the gateway takes requests and each model of the load has its replicas.
func (w *world) awaitModels(limit time.Duration) error {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	for {
		err := w.modelsReady(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			log, _ := os.ReadFile(w.gateway.log)
			return fmt.Errorf("the gateway is not ready: %w\n%s", err, lastLines(log, 20))
		case <-w.gateway.done:
			log, _ := os.ReadFile(w.gateway.log)
			return fmt.Errorf("the gateway has ended:\n%s", lastLines(log, 20))
		case <-time.After(100 * time.Millisecond):
		}
	}
}

func (w *world) modelsReady(ctx context.Context) error {
	if err := w.get(ctx, "/readyz", new(struct{})); err != nil {
		return err
	}
	var answer struct{ Conditions []conditionView }
	if err := w.get(ctx, "/api/v1/conditions", &answer); err != nil {
		return err
	}
	for _, c := range answer.Conditions {
		if c.Type == "ModelReady" && c.Status != "true" && c.Subject != "evil" {
			return errors.New(c.Message)
		}
	}
	return nil
}

// replicaPIDs returns the processes of a model's replicas.
func (w *world) replicaPIDs(ctx context.Context, model string) ([]int, error) {
	var answer struct {
		Replicas []struct {
			Model string
			PID   int
		}
	}
	if err := w.get(ctx, "/api/v1/replicas", &answer); err != nil {
		return nil, err
	}
	var pids []int
	for _, r := range answer.Replicas {
		if r.Model == model && r.PID != 0 {
			pids = append(pids, r.PID)
		}
	}
	if len(pids) == 0 {
		return nil, errors.New("no replica of " + model + " has a process")
	}
	return pids, nil
}

// envoyPID returns Envoy's process.
func (w *world) envoyPID(ctx context.Context) (int, error) {
	var answer struct{ Envoy struct{ PID int } }
	if err := w.get(ctx, "/api/v1/status", &answer); err != nil {
		return 0, err
	}
	if answer.Envoy.PID == 0 {
		return 0, errors.New("no Envoy runs")
	}
	return answer.Envoy.PID, nil
}

// leftBehind says what the gateway still counts after all clients have gone.
func (w *world) leftBehind(ctx context.Context) string {
	var left string
	for range 100 {
		var answer struct {
			Models []struct {
				Name     string
				InFlight int `json:"in_flight"`
				Queued   int
			}
		}
		if err := w.get(ctx, "/api/v1/models", &answer); err != nil {
			left = err.Error()
		} else {
			left = ""
			for _, m := range answer.Models {
				if m.InFlight > 0 || m.Queued > 0 {
					left += fmt.Sprintf("%s: %d running, %d waiting; ", m.Name, m.InFlight, m.Queued)
				}
			}
		}
		if left == "" {
			return ""
		}
		time.Sleep(100 * time.Millisecond)
	}
	return strings.TrimSuffix(left, "; ")
}

// child is a process of the world that can be killed and started again.
type child struct {
	log     string
	command []string
	env     []string

	cmd *exec.Cmd
	// done is closed when the process has ended.
	done chan struct{}
}

// start starts the process. Its output goes to the end of its log.
func (c *child) start() error {
	log, err := os.OpenFile(c.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	cmd := exec.Command(c.command[0], c.command[1:]...)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.Env = append(os.Environ(), c.env...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // an interrupt of the terminal reaches only this program
	if err := cmd.Start(); err != nil {
		return err
	}
	done := make(chan struct{})
	c.cmd, c.done = cmd, done
	go func() {
		_ = cmd.Wait() // returns the signal as an error
		close(done)
	}()
	return nil
}

func (c *child) pid() int { return c.cmd.Process.Pid }

// kill ends the process without notice and waits until it has gone.
func (c *child) kill() error {
	if err := c.cmd.Process.Kill(); err != nil {
		return err
	}
	<-c.done
	return nil
}

// end stops the process in order, and kills it after the limit.
func (c *child) end(limit time.Duration) {
	if c.cmd == nil {
		return
	}
	_ = c.cmd.Process.Signal(syscall.SIGCONT)
	_ = c.cmd.Process.Signal(syscall.SIGTERM)
	_ = c.cmd.Process.Signal(syscall.SIGTERM) // the second one ends running requests at once
	select {
	case <-c.done:
	case <-time.After(limit):
		_ = c.kill()
	}
}

// freePorts returns n ports that are free now.
func freePorts(n int) ([]int, error) {
	var ports []int
	for range n {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return nil, err
		}
		defer l.Close()
		ports = append(ports, l.Addr().(*net.TCPAddr).Port)
	}
	return ports, nil
}

// awaitTCP waits until something accepts connections at the address, up to 10 s.
func awaitTCP(address string) error {
	var err error
	for range 200 {
		var c net.Conn
		if c, err = net.Dial("tcp", address); err == nil {
			return c.Close()
		}
		time.Sleep(50 * time.Millisecond)
	}
	return err
}

func lastLines(text []byte, n int) string {
	lines := strings.Split(strings.TrimRight(string(text), "\n"), "\n")
	return strings.Join(lines[max(0, len(lines)-n):], "\n")
}

// discard reads a body to its end and closes it.
func discard(body io.ReadCloser) error {
	_, err := io.Copy(io.Discard, body)
	return errors.Join(err, body.Close())
}
