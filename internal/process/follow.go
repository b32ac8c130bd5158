package process

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
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
	h, claimed := holderOf(d.claimPath())
	if h.Role == roleGateway {
		pid = h.PID
	}
	return pid, claimed
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

// HandOver says that this process gives the claim to another one, and takes the directory back if
// that one fails. Follow reports no end of the gateway before the function that HandOver returns is
// called.
func (d *Dir) HandOver() (end func(), err error) {
	lock, err := openLock(d.handOverPath())
	if err != nil {
		return nil, err
	}
	if err := lock.acquire(roleGateway); err != nil {
		lock.close()
		return nil, err
	}
	return func() {
		lock.release()
		lock.close()
	}, nil
}

// handOverPath is the path of the lock file that says that the claim changes hands.
func (d *Dir) handOverPath() string { return filepath.Join(d.path, "handover.lock") }

// handsOver reports whether another process gives the claim away.
func (d *Dir) handsOver() bool {
	_, held := holderOf(d.handOverPath())
	return held
}

// AwaitHolder returns what Holder returns, and whether the directory is claimed. While the claim
// changes hands it waits, until ctx ends.
func (d *Dir) AwaitHolder(ctx context.Context) (pid int, claimed bool) {
	for {
		changes := d.handsOver() // before the claim is looked at: see follower.look
		if pid, claimed = d.holder(); claimed || !changes {
			return pid, claimed
		}
		select {
		case <-ctx.Done():
			return pid, claimed
		case <-time.After(followInterval):
		}
	}
}

// Pass passes signals on to the gateway that has claimed the directory, which is another process,
// until ctx ends. A signal that comes while one gateway gives the claim to the next waits for the
// next.
//
// stops gets each SIGTERM and SIGINT of this process, also those of before the call. For the first
// one the gateway gets StopSignal, and so does every gateway that claims the directory later. For
// each other one it gets SIGTERM twice: a gateway takes the first SIGTERM that comes with a
// StopSignal for the same. It also gets what comes from received.
func (d *Dir) Pass(ctx context.Context, stops, received <-chan os.Signal) {
	p := passing{dir: d}
	var retry <-chan time.Time
	for {
		select {
		case <-ctx.Done():
			return
		case <-stops:
			p.add(unix.SIGTERM)
		case s := <-received:
			p.add(s.(unix.Signal))
		case <-retry:
		}
		p.send()
		if retry = nil; p.told || len(p.waiting) > 0 {
			retry = time.After(followInterval)
		}
	}
}

// passing is the state of Pass.
type passing struct {
	dir *Dir
	// told means that the gateway must stop, and informed is the process that has got StopSignal.
	told     bool
	informed int
	// waiting are the other signals for the gateway.
	waiting []unix.Signal
}

// add takes a signal for the gateway.
func (p *passing) add(s unix.Signal) {
	switch {
	case s == StopSignal, s == unix.SIGTERM && !p.told:
		p.told = true
	case s == unix.SIGTERM:
		p.waiting = append(p.waiting, s, s)
	default:
		p.waiting = append(p.waiting, s)
	}
}

// send sends the gateway what it has not got: of the other signals one at each call, since two of
// one kind at once would be one. A process may end this moment, so failures of kill are nothing.
func (p *passing) send() {
	pid := p.dir.Holder()
	if pid == 0 || pid == os.Getpid() {
		return
	}
	if p.told && p.informed != pid {
		_ = unix.Kill(pid, StopSignal)
		p.informed = pid
	}
	if len(p.waiting) > 0 {
		_ = unix.Kill(pid, p.waiting[0])
		p.waiting = p.waiting[1:]
	}
}

// Follow stands for the gateway of the directory, which is another process, until it has ended, and
// reaps processes. The supervisor of this process so sees one process from the first start to the
// end, however often the gateway is restarted. The error says how the gateway has ended, unless it
// has stopped cleanly. Pass gives the gateway the signals meanwhile.
//
// pid is the process that has taken over from this one. reaped returns how a child has ended that
// someone else in this process waits for; nil: it runs, or it is none of these.
func (d *Dir) Follow(pid int, reaped func(pid int) *os.ProcessState) error {
	tick := time.NewTicker(followInterval)
	defer tick.Stop()
	f := follower{dir: d, pid: pid, statuses: map[int]unix.WaitStatus{}, reaped: reaped}
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

// look reaps children and reports whether the gateway has ended. It first asks whether the claim
// changes hands: if that ends meanwhile, the directory is claimed when look asks for the claim.
func (f *follower) look() (ended bool, err error) {
	f.reap()
	changes := f.dir.handsOver()
	if pid, claimed := f.dir.holder(); claimed {
		if pid != 0 {
			f.pid = pid
			clear(f.statuses)
		}
		return false, nil
	}
	if s, ok := readStat(f.pid); changes || ok && !s.dead() {
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
