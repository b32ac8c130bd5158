package process

import (
	"bufio"
	"bytes"
	"os"
	"strconv"
)

// LogSize returns the size of the log in bytes. It is 0 if there is no log.
func (p *Process) LogSize() int64 {
	info, err := os.Stat(p.record.LogFile)
	if err != nil {
		return 0
	}
	return info.Size()
}

// Transferred returns how many bytes the process and its descendants have read and written so far,
// in files, pipes and most connections. Ended descendants do not count any more. It reads all of
// /proc, so it is not for every second.
func (p *Process) Transferred() uint64 {
	var total uint64
	members, _ := newProcessTree([]Record{p.Record()}).members() // none if they cannot be listed
	for _, s := range members {
		total += transferredBy(s.pid)
	}
	return total
}

// transferredBy returns the bytes that one process has read and written, 0 if nobody may know.
// Bytes that come from the disk by way of a mapping count as those of a read.
func transferredBy(pid int) (total uint64) {
	data, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/io")
	if err != nil {
		return 0
	}
	lines := bufio.NewScanner(bytes.NewReader(data))
	for lines.Scan() {
		name, value, _ := bytes.Cut(lines.Bytes(), []byte(": "))
		switch string(name) {
		case "rchar", "wchar", "read_bytes":
			n, _ := strconv.ParseUint(string(value), 10, 64)
			total += n
		}
	}
	return total
}
