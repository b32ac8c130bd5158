package gateway

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"go.uber.org/zap"

	"github.com/sluice-gateway/sluice/internal/process"
)

// handOverSignal makes a gateway start the binary that is now at its path beside itself and leave
// its Envoy and its replicas to it. The agent of a node replaces itself.
const handOverSignal = syscall.SIGUSR2

// catchSignals returns a channel that gets the signals for a gateway. Others send them to the
// process that has claimed the state directory. So they are caught before the claim, until the end
// of the process: an early or a late one must neither kill it nor get lost.
func catchSignals() <-chan os.Signal {
	signals := make(chan os.Signal, 8)
	signal.Notify(signals, syscall.SIGHUP, handOverSignal, process.StopSignal)
	return signals
}

// StateDirVariable is the environment variable that carries a temporary state directory over a
// hand-over. The command removes the variable from its environment when it has read it.
const StateDirVariable = "SLUICE_STATE_DIR"

// await blocks until the gateway must stop or hand over, and reports whether it must hand over. On
// SIGHUP it reads the file again. stop ends ctx, for a signal to stop.
func (g *Gateway) await(ctx context.Context, stop func()) (handOver bool) {
	for {
		var failed error
		select {
		case <-ctx.Done():
			return false
		case <-g.managing.ctx.Done():
			failed = context.Cause(g.managing.ctx)
		case <-g.serving.ctx.Done():
			failed = context.Cause(g.serving.ctx)
		case s := <-g.signals:
			switch s {
			case handOverSignal:
				return true
			case process.StopSignal:
				stop()
				return false
			}
			g.log.Info("configuration reload requested")
			if err := g.watcher.Reload(false); err != nil {
				g.log.Error("configuration refused, the one in force stays", zap.Error(err))
			}
		}
		if failed != nil {
			g.log.Error("component failed, shutting down", zap.Error(failed))
			return false
		}
	}
}

// upgradeState says what became of the last hand-over of a process. The zero value says that there
// was none.
type upgradeState struct {
	mu sync.Mutex
	// failed and at say why and when the last hand-over has failed; guarded by mu
	failed string
	at     time.Time
}

// fail records that a hand-over has failed.
func (u *upgradeState) fail(why error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.failed, u.at = why.Error(), time.Now()
}

// last returns why and when the last hand-over has failed; empty: none has.
func (u *upgradeState) last() (failed string, at time.Time) {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.failed, u.at
}

// execSelf executes this program's path in this process with its arguments, its environment and the
// variables extra (NAME=VALUE). It returns only when that fails.
func execSelf(extra ...string) error {
	path, err := exec.LookPath(os.Args[0])
	if err != nil {
		return fmt.Errorf("hand over: %w", err)
	}
	return fmt.Errorf("hand over: %w", syscall.Exec(path, os.Args, append(os.Environ(), extra...)))
}

// hurry kills all processes of the directory when a second signal to stop comes before ctx ends.
// The function that it returns ends this behaviour.
func hurry(ctx context.Context, dir *process.Dir, log *zap.Logger) (stop func()) {
	second, release := signal.NotifyContext(ctx, syscall.SIGTERM, syscall.SIGINT)
	cancel := context.AfterFunc(second, func() {
		if ctx.Err() == nil {
			log.Warn("second stop requested, ending all processes")
			_ = dir.EndAll(ctx, time.Second) // drain reports what could not be ended
		}
	})
	return func() { cancel(); release() }
}
