package gateway

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"syscall"
	"time"

	"github.com/sluice-gateway/sluice/internal/admin"
	"github.com/sluice-gateway/sluice/internal/adminclient"
	"github.com/sluice-gateway/sluice/internal/config"
	"github.com/sluice-gateway/sluice/internal/process"
)

// Restart tells the gateway that holds the state directory to hand over, waits until its successor
// is ready, and prints what has changed to out. running is where the gateway answers now, and next
// where it answers by the file. The error says why the old process goes on.
func Restart(ctx context.Context, c *config.Config, running, next adminclient.Client, out io.Writer) error {
	if _, err := os.Stat(c.StateDir); errors.Is(err, fs.ErrNotExist) { // Open would make it, maybe for another user than the gateway's
		return notRunning(ctx, c.StateDir, running)
	}
	dir, err := process.Open(c.StateDir, nil)
	if err != nil {
		return err
	}
	before, err := askHolder(ctx, dir, running)
	if err != nil {
		return err
	}
	pid := before.PID
	if err := syscall.Kill(pid, handOverSignal); err != nil {
		return fmt.Errorf("signal to the gateway with pid %d: %w", pid, err)
	}
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		client := running
		now, err := askProcess(ctx, client)
		if err != nil && next != running {
			client = next
			now, err = askProcess(ctx, client)
		}
		switch {
		case err != nil && dir.Holder() == 0 && !process.Runs(pid): // it waits for its successor otherwise
			return errors.New("the gateway has stopped during the restart")
		case err != nil: // the listener changes hands
		case now.PID == pid && !now.Upgrade.At.Equal(before.Upgrade.At): // it may have taken its own place
			return fmt.Errorf("the new process did not take over, %s goes on: %s", before, now.Upgrade.Failed)
		case !now.is(before) && client.Call(ctx, http.MethodGet, "/readyz", nil, nil) == nil:
			if now, err = askProcess(ctx, client); err != nil { // Envoy may have been adopted since the last answer
				return err
			}
			return now.report(out, before)
		}
		select {
		case <-ctx.Done():
			return errors.New("the restarted gateway is not ready yet: see its log and /readyz of its admin listener")
		case <-tick.C:
		}
	}
}

// holderPatience is how long the process that answers may be another one than the holder of the
// state directory. During another restart the listener and the claim change hands one by one.
const holderPatience = 2 * time.Second

// askHolder asks the gateway that holds the state directory about its process. It fails if another
// gateway answers.
func askHolder(ctx context.Context, dir *process.Dir, running adminclient.Client) (runningProcess, error) {
	for until := time.Now().Add(holderPatience); ; time.Sleep(50 * time.Millisecond) {
		pid, claimed := dir.AwaitHolder(ctx)
		switch {
		case !claimed:
			return runningProcess{}, notRunning(ctx, dir.Path(), running)
		case pid == 0: // a signal to process 0 would reach the caller's own group
			return runningProcess{}, &process.ClaimedError{Dir: dir.Path()}
		}
		p, err := askProcess(ctx, running)
		switch {
		case err != nil || p.PID == pid:
			return p, err
		case time.Now().After(until):
			return p, fmt.Errorf("another gateway answers at %s, %s: process %d holds the state directory %s; name its admin address by --admin",
				running.Address, p, pid, dir.Path())
		}
	}
}

// notRunning returns the error of a restart whose state directory no gateway has claimed. The file
// may name another directory than the one that the gateway was started with.
func notRunning(ctx context.Context, dir string, running adminclient.Client) error {
	what := "no gateway runs on the state directory " + dir
	if p, err := askProcess(ctx, running); err == nil {
		return fmt.Errorf("%s; the one that answers at %s, %s, has another: a new state_dir needs a stop and a start", what, running.Address, p)
	}
	return errors.New(what)
}

// runningProcess is what the admin API says of the process that serves the gateway.
type runningProcess struct {
	Version string    `json:"version"`
	PID     int       `json:"pid"`
	Started time.Time `json:"started"`
	Envoy   struct {
		PID          int                 `json:"pid"`
		Version      string              `json:"version"`
		Adopted      bool                `json:"adopted"`
		Predecessors []admin.Predecessor `json:"predecessors"`
	} `json:"envoy"`
	Upgrade struct {
		Failed       string              `json:"failed"`
		At           time.Time           `json:"failed_at"`
		Predecessors []admin.Predecessor `json:"predecessors"`
	} `json:"upgrade"`
}

// is reports whether both are the same process. Which of two started later does not count: the
// clock may have been set back.
func (p runningProcess) is(other runningProcess) bool {
	return p.PID == other.PID && p.Started.Equal(other.Started)
}

// String names the process to an operator.
func (p runningProcess) String() string { return fmt.Sprintf("%s (pid %d)", p.Version, p.PID) }

// report prints what a restart has changed.
func (p runningProcess) report(out io.Writer, before runningProcess) error {
	text := fmt.Sprintf("restarted: %s → %s\n", before, p)
	if p.Envoy.Adopted {
		text += fmt.Sprintf("adopted: Envoy (pid %d)\n", p.Envoy.PID)
	} else if before.Envoy.PID > 0 {
		text += fmt.Sprintf("replaced: Envoy %s (pid %d) → %s (pid %d)\n", before.Envoy.Version, before.Envoy.PID, p.Envoy.Version, p.Envoy.PID)
	}
	for _, old := range p.Upgrade.Predecessors {
		text += carriedOn(old, "")
	}
	for _, old := range p.Envoy.Predecessors {
		text += carriedOn(old, "Envoy ")
	}
	_, err := io.WriteString(out, text)
	return err
}

// carriedOn returns the line about the requests of a process that was replaced. It is empty if the
// process has none.
func carriedOn(old admin.Predecessor, program string) string {
	switch old.Requests {
	case 0:
		return ""
	case 1:
		return fmt.Sprintf("carried on: 1 request by %s%s (pid %d), until it ends\n", program, old.Version, old.PID)
	}
	return fmt.Sprintf("carried on: %d requests by %s%s (pid %d), until they end\n", old.Requests, program, old.Version, old.PID)
}

// askProcess asks which process serves the gateway.
func askProcess(ctx context.Context, client adminclient.Client) (p runningProcess, err error) {
	err = client.Call(ctx, http.MethodGet, "/api/v1/status", nil, &p)
	return p, err
}
