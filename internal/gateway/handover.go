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

// await blocks until the gateway is to end, and says whether it is to hand over. SIGHUP reads the file again.
func (g *gateway) await(ctx, parts context.Context, signals <-chan os.Signal) (handOver bool) {
	for {
		select {
		case <-ctx.Done():
			return false
		case <-parts.Done():
			g.log.Error("a part has ended, so Sluice ends", zap.Error(context.Cause(parts)))
			return false
		case s := <-signals:
			if s == handOverSignal {
				g.log.Info("handing over")
				return true
			}
			g.log.Info("reading the configuration again")
			if err := g.watcher.Reload(); err != nil {
				g.log.Error("the configuration was not taken over", zap.Error(err))
			}
		}
	}
}

// replaceSelf starts this program anew in this very process: same pid, new binary if there is one. It returns only when that
// fails. The claim of the state directory goes with the old program's files, in the moment of the exec.
func (g *gateway) replaceSelf() error {
	if g.settings.Temporary {
		return execAnew(StateDirVariable + "=" + g.dir.Path())
	}
	return execAnew()
}

// execAnew starts this program anew in this very process, with more in its environment. It returns only when that fails.
func execAnew(more ...string) error {
	path, err := exec.LookPath(os.Args[0])
	if err != nil {
		return fmt.Errorf("hand over: %w", err)
	}
	return fmt.Errorf("hand over: %w", syscall.Exec(path, os.Args, append(os.Environ(), more...)))
}

// hurry ends all processes of the directory when a second signal comes before ctx ends; stop takes that back.
func hurry(ctx context.Context, dir *process.Dir, log *zap.Logger) (stop func()) {
	second, calm := signal.NotifyContext(ctx, syscall.SIGTERM, syscall.SIGINT)
	never := context.AfterFunc(second, func() {
		if ctx.Err() == nil {
			log.Warn("told to stop again: ending what still runs")
			_ = dir.EndAll(ctx, time.Second) // what could not be ended is told by who drains
		}
	})
	return func() { never(); calm() }
}
