package process

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// StopSignal asks a gateway to stop, like SIGTERM. Unlike a second SIGTERM, a second StopSignal
// changes nothing. So a gateway may get it from its follower and SIGTERM from a supervisor that
// signals all processes.
const StopSignal = unix.SIGUSR1

// followInterval is how often the follower looks which process has the claim.
const followInterval = 50 * time.Millisecond

// Holder returns the process id of the gateway that has claimed the directory. It is 0 while no
// process has, and when the claim does not say which.
func (d *Dir) Holder() int {
	pid, _ := d.holder()
	return pid
}

// holder returns the same as Holder, and whether the directory is claimed.
func (d *Dir) holder() (pid int, claimed bool) {
	lock, err := openLock(d.claimPath())
	if err != nil {
		return 0, false
	}
	defer lock.close()
	if held, err := lock.heldByOther(); !held || err != nil {
		return 0, false
	}
	if h := lock.readHolder(); h.Role == roleGateway {
		pid = h.PID
	}
	return pid, true
}

// AdoptOrphans makes this process the parent of all its descendants whose own parent has ended, so
// that Follow learns how the gateway has ended (PR_SET_CHILD_SUBREAPER, prctl(2)).
func AdoptOrphans() error { return unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) }

// AwaitEnd blocks until the process with this id has ended.
func AwaitEnd(pid int) {
	id, err := identify(pid)
	if err != nil {
		return
	}
	if w, ok := newExitWatch(id); ok {
		w.wait()
	}
}

// Pass passes signals on to the gateway that has claimed the directory, which is another process,
// until ctx ends. A signal that comes while one gateway gives the claim to the next waits for the
// next.
//
// told ends when this process is told to stop, also if that was before the call: the gateway gets
// StopSignal then, and SIGTERM for each SIGTERM and SIGINT that follow. It also gets what comes
// from received.
func (d *Dir) Pass(ctx, told context.Context, received <-chan os.Signal) {
	stop, second := told.Done(), make(chan os.Signal, 8)
	defer signal.Stop(second)
	var waiting []unix.Signal
	var retry <-chan time.Time
	for {
		select {
		case <-ctx.Done():
			return
		case <-stop:
			stop = nil
			signal.Notify(second, unix.SIGTERM, unix.SIGINT)
			waiting = append(waiting, StopSignal)
		case <-second:
			waiting = append(waiting, unix.SIGTERM)
		case s := <-received:
			waiting = append(waiting, s.(unix.Signal))
		case <-retry:
		}
		for len(waiting) > 0 && d.forward(waiting[0]) {
			waiting = waiting[1:]
		}
		if retry = nil; len(waiting) > 0 {
			retry = time.After(followInterval)
		}
	}
}

// forward sends a signal to the gateway that has claimed the directory. It returns false if no
// gateway has. This process has caught its signals itself.
func (d *Dir) forward(s unix.Signal) bool {
	pid := d.Holder()
	if pid != 0 && pid != os.Getpid() {
		_ = unix.Kill(pid, s) // it may have ended this moment
	}
	return pid != 0
}

// Follow stands for the gateway of the directory, which is another process, until it has ended, and
// reaps processes. The supervisor of this process so sees one process from the first start to the
// end, however often the gateway is restarted. The error says how the gateway has ended, unless it
// has stopped cleanly. Pass gives the gateway the signals meanwhile.
//
// reaped returns how a child has ended that someone else in this process waits for; nil: it runs,
// or it is none of these.
func (d *Dir) Follow(reaped func(pid int) *os.ProcessState) error {
	tick := time.NewTicker(followInterval)
	defer tick.Stop()
	f := follower{dir: d, pid: d.Holder(), statuses: map[int]unix.WaitStatus{}, reaped: reaped}
	for range tick.C {
		if ended, err := f.look(); ended {
			return err
		}
	}
	return nil
}

// follower is the state of Follow.
type follower struct {
	dir *Dir
	// pid is the process that had the claim last.
	pid int
	// statuses are those of the children that were reaped and may be the gateway.
	statuses map[int]unix.WaitStatus
	reaped   func(pid int) *os.ProcessState
}

// look reaps children and reports whether the gateway has ended.
func (f *follower) look() (ended bool, err error) {
	f.reap()
	if pid, claimed := f.dir.holder(); claimed {
		if pid != 0 {
			f.pid = pid
			clear(f.statuses)
		}
		return false, nil
	}
	if s, ok := readStat(f.pid); ok && !s.dead() {
		return false, nil // it gives the claim to another process, or is about to end
	}
	f.reap()
	status, known := f.statuses[f.pid]
	if state := f.reaped(f.pid); state != nil {
		if s, ok := state.Sys().(syscall.WaitStatus); ok {
			status, known = unix.WaitStatus(s), true
		}
	}
	switch {
	case known && status.Exited() && status.ExitStatus() == 0, !known && f.dir.releasedCleanly():
		return true, nil
	case known && status.Signaled():
		return true, fmt.Errorf("the gateway with pid %d ended: signal %v", f.pid, status.Signal())
	case known:
		return true, fmt.Errorf("the gateway with pid %d ended: exit status %d", f.pid, status.ExitStatus())
	}
	return true, fmt.Errorf("the gateway with pid %d ended without releasing its state directory", f.pid)
}

// reap reaps all children that have ended.
func (f *follower) reap() {
	for {
		var status unix.WaitStatus
		pid, err := unix.Wait4(-1, &status, unix.WNOHANG, nil)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if pid <= 0 || err != nil {
			return
		}
		f.statuses[pid] = status
	}
}

// releasedCleanly reports whether the last holder of the claim has released it. One that was killed
// leaves its name.
func (d *Dir) releasedCleanly() bool {
	data, err := os.ReadFile(d.claimPath())
	var h lockHolder
	return err == nil && json.Unmarshal(data, &h) == nil && h.PID == 0
}
