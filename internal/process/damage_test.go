package process

import (
	"bytes"
	"context"
	"errors"
	"maps"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"
	"golang.org/x/sys/unix"

	"github.com/sluice-gateway/sluice/internal/testutil"
)

// survivors is a state directory with two live processes, and a stranger that is none of them.
type survivors struct {
	path     string
	pids     map[string]int
	stranger *exec.Cmd
	files    map[string][]byte // all files of the directory, by path
}

func newSurvivors(t testing.TB) *survivors {
	t.Helper()
	s := &survivors{path: t.TempDir(), pids: map[string]int{}, files: map[string][]byte{}}
	s.stranger = exec.Command("sleep", "1000")
	s.stranger.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	d := s.claim(t)
	for _, name := range []string{"envoy", "replica/chat-0"} {
		p, err := d.Start(Spec{Name: name, Purpose: "test", Command: []string{"sleep", "1000"}, Meta: map[string]string{"address": "127.0.0.1:1"}})
		if err != nil {
			t.Fatal(err)
		}
		s.pids[name] = p.PID()
		t.Cleanup(func() {
			_ = syscall.Kill(p.PID(), syscall.SIGKILL)
			_ = p.child.Wait()
		})
	}
	if err := s.stranger.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { kill9(s.stranger) })
	d.Release()
	err := filepath.WalkDir(s.path, func(path string, entry os.DirEntry, err error) error {
		// The files of one process stand for those of the other.
		if err == nil && entry.Type().IsRegular() && !strings.HasSuffix(path, ".log") && !strings.Contains(path, "chat-0") {
			s.files[path], err = os.ReadFile(path)
		}
		return err
	})
	if err != nil || len(s.files) < 4 {
		t.Fatalf("%d files: %v", len(s.files), err)
	}
	return s
}

func (s *survivors) claim(t testing.TB) *Dir {
	t.Helper()
	d, err := Open(s.path, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := d.Claim(context.Background()); err != nil {
		t.Fatal(err)
	}
	return d
}

// start claims the directory with one damaged file, as the next gateway does, and adopts.
// Afterwards the files are as before.
func (s *survivors) start(t testing.TB, file string, content []byte) {
	t.Helper()
	if err := os.WriteFile(file, content, 0o600); err != nil {
		t.Fatal(err)
	}
	d := s.claim(t)
	d.Records()
	for name, pid := range s.pids {
		if p, ok := d.Adopt(name); !ok || p.PID() != pid || p.Record().Meta["address"] != "127.0.0.1:1" {
			t.Errorf("%s with %q: %s was not adopted as %d", filepath.Base(file), content, name, pid)
		}
	}
	if !d.Owns(s.pids["envoy"]) {
		t.Errorf("%s with %q: Envoy does not belong to the directory", filepath.Base(file), content)
	}
	s.mustLive(t, file, content)
	d.Release()
	for path, text := range s.files {
		if err := os.WriteFile(path, text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// mustLive checks that no process was ended.
func (s *survivors) mustLive(t testing.TB, file string, content []byte) {
	t.Helper()
	for name, pid := range s.pids {
		if st, ok := readStat(pid); !ok || st.dead() {
			t.Fatalf("%s with %q: %s was ended", filepath.Base(file), content, name)
		}
	}
	if st, ok := readStat(s.stranger.Process.Pid); !ok || st.dead() {
		t.Fatalf("%s with %q: a process that is not ours was ended", filepath.Base(file), content)
	}
}

// Whatever byte of a file of the state directory is damaged, and wherever a file is cut: a start
// adopts all processes and ends none. Every fifth byte is tried; FuzzDamagedStateDirectory tries
// any.
func TestX13_DamagedFilesEndNothing(t *testing.T) {
	t.Parallel()
	s := newSurvivors(t)
	const step = 5
	for file, text := range s.files {
		for i := 0; i < len(text); i += step {
			s.start(t, file, text[:i])
			damaged := append([]byte{}, text...)
			damaged[i] ^= 1 << (i % 8)
			s.start(t, file, damaged)
		}
	}
}

// FuzzDamagedStateDirectory writes garbage somewhere into a file and cuts the file somewhere.
func FuzzDamagedStateDirectory(f *testing.F) {
	s := newSurvivors(f)
	names := slices.Sorted(maps.Keys(s.files))
	for i := range names {
		f.Add(uint8(i), uint16(0), []byte{}, uint16(0))
		f.Add(uint8(i), uint16(100), []byte(`"pid": 1,`), uint16(math.MaxUint16))
		f.Add(uint8(i), uint16(3), []byte("\x00\n{}[]\""), uint16(math.MaxUint16))
	}
	f.Fuzz(func(t *testing.T, which uint8, at uint16, garbage []byte, length uint16) {
		file := names[int(which)%len(names)]
		content := bytes.Clone(s.files[file])
		copy(content[min(int(at), len(content)):], garbage)
		s.start(t, file, content[:min(int(length), len(content))])
	})
}

// A damaged record is repaired from its copy, and a damaged copy from its record.
func TestX13_RecordsAreRepaired(t *testing.T) {
	t.Parallel()
	s := newSurvivors(t)
	for _, suffix := range []string{"", copySuffix} {
		file := filepath.Join(s.path, "processes", "envoy.json"+suffix)
		if err := os.WriteFile(file, []byte("{"), 0o600); err != nil {
			t.Fatal(err)
		}
		s.claim(t).Release()
		if got, err := os.ReadFile(file); err != nil || string(got) != string(s.files[file]) {
			t.Errorf("%s has %q, %v", filepath.Base(file), got, err)
		}
	}
}

// A record of an earlier version has no checksum and no copy.
func TestX13_RecordsWithoutAChecksumAreAdopted(t *testing.T) {
	t.Parallel()
	s := newSurvivors(t)
	file := filepath.Join(s.path, "processes", "envoy.json")
	text, _, ok := strings.Cut(string(s.files[file]), `,"sum":`)
	if !ok {
		t.Fatalf("no checksum in %s", s.files[file])
	}
	if err := os.Remove(file + copySuffix); err != nil {
		t.Fatal(err)
	}
	s.start(t, file, []byte(text+"\n}\n"))
}

// A directory that other users may change is refused, because its records make Sluice end
// processes.
func TestX13_StateDirectoryOfOthersIsRefused(t *testing.T) {
	t.Parallel()
	for _, mode := range []os.FileMode{0o777, 0o770, 0o702} {
		path := t.TempDir()
		if err := os.Chmod(path, mode); err != nil {
			t.Fatal(err)
		}
		if _, err := Open(path, nil); err == nil || !strings.Contains(err.Error(), "chmod 700 "+path) {
			t.Errorf("mode %o: error %v does not say what to do", mode, err)
		}
	}
	path := t.TempDir()
	records := filepath.Join(path, "processes")
	if err := errors.Join(os.Mkdir(records, 0o700), os.Chmod(records, 0o777)); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(path, nil); err == nil || !strings.Contains(err.Error(), records) {
		t.Errorf("error %v does not name the folder of the records", err)
	}
	if os.Geteuid() != 0 {
		t.Skip("only root can make a directory of another user: that part is not tested")
	}
	path = t.TempDir()
	if err := os.Chown(path, 12345, -1); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(path, nil); err == nil || !strings.Contains(err.Error(), "belongs to user 12345") ||
		!strings.Contains(err.Error(), "`sudo -u '#12345'`") {
		t.Errorf("error %v does not name the owner", err)
	}
}

// fullDir mounts a small file system, makes a state directory with a live process in it, and fills
// it to the last byte. free empties it again.
func fullDir(t *testing.T) (path string, pid int, free func()) {
	t.Helper()
	path = t.TempDir()
	testutil.SmallDisk(t, path, "256k")
	d, err := Open(path, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := d.Claim(t.Context()); err != nil {
		t.Fatal(err)
	}
	p, err := d.Start(sleeper("envoy"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = syscall.Kill(p.PID(), syscall.SIGKILL)
		_ = p.child.Wait()
	})
	d.Release()
	return path, p.PID(), testutil.FillDisk(t, path)
}

// A full state directory is claimed and its processes are adopted. The error of a write has the
// free bytes and says what to do.
func TestX5_FullDirectoryIsClaimed(t *testing.T) {
	path, pid, free := fullDir(t)
	core, logs := observer.New(zap.WarnLevel)
	d, err := Open(path, zap.New(core))
	if err != nil {
		t.Fatal(err)
	}
	if err := d.Claim(t.Context()); err != nil {
		t.Fatalf("a full directory cannot be claimed: %v", err)
	}
	defer d.Release()
	if p, ok := d.Adopt("envoy"); !ok || p.PID() != pid {
		t.Error("the process was not adopted")
	}
	other, err := Open(path, nil)
	if err != nil {
		t.Fatal(err)
	}
	var claimed *ClaimedError
	if err := other.Claim(t.Context()); !errors.As(err, &claimed) || claimed.PID != os.Getpid() {
		t.Errorf("a second claim = %v, want the pid %d of the first", err, os.Getpid())
	}
	err = d.CheckWritable()
	if !errors.Is(err, unix.ENOSPC) || !strings.Contains(err.Error(), "has 0 of 262144 bytes") {
		t.Errorf("CheckWritable = %v", err)
	}
	if _, err := d.Start(sleeper("replica/chat-0")); !errors.Is(err, unix.ENOSPC) {
		t.Errorf("Start = %v", err)
	}
	free()
	if err := d.CheckWritable(); err != nil {
		t.Errorf("with room again: %v", err)
	}
	if n := logs.FilterMessage("processes without a record found, ending them").Len(); n > 0 {
		t.Error("processes were ended")
	}
}

// A directory on a read-only file system cannot be claimed. Its processes run on.
func TestX5_ReadOnlyDirectoryEndsNothing(t *testing.T) {
	path, pid, free := fullDir(t)
	free()
	testutil.ReadOnly(t, path)
	d, err := Open(path, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := d.Claim(t.Context()); !errors.Is(err, unix.EROFS) || !strings.Contains(err.Error(), "mount the file system") {
		t.Errorf("Claim = %v", err)
	}
	if !running(pid) {
		t.Error("the process was ended")
	}
	if err := d.CheckWritable(); !errors.Is(err, unix.EROFS) {
		t.Errorf("CheckWritable = %v", err)
	}
}
