package process

import (
	"os"
	"path/filepath"
	"runtime"
	"testing"
)

func TestParseStat(t *testing.T) {
	t.Parallel()
	const rest = " 0 0 0 0 0 0 0 0 0 0 0 20 0 1 0 113189 3133440 408"
	for text, want := range map[string]procStat{
		"7 (cat) R 1 5 6" + rest:            {pid: 7, state: 'R', parent: 1, group: 5, session: 6, start: 113189},
		"7 (a) b) Z (c)) S 1 5 6" + rest:    {pid: 7, state: 'S', parent: 1, group: 5, session: 6, start: 113189},
		"7 (line\nbreak) Z 1 5 6" + rest:    {pid: 7, state: 'Z', parent: 1, group: 5, session: 6, start: 113189},
		"":                                  {},
		"7 (cat":                            {},
		"7 (cat) R 1 5 6":                   {},
		"7 (cat) R 1 x 6" + rest:            {},
		") 7 (cat R 1 5 6" + rest:           {},
		"seven (cat) R 1 5 6" + rest:        {},
		"7 (cat) Running 1 5 6" + rest:      {},
		"7 (cat) R 1 5 6 0 0 0 0 0 0 0 0 0": {},
	} {
		got, ok := parseStat([]byte(text))
		if got != want || ok != (want != procStat{}) {
			t.Errorf("parseStat(%q) = %+v, %v, want %+v", text, got, ok, want)
		}
	}
}

func FuzzParseStat(f *testing.F) {
	own, err := os.ReadFile("/proc/self/stat")
	if err != nil {
		f.Fatal(err)
	}
	f.Add(own)
	f.Fuzz(func(t *testing.T, data []byte) {
		if s, ok := parseStat(data); !ok && s != (procStat{}) {
			t.Errorf("parseStat(%q) fails and says %+v", data, s)
		}
	})
}

func TestX1_MemoryLimitIsTheLowest(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	for path, text := range map[string]string{"a/b/memory.max": "max\n", "a/memory.max": "1000\n", "memory.max": "5000\n"} {
		path = filepath.Join(root, path)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for limit, want := range map[int64]int64{0: 1000, 4000: 1000, 500: 500} {
		if got := lowest(limit, root, "/a/b", memoryIn); got != want {
			t.Errorf("limit %d becomes %d, want %d", limit, got, want)
		}
	}
	if got := MemoryLimit(); got < 64<<20 || got > machineMemory() {
		t.Errorf("this process may use %d bytes of %d", got, machineMemory())
	}
}

// TestN5_CPULimitIsTheLowest: the quota of a cgroup of either version, or of a parent, bounds the
// processors.
func TestN5_CPULimitIsTheLowest(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	for path, text := range map[string]string{
		"two/cpu.max": "50000 100000\n", "two/free/cpu.max": "max 100000\n",
		"one/cpu.cfs_quota_us": "150000\n", "one/cpu.cfs_period_us": "100000\n",
		"one/free/cpu.cfs_quota_us": "-1\n", "one/free/cpu.cfs_period_us": "100000\n",
		"odd/cpu.max": "1 0\n", "odd/x/cpu.max": "x y\n", "odd/x/y/cpu.max": "5\n",
	} {
		path = filepath.Join(root, path)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for cgroup, want := range map[string]float64{"/two/free": 0.5, "/one/free": 1.5, "/odd/x/y": 4, "/none": 4} {
		if got := lowest(4, root, cgroup, processorsIn); got != want {
			t.Errorf("%s: %g processors, want %g", cgroup, got, want)
		}
	}
	if got := CPULimit(); got <= 0 || got > float64(runtime.NumCPU()) {
		t.Errorf("this process may use %g processors of %d", got, runtime.NumCPU())
	}
}
