package process

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-gateway/sluice/internal/testutil"
)

// lines returns numbered lines of ten bytes each, of at least size bytes together.
func lines(size int) []byte {
	n := (size + 9) / 10 * 10
	return numbered()[:n:n]
}

// numbered makes the lines of lines once, because the race detector makes millions of lines slow.
var numbered = sync.OnceValue(func() []byte {
	var b bytes.Buffer
	for i := 0; b.Len() < 3*maxLogBytes/2; i++ {
		fmt.Fprintf(&b, "%9d\n", i)
	}
	return b.Bytes()
})

func TestLogRotationAtTheStart(t *testing.T) {
	t.Parallel()
	d := claimedDir(t)
	path := d.LogFile("l")
	if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, lines(maxLogBytes+1), 0o600)); err != nil {
		t.Fatal(err)
	}
	wait(t, start(t, d, script("l", "echo line")))
	if now, err := os.ReadFile(path); err != nil || string(now) != "line\n" {
		t.Errorf("the new log = %q, %v", now, err)
	}
	if old, err := os.Stat(path + ".1"); err != nil || old.Size() > maxLogBytes || old.Size() < maxLogBytes-20 {
		t.Errorf("the old log: %v, %v", old, err)
	}
}

func TestLogRotationWhileItRuns(t *testing.T) {
	t.Parallel()
	d := claimedDir(t)
	// The process writes a line for every line that it reads. It reads a file because its stdin is
	// /dev/null.
	orders := filepath.Join(t.TempDir(), "orders")
	if err := os.WriteFile(orders, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	p := start(t, d, Spec{Name: "l", Command: []string{"tail", "-n", "+1", "-f", orders}})
	say := func(text string) {
		t.Helper()
		file, err := os.OpenFile(orders, os.O_WRONLY|os.O_APPEND, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer file.Close()
		if _, err := file.WriteString(text + "\n"); err != nil {
			t.Fatal(err)
		}
		testutil.Eventually(t, "it is in the log", func() bool {
			got := p.Tail(1)
			return len(got) == 1 && got[0] == text
		})
	}
	say("first")
	if err := d.RotateLogs(); err != nil {
		t.Fatal(err)
	}
	path := p.Record().LogFile
	if _, err := os.Stat(path + ".1"); !errors.Is(err, fs.ErrNotExist) {
		t.Fatalf("a short log was rotated: %v", err)
	}
	// grow writes in place of the process, which would take longer.
	grow := func(last string) {
		t.Helper()
		file, err := os.OpenFile(path, os.O_WRONLY|os.O_APPEND, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer file.Close()
		if _, err := file.Write(append(lines(maxLogBytes+maxLogBytes/2), last+"\n"...)); err != nil {
			t.Fatal(err)
		}
		if err := d.RotateLogs(); err != nil {
			t.Fatal(err)
		}
	}
	for i := range 4 {
		grow(fmt.Sprintf("end %d", i))
		if got := p.Tail(1); len(got) != 0 {
			t.Fatalf("Tail after the rotation = %q", got)
		}
		say(fmt.Sprintf("line %d", i))
		if now, err := os.ReadFile(path); err != nil || string(now) != fmt.Sprintf("line %d\n", i) {
			t.Fatalf("the log = %d bytes, %v", len(now), err)
		}
	}
	checkEnd(t, path+".1", "end 3")
	checkEnd(t, path+".2", "end 2")
	if all, _ := filepath.Glob(path + "*"); len(all) != 3 {
		t.Errorf("files: %v", all)
	}
	if record, err := readRecord(d.recordPath("l")); err != nil || record.LogStart != 0 {
		t.Errorf("the record says that the log begins at %d (%v)", record.LogStart, err)
	}
}

// checkEnd checks that a rotated log is the end of the log, in complete lines, and not too long.
func checkEnd(t *testing.T, path, last string) {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	first, _, _ := bytes.Cut(data, []byte("\n"))
	if len(data) > maxLogBytes || len(data) < maxLogBytes-100 || len(first) != 9 || !bytes.HasSuffix(data, []byte("\n"+last+"\n")) {
		t.Errorf("%s: %d bytes, begins %q, ends %q", path, len(data), first, data[len(data)-20:])
	}
}

// A log was rotated outside this process, or just before a crash, so its record still has the old
// offset.
func TestTailAfterARotation(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "log")
	if err := os.WriteFile(path, []byte("one\ntwo\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for from, want := range map[int64][]string{0: {"one", "two"}, 4: {"two"}, 8: nil, 9: {"one", "two"}, 1 << 40: {"one", "two"}} {
		if diff := cmp.Diff(want, tail(path, tailOptions{from: from, lines: 10})); diff != "" {
			t.Errorf("from %d (-want +got):\n%s", from, diff)
		}
	}
}

func TestTailOfALongLog(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "log")
	text := strings.Repeat("x", 2*tailBytes) + "\nü" + strings.Repeat("ü", maxTailLineBytes) + "\nlast\n"
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	got := tail(path, tailOptions{lines: 10})
	want := []string{strings.Repeat("ü", maxTailLineBytes/2) + "…", "last"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("tail (-want +got):\n%s", diff)
	}
}

func TestRotationThatFails(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "log")
	text := lines(maxLogBytes + 10)
	if err := os.WriteFile(path, text, 0o600); err != nil {
		t.Fatal(err)
	}
	// A folder that is not empty is in the place of the rotated log.
	if err := os.MkdirAll(filepath.Join(path+".1", "x"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(filepath.Join(path+".2", "x"), 0o700); err != nil {
		t.Fatal(err)
	}
	if rotated, err := new(Dir).rotate(path); rotated || err == nil {
		t.Errorf("rotated: %v, %v", rotated, err)
	}
	if now, err := os.ReadFile(path); err != nil || !bytes.Equal(now, text) {
		t.Errorf("the log has %d bytes of %d, %v", len(now), len(text), err)
	}
}

// fullLog returns the path of a log that has filled its file system, and the log's content. The log
// was rotated before if rotated is set.
func fullLog(t *testing.T, rotated bool) (path string, text []byte) {
	t.Helper()
	dir := t.TempDir()
	testutil.SmallDisk(t, dir, "36m")
	path, text = filepath.Join(dir, "log"), lines(maxLogBytes+10)
	if err := os.WriteFile(path, text, 0o600); err != nil {
		t.Fatal(err)
	}
	if rotated {
		for _, old := range []string{path + ".1", path + ".2"} {
			if err := os.WriteFile(old, text[10:], 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	testutil.FillDisk(t, dir)
	return path, text
}

// TestX5_ALogThatFillsTheDiskIsRotated: where there is no room for a copy, the oldest copies go
// first, and the log is emptied without one if that is not enough.
func TestX5_ALogThatFillsTheDiskIsRotated(t *testing.T) {
	for name, before := range map[string]bool{"rotated before": true, "never rotated": false} {
		t.Run(name, func(t *testing.T) {
			path, text := fullLog(t, before)
			if rotated, err := new(Dir).rotate(path); !rotated || err != nil {
				t.Errorf("rotated: %v, %v", rotated, err)
			}
			if info, err := os.Stat(path); err != nil || info.Size() > 0 {
				t.Errorf("the log is %+v, %v", info, err)
			}
			kept, err := os.ReadFile(path + ".1")
			if before && (err != nil || !bytes.HasSuffix(text, kept) || len(kept) < maxLogBytes-20) {
				t.Errorf("%d bytes of %d are kept, %v", len(kept), len(text), err)
			}
			if !before && !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("%d bytes are kept without room, %v", len(kept), err)
			}
		})
	}
}

// TestALogThatCannotBeRotatedStopsNoStart: the process goes on with the log as it is.
func TestALogThatCannotBeRotatedStopsNoStart(t *testing.T) {
	t.Parallel()
	d := claimedDir(t)
	path := d.LogFile("l")
	if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, lines(maxLogBytes+1), 0o600)); err != nil {
		t.Fatal(err)
	}
	// A folder is in the place of the copy.
	if err := os.MkdirAll(filepath.Join(path+".new", "x"), 0o700); err != nil {
		t.Fatal(err)
	}
	p := start(t, d, script("l", "echo line"))
	wait(t, p)
	if got := p.Tail(2); !slices.Equal(got, []string{"line"}) {
		t.Errorf("the log of the start ends with %q", got)
	}
}

// A process that starts anew opens its log while RotateLogs may rotate it.
func TestRotationsAtOnce(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "log")
	if err := os.WriteFile(path, lines(maxLogBytes+10), 0o600); err != nil {
		t.Fatal(err)
	}
	d := new(Dir)
	var rotated atomic.Int32
	var both sync.WaitGroup
	for range 4 {
		both.Go(func() {
			did, err := d.rotate(path)
			if err != nil {
				t.Error(err)
			}
			if did {
				rotated.Add(1)
			}
		})
	}
	both.Wait()
	if _, err := os.Stat(path + ".2"); rotated.Load() != 1 || !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("rotated %d times (%v)", rotated.Load(), err)
	}
}
