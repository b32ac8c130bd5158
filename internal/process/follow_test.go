package process

import (
	"context"
	"os"
	"testing"

	"golang.org/x/sys/unix"
)

// A signal that came while a retired process closed its parts, before it follows, reaches the
// gateway.
func TestX20_AnEarlySignalReachesTheGateway(t *testing.T) {
	path := stateDir(t)
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	pending := make(chan os.Signal, 1)
	pending <- StopSignal
	for name, told := range map[string]struct {
		ctx     context.Context
		earlier chan os.Signal
	}{"SIGTERM": {ended, nil}, "a signal of a supervisor": {t.Context(), pending}} {
		gateway := startGateway(t, gatewayPlan{Dir: path})
		d, err := Open(path, nil)
		if err != nil {
			t.Fatal(err)
		}
		if !d.passEarlier(told.ctx, told.earlier, false) {
			t.Errorf("%s: the gateway was not told to stop", name)
		}
		if err := gateway.Wait(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	gateway := startGateway(t, gatewayPlan{Dir: path})
	d, err := Open(path, nil)
	if err != nil {
		t.Fatal(err)
	}
	if d.passEarlier(t.Context(), nil, false) {
		t.Error("told to stop by nobody")
	}
	if err := unix.Kill(gateway.Process.Pid, 0); err != nil {
		t.Error(err)
	}
}
