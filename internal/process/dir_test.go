package process

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-gateway/sluice/internal/testutil"
)

func TestStartedProcessIsIndependent(t *testing.T) {
	t.Parallel()
	d := claimedDir(t)
	p := start(t, d, sleeper("replica/chat-0"))
	s, ok := readStat(p.PID())
	if !ok || s.session != p.PID() || s.group != p.PID() {
		t.Errorf("session %d, group %d, want both to be the pid %d", s.session, s.group, p.PID())
	}
	want := map[string]string{"0": os.DevNull, "1": p.Record().LogFile, "2": p.Record().LogFile}
	onlyDescriptors(t, p.PID(), want)
	if err := p.Stop(t.Context(), time.Second); err != nil {
		t.Fatal(err)
	}
	if running(p.PID()) || !isDone(p) || len(d.Records()) != 0 {
		t.Error("something is left after Stop")
	}
	if got := p.ExitStatus(); got != "signal: terminated" {
		t.Errorf("ExitStatus = %q", got)
	}
	if err := p.Stop(t.Context(), time.Second); err != nil {
		t.Errorf("second Stop = %v", err)
	}
}

// onlyDescriptors waits until a process has exactly these descriptors open. A program may open
// others for a moment at its start.
func onlyDescriptors(t *testing.T, pid int, want map[string]string) {
	t.Helper()
	var diff string
	defer func() {
		if diff != "" {
			t.Logf("descriptors (-want +got):\n%s", diff)
		}
	}()
	testutil.Eventually(t, "only the intended descriptors are open", func() bool {
		folder := fmt.Sprintf("/proc/%d/fd", pid)
		names, err := listDirectory(folder)
		if err != nil {
			t.Fatal(err)
		}
		got := map[string]string{}
		for _, name := range names {
			got[name], _ = os.Readlink(filepath.Join(folder, name))
		}
		diff = cmp.Diff(want, got)
		return diff == ""
	})
}

func TestStartOfARunningNameFails(t *testing.T) {
	t.Parallel()
	d := claimedDir(t)
	p := start(t, d, sleeper("one"))
	if _, err := d.Start(sleeper("one")); !errors.Is(err, ErrRunning) {
		t.Errorf("second Start = %v, want %v", err, ErrRunning)
	}
	if err := syscall.Kill(p.PID(), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	wait(t, p)
	again := start(t, d, sleeper("one"))
	if err := p.Stop(t.Context(), 0); err != nil || !running(again.PID()) {
		t.Errorf("Stop of the ended process = %v; its successor runs: %v", err, running(again.PID()))
	}
	// The state in which the end of the process was not noticed yet.
	d.unwatch(p, true)
	if got := d.Records(); len(got) != 1 || got[0].PID != again.PID() {
		t.Errorf("Records = %v, want the second start", got)
	}
}

func TestStartFails(t *testing.T) {
	t.Parallel()
	d := claimedDir(t)
	if err := os.MkdirAll(d.LogFile("y"), 0o700); err != nil {
		t.Fatal(err)
	}
	for name, s := range map[string]Spec{
		"no name":      {Command: []string{"true"}},
		"no command":   {Name: "x"},
		"no program":   {Name: "x", Command: []string{"/no/such/program"}},
		"no directory": {Name: "x", Command: []string{"true"}, WorkDir: "/no/such/directory"},
		"no log":       {Name: "y", Command: []string{"true"}},
	} {
		if p, err := d.Start(s); err == nil {
			t.Errorf("%s: started as %d", name, p.PID())
		}
	}
	if got := d.Records(); len(got) != 0 {
		t.Errorf("records of processes that never were: %v", got)
	}
}

func TestEnvironment(t *testing.T) {
	t.Parallel()
	d := claimedDir(t)
	s := Spec{Name: "e", Command: []string{"/usr/bin/env"}, Env: []string{"A=1", markerKey + "=somebody/else/x"}}
	p := start(t, d, s)
	wait(t, p)
	want := []string{"A=1", markerKey + "=" + d.id + "/" + p.Record().Token + "/e"}
	if diff := cmp.Diff(want, p.Tail(10)); diff != "" {
		t.Errorf("environment (-want +got):\n%s", diff)
	}
}

func TestExitReason(t *testing.T) {
	t.Parallel()
	d := claimedDir(t)
	// The reason of the second run has the lines of that run alone.
	for range 2 {
		p := start(t, d, script("e", `echo first; echo second; printf 'load  50%%\rload 100%%\n\n' >&2; printf '\033[31mboom\033[0m'; exit 3`))
		wait(t, p)
		want := "exit status 3; its log ends: second | load 100% | [31mboom[0m"
		if got := p.ExitReason(); got != want {
			t.Errorf("ExitReason = %q, want %q", got, want)
		}
		if diff := cmp.Diff([]string{"first", "second", "load 100%", "[31mboom[0m"}, p.Tail(10)); diff != "" {
			t.Errorf("Tail (-want +got):\n%s", diff)
		}
	}
}

func TestFileLimitReachesChildren(t *testing.T) {
	var before syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &before); err != nil {
		t.Fatal(err)
	}
	low := before
	low.Cur = min(512, before.Max)
	if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &low); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = syscall.Setrlimit(syscall.RLIMIT_NOFILE, &before) }()
	if err := RaiseFileLimit(); err != nil {
		t.Fatal(err)
	}
	p := start(t, claimedDir(t), script("limit", "ulimit -n"))
	wait(t, p)
	want := fmt.Sprint(min(before.Max, maxOpenFiles))
	if got := p.Tail(1); len(got) != 1 || got[0] != want {
		t.Errorf("the child may open %v files, want %s", got, want)
	}
}

func TestSetMeta(t *testing.T) {
	t.Parallel()
	d := claimedDir(t)
	p := start(t, d, sleeper("m"))
	for i, key := range []string{"a", "b", "a"} {
		if err := p.SetMeta(key, fmt.Sprint(i)); err != nil {
			t.Fatal(err)
		}
	}
	want := map[string]string{"a": "2", "b": "1"}
	if diff := cmp.Diff(want, p.Record().Meta); diff != "" {
		t.Errorf("Meta (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(want, d.Records()[0].Meta); diff != "" {
		t.Errorf("recorded Meta (-want +got):\n%s", diff)
	}
	if err := p.Stop(t.Context(), time.Second); err != nil {
		t.Fatal(err)
	}
	if err := p.SetMeta("a", "3"); err == nil || len(d.Records()) != 0 {
		t.Errorf("SetMeta of an ended process = %v, records %v", err, d.Records())
	}
}

// A process that gets another name is found under that one alone, also by the next gateway. Its old
// name is free.
func TestRename(t *testing.T) {
	t.Parallel()
	d := claimedDir(t)
	p := start(t, d, sleeper("server"))
	if err := p.SetMeta("key", "value"); err != nil {
		t.Fatal(err)
	}
	if err := p.Rename("server/old/1"); err != nil {
		t.Fatal(err)
	}
	if _, ok := d.Adopt("server"); ok {
		t.Error("the old name still has a process")
	}
	other := start(t, d, sleeper("server"))
	if err := other.Rename("server/old/1"); !errors.Is(err, ErrRunning) {
		t.Errorf("a name that is taken: %v", err)
	}
	start(t, d, sleeper("another"))
	d.Release()
	next := claim(t, d.Path())
	if found, ok := next.Adopt("server/old/1"); !ok || found.PID() != p.PID() || found.Record().Meta["key"] != "value" {
		t.Errorf("the process is not found under its new name: %v", ok)
	}
	if found, ok := next.Adopt("server"); !ok || found.PID() != other.PID() {
		t.Errorf("the process with the old name is not found: %v", ok)
	}
	var names []string
	for _, r := range next.Find("server") {
		names = append(names, r.Name)
	}
	if want := []string{"server", "server/old/1"}; !slices.Equal(names, want) {
		t.Errorf("found %q, want %q", names, want)
	}
	renamed, _ := next.Adopt("server/old/1")
	if err := renamed.Stop(t.Context(), time.Second); err != nil {
		t.Fatal(err)
	}
	if err := renamed.Rename("server/old/2"); err == nil {
		t.Error("a process that has ended got another name")
	}
	if found := next.Find("server/old/"); len(found) > 0 {
		t.Errorf("found %+v", found)
	}
}

func TestNames(t *testing.T) {
	t.Parallel()
	d := claimedDir(t)
	long := strings.Repeat("long/", 100)
	names := []string{"..", ".tmp", "../../x", "a b\n", "replica/a-0", "replica%2Fa-0", long + "a", long + "b"}
	for _, name := range names {
		p := start(t, d, sleeper(name))
		got, ok := d.Adopt(name)
		if !ok || got != p {
			t.Errorf("%q: Adopt of a running child = %v, %v", name, got, ok)
		}
	}
	if got := d.Records(); len(got) != len(names) {
		t.Errorf("%d records for %d names", len(got), len(names))
	}
	if err := d.EndAll(t.Context(), time.Second); err != nil {
		t.Fatal(err)
	}
	if got := d.Records(); len(got) != 0 {
		t.Errorf("left after EndAll: %v", got)
	}
}

func TestSockets(t *testing.T) {
	t.Parallel()
	for name, path := range map[string]string{
		"short": filepath.Join(shortTemp(t), "state"),
		"long":  filepath.Join(t.TempDir(), strings.Repeat("long", 40)),
	} {
		d := claim(t, path)
		socket := d.Socket(strings.Repeat("s", maxSocketName))
		listener, err := net.Listen("unix", socket)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		d.Release()
		again := claim(t, path)
		if got := again.Socket(filepath.Base(socket)); got != socket {
			t.Errorf("%s: the socket moved from %s to %s", name, socket, got)
		}
		listener.Close()
		again.Release()
		if _, err := os.Stat(again.sockets); again.sockets != again.path && err == nil {
			t.Errorf("%s: %s is left behind", name, again.sockets)
		}
		// Claim creates the directory for sockets again.
		claim(t, path)
		if _, err := os.Stat(again.sockets); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func shortTemp(t *testing.T) string {
	t.Helper()
	path, err := os.MkdirTemp("/tmp", "s")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(path) })
	return path
}

func TestSocketsOfOthersAreNotTrusted(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), strings.Repeat("long", 40))
	d, err := Open(path, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(d.sockets, 0o755); err != nil {
		t.Fatal(err)
	}
	defer os.Remove(d.sockets)
	if err := d.Claim(t.Context()); err == nil {
		t.Error("a directory that others may enter is trusted")
	}
}

func TestStopEndsWhatWasStarted(t *testing.T) {
	t.Parallel()
	for name, text := range map[string]string{
		"child in the group":       `sh -c 'echo $$ >%s; trap "" TERM; while :; do sleep 0.1; done' & wait`,
		"child in its own group":   `set -m; sh -c 'echo $$ >%s; trap "" TERM; while :; do sleep 0.1; done' & wait`,
		"child in its own session": `setsid sh -c 'echo $$ >%s; trap "" TERM; while :; do sleep 0.1; done' & wait`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := claimedDir(t)
			file := filepath.Join(t.TempDir(), "pid")
			p := start(t, d, script("parent", fmt.Sprintf(text, file)))
			child := pidFile(t, file)
			if err := p.Stop(t.Context(), 50*time.Millisecond); err != nil {
				t.Fatal(err)
			}
			if running(child) || running(p.PID()) {
				t.Errorf("parent runs: %v, child runs: %v", running(p.PID()), running(child))
			}
		})
	}
}

func TestStopWaitsForGrace(t *testing.T) {
	t.Parallel()
	d := claimedDir(t)
	file := filepath.Join(t.TempDir(), "pid")
	const text = `trap 'sleep 0.2; echo done; exit 0' TERM; echo $$ >%s; while :; do sleep 0.05; done`
	polite := start(t, d, script("polite", fmt.Sprintf(text, file)))
	pidFile(t, file)
	if err := polite.Stop(t.Context(), testTimeout); err != nil {
		t.Fatal(err)
	}
	if got := polite.ExitReason(); !strings.HasPrefix(got, "exit status 0") || !strings.HasSuffix(got, "done") {
		t.Errorf("ExitReason = %q, want a proper end", got)
	}
	stopped := start(t, d, script("stopped", `kill -STOP $$`))
	testutil.Eventually(t, "it has stopped itself", func() bool {
		s, _ := readStat(stopped.PID())
		return s.state == 'T'
	})
	if err := stopped.Stop(t.Context(), testTimeout); err != nil {
		t.Fatal(err)
	}
	if got := stopped.ExitReason(); got != "signal: terminated" {
		t.Errorf("ExitReason = %q, want a stopped process to see its SIGTERM", got)
	}
	stubborn := start(t, d, script("stubborn", `trap '' TERM; echo up; while :; do sleep 0.05; done`))
	testutil.Eventually(t, "it is up", func() bool { return len(stubborn.Tail(1)) == 1 })
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if err := stubborn.Stop(ctx, time.Hour); err != nil {
		t.Fatal(err)
	}
	if got := stubborn.ExitReason(); !strings.HasPrefix(got, "signal: killed") {
		t.Errorf("ExitReason = %q, want to be killed when the context ends", got)
	}
}

func TestGroupEndsWithItsLeader(t *testing.T) {
	t.Parallel()
	d := claimedDir(t)
	file := filepath.Join(t.TempDir(), "pid")
	p := start(t, d, script("leader", fmt.Sprintf(`sh -c 'echo $$ >%s; exec sleep 1000' & wait`, file)))
	child := pidFile(t, file)
	if err := syscall.Kill(p.PID(), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	wait(t, p)
	testutil.Eventually(t, "the worker ends with its leader", func() bool { return !running(child) })
	if got := d.Records(); len(got) != 0 {
		t.Errorf("a record is left: %v", got)
	}
}

func TestReleaseLeavesProcessesRunning(t *testing.T) {
	t.Parallel()
	d := claimedDir(t)
	p := start(t, d, sleeper("s"))
	d.Release()
	if !running(p.PID()) || isDone(p) {
		t.Fatal("Release ended the process")
	}
	if err := p.Stop(t.Context(), 0); !errors.Is(err, ErrNotClaimed) {
		t.Errorf("Stop without the claim = %v, want %v", err, ErrNotClaimed)
	}
	if err := d.Claim(t.Context()); err != nil {
		t.Fatal(err)
	}
	adopted, ok := d.Adopt("s")
	if !ok || adopted.PID() != p.PID() {
		t.Fatalf("Adopt = %v, %v", adopted, ok)
	}
	if err := adopted.Stop(t.Context(), time.Second); err != nil {
		t.Fatal(err)
	}
}

// A process that replaces its program by exec stays the parent of what it has started. It reaps
// these processes when they end, though it has adopted them.
func TestAdoptedChildIsReaped(t *testing.T) {
	t.Parallel()
	d := claimedDir(t)
	goOn := filepath.Join(t.TempDir(), "go on")
	for name, c := range map[string]struct{ end, want string }{
		"exits": {"exit 3", "exit status 3"}, "killed": {"kill -KILL $$", "signal: killed"},
	} {
		pid := start(t, d, script(name, "until test -e '"+goOn+"'; do sleep 0.02; done; "+c.end)).PID()
		d.Release()
		if err := d.Claim(t.Context()); err != nil {
			t.Fatal(err)
		}
		p, ok := d.Adopt(name)
		if !ok {
			t.Fatalf("%s was not adopted", name)
		}
		if err := os.WriteFile(goOn, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		wait(t, p)
		if got := p.ExitStatus(); got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
		if err := syscall.Kill(pid, 0); !errors.Is(err, syscall.ESRCH) {
			t.Errorf("%s: the ended process is still there: %v", name, err)
		}
		if err := os.Remove(goOn); err != nil {
			t.Fatal(err)
		}
	}
}

// The names of files stay those of earlier releases, whose records are adopted.
func TestEscapeName(t *testing.T) {
	for i := range 256 {
		if name := "a" + string([]byte{byte(i)}) + "z"; escapeName(name) != url.PathEscape(name) {
			t.Errorf("%q: %s, expected %s", name, escapeName(name), url.PathEscape(name))
		}
	}
}
