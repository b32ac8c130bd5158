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
	// leaf is the cgroup for Sluice itself and for what it runs without limits. A cgroup that gives
	// controllers to its children may have no processes of its own (cgroups(7), "no internal
	// processes").
	leaf = "sluice"
	// cpuPeriod is the period of cpu.max in microseconds. leastQuota is the least quota that the
	// kernel accepts.
	cpuPeriod  = 100_000
	leastQuota = 1_000
	// moveRounds is how often moveOut looks for processes that were forked while it moved the
	// others.
	moveRounds = 10
	// removeRounds times removePause is how long a cgroup may take to become empty after its
	// processes have ended.
	removeRounds = 50
	removePause  = 10 * time.Millisecond
	// longestCgroup leaves room for a suffix within the 255 bytes of a file name.
	longestCgroup = 200
)

// cgroups gives each replica with limits a cgroup of its own (version 2), below the cgroup of
// Sluice. It changes nothing before the first such replica starts. If it lacks the permission,
// replicas run without limits.
type cgroups struct {
	dir *process.Dir
	log *zap.Logger
	// proc is /proc/self.
	proc string
	// write and rmdir are the operations that the kernel offers: writing a value to a file, and
	// removing an empty cgroup.
	write func(path, value string) error
	rmdir func(path string) error
	// owns reports whether a process belongs to Sluice.
	owns func(pid int) bool

	mu sync.Mutex
	// prepared: prepareLocked was called; guarded by mu
	prepared bool
	// base is the cgroup in which the replicas' cgroups are created; empty if none can be created;
	// guarded by mu
	base string
	// controllers are those that are on in the replicas' cgroups; guarded by mu
	controllers []string
	// fault says why limits do not hold; empty if they do; guarded by mu
	fault string
}

func newCgroups(dir *process.Dir, log *zap.Logger) *cgroups {
	c := &cgroups{dir: dir, log: log, proc: "/proc/self", rmdir: os.Remove}
	c.owns = func(pid int) bool { return dir.Owns(pid) }
	c.write = func(path, value string) error { return os.WriteFile(path, []byte(value), 0o644) } //nolint:gosec // a file of the kernel
	return c
}

// create creates the cgroup of a replica that is about to start and returns its directory. It
// returns "" for a replica that gets none.
func (c *cgroups) create(id string, r engines.Resources) string {
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

// recordFailure records that a process could not be started in its cgroup.
func (c *cgroups) recordFailure(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.failLocked(err)
}

// failLocked records why limits do not hold. It logs each reason once. mu is held.
func (c *cgroups) failLocked(err error) {
	if err.Error() == c.fault {
		return
	}
	c.fault = err.Error()
	c.log.Warn("limits of CPU and memory not applied", zap.String("reason", c.fault))
}

// prepareLocked finds the cgroup of Sluice and turns its controllers on for the cgroups below it.
// mu is held.
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

// locate finds the cgroup that may be divided. This is the cgroup of Sluice, or its parent if
// Sluice runs in the leaf that an earlier run, or systemd (DelegateSubgroup=sluice), has created.
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
		return "", fmt.Errorf("the cgroup %s (version 2) of this process is not mounted here", own)
	}
	above := filepath.Dir(path)
	if filepath.Base(path) == leaf && len(words(filepath.Join(above, "cgroup.procs"))) == 0 &&
		len(words(filepath.Join(above, "cgroup.controllers"))) > 0 {
		return above, nil
	}
	return path, nil
}

// unified returns the cgroup of version 2 in the text of /proc/self/cgroup.
func unified(text string) (string, bool) {
	for line := range strings.Lines(text) {
		if own, ok := strings.CutPrefix(line, "0::"); ok {
			return strings.TrimSuffix(own, "\n"), true
		}
	}
	return "", false
}

// mounted returns the directory of a cgroup of version 2 by the text of /proc/self/mountinfo
// (proc_pid_mountinfo(5)). A mount may show only a part of the hierarchy. A cgroup outside of the
// namespace begins with "/..".
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

// moveOut moves Sluice and the processes that it has started from the cgroup into the leaf. If
// another process is in the cgroup, it moves none. The root cgroup, which has no type, may have
// processes. moveOut refuses the cgroup of a service of systemd. After a crash of Sluice systemd
// starts the next process in that cgroup. The kernel refuses that (EBUSY) as long as the replicas
// run in cgroups below it. With DelegateSubgroup=sluice systemd starts that process in the leaf.
func (c *cgroups) moveOut(base string) error {
	if _, err := os.Stat(filepath.Join(base, "cgroup.type")); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	for range moveRounds {
		pids := words(filepath.Join(base, "cgroup.procs"))
		if len(pids) == 0 {
			return nil
		}
		if strings.HasSuffix(base, ".service") {
			return fmt.Errorf("systemd could not start Sluice again after a crash, beside its replicas, if Sluice divided the cgroup %s: "+
				"set DelegateSubgroup=%s in the unit (systemd 254 or newer)", base, leaf)
		}
		for _, pid := range pids {
			if number, _ := strconv.Atoi(pid); !c.owns(number) && exists(pid) {
				return fmt.Errorf("process %s in the cgroup %s does not belong to Sluice: run Sluice in a cgroup of its own", pid, base)
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
	return fmt.Errorf("new processes keep appearing in the cgroup %s of this process", base)
}

// exists reports whether there is such a process. "0" stands for a process of another container.
func exists(pid string) bool {
	_, err := os.Stat(filepath.Join("/proc", pid))
	return err == nil || pid == "0"
}

// makeLocked creates a cgroup whose counters are zero. mu is held.
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

// prefix distinguishes the cgroups of this state directory from those of another Sluice in the same
// place.
func (c *cgroups) prefix() string { return "sluice-" + c.dir.ID() + "-" }

// cgroupName returns a file name for a replica's id. Different ids have different names.
func cgroupName(id string) string {
	name := url.PathEscape(id)
	if len(name) > longestCgroup {
		sum := sha256.Sum256([]byte(id))
		name = fmt.Sprintf("%s~%x", name[:longestCgroup-17], sum[:8])
	}
	return name
}

// limitLocked writes the limits of a cgroup. If memory runs out, the kernel kills all processes in
// it: a part of an engine is of no use. mu is held.
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
	if len(lacks) > 0 { // the other limits hold
		c.failLocked(fmt.Errorf("the controller %s is not there in the cgroup %s", lacks[0], c.base))
	}
	return nil
}

// remove removes the cgroup of a replica that has ended. A later run removes one that does not
// become empty.
func (c *cgroups) remove(path string) {
	for range removeRounds {
		if err := c.rmdir(path); err == nil || errors.Is(err, fs.ErrNotExist) {
			return
		}
		time.Sleep(removePause)
	}
}

// removeStale removes the cgroups that earlier runs have left, except those in use.
func (c *cgroups) removeStale(used map[string]bool) {
	base, err := c.locate()
	if err != nil {
		return // then there are no cgroups either
	}
	entries, _ := os.ReadDir(base)
	for _, e := range entries {
		if path := filepath.Join(base, e.Name()); strings.HasPrefix(e.Name(), c.prefix()) && !used[path] {
			_ = c.rmdir(path) // the kernel removes only what is empty
		}
	}
}

// outOfMemory reports whether the kernel has killed a process in the cgroup because of its memory
// limit.
func outOfMemory(path string) bool {
	events := words(filepath.Join(path, "memory.events"))
	i := slices.Index(events, "oom_kill")
	return i >= 0 && i+1 < len(events) && events[i+1] != "0"
}

// words reads the words of a file. A file that cannot be read has none.
func words(path string) []string {
	data, _ := os.ReadFile(path)
	return strings.Fields(string(data))
}

// gibibytes formats a size in bytes.
func gibibytes(n int64) string { return fmt.Sprintf("%.4g GiB", float64(n)/(1<<30)) }
