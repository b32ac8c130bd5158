// Package process runs the processes that outlive Sluice: Envoy and local replicas.
//
// They belong to a state directory (Dir), not to the process that started them. Each runs in a session of its own, with a
// log file instead of our pipes and without any of our file descriptors, so that a kill -9 of Sluice leaves it untouched. A
// record in the directory says which process it is: pid and start time, because a pid alone may be someone else's by now. The
// next Sluice that claims the directory adopts the recorded processes; when none does, the Guard ends them.
//
// A crash in the moment between a start and its record loses nothing: every child carries a marker in its environment, by which
// the next claim and the guard find what no record names.
//
// The package works on Linux only: it reads /proc and watches processes through pidfds.
package process

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os/exec"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// reasonLines is how many log lines an ExitReason quotes.
const reasonLines = 3

// Errors that callers may want to tell apart.
var (
	// ErrNotClaimed: the directory's processes may be changed only by who has claimed it.
	ErrNotClaimed = errors.New("the state directory is not claimed")
	// ErrRunning: a process of that name is alive already; adopt it or stop it.
	ErrRunning = errors.New("a process of that name is running")
)

// Spec says what to start.
type Spec struct {
	// Name is unique in the directory and stable over restarts, such as "envoy" or "replica/chat-0". It may hold slashes.
	Name string
	// Purpose is for people and for whoever sorts the records, such as "replica".
	Purpose string
	// Command is the program, looked up in $PATH, and its arguments. The record keeps it: no secrets here.
	Command []string
	// Env is the complete environment as KEY=VALUE; nil inherits ours. It is not recorded.
	Env []string
	// WorkDir is where the process starts; empty means our own working directory.
	WorkDir string
	// LogFile takes stdout and stderr, appended. Empty means logs/<name>.log in the state directory; a relative path is
	// relative to it. A file that has grown beyond 10 MiB is rotated at the start, and by RotateLogs.
	LogFile string
	// Cgroup is the directory of the cgroup (version 2) that the process is born in, and all its descendants with it. Empty means ours.
	Cgroup string
	// Meta is kept in the record for whoever adopts the process.
	Meta map[string]string
}

// Record is what the state directory knows of a process.
type Record struct {
	Name    string            `json:"name"`
	Purpose string            `json:"purpose,omitempty"`
	Command []string          `json:"command"`
	Meta    map[string]string `json:"meta,omitempty"`
	PID     int               `json:"pid"`
	// StartTime is field 22 of /proc/PID/stat, in clock ticks after boot. PID, StartTime and BootID together never come twice.
	StartTime uint64 `json:"start_time"`
	// BootID is the kernel's random id of this boot: no record from before it can match.
	BootID string `json:"boot_id"`
	// Token is the random id of this very start; the process and all its descendants have it in their environment.
	Token string `json:"token"`
	// Cgroup is the Spec's.
	Cgroup string `json:"cgroup,omitempty"`
	// LogFile is absolute; LogStart is where in it, in bytes, this start's output begins. It is 0 once the file was rotated.
	LogFile  string    `json:"log_file"`
	LogStart int64     `json:"log_start"`
	Started  time.Time `json:"started"`
}

func (r Record) identity() identity {
	return identity{PID: r.PID, StartTime: r.StartTime, BootID: r.BootID}
}

// Process is a running child, started or adopted. Its methods are safe for concurrent use.
type Process struct {
	dir *Dir
	// record does not change but for its Meta and LogStart, which are guarded by dir.mu.
	record Record
	// logStart is the record's, for whoever reads the log without waiting for a start that goes on under the lock.
	logStart atomic.Int64
	// child is what we must reap; nil for an adopted process.
	child *exec.Cmd
	exit  *exitWatch
	// family is what is cleaned up when the process ends by itself; only watch uses it.
	family *family
	// stopping is set once a Stop has begun: from then on what is left of the group is that Stop's to end.
	stopping atomic.Bool

	done chan struct{}
	// unwatched is closed some milliseconds after done, when what was left of the group is ended and the record is gone, or instead of
	// it when the directory is released.
	unwatched chan struct{}
	// status is written before unwatched is closed.
	status string
}

// PID is the process id, which is also the id of its session and of its process group.
func (p *Process) PID() int { return p.record.PID }

// Record returns what the state directory knows of the process.
func (p *Process) Record() Record {
	p.dir.mu.Lock()
	defer p.dir.mu.Unlock()
	r := p.record
	r.Meta = maps.Clone(r.Meta)
	return r
}

// SetMeta adds to the record's Meta, or changes it, for whoever adopts the process. It needs the claim, and a process that has not ended.
func (p *Process) SetMeta(key, value string) error { return p.dir.setMeta(p, key, value) }

// Done is closed at once when the process has ended, adopted or not. It stays open when the directory is released before that.
func (p *Process) Done() <-chan struct{} { return p.done }

// ExitStatus says how the process ended, such as "exit status 1" or "signal: killed"; it is empty before Done. It is known
// only of a process that we started ourselves.
func (p *Process) ExitStatus() string {
	select {
	case <-p.done:
		<-p.unwatched
		return p.status
	default:
		return ""
	}
}

// ExitReason is ExitStatus with the last log lines, all on one line. What a server of prompts has logged is not always fit to be shown:
// see ExitStatus.
func (p *Process) ExitReason() string {
	status := p.ExitStatus()
	if lines := p.Tail(reasonLines); status != "" && len(lines) > 0 {
		return status + "; its log ends: " + strings.Join(lines, " | ")
	}
	return status
}

// Tail returns the last n lines, or fewer, that this start has logged. They are cut at 400 bytes and free of control characters.
func (p *Process) Tail(n int) []string { return tail(p.record.LogFile, p.logStart.Load(), n) }

// Stop ends the process with everything it has started: SIGTERM, then SIGKILL to what is left after grace or when ctx ends.
// It needs the claim, and returns when nothing is left and the record is gone. The error names what even SIGKILL did not end
// within ten seconds. Stopping what has ended already is no error.
func (p *Process) Stop(ctx context.Context, grace time.Duration) error {
	if !p.dir.claimed() {
		return ErrNotClaimed
	}
	p.stopping.Store(true)
	if err := endAll(ctx, []Record{p.Record()}, grace); err != nil {
		return fmt.Errorf("stop %s: %w", p.record.Name, err)
	}
	<-p.unwatched
	return nil
}

// watch waits for the end of the process and cleans up behind it.
func (p *Process) watch() {
	defer close(p.unwatched)
	if !p.exit.wait() {
		return
	}
	close(p.done)
	if !p.stopping.Load() {
		// A server without its main process is of no use, but may hold its port or its GPU's memory.
		p.family.signal(p.family.members(), unix.SIGKILL)
	}
	p.status = p.reap()
	p.dir.forget(p)
}

// reap lets the process go if it is our child. Only now: until then its number could not be given to anyone else.
func (p *Process) reap() string {
	if p.child == nil {
		return "ended (exit status unknown: an earlier run of the gateway started it)"
	}
	_ = p.child.Wait() // an exit status other than 0 comes as an error, and in the state
	return p.child.ProcessState.String()
}
