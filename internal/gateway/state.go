package gateway

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"go.uber.org/zap"

	"github.com/sluice-gateway/sluice/internal/condition"
	"github.com/sluice-gateway/sluice/internal/process"
)

const (
	// stateCheckInterval is how often watchState tries to write in the state directory.
	stateCheckInterval = 5 * time.Second
	// stateRetryInterval is the same while nothing can be written.
	stateRetryInterval = time.Second
)

// openState opens a state directory. While the directory hangs it waits, and says so. When ctx has
// ended it waits for stateCheckInterval at most, because nothing can interrupt what waits for a
// file.
func openState(ctx context.Context, path string, log *zap.Logger) (*process.Dir, error) {
	var dir *process.Dir
	var err error
	opened := make(chan struct{})
	go func() {
		defer close(opened)
		dir, err = process.Open(path, log)
	}()
	for told := false; ; told = true {
		select {
		case <-opened:
			return dir, err
		case <-time.After(stateCheckInterval):
		}
		if ctx.Err() != nil {
			return nil, fmt.Errorf("the state directory %s does not answer: look at its disk, or at its file server", path)
		}
		if !told {
			log.Warn("state directory does not answer, the start waits for its disk or its file server", zap.String("directory", path))
		}
	}
}

// watchState tells by a condition whether the state directory can be written, until ctx ends. The
// gateway serves without it: only tasks and the starts of processes need it.
func (g *Gateway) watchState(ctx context.Context) error {
	for {
		checked := make(chan error, 1)
		go func() { checked <- g.dir.CheckWritable() }()
		var err error
		select {
		case <-ctx.Done():
			return nil
		case err = <-checked:
		case <-time.After(stateCheckInterval):
			g.conditions.Set(condition.StateNotWritable, "", "WriteHangs", fmt.Sprintf(
				"A write in the state directory %s has not ended for %v: its disk, or its file server, does not answer. Tasks, drains, "+
					"changes of limits and starts of processes wait for it.", g.dir.Path(), stateCheckInterval))
			select {
			case <-ctx.Done():
				return nil
			case err = <-checked:
			}
		}
		wait := stateCheckInterval
		if err != nil {
			wait = stateRetryInterval
			g.reportState(err)
		} else {
			g.conditions.Clear(condition.StateNotWritable, "")
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(wait):
		}
	}
}

// reportState sets the condition about a fault of the state directory.
func (g *Gateway) reportState(err error) {
	if errors.Is(err, process.ErrRemoved) {
		g.conditions.Set(condition.StateNotWritable, "", "Removed", fmt.Sprintf(
			"The files of the state directory %s were removed or replaced while the gateway ran. Envoy does not find the sockets of the "+
				"gateway there, so requests get 503, and what the gateway writes now is lost.", g.dir.Path()))
		return
	}
	g.conditions.Set(condition.StateNotWritable, "", "WriteFailed", fmt.Sprintf(
		"Nothing can be written in the state directory: %v. /schedule refuses tasks, and no process can be started.", err))
}

// exitOnHang ends this process if its state directory hangs at its end, because nothing can then
// interrupt what waits for a file. It begins after timeout, or when unhurried ends. The directory
// hangs if a write there takes stateCheckInterval. All processes of the directory are killed first.
// The first try is after stateRetryInterval. Most stops have ended by then, and leave no file of
// it.
func (s stops) exitOnHang(unhurried context.Context, timeout time.Duration, dir *process.Dir, log *zap.Logger) {
	select {
	case <-s.ended:
		return
	case <-unhurried.Done():
	case <-time.After(timeout):
	}
	for {
		select {
		case <-s.ended:
			return
		case <-time.After(stateRetryInterval):
		}
		checked := make(chan struct{})
		go func() {
			_ = dir.TryWrite() // an error is an answer, too
			close(checked)
		}()
		select {
		case <-s.ended:
			return
		case <-checked:
		case <-time.After(stateCheckInterval):
			err := dir.KillAll()
			log.Error("state directory does not answer, so this process ends without it: what was not written is lost, and records and sockets stay",
				zap.String("directory", dir.Path()), zap.Error(err))
			_ = log.Sync()
			os.Exit(1)
		}
	}
}

// stop ends a gateway that was told to stop, which ctx tells, or of which a component has failed.
//
// A gateway that has failed does not end what serves clients. It leaves Envoy and replicas to the
// next start, which adopts them, or to the guard. It ends only what it has started by itself and
// nobody has used yet. A temporary state directory has no next start, so its processes are ended.
func (g *Gateway) stop(ctx context.Context, timeout time.Duration) error {
	served := g.adopted || g.envoy.server.Status().Configured
	if ctx.Err() != nil || !served || g.options.Temporary {
		return g.drain(timeout)
	}
	g.log.Error("gateway ends, Envoy and replicas are left for the next start",
		zap.Duration("ended_by_the_guard_after", g.options.Config.OrphanGrace))
	return nil
}
