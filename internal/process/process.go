// Package process runs the processes that outlive Sluice: Envoy and local replicas. Packages envoy,
// engines/local and engines/join use it.
//
// A process belongs to a state directory (Dir) and not to the process that started it. It runs in a
// session of its own, with a log file instead of pipes, and without any file descriptor of Sluice.
// A kill -9 of Sluice therefore leaves it untouched. A record in the directory identifies the
// process by its pid and start time; a pid alone may have been given to another process. The next
// Sluice that claims the directory adopts the recorded processes. If no Sluice claims the
// directory, the guard (RunGuard) ends the processes.
//
// A crash between the start of a process and the writing of its record loses nothing. Every child
// carries a marker in its environment, by which the next claim and the guard find processes without
// a record.
//
// The package works on Linux only: it reads /proc and watches processes by pidfds.
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

	"github.com/sluice-gateway/sluice/internal/redact"
)

// exitReasonLines is the number of log lines in an ExitReason.
const exitReasonLines = 3

// Errors that callers may want to distinguish.
var (
	// ErrNotClaimed means that a change of a process needs a claimed directory.
	ErrNotClaimed = errors.New("the state directory is not claimed")
	// ErrRunning means that a process of that name is alive. Adopt the process or stop it.
	ErrRunning = errors.New("a process of that name is running")
)

// Spec says what to start.
type Spec struct {
	// Name is unique in the directory and stable over restarts, such as "envoy" or
	// "replica/chat-0". It may contain slashes.
	Name string
	// Purpose is the kind of the process, such as "replica". Callers use it to sort records.
	Purpose string
	// Command is the program, which is looked up in $PATH, and its arguments. The record stores
	// Command, so it must not hold secrets.
	Command []string
	// Env is the complete environment as KEY=VALUE. nil means Environment(). It is not recorded.
	Env []string
	// Redactor hides secrets in what Tail and ExitReason return. nil hides only what looks like a
	// secret. It is not recorded; see Process.SetRedactor.
	Redactor *redact.Redactor
	// WorkDir is the working directory of the process. Empty means that of Sluice.
	WorkDir string
	// Cgroup is the directory of the cgroup (version 2) in which the process and its descendants
	// start. Empty means the cgroup of Sluice.
	Cgroup string
	// Meta is stored in the record for the gateway that adopts the process.
	Meta map[string]string
}

// Record is what the state directory stores about a process.
type Record struct {
	Name    string            `json:"name"`
	Purpose string            `json:"purpose,omitempty"`
	Command []string          `json:"command"`
	Meta    map[string]string `json:"meta,omitempty"`
	PID     int               `json:"pid"`
	// StartTime is field 22 of /proc/PID/stat, in clock ticks after boot. PID, StartTime and BootID
	// together are unique.
	StartTime uint64 `json:"start_time"`
	// BootID is the kernel's random id of this boot, so that no record of an earlier boot matches.
	BootID string `json:"boot_id"`
	// Token is the random id of this start. The process and all its descendants have it in their
	// environment.
	Token string `json:"token"`
	// Cgroup is Spec.Cgroup.
	Cgroup string `json:"cgroup,omitempty"`
	// LogFile is absolute. LogStart is the offset in bytes at which the output of this start
	// begins. It is 0 after the file was rotated.
	LogFile  string    `json:"log_file"`
	LogStart int64     `json:"log_start"`
	Started  time.Time `json:"started"`
}

func (r Record) identity() identity {
	return identity{PID: r.PID, StartTime: r.StartTime, BootID: r.BootID}
}

// Process is a running process, started or adopted. Its methods are safe for concurrent use.
type Process struct {
	dir *Dir
	// record is constant except for Name, Meta and LogStart, which are guarded by dir.mu.
	record Record
	// logStart is record.LogStart. It can be read while dir.mu is held for the start of another
	// process.
	logStart atomic.Int64
	// child is the process to reap. It is nil for an adopted process.
	child *exec.Cmd
	exit  *exitWatch
	// tree finds what to end when the process ends by itself. Only watch uses it.
	tree *processTree
	// redactor hides secrets in the lines of the log. It may hold nil.
	redactor atomic.Pointer[redact.Redactor]
	// stopping is set when a Stop has begun. From then on, Stop and not watch ends what is left of
	// the process tree.
	stopping atomic.Bool

	// done is closed at once when the process has ended.
	done chan struct{}
	// unwatched is closed when watch returns. That is some milliseconds after done, when the rest
	// of the process tree has ended and the record is removed. It is without done when the
	// directory is released.
	unwatched chan struct{}
	// status is written before unwatched is closed.
	status string
}

// PID is the process id. It is also the id of the process's session and process group.
func (p *Process) PID() int { return p.record.PID }

// Record returns the current record of the process.
func (p *Process) Record() Record {
	p.dir.mu.Lock()
	defer p.dir.mu.Unlock()
	r := p.record
	r.Meta = maps.Clone(r.Meta)
	return r
}

// SetMeta sets one entry of the record's Meta. The directory must be claimed, and the process must
// not have ended.
func (p *Process) SetMeta(key, value string) error { return p.dir.setMeta(p, key, value) }

// Rename gives the process another name, under which later gateways find it. Its old name is free
// then. Its log stays the same file. The directory must be claimed, no process may have the new
// name, and this process must not have ended.
func (p *Process) Rename(name string) error { return p.dir.rename(p, name) }

// Done is closed at once when the process has ended, started or adopted. If the directory is
// released before that, Done stays open.
func (p *Process) Done() <-chan struct{} { return p.done }

// ExitStatus says how the process ended, such as "exit status 1" or "signal: killed". It is empty
// before Done. For an adopted process that another process started it only says that the status is
// unknown.
func (p *Process) ExitStatus() string {
	select {
	case <-p.done:
		<-p.unwatched
		return p.status
	default:
		return ""
	}
}

// ExitReason returns ExitStatus and the last log lines, all on one line. The log of an inference
// server may contain prompts; where those must not be shown, use ExitStatus.
func (p *Process) ExitReason() string {
	status := p.ExitStatus()
	if lines := p.Tail(exitReasonLines); status != "" && len(lines) > 0 {
		return status + "; its log ends: " + strings.Join(lines, " | ")
	}
	return status
}

// Tail returns up to n of the last lines that this start has logged. Each line is cut at 400 bytes
// and has no control characters and no secrets, as far as the redactor knows them.
func (p *Process) Tail(n int) []string {
	return tail(p.record.LogFile, tailOptions{from: p.logStart.Load(), lines: n, redactor: p.redactor.Load()})
}

// SetRedactor replaces the redactor of Tail and ExitReason. An adopted process has none at first,
// which hides only what looks like a secret.
func (p *Process) SetRedactor(r *redact.Redactor) { p.redactor.Store(r) }

// Stop ends the process and all its descendants: it sends SIGTERM, and after grace or when ctx ends
// SIGKILL. The directory must be claimed. Stop returns when all of them have ended and the record
// is removed. The error names a process that SIGKILL did not end within ten seconds. Stop returns
// nil if the process has already ended.
func (p *Process) Stop(ctx context.Context, grace time.Duration) error {
	if !p.dir.claimed() {
		return ErrNotClaimed
	}
	p.stopping.Store(true)
	if err := endProcessTrees(ctx, []Record{p.Record()}, grace); err != nil {
		return fmt.Errorf("stop %s: %w", p.Record().Name, err)
	}
	<-p.unwatched
	return nil
}

// watch waits for the end of the process, ends the rest of its tree and removes its record.
func (p *Process) watch() {
	defer close(p.unwatched)
	if !p.exit.wait() {
		return
	}
	close(p.done)
	var err error
	if !p.stopping.Load() {
		err = p.endRest()
	}
	p.status = p.reap()
	p.dir.unwatch(p, err == nil)
}

// endRest ends what is left of the process tree. A server without its main process is useless, but
// may hold its port or GPU memory.
func (p *Process) endRest() error {
	ctx, cancel := context.WithTimeout(context.Background(), killTimeout)
	defer cancel()
	rest, err := p.tree.awaitMembers(ctx)
	if err != nil {
		p.dir.log.Error("descendants of an ended process not ended", errorField(err))
	}
	p.tree.signal(rest, unix.SIGKILL)
	return err
}

// reap waits for the process if it is a child of Sluice. Before that, the kernel cannot give its
// pid to another process, so the process tree must have been read earlier.
func (p *Process) reap() string {
	if p.child == nil {
		return reapAdopted(p.PID())
	}
	// An exit status other than 0 is also in the ProcessState.
	_ = p.child.Wait()
	return p.child.ProcessState.String()
}

// reapAdopted says how an adopted process has ended, and reaps it, if this process is its parent.
// That is so if this process has started it before an exec or under an earlier Dir.
func reapAdopted(pid int) string {
	var status unix.WaitStatus
	reaped, err := unix.Wait4(pid, &status, unix.WNOHANG, nil)
	switch {
	case reaped != pid || err != nil: // another process has reaped it
	case status.Exited():
		return fmt.Sprintf("exit status %d", status.ExitStatus())
	case status.Signaled():
		return fmt.Sprintf("signal: %v", status.Signal())
	}
	return "ended (exit status unknown: an earlier run of the gateway started it)"
}
