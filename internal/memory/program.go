package memory

import (
	"bufio"
	"bytes"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// UnmapProgram unmaps the pages of the program's file, so that those which only the start has used
// do not count as memory of this process. A page that is used later is mapped again, from the
// kernel's cache of the file. Pages that were written stay. UnmapProgram returns how many bytes it
// has unmapped. It has no effect on systems without /proc.
func UnmapProgram() (unmapped int64) {
	program, err := os.Readlink("/proc/self/exe")
	if err != nil {
		return 0
	}
	smaps, err := os.ReadFile("/proc/self/smaps")
	if err != nil {
		return 0
	}
	for _, m := range readOnlyMappings(smaps, program) {
		if _, _, errno := unix.Syscall(unix.SYS_MADVISE, m.start, m.end-m.start, unix.MADV_DONTNEED); errno == 0 {
			unmapped += m.resident
		}
	}
	return unmapped
}

// mapping is a part of the address space.
type mapping struct {
	start, end uintptr
	// resident is how many of its bytes are mapped to memory. anonymous is how many, in memory or
	// swapped out, do not come from the file any more, because they were written.
	resident, anonymous int64
}

// readOnlyMappings returns the mappings of a file that have only the content of the file and cannot
// be written. smaps is what the kernel writes into /proc/PID/smaps.
func readOnlyMappings(smaps []byte, file string) []mapping {
	var all []mapping
	var current *mapping
	lines := bufio.NewScanner(bytes.NewReader(smaps))
	for lines.Scan() {
		fields := strings.Fields(lines.Text())
		if len(fields) >= 2 && !strings.HasSuffix(fields[0], ":") { // START-END PERMISSIONS OFFSET DEVICE INODE [FILE]
			current = nil
			if m, ok := parseRange(fields[0]); ok && strings.HasPrefix(fields[1], "r-") && strings.HasSuffix(lines.Text(), " "+file) {
				all = append(all, m)
				current = &all[len(all)-1]
			}
			continue
		}
		if current == nil || len(fields) != 3 {
			continue
		}
		n, _ := strconv.ParseInt(fields[1], 10, 64) // 0 if the kernel writes no number
		switch fields[0] {
		case "Rss:":
			current.resident = n << 10
		case "Anonymous:", "Swap:": // a page that is swapped out does not count as anonymous
			current.anonymous += n << 10
		}
	}
	clean := all[:0]
	for _, m := range all {
		if m.anonymous == 0 {
			clean = append(clean, m)
		}
	}
	return clean
}

// parseRange parses START-END, which are hexadecimal.
func parseRange(text string) (mapping, bool) {
	from, to, _ := strings.Cut(text, "-")
	start, err := strconv.ParseUint(from, 16, strconv.IntSize)
	if err != nil {
		return mapping{}, false
	}
	end, err := strconv.ParseUint(to, 16, strconv.IntSize)
	return mapping{start: uintptr(start), end: uintptr(end)}, err == nil && end > start
}
