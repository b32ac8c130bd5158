package process

import (
	"errors"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// command is what spawn needs beside the log file.
type command struct {
	args    []string
	env     []string // nil inherits ours
	workDir string
	// marker is the value of the marker; empty for none.
	marker string
	// cgroup is the directory of the cgroup to be born in; empty for ours.
	cgroup string
}

// spawn starts a process that has nothing in common with us: not the session, not the terminal, not a descriptor.
func spawn(c command, logFile *os.File) (*exec.Cmd, error) {
	if len(c.args) == 0 || c.args[0] == "" {
		return nil, errors.New("no command")
	}
	closeOnExec()
	cmd := exec.Command(c.args[0], c.args[1:]...)
	cmd.Dir = c.workDir
	cmd.Env = slices.DeleteFunc(slices.Clone(c.env), isMarker)
	if c.env == nil {
		cmd.Env = slices.DeleteFunc(os.Environ(), isMarker)
	}
	if c.marker != "" {
		cmd.Env = append(cmd.Env, markerKey+"="+c.marker)
	}
	cmd.Stdout, cmd.Stderr = logFile, logFile // the file itself: no pipe, no goroutine that copies
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if c.cgroup != "" {
		// Born there (clone3 with CLONE_INTO_CGROUP, Linux 5.7): one that is moved later has its first moments, and maybe children, outside.
		folder, err := os.OpenFile(c.cgroup, unix.O_DIRECTORY|unix.O_PATH, 0)
		if err != nil {
			return nil, fmt.Errorf("cgroup: %w", err)
		}
		defer folder.Close()
		cmd.SysProcAttr.UseCgroupFD, cmd.SysProcAttr.CgroupFD = true, int(folder.Fd())
	}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", c.args[0], err)
	}
	return cmd, nil
}

func isMarker(entry string) bool { return strings.HasPrefix(entry, markerKey+"=") }

// closeOnExec keeps from children what we inherited ourselves, such as a pipe that somebody waits on. What Go opens
// never reaches them.
func closeOnExec() {
	const first = 3
	if unix.CloseRange(first, math.MaxUint32, unix.CLOSE_RANGE_CLOEXEC) == nil {
		return
	}
	names, _ := readNames(filepath.Join("/proc", "self", "fd")) // before Linux 5.11
	for _, name := range names {
		if fd, err := strconv.Atoi(name); err == nil && fd >= first {
			unix.CloseOnExec(fd)
		}
	}
}
