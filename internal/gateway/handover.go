package gateway

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"go.uber.org/zap"

	"github.com/sluice-gateway/sluice/internal/carry"
	"github.com/sluice-gateway/sluice/internal/process"
	"github.com/sluice-gateway/sluice/internal/relay"
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

// succession is what a process knows of the one that takes over from it.
type succession struct {
	// start starts the successor of a hand-over: Gateway.startSuccessor, unless a test replaces it.
	start func(context.Context) (*successor, error)
	// failure is that of the last hand-over.
	failure handOverFailure
	// link tells the successor what this process holds, and relay has the successor answer what
	// Envoy has sent here by mistake. They are nil until a successor takes over.
	link  atomic.Pointer[carry.Link]
	relay atomic.Pointer[relay.Forwarder]
	// drainOrders has the successor's order to end the streams of this process.
	drainOrders chan time.Duration
}

// handOverFailure says why the last hand-over of a process has failed. The zero value says that
// there was none, or that it has not failed.
type handOverFailure struct {
	mu sync.Mutex
	// why and at are guarded by mu.
	why string
	at  time.Time
}

// note records that a hand-over has failed.
func (f *handOverFailure) note(why error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.why, f.at = why.Error(), time.Now()
}

// last returns why and when the last hand-over has failed; empty: none has.
func (f *handOverFailure) last() (why string, at time.Time) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.why, f.at
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

// stops are the signals to stop that a process gets. They are caught from its start, because a
// second one would kill the process otherwise.
type stops struct {
	signals <-chan os.Signal
	// told means that the process stops for another reason than a signal of these. The first one
	// counts as the second then.
	told bool
	// ended is closed when the gateway or node has done all that it does at its end. Gateways that
	// take back in one process have the same signals, and each has an end of its own.
	ended <-chan struct{}
}

// catchStops returns the signals to stop that come from now on. They are read until the process
// ends. A log that nobody reads any more does not end the process from now on: a Ctrl-C of
// `sluice up 2>&1 | tee log` ends tee first.
func catchStops() stops {
	signals, merged := make(chan os.Signal, 8), make(chan os.Signal, 8)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT)
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE) // not ignored, because engines would inherit that
	go mergeStops(signals, merged)
	return stops{signals: merged}
}

// oneStop is how long after a signal to stop another one is the same stop. timeout(1) signals its
// command and then the group of the command. Wrappers pass on a Ctrl-C that their command got, too.
// It is shorter than the time between two signals of a follower, see process.Dir.Pass.
const oneStop = 25 * time.Millisecond

// mergeStops passes signals on, and makes one of those that are the same stop.
func mergeStops(signals <-chan os.Signal, merged chan<- os.Signal) {
	var last time.Time
	for s := range signals {
		if now := time.Now(); now.Sub(last) > oneStop {
			last = now
			select {
			case merged <- s:
			default: // eight stops wait already
			}
		}
	}
}

// sameStop is how long after the beginning of a drain a signal may be the one for which the drain
// has begun. Some supervisors signal all processes, and the follower passes its signal on, too.
const sameStop = 100 * time.Millisecond

// hurry kills all processes of the directory when a second signal to stop comes before ctx ends.
// The context that it returns ends with that signal, with ctx, and by the function that it returns,
// which ends this behaviour. After that signal or after timeout, a drain does not wait for a
// directory that hangs.
func (s stops) hurry(ctx context.Context, timeout time.Duration, dir *process.Dir, log *zap.Logger) (unhurried context.Context, end func()) {
	unhurried, end = context.WithCancel(ctx)
	began := time.Now()
	go s.exitOnHang(unhurried, timeout, dir, log)
	go func() {
		for count := 0; count < 2; {
			select {
			case <-unhurried.Done():
				return
			case <-s.signals:
				if count++; s.told && time.Since(began) > sameStop {
					count = 2
				}
			}
		}
		end()
		log.Warn("second stop requested, ending all processes")
		_ = dir.EndAll(ctx, time.Second) // drain reports what could not be ended
	}()
	return unhurried, end
}
