package process

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"go.uber.org/zap"
)

const (
	// guardStart is how long a guard may take to be at work.
	guardStart = 10 * time.Second
	// guardLook is how often the guard looks whether the directory is claimed.
	guardLook = 100 * time.Millisecond
	// guardGrace is what processes have between SIGTERM and SIGKILL.
	guardGrace = 5 * time.Second
	// A guard that keeps dying is started again after guardPause, doubling up to guardPauseMost.
	guardPause     = 100 * time.Millisecond
	guardPauseMost = 10 * time.Second
)

// guardChild is a guard that we started ourselves.
type guardChild struct {
	cmd *exec.Cmd
	id  identity
}

// guardPID is the guard's process id; 0 when there is none, or when it has not said who it is.
func (d *Dir) guardPID() int {
	lock, err := openLock(guardPath(d.path))
	if err != nil {
		return 0
	}
	defer lock.close()
	if held, err := lock.held(); !held || err != nil {
		return 0
	}
	return lock.holder().PID
}

func guardPath(dir string) string { return filepath.Join(dir, "guard.lock") }

// StartGuard sees to it that the directory has a guard; it needs the claim. A guard that is there already stays. Command is a
// command line that calls RunGuard for this directory; it runs in a session of its own and logs to guard.log in the
// directory. StartGuard returns when the guard is at work, or with its last words.
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
	if held, err := lock.held(); held || err != nil {
		return err
	}
	d.reapGuardLocked()
	if err := d.spawnGuardLocked(command, lock); err != nil {
		return fmt.Errorf("start the guard: %w", err)
	}
	return nil
}

func (d *Dir) spawnGuardLocked(args []string, lock *lockFile) error {
	logPath := filepath.Join(d.path, "guard.log")
	logFile, end, err := d.openLog(logPath)
	if err != nil {
		return err
	}
	defer logFile.Close()
	// No marker: the guard is not among those it ends.
	child, err := spawn(command{args: args}, logFile)
	if err != nil {
		return err
	}
	id, err := identify(child.Process.Pid)
	if err != nil {
		return err
	}
	d.guard = &guardChild{cmd: child, id: id}
	pause := time.Millisecond
	for deadline := time.Now().Add(guardStart); ; {
		if held, err := lock.held(); held || err != nil {
			return err
		}
		if !id.alive() || time.Now().After(deadline) {
			return errors.New("it does not come up; its log ends: " + strings.Join(tail(logPath, end, reasonLines), " | "))
		}
		time.Sleep(pause)
		pause = min(2*pause, claimRetry)
	}
}

// reapGuardLocked lets a guard that was our child and has ended go.
func (d *Dir) reapGuardLocked() {
	if d.guard != nil && !d.guard.id.alive() {
		_ = d.guard.cmd.Wait()
		d.guard = nil
	}
}

// KeepGuard starts the guard, and another one whenever it is gone, until ctx ends. The guard then stays behind: it ends by
// itself once the directory is released and has no processes. KeepGuard returns nil when ctx ends, and an error only when
// the first guard does not start.
func (d *Dir) KeepGuard(ctx context.Context, command []string) error {
	if err := d.StartGuard(command); err != nil {
		return err
	}
	pause := guardPause
	for {
		started := time.Now()
		d.awaitGuardEnd(ctx)
		if time.Since(started) > guardPauseMost {
			pause = guardPause
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(pause):
		}
		pause = min(2*pause, guardPauseMost)
		d.log.Warn("the guard is gone, starting another")
		if err := d.StartGuard(command); err != nil {
			d.log.Error("there is no guard", zap.Error(err))
		}
	}
}

// awaitGuardEnd returns when there is no guard or ctx ends.
func (d *Dir) awaitGuardEnd(ctx context.Context) {
	lock, err := openLock(guardPath(d.path))
	if err != nil {
		return
	}
	defer lock.close()
	for ctx.Err() == nil {
		if held, err := lock.held(); !held || err != nil {
			break
		}
		h := lock.holder()
		if h.PID == 0 {
			time.Sleep(claimRetry) // it has not written its name yet
			continue
		}
		if w, ok := watchExit(h.identity); ok {
			stop := context.AfterFunc(ctx, w.close)
			w.wait()
			stop()
		}
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.reapGuardLocked()
}

// RunGuard watches over the directory at path until there is nothing left to guard: nobody has claimed it and it has no
// processes. When nobody has claimed it for grace (0 means 60 s), it ends all its processes, group by group: SIGTERM, after five
// seconds SIGKILL. A stopped (SIGSTOP) process still holds its claim. RunGuard returns nil at once when the directory has a
// guard already, and ctx's error when ctx ends first. A nil log is silent.
func RunGuard(ctx context.Context, path string, grace time.Duration, log *zap.Logger) error {
	if grace == 0 {
		grace = time.Minute
	}
	if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("guard: no directory %s", path)
	}
	d, err := Open(path, log)
	if err != nil {
		return err
	}
	g := guard{dir: d, grace: grace}
	lock, err := openLock(guardPath(d.path))
	if err != nil {
		return err
	}
	defer lock.close()
	if err := lock.take(roleGuard); errors.Is(err, errLocked) {
		return nil
	} else if err != nil {
		return err
	}
	// The claim's file stays open: should somebody remove the directory, we still see whether its gateway lives.
	if g.claim, err = openLock(d.claimPath()); err != nil {
		return err
	}
	defer g.claim.close()
	return g.run(ctx)
}

type guard struct {
	dir   *Dir
	claim *lockFile
	grace time.Duration
}

func (g *guard) run(ctx context.Context) error {
	for {
		if err := g.await(ctx, false); err != nil {
			return err
		}
		if g.nothingLeft() {
			return nil
		}
		g.dir.log.Info("nobody has claimed the state directory; its processes have some time left", zap.Duration("grace", g.grace))
		waiting, cancel := context.WithTimeout(ctx, g.grace)
		err := g.await(waiting, true)
		cancel()
		if err == nil {
			g.dir.log.Info("the state directory is claimed again")
			continue
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		g.end(ctx)
	}
}

// await returns when the claim is held, or is free, as asked; the error is ctx's.
func (g *guard) await(ctx context.Context, held bool) error {
	tick := time.NewTicker(guardLook)
	defer tick.Stop()
	for {
		if now, err := g.claim.held(); err == nil && now == held {
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		}
	}
}

func (g *guard) nothingLeft() bool {
	live, dead := g.dir.sortedRecords()
	return len(live)+len(dead)+len(g.dir.strays(nil)) == 0
}

// end takes the claim, so that no gateway adopts what is being ended, and ends everything.
func (g *guard) end(ctx context.Context) {
	if err := g.claim.take(roleGuard); err != nil {
		return // somebody came at the last moment
	}
	defer g.claim.free()
	g.dir.log.Warn("nobody came back: ending the processes")
	if err := g.dir.endEverything(context.WithoutCancel(ctx), guardGrace); err != nil {
		g.dir.log.Error("not all processes ended", zap.Error(err))
		return
	}
	if g.dir.sockets != g.dir.path {
		_ = os.RemoveAll(g.dir.sockets) // nobody is left to answer on them
	}
}
