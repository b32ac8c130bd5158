package history

import (
	"os"
	"os/signal"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// limitFiles has writes behind the first size bytes of any file fail, as on a full disk. The
// returned function ends that.
func limitFiles(t *testing.T, size int64) (end func()) {
	t.Helper()
	signal.Ignore(unix.SIGXFSZ) // else the kernel ends the test
	var before unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_FSIZE, &before); err != nil {
		t.Fatal(err)
	}
	set := func(l unix.Rlimit) {
		if err := unix.Setrlimit(unix.RLIMIT_FSIZE, &l); err != nil {
			t.Error(err)
		}
	}
	set(unix.Rlimit{Cur: uint64(size), Max: before.Max})
	return func() { set(before); signal.Reset(unix.SIGXFSZ) }
}

// A full disk costs no samples that were written before, although the process is then killed. When
// there is room again, the samples of meanwhile are written too.
func TestB8_AFullDiskKeepsTheHour(t *testing.T) {
	dir := t.TempDir()
	s, _ := open(t, dir, noon, 0)
	fill(t, s, "chat", noon, 3)
	path := filepath.Join(dir, fileName("models", momentOf(noon).hour()))
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	end := limitFiles(t, info.Size())
	for i := range 3 {
		if err := s.Add(noon.Add(time.Duration(3+i)*Step), sampleOf("chat", float64(4+i))); err == nil {
			t.Error("the disk is not full")
		}
	}
	end()
	killed, _ := open(t, dir, noon.Add(time.Minute), 0)
	if got := queued(killed, "chat", noon, 4); got != "1 2 3 null" {
		t.Errorf("after a kill on a full disk: %s", got)
	}
	if left, _ := filepath.Glob(filepath.Join(dir, "*"+nextSuffix)); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
	fill(t, s, "chat", noon.Add(6*Step), 1)
	again, _ := open(t, dir, noon.Add(2*time.Minute), 0)
	if got := queued(again, "chat", noon, 7); got != "1 2 3 4 5 6 1" {
		t.Errorf("when there is room again: %s", got)
	}
}

// A process that is killed while it writes a file again leaves the new one behind. The next start
// removes it, and nothing else.
func TestB8_AFileThatACrashHasLeftIsRemoved(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s, _ := open(t, dir, noon, 0)
	fill(t, s, "chat", noon, 2)
	left := filepath.Join(dir, fileName("models", momentOf(noon).hour())+nextSuffix)
	foreign := filepath.Join(dir, "notes"+nextSuffix)
	for _, path := range []string{left, foreign} {
		if err := os.WriteFile(path, []byte("half"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	again, _ := open(t, dir, noon.Add(time.Hour), 0)
	if got := queued(again, "chat", noon, 2); got != "1 2" {
		t.Errorf("read again: %s", got)
	}
	if _, err := os.Stat(left); err == nil {
		t.Error("the file is kept for ever")
	}
	if _, err := os.Stat(foreign); err != nil {
		t.Errorf("the file of somebody else: %v", err)
	}
}
