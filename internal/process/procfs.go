package process

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// markerKey is the environment variable that every child and its descendants carry: <directory
// id>/<token>/<name>.
const markerKey = "SLUICE_PROCESS"

// procStat holds the used fields of /proc/PID/stat (proc_pid_stat(5)).
type procStat struct {
	pid     int
	state   byte
	group   int
	session int
	// start is in clock ticks after boot.
	start uint64
}

// dead reports whether the process has ended and waits to be reaped. Such a process holds nothing
// but its pid.
func (s procStat) dead() bool { return s.state == 'Z' || s.state == 'X' }

// readStat reads the state of a process. It returns false if the process does not exist.
func readStat(pid int) (procStat, bool) {
	data, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "stat"))
	if err != nil {
		return procStat{}, false
	}
	return parseStat(data)
}

// parseStat parses the content of /proc/PID/stat. It begins after the last closing parenthesis,
// because the program's name in parentheses may contain any character.
func parseStat(data []byte) (procStat, bool) {
	open, end := bytes.IndexByte(data, '('), bytes.LastIndexByte(data, ')')
	if open < 0 || end < open {
		return procStat{}, false
	}
	fields := strings.Fields(string(data[end+1:]))
	if len(fields) < 20 || len(fields[0]) != 1 {
		return procStat{}, false
	}
	s := procStat{state: fields[0][0]}
	var errs [4]error
	s.pid, errs[0] = strconv.Atoi(strings.TrimSpace(string(data[:open])))
	s.group, errs[1] = strconv.Atoi(fields[2])
	s.session, errs[2] = strconv.Atoi(fields[3])
	s.start, errs[3] = strconv.ParseUint(fields[19], 10, 64)
	for _, err := range errs {
		if err != nil {
			return procStat{}, false
		}
	}
	return s, true
}

// listProcesses lists all processes that started at the given time or later, dead ones included.
func listProcesses(since uint64) []procStat {
	names, err := listDirectory("/proc")
	if err != nil {
		return nil
	}
	var all []procStat
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

// listDirectory returns the names in a directory, in no order.
func listDirectory(path string) ([]string, error) {
	dir, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	return dir.Readdirnames(-1)
}

// readMarker returns the directory id and the token in the environment of a process. ok is false if
// the process has no marker or its environment is not readable.
func readMarker(pid int) (id, token string, ok bool) {
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

// bootID returns the kernel's random id of this boot, or "" if the kernel has none.
func bootID() string {
	data, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(data))
}

// identity identifies one process uniquely. A pid alone is reused when pids wrap around and after a
// boot.
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

// alive reports whether this process runs. Another process that was given the same pid does not
// count.
func (id identity) alive() bool {
	if id.PID <= 0 || id.BootID != bootID() {
		return false
	}
	s, ok := readStat(id.PID)
	return ok && s.start == id.StartTime && !s.dead()
}
