package process

import (
	"context"
	"os"
	"os/exec"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// Whenever a signal comes, it reaches the gateway: before this process begins to pass signals on,
// afterwards, and while no gateway has the claim.
func TestX20_NoSignalIsLost(t *testing.T) {
	before := func(start, pass func()) { start(); pass() }
	after := func(start, pass func()) { pass(); start() }
	for name, order := range map[string]func(start, pass func()){"before": before, "while nobody has the claim": after} {
		for what, tell := range map[string]func(stops, received chan os.Signal){
			"SIGTERM":               func(stops, _ chan os.Signal) { stops <- unix.SIGTERM },
			"a signal of a process": func(_, received chan os.Signal) { received <- StopSignal },
		} {
			t.Run(what+" "+name, func(t *testing.T) {
				t.Parallel()
				path, d := dirOf(t)
				stops, received := make(chan os.Signal, 1), make(chan os.Signal, 1)
				tell(stops, received)
				var gateway *exec.Cmd
				order(func() { gateway = startGateway(t, gatewayPlan{Dir: path}) }, func() { go d.Pass(t.Context(), stops, received) })
				if err := gateway.Wait(); err != nil {
					t.Error(err)
				}
			})
		}
	}
}

// A gateway that was told to stop may be replaced at the same moment, so the next one is told, too.
// Each is told once, and gets a second SIGTERM as such.
func TestX20_EachGatewayIsToldToStop(t *testing.T) {
	t.Parallel()
	path, d := dirOf(t)
	stops := make(chan os.Signal, 2)
	stops <- unix.SIGTERM
	ctx, end := context.WithCancel(t.Context())
	go d.Pass(ctx, stops, nil)
	for range 3 {
		if err := startGateway(t, gatewayPlan{Dir: path}).Wait(); err != nil { // SIGTERM would kill it
			t.Error(err)
		}
	}
	end()
	stops <- unix.SIGTERM
	stops <- unix.SIGTERM
	gateway := startGateway(t, gatewayPlan{Dir: path, Stay: true})
	go d.Pass(t.Context(), stops, nil)
	err := gateway.Wait()
	if status, ok := gateway.ProcessState.Sys().(syscall.WaitStatus); !ok || status.Signal() != unix.SIGTERM {
		t.Errorf("after two signals the gateway ended with %v", err)
	}
}

// While the claim changes hands, the end of the process that had it last is not the end of the
// gateway. The process before it takes the directory back.
func TestX20_AFailedHandOverIsNotTheEnd(t *testing.T) {
	t.Parallel()
	path, d := dirOf(t)
	_, before := dirAt(t, path)
	end, err := before.HandOver()
	if err != nil {
		t.Fatal(err)
	}
	successor := startGateway(t, gatewayPlan{Dir: path})
	f := follower{dir: d, pid: before.Holder(), statuses: map[int]unix.WaitStatus{}, reaped: func(pid int) *os.ProcessState {
		if s := successor.ProcessState; s != nil && s.Pid() == pid {
			return s
		}
		return nil
	}}
	for _, step := range []struct {
		what  string
		do    func()
		ended bool
	}{
		{"it has the claim", func() {}, false},
		{"it was killed", func() { successor.Process.Kill(); successor.Wait() }, false},
		{"nobody takes the directory back", end, true},
	} {
		step.do()
		if ended, err := f.look(); ended != step.ended || ended && err == nil {
			t.Errorf("%s: ended %t, %v", step.what, ended, err)
		}
	}
}

func dirOf(t *testing.T) (path string, d *Dir) { return dirAt(t, stateDir(t)) }

func dirAt(t *testing.T, path string) (string, *Dir) {
	t.Helper()
	d, err := Open(path, nil)
	if err != nil {
		t.Fatal(err)
	}
	return path, d
}
