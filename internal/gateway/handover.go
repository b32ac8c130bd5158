package gateway

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"syscall"
	"time"

	"go.uber.org/zap"

	"github.com/sluice-gateway/sluice/internal/process"
)

// handOverSignal makes a gateway leave its Envoy and its replicas running and replace itself by the
// binary that is now at its path.
const handOverSignal = syscall.SIGUSR2

// StateDirVariable is the environment variable that carries a temporary state directory over a
// hand-over. The command removes the variable from its environment when it has read it.
const StateDirVariable = "SLUICE_STATE_DIR"

// await blocks until the gateway must stop or hand over, and reports whether it must hand over. On
// SIGHUP it reads the file again.
func (g *Gateway) await(ctx, running context.Context, signals <-chan os.Signal) (handOver bool) {
	for {
		select {
		case <-ctx.Done():
			return false
		case <-running.Done():
			g.log.Error("component failed, shutting down", zap.Error(context.Cause(running)))
			return false
		case s := <-signals:
			if s == handOverSignal {
				g.log.Info("hand-over started")
				return true
			}
			g.log.Info("configuration reload requested")
			if err := g.watcher.Reload(false); err != nil {
				g.log.Error("configuration refused, the one in force stays", zap.Error(err))
			}
		}
	}
}

// replaceSelf executes the binary that is now at this program's path, in this process: the pid
// stays the same. It returns only when that fails. The exec closes this program's files, and with
// them its claim of the state directory.
func (g *Gateway) replaceSelf() error {
	if g.options.Temporary {
		return g.exec(StateDirVariable + "=" + g.dir.Path())
	}
	return g.exec()
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
