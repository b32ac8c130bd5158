package harness

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/sluice-gateway/sluice/internal/condition"
	"github.com/sluice-gateway/sluice/internal/testutil"
)

// RunCommand runs a command of the program to its end and returns its output.
func (g *Gateway) RunCommand(args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 2*testutil.Patience)
	defer cancel()
	out, err := exec.CommandContext(ctx, Program(), args...).CombinedOutput()
	return string(out), err
}

// Gateway is a `sluice up`, or another command of the program, with the processes that it starts.
// Start makes a Gateway.
type Gateway struct {
	T           *testing.T
	URL, Admin  string        // Envoy's listener and the admin listener, as http://127.0.0.1:port
	AdminToken  string        // for the admin listener; empty when it needs none
	Dir, Config string        // the state directory, and the path of the configuration
	Binary      string        // the path of the program; empty: Program()
	Command     []string      // the program's arguments
	Env         []string      // added to the environment of the program, as NAME=value
	Files       int           // the limit of open files of the program; 0: that of the test
	Process     *exec.Cmd     // the process that Launch started last
	Exited      chan struct{} // closed when Process has exited
	Log         *os.File      // what the processes print
}

// Prepare writes the configuration and returns a Gateway that is not started. It adds the listeners
// and the state directory to the configuration.
func Prepare(t *testing.T, config string) *Gateway {
	t.Helper()
	testutil.Tool(t, "envoy")           // before there is something that has to be stopped
	dir, err := os.MkdirTemp("", "sl-") // a short path: those of Unix sockets are limited to 108 bytes
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	g := &Gateway{T: t, Dir: filepath.Join(dir, "state"), Config: filepath.Join(dir, "sluice.yaml")}
	g.URL = fmt.Sprint("http://127.0.0.1:", testutil.FreePort(t))
	g.Admin = fmt.Sprint("http://127.0.0.1:", testutil.FreePort(t))
	g.Configure(config)
	g.Command = []string{"up", "-c", g.Config}
	if g.Log, err = os.Create(filepath.Join(dir, "sluice.log")); err != nil {
		t.Fatal(err)
	}
	return g
}

// Start runs `sluice up` with the configuration and waits until it is ready. env is added to its
// environment. The gateway is stopped when the test ends.
func Start(t *testing.T, config string, env ...string) *Gateway {
	t.Helper()
	g := Prepare(t, config)
	g.Env = env
	t.Cleanup(g.Stop)
	g.Launch()
	g.AwaitReady()
	return g
}

// Configure replaces the configuration. A running gateway applies the new one.
func (g *Gateway) Configure(config string) {
	g.T.Helper()
	text := fmt.Sprintf("listen: %s\nadmin: %s\nstate_dir: %s\n", strings.TrimPrefix(g.URL, "http://"), strings.TrimPrefix(g.Admin, "http://"), g.Dir)
	if !strings.Contains(config, "\nauth:") {
		text += "auth: {mode: none}\n"
	}
	// The rename replaces the file in one step, as editors and ConfigMaps do. The gateway, which
	// watches the file, must never read half of it.
	if err := os.WriteFile(g.Config+".new", []byte(text+config), 0o600); err != nil {
		g.T.Fatal(err)
	}
	if err := os.Rename(g.Config+".new", g.Config); err != nil {
		g.T.Fatal(err)
	}
}

// Launch starts the program with g.Command. It does not wait.
func (g *Gateway) Launch() {
	g.T.Helper()
	g.Process = g.command()
	g.Process.Stdout, g.Process.Stderr = g.Log, g.Log
	g.Process.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := g.Process.Start(); err != nil {
		g.T.Fatal(err)
	}
	g.watchExit()
}

// LaunchInTerminal starts the program with g.Command in a terminal. It does not wait.
func (g *Gateway) LaunchInTerminal() *Terminal {
	g.T.Helper()
	g.Process = g.command()
	g.Process.Env = append(g.Process.Env, "TERM=xterm")
	terminal := OpenTerminal(g.T, g.Process)
	g.watchExit()
	return terminal
}

// command returns the program with its environment. It is not started.
func (g *Gateway) command() *exec.Cmd {
	cmd := exec.Command(cmp.Or(g.Binary, Program()), g.Command...)
	if g.Files > 0 {
		limited := []string{"-c", fmt.Sprintf(`ulimit -n %d; exec "$0" "$@"`, g.Files), Program()}
		cmd = exec.Command("/bin/sh", append(limited, g.Command...)...)
	}
	cmd.Env = append(os.Environ(), "SLUICE_FILTER="+cmp.Or(os.Getenv("SLUICE_FILTER"), "ext_proc"), directoryMark+g.Dir, "SLUICE_ENVOY="+testutil.Tool(g.T, "envoy"),
		"PATH="+filepath.Join(testutil.Root(), ".tools")+":"+os.Getenv("PATH"))
	cmd.Env = append(cmd.Env, g.Env...)
	return cmd
}

// watchExit closes Exited when the program has exited.
func (g *Gateway) watchExit() {
	g.Exited = make(chan struct{})
	go func(cmd *exec.Cmd, exited chan struct{}) {
		cmd.Wait()
		close(exited)
	}(g.Process, g.Exited)
}

// Signal sends a signal to the program, and to none of the processes that it started. After SIGSTOP
// it waits until all threads of the program have stopped, which takes a while on a busy machine.
func (g *Gateway) Signal(s syscall.Signal) {
	g.T.Helper()
	if err := g.Process.Process.Signal(s); err != nil {
		g.T.Fatal(err)
	}
	if s != syscall.SIGSTOP {
		return
	}
	Eventually(g.T, "the program has stopped", func() error {
		threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", g.Process.Process.Pid))
		for _, thread := range threads {
			text, err := os.ReadFile(thread)
			if err != nil {
				return err
			}
			// The state follows the name of the program, which is in parentheses.
			if i := bytes.LastIndexByte(text, ')'); !bytes.HasPrefix(text[i+1:], []byte(" T")) {
				return fmt.Errorf("%s: %s", thread, text)
			}
		}
		return err
	})
}

// AwaitExit waits until the program has exited.
func (g *Gateway) AwaitExit() {
	g.T.Helper()
	Receive(g.T, g.Exited, "the program has exited")
}

// Kill kills the program with SIGKILL and waits until it has exited. If another process serves in
// its place after a restart, that one ends by itself, and Kill waits for it too. The processes that
// they started keep running.
func (g *Gateway) Kill() {
	g.T.Helper()
	g.Signal(syscall.SIGKILL)
	g.AwaitExit()
	Eventually(g.T, "what served in its place has ended", func() error {
		for pid, command := range g.Processes() {
			if strings.Contains(command, " "+g.Command[0]+" ") {
				return fmt.Errorf("%d: %s", pid, command)
			}
		}
		return nil
	})
}

// Stop stops the program and waits until every process that it started has exited. It fails the
// test if one stays. It logs the logs if the test has failed.
func (g *Gateway) Stop() {
	if g.T.Failed() || os.Getenv("SLUICE_E2E_DUMP") != "" {
		g.dump()
	}
	g.Process.Process.Signal(syscall.SIGCONT)
	g.Process.Process.Signal(syscall.SIGTERM)
	select {
	case <-g.Exited:
	case <-time.After(testutil.Patience):
		g.T.Errorf("Sluice did not stop within %v", testutil.Patience)
		g.dump()                               // before the goroutines, which leave no room for the rest
		for pid, line := range g.Processes() { // its programs tell where their goroutines are
			if strings.HasPrefix(line, Program()) {
				_ = syscall.Kill(pid, syscall.SIGQUIT) // it may have ended
			}
		}
		g.AwaitExit()
		g.dump()
	}
	g.Log.Close()
	Eventually(g.T, "nothing of the gateway is left", func() error {
		if left := g.Processes(); len(left) > 0 {
			return fmt.Errorf("still running: %v", left)
		}
		return nil
	})
}

// Processes returns the command lines of the gateway's processes by process id: the program, Envoy,
// the guard and the replicas.
func (g *Gateway) Processes() map[int]string { return processesWith(directoryMark + g.Dir) }

func (g *Gateway) dump() {
	files, _ := filepath.Glob(filepath.Join(g.Dir, "*", "*.log"))
	more, _ := filepath.Glob(filepath.Join(g.Dir, "*.log"))
	for _, file := range append([]string{g.Log.Name()}, append(files, more...)...) {
		b, _ := os.ReadFile(file)
		if len(b) > 6000 {
			b = b[len(b)-6000:]
		}
		g.T.Logf("--- %s\n%s", filepath.Base(file), b)
	}
}

// LogText returns what the processes have printed so far.
func (g *Gateway) LogText() string {
	b, err := os.ReadFile(g.Log.Name())
	if err != nil {
		g.T.Fatal(err)
	}
	return string(b)
}

// AwaitLogged waits until the processes have printed a text so many times.
func (g *Gateway) AwaitLogged(text string, times int) {
	g.T.Helper()
	Eventually(g.T, "the log has "+text, func() error {
		if n := strings.Count(g.LogText(), text); n < times {
			return fmt.Errorf("%d times, not %d", n, times)
		}
		return nil
	})
}

// AwaitReady waits until the gateway takes requests and every model has the replicas that it needs.
// It fails the test if the program exits.
func (g *Gateway) AwaitReady() {
	g.T.Helper()
	Eventually(g.T, "ready", func() error {
		select {
		case <-g.Exited:
			g.dump()
			g.T.Fatal("Sluice has ended")
		default:
		}
		r, err := http.Get(g.Admin + "/readyz")
		if err != nil {
			return err
		}
		defer r.Body.Close()
		b, _ := io.ReadAll(r.Body)
		if r.StatusCode != 200 {
			return fmt.Errorf("%d: %s", r.StatusCode, b)
		}
		waiting, err := g.Conditions(condition.ModelReady)
		if err == nil && len(waiting) > 0 {
			err = fmt.Errorf("%v", waiting)
		}
		return err
	})
}
