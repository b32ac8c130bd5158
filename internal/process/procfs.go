package process

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// markerKey is the environment variable that every child and its descendants carry: <directory id>/<token>/<name>.
const markerKey = "SLUICE_PROCESS"

// stat is what we use of /proc/PID/stat (proc_pid_stat(5)).
type stat struct {
	pid     int
	state   byte
	group   int
	session int
	// start is in clock ticks after boot.
	start uint64
}

// dead processes wait for their parent to look at them. They run nothing and hold nothing but their number.
func (s stat) dead() bool { return s.state == 'Z' || s.state == 'X' }

func readStat(pid int) (stat, bool) {
	data, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "stat"))
	if err != nil {
		return stat{}, false
	}
	return parseStat(data)
}

// parseStat starts after the last parenthesis: the program's name, in parentheses, may hold anything.
func parseStat(data []byte) (stat, bool) {
	open, end := bytes.IndexByte(data, '('), bytes.LastIndexByte(data, ')')
	if open < 0 || end < open {
		return stat{}, false
	}
	fields := strings.Fields(string(data[end+1:]))
	if len(fields) < 20 || len(fields[0]) != 1 {
		return stat{}, false
	}
	s := stat{state: fields[0][0]}
	var errs [4]error
	s.pid, errs[0] = strconv.Atoi(strings.TrimSpace(string(data[:open])))
	s.group, errs[1] = strconv.Atoi(fields[2])
	s.session, errs[2] = strconv.Atoi(fields[3])
	s.start, errs[3] = strconv.ParseUint(fields[19], 10, 64)
	for _, err := range errs {
		if err != nil {
			return stat{}, false
		}
	}
	return s, true
}

// processes lists every process that was started at the given time or later, dead ones included.
func processes(since uint64) []stat {
	names, err := readNames("/proc")
	if err != nil {
		return nil
	}
	var all []stat
	for _, name := range names {
		pid, err := strconv.Atoi(name)
		if err != nil {
			continue
		}
		if s, ok := readStat(pid); ok && s.start >= since {
			all = append(all, s)
		}
	}
	return all
}

func readNames(path string) ([]string, error) {
	dir, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	return dir.Readdirnames(-1)
}

// marker returns the directory id and the token that the process carries; ok is false when it carries none, or when its environment is
// not ours to read.
func marker(pid int) (id, token string, ok bool) {
	data, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "environ"))
	if err != nil {
		return "", "", false
	}
	for entry := range bytes.SplitSeq(data, []byte{0}) {
		value, found := bytes.CutPrefix(entry, []byte(markerKey+"="))
		if !found {
			continue
		}
		id, rest, _ := strings.Cut(string(value), "/")
		token, _, ok := strings.Cut(rest, "/")
		return id, token, ok
	}
	return "", "", false
}

// bootID tells this boot from every other one. It is empty where the kernel does not say.
func bootID() string {
	data, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(data))
}

// identity names one process for good. A pid alone comes again: when pids wrap around, and after a boot.
type identity struct {
	PID       int    `json:"pid"`
	StartTime uint64 `json:"start_time"`
	BootID    string `json:"boot_id"`
}

// identify returns the identity of a process that exists, dead or alive.
func identify(pid int) (identity, error) {
	s, ok := readStat(pid)
	if !ok {
		return identity{}, fmt.Errorf("/proc does not show process %d: is /proc mounted?", pid)
	}
	return identity{PID: pid, StartTime: s.start, BootID: bootID()}, nil
}

// alive tells whether the very process runs, and not another one that has its number by now.
func (id identity) alive() bool {
	if id.PID <= 0 || id.BootID != bootID() {
		return false
	}
	s, ok := readStat(id.PID)
	return ok && s.start == id.StartTime && !s.dead()
}
