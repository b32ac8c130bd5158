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

// process is the leader of a process group, which goes with it.
type process struct {
	cmd   *exec.Cmd
	began time.Time
	done  chan struct{} // closed when the leader is gone and the rest of the group was killed

	mu     sync.Mutex
	reaped bool // the pid may be another's
}

// start starts the command. Its output is appended to the log in dir.
func (c command) start(dir string) (*process, error) {
	log, err := os.OpenFile(filepath.Join(dir, "log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	defer log.Close()
	p := &process{done: make(chan struct{}), began: time.Now()}
	p.cmd = &exec.Cmd{Path: c.path, Args: c.args, Env: c.env, Dir: c.dir, Stdout: log, Stderr: log}
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	if err := p.cmd.Start(); err != nil {
		return nil, err
	}
	go p.watch()
	return p, nil
}

// watch waits for the leader's end, and ends the others of its group while nobody else can have its pid.
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
	_ = unix.Kill(-p.pid(), unix.SIGKILL) // there may be no others
	_ = p.cmd.Wait()                      // how it ended is in its state
	p.reaped = true
}

func (p *process) pid() int { return p.cmd.Process.Pid }

// terminate asks the leader to end, as container runtimes do.
func (p *process) terminate() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.reaped {
		_ = unix.Kill(p.pid(), unix.SIGTERM) // it may have ended already
	}
}

// kill ends the group and waits until it has ended.
func (p *process) kill() {
	p.mu.Lock()
	if !p.reaped {
		_ = unix.Kill(-p.pid(), unix.SIGKILL) // it may have ended already
	}
	p.mu.Unlock()
	<-p.done
}

// wait waits for the end, but not longer than d, and not longer than the context.
func (p *process) wait(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-p.done:
	case <-ctx.Done():
	case <-timer.C:
	}
}

// exitCode is that of a process that has ended, as shells and container runtimes give it: 128 and the signal, where it was one.
func (p *process) exitCode() int32 {
	status := p.cmd.ProcessState.Sys().(syscall.WaitStatus)
	if status.Signaled() {
		return 128 + int32(status.Signal())
	}
	return int32(status.ExitStatus())
}
