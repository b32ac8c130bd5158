package process

import (
	"context"
	"os"
	"os/exec"
	"os/signal"
	"testing"

	"golang.org/x/sys/unix"
)

// Whenever a signal comes, it reaches the gateway: before this process begins to pass signals on,
// afterwards, and while no gateway has the claim.
func TestX20_NoSignalIsLost(t *testing.T) {
	before := func(start, pass func()) { start(); pass() }
	after := func(start, pass func()) { pass(); start() }
	for name, order := range map[string]func(start, pass func()){"before": before, "while nobody has the claim": after} {
		for what, tell := range map[string]func(stop func(), received chan os.Signal){
			"SIGTERM":               func(stop func(), _ chan os.Signal) { stop() },
			"a signal of a process": func(_ func(), received chan os.Signal) { received <- StopSignal },
		} {
			t.Run(what+" "+name, func(t *testing.T) {
				t.Parallel()
				path := stateDir(t)
				d, err := Open(path, nil)
				if err != nil {
					t.Fatal(err)
				}
				told, stop := context.WithCancel(t.Context())
				defer stop()
				received := make(chan os.Signal, 1)
				tell(stop, received)
				var gateway *exec.Cmd
				order(func() { gateway = startGateway(t, gatewayPlan{Dir: path}) }, func() { go d.Pass(t.Context(), told, received) })
				if err := gateway.Wait(); err != nil {
					t.Error(err)
				}
			})
		}
	}
}

// A process that is told to stop at any moment around the beginning of Pass tells the gateway once:
// a second SIGTERM would end the gateway's processes at once.
func TestX20_OneStopIsPassedOnOnce(t *testing.T) {
	path := stateDir(t)
	d, err := Open(path, nil)
	if err != nil {
		t.Fatal(err)
	}
	for range 3 {
		gateway := startGateway(t, gatewayPlan{Dir: path})
		told, release := signal.NotifyContext(t.Context(), unix.SIGTERM)
		ctx, end := context.WithCancel(t.Context())
		go func() { _ = unix.Kill(os.Getpid(), unix.SIGTERM) }() // it always can
		go d.Pass(ctx, told, nil)
		if err := gateway.Wait(); err != nil { // SIGTERM would kill it
			t.Error(err)
		}
		end()
		release()
	}
}
