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

// spawnSpec says what to spawn.
type spawnSpec struct {
	args []string
	// env is the environment. nil means Environment().
	env     []string
	workDir string
	// marker is the value of the marker. Empty means no marker.
	marker string
	// cgroup is the directory of the cgroup to start in. Empty means the cgroup of Sluice.
	cgroup string
}

// spawn starts a process that shares neither session nor terminal nor descriptors with Sluice.
func spawn(c spawnSpec, logFile *os.File) (*exec.Cmd, error) {
	if len(c.args) == 0 || c.args[0] == "" {
		return nil, errors.New("the command is empty")
	}
	setCloseOnExec()
	cmd := exec.Command(c.args[0], c.args[1:]...)
	cmd.Dir = c.workDir
	cmd.Env = slices.DeleteFunc(slices.Clone(c.env), isMarker)
	if c.env == nil {
		cmd.Env = slices.DeleteFunc(Environment(), isMarker)
	}
	if c.marker != "" {
		cmd.Env = append(cmd.Env, markerKey+"="+c.marker)
	}
	// exec passes an *os.File on directly, without a pipe and a goroutine that copies.
	cmd.Stdout, cmd.Stderr = logFile, logFile
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if c.cgroup != "" {
		// The process starts in the cgroup (clone3 with CLONE_INTO_CGROUP, Linux 5.7). A process
		// that is moved later may start children outside the cgroup before the move.
		folder, err := os.OpenFile(c.cgroup, unix.O_DIRECTORY|unix.O_PATH, 0)
		if err != nil {
			return nil, fmt.Errorf("cgroup: %w", err)
		}
		defer folder.Close()
		cmd.SysProcAttr.UseCgroupFD, cmd.SysProcAttr.CgroupFD = true, int(folder.Fd())
	}
	err := cmd.Start()
	if c.cgroup != "" && errors.Is(err, unix.ENOSYS) {
		return nil, fmt.Errorf("start %s in the cgroup %s: the system call clone3 is not permitted: RestrictNamespaces of a unit of systemd forbids it",
			c.args[0], c.cgroup)
	}
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", c.args[0], err)
	}
	return cmd, nil
}

// isMarker reports whether an entry of the environment is a marker.
func isMarker(entry string) bool { return strings.HasPrefix(entry, markerKey+"=") }

// setCloseOnExec keeps inherited descriptors from children, such as a pipe whose reader waits for
// its end. Descriptors that Go opened never reach children.
func setCloseOnExec() {
	const first = 3
	if unix.CloseRange(first, math.MaxUint32, unix.CLOSE_RANGE_CLOEXEC) == nil {
		return
	}
	// the way for kernels before Linux 5.11
	names, _ := listDirectory(filepath.Join("/proc", "self", "fd"))
	for _, name := range names {
		if fd, err := strconv.Atoi(name); err == nil && fd >= first {
			unix.CloseOnExec(fd)
		}
	}
}
