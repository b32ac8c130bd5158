package local

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/sluice-gateway/sluice/engines"
	"github.com/sluice-gateway/sluice/internal/process"
)

const (
	// leaf is the cgroup for Sluice itself, and for what it runs without limits: a cgroup that gives controllers to its children may have no
	// processes of its own (cgroups(7), "no internal processes").
	leaf = "sluice"
	// cpuPeriod is what cpu.max is counted over, in microseconds; leastQuota is the least that the kernel takes.
	cpuPeriod  = 100_000
	leastQuota = 1_000
	// moveRounds is how often we look for processes that were forked while we moved the others.
	moveRounds = 10
	// removeRounds times removePause is how long a cgroup may take to become empty when its processes have ended.
	removeRounds = 50
	removePause  = 10 * time.Millisecond
	// longestCgroup leaves room for a suffix below the 255 bytes of a file name.
	longestCgroup = 200
)

// cgroups gives each replica that is to have limits a cgroup of its own (version 2), below the one that we were given. Nothing is
// touched before the first such replica starts. Where it is not permitted, replicas run without limits.
type cgroups struct {
	dir *process.Dir
	log *zap.Logger
	// proc is /proc/self.
	proc string
	// write and rmdir are what the kernel understands: a value for a file, and the end of an empty cgroup.
	write func(path, value string) error
	rmdir func(path string) error
	// owns tells which processes are Sluice's.
	owns func(pid int) bool

	mu sync.Mutex
	// prepared: base was looked for; guarded by mu
	prepared bool
	// base is the cgroup that ours are made in; empty where there can be none; guarded by mu
	base string
	// controllers that are switched on for ours; guarded by mu
	controllers []string
	// fault says why limits do not hold; empty when they do; guarded by mu
	fault string
}

func newCgroups(dir *process.Dir, log *zap.Logger) *cgroups {
	c := &cgroups{dir: dir, log: log, proc: "/proc/self", rmdir: os.Remove}
	c.owns = func(pid int) bool { return dir.Owns(pid) }
	c.write = func(path, value string) error { return os.WriteFile(path, []byte(value), 0o644) } //nolint:gosec // a file of the kernel's
	return c
}

// Limits says in words why replicas are not held to their CPU and memory. It is empty when they are, and until one with limits has started.
func (l *Launcher) Limits() string {
	l.limits.mu.Lock()
	defer l.limits.mu.Unlock()
	return l.limits.fault
}

// open makes the cgroup of a replica that is about to start, and returns its directory. It is empty for a replica that gets none.
func (c *cgroups) open(id string, r engines.Resources) string {
	if r.CPU <= 0 && r.Memory <= 0 {
		return ""
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.prepared {
		c.prepared = true
		if err := c.prepareLocked(); err != nil {
			c.base = ""
			c.failLocked(err)
		}
	}
	if c.base == "" {
		return ""
	}
	path, err := c.makeLocked(id)
	if err != nil {
		c.failLocked(err)
		return ""
	}
	if err := c.limitLocked(path, r); err != nil {
		c.remove(path)
		c.failLocked(err)
		return ""
	}
	return path
}

// failed takes in that a replica could not be born in its cgroup.
func (c *cgroups) failed(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.failLocked(err)
}

// failLocked says so in the log, once as long as the reason is the same.
func (c *cgroups) failLocked(err error) {
	if err.Error() == c.fault {
		return
	}
	c.fault = err.Error()
	c.log.Warn("replicas run without limits of CPU and memory", zap.String("reason", c.fault))
}

// prepareLocked finds the cgroup that was given to us and has it give its controllers to what we make there.
func (c *cgroups) prepareLocked() error {
	base, err := c.locate()
	if err != nil {
		return err
	}
	available := words(filepath.Join(base, "cgroup.controllers"))
	var missing []string
	for _, controller := range []string{"cpu", "memory"} {
		if !slices.Contains(available, controller) {
			continue
		}
		c.controllers = append(c.controllers, controller)
		if !slices.Contains(words(filepath.Join(base, "cgroup.subtree_control")), controller) {
			missing = append(missing, "+"+controller)
		}
	}
	if len(c.controllers) == 0 {
		return fmt.Errorf("neither of the controllers cpu and memory is there in the cgroup %s", base)
	}
	c.base = base
	if len(missing) == 0 {
		return nil
	}
	if err := c.moveOut(base); err != nil {
		return err
	}
	return c.write(filepath.Join(base, "cgroup.subtree_control"), strings.Join(missing, " "))
}

// locate finds the cgroup that we may divide: our own, or the one above it if we live in the leaf that an earlier run, or systemd
// (DelegateSubgroup=sluice), has made for us.
func (c *cgroups) locate() (string, error) {
	text, err := os.ReadFile(filepath.Join(c.proc, "cgroup"))
	if err != nil {
		return "", err
	}
	own, ok := unified(string(text))
	if !ok {
		return "", errors.New("the kernel has no cgroups of version 2")
	}
	mounts, err := os.ReadFile(filepath.Join(c.proc, "mountinfo"))
	if err != nil {
		return "", err
	}
	path, ok := mounted(string(mounts), own)
	if !ok {
		return "", fmt.Errorf("our cgroup %s (version 2) is not mounted here", own)
	}
	above := filepath.Dir(path)
	if filepath.Base(path) == leaf && len(words(filepath.Join(above, "cgroup.procs"))) == 0 &&
		len(words(filepath.Join(above, "cgroup.controllers"))) > 0 {
		return above, nil
	}
	return path, nil
}

// unified finds our cgroup of version 2 in /proc/self/cgroup.
func unified(text string) (string, bool) {
	for line := range strings.Lines(text) {
		if own, ok := strings.CutPrefix(line, "0::"); ok {
			return strings.TrimSuffix(own, "\n"), true
		}
	}
	return "", false
}

// mounted finds the directory of a cgroup of version 2 by /proc/self/mountinfo (proc_pid_mountinfo(5)). A mount may show a part of the
// hierarchy only, and a cgroup outside of our namespace begins with "/..".
func mounted(mountinfo, cgroup string) (string, bool) {
	plain := strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`)
	for line := range strings.Lines(mountinfo) {
		before, after, _ := strings.Cut(line, " - ")
		fields := strings.Fields(before)
		if len(fields) < 5 || !strings.HasPrefix(after, "cgroup2 ") {
			continue
		}
		below, err := filepath.Rel(plain.Replace(fields[3]), cgroup)
		if err == nil && filepath.IsLocal(below) && !strings.HasPrefix(cgroup, "/../") {
			return filepath.Join(plain.Replace(fields[4]), below), true
		}
	}
	return "", false
}

// moveOut moves ourselves and what we have started out of the cgroup and into the leaf. If anybody else is there, it moves nobody. The
// root of all cgroups, which has no type, may have processes.
func (c *cgroups) moveOut(base string) error {
	if _, err := os.Stat(filepath.Join(base, "cgroup.type")); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	for range moveRounds {
		pids := words(filepath.Join(base, "cgroup.procs"))
		if len(pids) == 0 {
			return nil
		}
		for _, pid := range pids {
			if number, _ := strconv.Atoi(pid); !c.owns(number) && exists(pid) {
				return fmt.Errorf("process %s, which is not Sluice's, is in the same cgroup, %s", pid, base)
			}
		}
		if err := os.Mkdir(filepath.Join(base, leaf), 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
			return err
		}
		for _, pid := range pids {
			if err := c.write(filepath.Join(base, leaf, "cgroup.procs"), pid); err != nil && exists(pid) {
				return err
			}
		}
	}
	return fmt.Errorf("there are always new processes in our cgroup, %s", base)
}

func exists(pid string) bool {
	_, err := os.Stat(filepath.Join("/proc", pid))
	return err == nil || pid == "0" // one of another container, of which we see nothing else
}

// makeLocked makes a cgroup that has counted nothing yet.
func (c *cgroups) makeLocked(id string) (string, error) {
	path := filepath.Join(c.base, c.prefix()+cgroupName(id))
	err := os.Mkdir(path, 0o755)
	if errors.Is(err, fs.ErrExist) && c.rmdir(path) == nil {
		err = os.Mkdir(path, 0o755)
	}
	if errors.Is(err, fs.ErrExist) { // something still ends in it
		return os.MkdirTemp(c.base, filepath.Base(path)+".")
	}
	return path, err
}

// prefix tells the cgroups of this state directory from those of another Sluice in the same place.
func (c *cgroups) prefix() string { return "sluice-" + c.dir.ID() + "-" }

// cgroupName makes a file name out of a replica's id, different ones for different ids.
func cgroupName(id string) string {
	name := url.PathEscape(id)
	if len(name) > longestCgroup {
		sum := sha256.Sum256([]byte(id))
		name = fmt.Sprintf("%s~%x", name[:longestCgroup-17], sum[:8])
	}
	return name
}

// limitLocked writes the limits of a cgroup. When memory is short, all of its processes end: half an engine is of no use.
func (c *cgroups) limitLocked(path string, r engines.Resources) error {
	var lacks []string
	if r.CPU > 0 && !slices.Contains(c.controllers, "cpu") {
		lacks = append(lacks, "cpu")
	} else if r.CPU > 0 {
		quota := max(int64(r.CPU*cpuPeriod), leastQuota)
		if err := c.write(filepath.Join(path, "cpu.max"), fmt.Sprintf("%d %d", quota, cpuPeriod)); err != nil {
			return err
		}
	}
	if r.Memory > 0 && !slices.Contains(c.controllers, "memory") {
		lacks = append(lacks, "memory")
	} else if r.Memory > 0 {
		if err := c.write(filepath.Join(path, "memory.max"), strconv.FormatInt(r.Memory, 10)); err != nil {
			return err
		}
		if err := c.write(filepath.Join(path, "memory.oom.group"), "1"); err != nil {
			return err
		}
	}
	if len(lacks) > 0 { // what is there holds all the same
		c.failLocked(fmt.Errorf("the controller %s is not there in the cgroup %s", lacks[0], c.base))
	}
	return nil
}

// remove removes the cgroup of a replica that has ended. One that does not become empty is left to a later run.
func (c *cgroups) remove(path string) {
	for range removeRounds {
		if err := c.rmdir(path); err == nil || errors.Is(err, fs.ErrNotExist) {
			return
		}
		time.Sleep(removePause)
	}
}

// sweep removes the cgroups that earlier runs left behind, but for those in use.
func (c *cgroups) sweep(used map[string]bool) {
	base, err := c.locate()
	if err != nil {
		return // then there are none
	}
	entries, _ := os.ReadDir(base)
	for _, e := range entries {
		if path := filepath.Join(base, e.Name()); strings.HasPrefix(e.Name(), c.prefix()) && !used[path] {
			_ = c.rmdir(path) // the kernel removes only what is empty
		}
	}
}

// outOfMemory tells whether the kernel has killed anything in the cgroup because of its limit of memory.
func outOfMemory(path string) bool {
	events := words(filepath.Join(path, "memory.events"))
	i := slices.Index(events, "oom_kill")
	return i >= 0 && i+1 < len(events) && events[i+1] != "0"
}

// words reads a file of the kernel's; what cannot be read has none.
func words(path string) []string {
	data, _ := os.ReadFile(path)
	return strings.Fields(string(data))
}

// gibibytes writes a size for people.
func gibibytes(n int64) string { return fmt.Sprintf("%.4g GiB", float64(n)/(1<<30)) }
