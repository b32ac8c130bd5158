package process

import (
	"bytes"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
)

// CPULimit returns how many processors this process and its children may use: those of the machine,
// or the quota of the cgroup if that is lower. The quota may be a part of a processor.
func CPULimit() float64 { return lowestOfOwn(float64(runtime.NumCPU()), "cpu", processorsIn) }

// processorsIn returns the quota of one cgroup in processors. A quota that is not positive is none.
func processorsIn(cgroup string) (float64, bool) {
	text, err := os.ReadFile(filepath.Join(cgroup, "cpu.max"))
	if err != nil {
		quota, errQuota := os.ReadFile(filepath.Join(cgroup, "cpu.cfs_quota_us"))
		period, errPeriod := os.ReadFile(filepath.Join(cgroup, "cpu.cfs_period_us"))
		if errQuota != nil || errPeriod != nil {
			return 0, false
		}
		text = slices.Concat(quota, period)
	}
	fields := strings.Fields(string(text))
	if len(fields) != 2 {
		return 0, false
	}
	quota, errQuota := strconv.ParseFloat(fields[0], 64)
	period, errPeriod := strconv.ParseFloat(fields[1], 64)
	return quota / period, errQuota == nil && errPeriod == nil && quota > 0 && period > 0
}

// lowestOfOwn returns the lowest of limit and the limits of this process's cgroup and of the
// cgroup's parents. A limit of 0 is unknown. read reads the limit of one cgroup of either version.
func lowestOfOwn[T int64 | float64](limit T, controller string, read func(cgroup string) (T, bool)) T {
	const root = "/sys/fs/cgroup"
	own, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return limit
	}
	for line := range bytes.Lines(own) {
		// Each line is id:controllers:path. Version 2 has one line, without controllers.
		fields := strings.SplitN(strings.TrimSpace(string(line)), ":", 3)
		switch {
		case len(fields) != 3:
		case fields[1] == "":
			limit = lowest(limit, root, fields[2], read)
		case slices.Contains(strings.Split(fields[1], ","), controller):
			limit = lowest(limit, filepath.Join(root, controller), fields[2], read)
		}
	}
	return limit
}

// lowest returns the lowest of limit and the limits of a cgroup and of its parents.
func lowest[T int64 | float64](limit T, root, cgroup string, read func(cgroup string) (T, bool)) T {
	for {
		if n, ok := read(filepath.Join(root, cgroup)); ok && (limit == 0 || n < limit) {
			limit = n
		}
		if cgroup == "/" || cgroup == "." || cgroup == "" {
			return limit
		}
		cgroup = filepath.Dir(cgroup)
	}
}
