package kubetest

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// process is the leader of a process group. The group is killed when the leader ends.
type process struct {
	cmd       *exec.Cmd
	startedAt time.Time
	done      chan struct{} // closed when the leader has ended and the rest of the group was killed

	mu     sync.Mutex
	reaped bool // true if another process may have the pid
}

// start starts the command. Its output is appended to the file "log" in dir.
func (c command) start(dir string) (*process, error) {
	log, err := os.OpenFile(filepath.Join(dir, "log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	defer log.Close()
	p := &process{done: make(chan struct{}), startedAt: time.Now()}
	p.cmd = &exec.Cmd{Path: c.path, Args: c.args, Env: c.env, Dir: c.dir, Stdout: log, Stderr: log}
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	if err := p.cmd.Start(); err != nil {
		return nil, err
	}
	go p.watch()
	return p, nil
}

// watch waits until the leader has ended and kills the rest of its group. It does so before it
// reaps the leader, so that no other process can have the pid.
func (p *process) watch() {
	defer close(p.done)
	for {
		err := unix.Waitid(unix.P_PID, p.pid(), nil, unix.WEXITED|unix.WNOWAIT, nil)
		if !errors.Is(err, unix.EINTR) {
			break
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	_ = unix.Kill(-p.pid(), unix.SIGKILL) // There may be no other processes.
	_ = p.cmd.Wait()                      // ProcessState shows how it ended.
	p.reaped = true
}

func (p *process) pid() int { return p.cmd.Process.Pid }

// terminate sends SIGTERM to the leader, as container runtimes do.
func (p *process) terminate() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.reaped {
		_ = unix.Kill(p.pid(), unix.SIGTERM) // It may have ended already.
	}
}

// kill kills the group and waits until it has ended.
func (p *process) kill() {
	p.mu.Lock()
	if !p.reaped {
		_ = unix.Kill(-p.pid(), unix.SIGKILL) // It may have ended already.
	}
	p.mu.Unlock()
	<-p.done
}

// wait waits until the process has ended, at most for d or until ctx ends.
func (p *process) wait(ctx context.Context, d time.Duration) {
	select {
	case <-p.done:
	case <-ctx.Done():
	case <-time.After(d):
	}
}

// exitCode returns the exit code of a process that has ended. It is 128 plus the signal if a signal
// killed the process.
func (p *process) exitCode() int32 {
	status := p.cmd.ProcessState.Sys().(syscall.WaitStatus)
	if status.Signaled() {
		return 128 + int32(status.Signal())
	}
	return int32(status.ExitStatus())
}
