package process

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/sluice-gateway/sluice/internal/lack"
)

// markerKey is the environment variable that every child and its descendants carry: <directory
// id>/<token>/<name>.
const markerKey = "SLUICE_PROCESS"

// procStat holds the used fields of /proc/PID/stat (proc_pid_stat(5)).
type procStat struct {
	pid     int
	state   byte
	parent  int
	group   int
	session int
	// start is in clock ticks after boot.
	start uint64
}

// dead reports whether the process has ended and waits to be reaped. Such a process holds nothing
// but its pid.
func (s procStat) dead() bool { return s.state == 'Z' || s.state == 'X' }

// readStat reads the state of a process. It returns false if the process does not exist or its
// state is not readable.
func readStat(pid int) (procStat, bool) {
	s, ok, _ := lookUp(pid)
	return s, ok
}

// lookUp reads the state of a process. ok is false if the process does not exist. An error says
// that nobody knows whether it does.
func lookUp(pid int) (s procStat, ok bool, err error) {
	data, err := readProc(pid, "stat")
	if err != nil || data == nil {
		return procStat{}, false, err
	}
	s, ok = parseStat(data)
	return s, ok, nil
}

// Runs reports whether there is a process with this id that has not ended. A process of which
// nobody knows whether it runs counts as one that does.
func Runs(pid int) bool {
	s, ok, err := lookUp(pid)
	return err != nil || ok && !s.dead()
}

// readProc reads a file in /proc/PID. It returns nil without an error if the process does not exist
// or does not let this user read. The error is a lack of this machine, such as of descriptors.
func readProc(pid int, name string) ([]byte, error) {
	data, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), name))
	switch {
	case err == nil:
		return data, nil
	case lack.IsOwn(err):
		return nil, err
	}
	return nil, nil
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
	var errs [5]error
	s.pid, errs[0] = strconv.Atoi(strings.TrimSpace(string(data[:open])))
	s.parent, errs[4] = strconv.Atoi(fields[1])
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

// listProcesses lists all processes that started at the given time or later, dead ones included. It
// returns an error if there may be others.
func listProcesses(since uint64) ([]procStat, error) {
	names, err := listDirectory("/proc")
	if err != nil {
		return nil, err
	}
	var all []procStat
	for _, name := range names {
		pid, err := strconv.Atoi(name)
		if err != nil {
			continue
		}
		s, ok, err := lookUp(pid)
		if err != nil {
			return nil, err
		}
		if ok && s.start >= since {
			all = append(all, s)
		}
	}
	return all, nil
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
	id, token, _ = findMarker(pid)
	return id, token, token != ""
}

// findMarker is readMarker with an error that says that the process may have a marker. The token is
// empty if it has none.
func findMarker(pid int) (id, token string, err error) {
	data, err := readProc(pid, "environ")
	if err != nil {
		return "", "", err
	}
	for entry := range bytes.SplitSeq(data, []byte{0}) {
		value, found := bytes.CutPrefix(entry, []byte(markerKey+"="))
		if !found {
			continue
		}
		id, rest, _ := strings.Cut(string(value), "/")
		token, _, ok := strings.Cut(rest, "/")
		if !ok {
			token = ""
		}
		return id, token, nil
	}
	return "", "", nil
}

// bootID returns the kernel's random id of this boot, or "" if the kernel has none.
func bootID() (string, error) {
	data, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if lack.IsOwn(err) {
		return "", err
	}
	return strings.TrimSpace(string(data)), nil
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
	s, ok, err := lookUp(pid)
	if err != nil {
		return identity{}, err
	}
	if !ok {
		return identity{}, fmt.Errorf("/proc does not show process %d: is /proc mounted?", pid)
	}
	boot, err := bootID()
	return identity{PID: pid, StartTime: s.start, BootID: boot}, err
}

// alive reports whether this process runs. Another process that was given the same pid does not
// count. A process of which nobody knows whether it runs counts as alive.
func (id identity) alive() bool {
	if id.PID <= 0 {
		return false
	}
	if boot, err := bootID(); err == nil && boot != id.BootID {
		return false
	}
	s, ok, err := lookUp(id.PID)
	return err != nil || ok && s.start == id.StartTime && !s.dead()
}
