package process

import (
	"bytes"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// MemoryLimit returns how many bytes of memory this process and its children may use. It is the
// memory of the machine, or the limit of the cgroup if that is lower. 0 means that neither can be
// read.
func MemoryLimit() int64 { return lowestOfOwn(machineMemory(), "memory", memoryIn) }

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

// memoryIn returns the limit of memory of one cgroup in bytes. A file without a number is no limit.
func memoryIn(cgroup string) (int64, bool) {
	text, err := os.ReadFile(filepath.Join(cgroup, "memory.max"))
	if err != nil {
		text, err = os.ReadFile(filepath.Join(cgroup, "memory.limit_in_bytes"))
	}
	if err != nil {
		return 0, false
	}
	n, err := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64)
	return n, err == nil
}
