package process

import (
	"bytes"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// MemoryLimit returns how many bytes of memory this process and its children may use: the memory of
// the machine, or the limit of the cgroup if that is lower. 0 means that neither can be read.
func MemoryLimit() int64 {
	limit := machineMemory()
	own, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return limit
	}
	for line := range bytes.Lines(own) {
		// Each line is id:controllers:path. Version 2 has one line, without controllers.
		fields := strings.SplitN(strings.TrimSpace(string(line)), ":", 3)
		if len(fields) != 3 {
			continue
		}
		switch fields[1] {
		case "":
			limit = lowest(limit, "/sys/fs/cgroup", fields[2], "memory.max")
		case "memory":
			limit = lowest(limit, "/sys/fs/cgroup/memory", fields[2], "memory.limit_in_bytes")
		}
	}
	return limit
}

// lowest returns the lowest of limit and the limits of a cgroup and of its parents. The limits are
// in files of the given name. A file without a number is no limit.
func lowest(limit int64, root, cgroup, name string) int64 {
	for {
		text, err := os.ReadFile(filepath.Join(root, cgroup, name))
		if err == nil {
			if n, err := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64); err == nil && (limit == 0 || n < limit) {
				limit = n
			}
		}
		if cgroup == "/" || cgroup == "." || cgroup == "" {
			return limit
		}
		cgroup = filepath.Dir(cgroup)
	}
}

// machineMemory returns the memory of the machine in bytes, or 0 if it cannot be read.
func machineMemory() int64 {
	info, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return 0
	}
	for line := range bytes.Lines(info) {
		fields := strings.Fields(string(line))
		if len(fields) == 3 && fields[0] == "MemTotal:" && fields[2] == "kB" {
			n, _ := strconv.ParseInt(fields[1], 10, 64) // 0 if the kernel writes no number
			return n << 10
		}
	}
	return 0
}
