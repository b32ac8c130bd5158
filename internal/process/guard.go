package process

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

const (
	// guardStartTimeout bounds the time until a new guard holds its lock.
	guardStartTimeout = 10 * time.Second
	// guardPollInterval is how often the guard checks whether the directory is claimed.
	guardPollInterval = 100 * time.Millisecond
	// heldPollInterval is how often it does so while it also watches for the end of the process
	// that has claimed the directory. A process that releases the claim and lives on is noticed so
	// late.
	heldPollInterval = time.Second
	// guardGrace is the time between SIGTERM and SIGKILL.
	guardGrace = 5 * time.Second
	// minGuardBackoff and maxGuardBackoff bound the pause before a guard that ended is started
	// again. The pause doubles each time.
	minGuardBackoff = 100 * time.Millisecond
	maxGuardBackoff = 10 * time.Second
)

// guardChild is a guard that this process started.
type guardChild struct {
	cmd *exec.Cmd
	id  identity
}

// guardPID returns the process id of the guard of a directory. It is 0 if there is no guard or the
// guard has not written its pid yet.
func guardPID(dir string) int {
	h, _ := holderOf(guardPath(dir))
	return h.PID
}

// guardPath is the path of the lock file of the guard.
func guardPath(dir string) string { return filepath.Join(dir, "guard.lock") }

// StartGuard starts a guard unless the directory has one. The directory must be claimed. command is
// a command line that calls RunGuard for this directory. The guard runs in a session of its own and
// logs to guard.log in the directory. StartGuard returns when the guard holds its lock, or with an
// error that has the last lines of its log.
func (d *Dir) StartGuard(command []string) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.claim == nil {
		return ErrNotClaimed
	}
	lock, err := openLock(guardPath(d.path))
	if err != nil {
		return err
	}
	defer lock.close()
	if held, err := lock.heldByOther(); held || err != nil {
		return err
	}
	d.reapGuardLocked()
	if err := d.spawnGuardLocked(command, lock); err != nil {
		return fmt.Errorf("start the guard: %w", err)
	}
	return nil
}

// spawnGuardLocked starts the guard and waits until it holds its lock. d.mu is held.
func (d *Dir) spawnGuardLocked(args []string, lock *lockFile) error {
	logPath := filepath.Join(d.path, "guard.log")
	logFile, end, err := d.openLog(logPath)
	if err != nil {
		return err
	}
	defer logFile.Close()
	// The guard has no marker, so it is not among the processes that it ends.
	child, err := spawn(spawnSpec{args: args}, logFile)
	if err != nil {
		return err
	}
	id, err := identify(child.Process.Pid)
	if err != nil {
		return err
	}
	d.guard = &guardChild{cmd: child, id: id}
	pause := time.Millisecond
	for deadline := time.Now().Add(guardStartTimeout); ; {
		if held, err := lock.heldByOther(); held || err != nil {
			return err
		}
		if !id.alive() || time.Now().After(deadline) {
			lines := tail(logPath, tailOptions{from: end, lines: exitReasonLines})
			return errors.New("the guard did not lock its file; its log ends: " + strings.Join(lines, " | "))
		}
		time.Sleep(pause)
		pause = min(2*pause, claimPollInterval)
	}
}

// reapGuardLocked reaps a guard that is a child of this process and has ended.
func (d *Dir) reapGuardLocked() {
	if d.guard != nil && !d.guard.id.alive() {
		_ = d.guard.cmd.Wait()
		d.guard = nil
	}
}

// KeepGuard starts the guard, and starts another one whenever it ends, until ctx ends. The guard
// then stays. It ends by itself when the directory is released and has no processes. A guard that
// does not start is logged and tried again: without a guard the processes are as safe as before.
// KeepGuard returns nil.
func (d *Dir) KeepGuard(ctx context.Context, command []string) error {
	backoff := minGuardBackoff
	for {
		if err := d.StartGuard(command); err != nil {
			d.log.Error("guard start failed", errorField(err))
		}
		started := time.Now()
		d.waitForGuardEnd(ctx)
		if time.Since(started) > maxGuardBackoff {
			backoff = minGuardBackoff
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(backoff):
		}
		backoff = min(2*backoff, maxGuardBackoff)
		d.log.Warn("guard ended, starting another")
	}
}

// waitForGuardEnd returns when there is no guard or ctx ends.
func (d *Dir) waitForGuardEnd(ctx context.Context) {
	lock, err := openLock(guardPath(d.path))
	if err != nil {
		return
	}
	defer lock.close()
	for ctx.Err() == nil {
		if held, err := lock.heldByOther(); !held || err != nil {
			break
		}
		h := lock.readHolder()
		if h.PID == 0 {
			// The guard has not written its pid yet.
			time.Sleep(claimPollInterval)
			continue
		}
		if w, ok := newExitWatch(h.identity); ok {
			stop := context.AfterFunc(ctx, w.close)
			w.wait()
			stop()
		}
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.reapGuardLocked()
}

// RunGuard guards the directory at path until the directory is not claimed and has no processes. If
// no process has claimed the directory for grace (0 means 60 s), RunGuard ends all its processes,
// group by group: SIGTERM, and SIGKILL after five seconds. A gateway that is stopped by SIGSTOP
// still holds its claim.
//
// RunGuard returns nil at once if the directory already has a guard, and ctx's error if ctx ends
// first. A nil log discards messages.
func RunGuard(ctx context.Context, path string, grace time.Duration, log Logger) error {
	grace = cmp.Or(grace, time.Minute)
	if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("guard: the directory %s does not exist", path)
	}
	d, err := Open(path, log)
	if err != nil {
		return err
	}
	g := guard{dir: d, grace: grace, held: heldPollInterval}
	lock, err := openLock(guardPath(d.path))
	if err != nil {
		return err
	}
	defer lock.close()
	if err := lock.acquire(roleGuard); errors.Is(err, errLocked) {
		return nil
	} else if err != nil {
		return err
	}
	// The file of the claim stays open. If an operator removes the directory, the guard still sees
	// whether its gateway is alive.
	if g.claim, err = openLock(d.claimPath()); err != nil {
		return err
	}
	defer g.claim.close()
	return g.run(ctx)
}

// guard is the state of RunGuard.
type guard struct {
	dir   *Dir
	claim *lockFile
	grace time.Duration
	// held is how often the guard checks the claim of a process whose end it watches for.
	held time.Duration
}

// run guards the directory until it is unclaimed and empty, or ctx ends.
func (g *guard) run(ctx context.Context) error {
	for {
		if err := g.waitForRelease(ctx); err != nil {
			return err
		}
		if g.isEmpty() {
			return nil
		}
		g.dir.log.Info("state directory unclaimed, waiting before its processes are ended", durationField("grace", g.grace))
		waiting, cancel := context.WithTimeout(ctx, g.grace)
		err := g.waitForClaim(waiting)
		cancel()
		if err == nil {
			g.dir.log.Info("state directory claimed again")
			continue
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		g.endProcesses(ctx)
	}
}

// waitForClaim returns nil when the directory is claimed. The error is ctx's.
func (g *guard) waitForClaim(ctx context.Context) error {
	tick := time.NewTicker(guardPollInterval)
	defer tick.Stop()
	for {
		if held, err := g.claim.heldByOther(); err == nil && held {
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		}
	}
}

// waitForRelease returns nil when the directory is not claimed. The error is ctx's. It notices the
// end of the holder at once.
func (g *guard) waitForRelease(ctx context.Context) error {
	for {
		held, err := g.claim.heldByOther()
		if err == nil && !held {
			return nil
		}
		if w, ok := newExitWatch(g.claim.readHolder().identity); ok {
			err = g.waitForEnd(ctx, w)
		} else {
			err = sleep(ctx, guardPollInterval)
		}
		if err != nil {
			return err
		}
	}
}

// waitForEnd returns nil when the process of w has ended or the directory is not claimed. The error
// is ctx's.
func (g *guard) waitForEnd(ctx context.Context, w *exitWatch) error {
	defer w.close()
	ended := make(chan struct{})
	go func() {
		w.wait()
		close(ended)
	}()
	tick := time.NewTicker(g.held)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-ended:
			return nil
		case <-tick.C:
			if held, err := g.claim.heldByOther(); err == nil && !held {
				return nil
			}
		}
	}
}

// sleep waits for d. The error is ctx's.
func sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}

// isEmpty reports whether the directory has no processes.
func (g *guard) isEmpty() bool {
	live, dead := g.dir.liveAndDeadRecords()
	strays, err := g.dir.unrecordedProcesses(nil)
	return err == nil && len(live)+len(dead)+len(strays) == 0
}

// endProcesses claims the directory, so that no gateway adopts a process that is being ended, and
// ends everything.
func (g *guard) endProcesses(ctx context.Context) {
	if err := g.claim.acquire(roleGuard); err != nil {
		// A gateway claimed the directory at the last moment.
		return
	}
	defer g.claim.release()
	g.dir.log.Warn("state directory still unclaimed, ending its processes")
	if err := g.dir.endAllProcesses(context.WithoutCancel(ctx), guardGrace); err != nil {
		g.dir.log.Error("ending the processes failed", errorField(err))
		return
	}
	if g.dir.sockets != g.dir.path {
		// No server is left that listens on the sockets.
		_ = os.RemoveAll(g.dir.sockets)
	}
}
