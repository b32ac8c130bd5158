package config

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
)

const (
	oneModel  = "models: [{name: a, engine: sim, task: embedding}]\n"
	twoModels = "models: [{name: a, engine: sim, task: embedding}, {name: b, engine: sim, task: embedding}]\n"
	wrong     = "models: [{name: a}]\n"
)

// watched is a Watcher in a synctest bubble, on a file that the test writes.
type watched struct {
	*Watcher
	t    *testing.T
	file string

	mu      sync.Mutex // guards the fields below
	applied []int      // models of each configuration that was put in force
	faults  []string
	refuse  error // what Apply returns
}

// watch returns a Watcher on a file with this content.
func watch(t *testing.T, content string) *watched {
	t.Helper()
	w := &watched{t: t, file: filepath.Join(t.TempDir(), "sluice.yaml")}
	w.write(content)
	current, err := Load(w.file)
	if err != nil {
		t.Fatal(err)
	}
	w.Watcher = NewWatcher(WatcherConfig{
		Current: current,
		Apply: func(next *Config) error {
			w.mu.Lock()
			defer w.mu.Unlock()
			if w.refuse == nil {
				w.applied = append(w.applied, len(next.Models))
			}
			return w.refuse
		},
		OnFault: func(err error) {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.faults = append(w.faults, strings.TrimPrefix(err.Error(), w.file+":"))
		},
	})
	return w
}

// run runs the Watcher in the background of the test's bubble.
func (w *watched) run() {
	ctx, cancel := context.WithCancel(context.Background())
	w.t.Cleanup(func() { cancel(); synctest.Wait() })
	go func() {
		if err := w.Run(ctx); err != nil {
			w.t.Error(err)
		}
	}()
}

func (w *watched) write(content string) {
	w.t.Helper()
	if err := os.WriteFile(w.file, []byte(content), 0o600); err != nil {
		w.t.Fatal(err)
	}
}

// writeEnv writes the file of variables that withFile names.
func (w *watched) writeEnv(content string) {
	w.t.Helper()
	if err := os.WriteFile(filepath.Join(filepath.Dir(w.file), "a.env"), []byte(content), 0o600); err != nil {
		w.t.Fatal(err)
	}
}

// refuseWith makes Apply return err from now on; nil makes it succeed.
func (w *watched) refuseWith(err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.refuse = err
}

// polls lets the Watcher poll n times.
func (w *watched) polls(n int) {
	time.Sleep(time.Duration(n) * time.Second)
	synctest.Wait()
}

// expect compares the configurations applied and the faults reported so far, and checks the
// configuration in force.
func (w *watched) expect(when string, applied []int, faults []string) {
	w.t.Helper()
	w.mu.Lock()
	defer w.mu.Unlock()
	if diff := cmp.Diff(applied, w.applied); diff != "" {
		w.t.Errorf("%s: applied: %s", when, diff)
	}
	if diff := cmp.Diff(faults, w.faults); diff != "" {
		w.t.Errorf("%s: refused: %s", when, diff)
	}
	if n := len(applied); n > 0 && len(w.Current().Models) != applied[n-1] {
		w.t.Errorf("%s: %d models in force", when, len(w.Current().Models))
	}
}

const wrongFault = "1: models[a].engine: required with launcher: local, and missing; known are sim, vllm, sglang, llama-cpp, ollama, tei, faster-whisper"

func TestWatcherLoadsAValidFile(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := watch(t, oneModel)
		w.run()
		start := w.Status()
		w.polls(3)
		w.expect("nothing changed", nil, nil)
		w.write(twoModels)
		w.polls(1)
		w.expect("seen once", nil, nil)
		w.polls(1)
		w.expect("seen twice", []int{2}, nil)
		w.polls(3)
		w.expect("later", []int{2}, nil)
		status := w.Status()
		if status.Path != w.file || status.Hash == start.Hash || status.Hash != w.Current().Hash || status.LoadedAt.Sub(start.LoadedAt) != 5*time.Second {
			t.Errorf("%+v", status)
		}
		w.write(oneModel)
		w.polls(2)
		w.expect("back again", []int{2, 1}, nil)
	})
}

func TestWatcherKeepsTheConfigurationInForce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := watch(t, oneModel)
		w.run()
		w.write(wrong)
		w.polls(5)
		w.expect("a bad file is refused once", nil, []string{wrongFault})
		status := w.Status()
		if len(status.Faults) != 1 || status.Faults[0].Line != 1 || status.Hash != w.Current().Hash || len(w.Current().Models) != 1 {
			t.Errorf("%+v", status)
		}
		if want := []string{w.file + ":" + wrongFault}; cmp.Diff(want, status.Messages()) != "" {
			t.Errorf("messages: %q", status.Messages())
		}
		w.write(oneModel)
		w.polls(2)
		w.expect("the file in force again", nil, []string{wrongFault})
		if status := w.Status(); len(status.Faults) > 0 {
			t.Errorf("faults of an old content remain: %v", status.Faults)
		}
		if err := os.Remove(w.file); err != nil {
			t.Fatal(err)
		}
		w.polls(2)
		w.expect("no file", nil, []string{wrongFault, " cannot be read: no such file or directory"})
		w.write(twoModels)
		w.polls(2)
		w.expect("a file again", []int{2}, []string{wrongFault, " cannot be read: no such file or directory"})
	})
}

// TestWatcherDoesNotBlameTheFile: a process without descriptors can read no file. The file in force
// is not called a refused one. The test is not parallel, because no other test may need a
// descriptor meanwhile.
func TestWatcherDoesNotBlameTheFile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := watch(t, oneModel)
		w.run()
		var limit unix.Rlimit
		if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
			t.Fatal(err)
		}
		if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Max: limit.Max}); err != nil {
			t.Fatal(err)
		}
		_, failed := os.Open(w.file)
		w.polls(15)
		if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
			t.Fatal(err)
		}
		if !errors.Is(failed, unix.EMFILE) {
			t.Fatalf("there were descriptors: %v", failed)
		}
		w.expect("without descriptors", nil, nil)
		if status := w.Status(); len(status.Faults) > 0 {
			t.Errorf("faults: %v", status.Faults)
		}
		w.write(twoModels)
		w.polls(2)
		w.expect("with descriptors", []int{2}, nil)
	})
}

// TestWatcherWaitsForTheWriter checks that a file that is still growing is not loaded, even if each
// part of it is valid.
func TestWatcherWaitsForTheWriter(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := watch(t, twoModels)
		w.run()
		for i := range 5 {
			w.write(strings.Repeat("# more\n", i))
			w.polls(1)
		}
		w.write(oneModel)
		w.polls(1)
		w.expect("while it is written", nil, nil)
		w.polls(1)
		w.expect("at rest", []int{1}, nil)
	})
}

func TestWatcherReload(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := watch(t, oneModel)
		w.run()
		if err := w.Reload(false); err != nil {
			t.Error(err)
		}
		w.expect("nothing changed", []int{1}, nil)
		w.write(twoModels)
		if err := w.Reload(false); err != nil {
			t.Error(err)
		}
		w.expect("at once", []int{1, 2}, nil)
		w.write(wrong)
		var faults Faults
		if err := w.Reload(false); !errors.As(err, &faults) || len(faults) != 1 {
			t.Errorf("reload of a bad file: %v", err)
		}
		w.polls(3)
		w.expect("once each", []int{1, 2}, []string{wrongFault})
	})
}

const withFile = "models: [{name: a, engine: sim, task: embedding, env_from: {files: [a.env]}}]\n"

// TestWatcherReloadReadsWhatTheFileNames: a reload puts a changed file of env_from in force,
// although the file that names it is the same.
func TestWatcherReloadReadsWhatTheFileNames(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := watch(t, oneModel)
		w.run()
		w.writeEnv("TOKEN=old\n")
		w.write(withFile)
		w.polls(2)
		w.writeEnv("TOKEN=new\n")
		w.polls(15)
		w.expect("the file is the same", []int{1}, nil)
		start := w.Status().LoadedAt
		if err := w.Reload(false); err != nil {
			t.Fatal(err)
		}
		w.expect("reloaded", []int{1, 1}, nil)
		if token := w.Current().Models[0].SecretEnv["TOKEN"]; token != "new" || w.Status().LoadedAt.Equal(start) {
			t.Errorf("TOKEN=%s, loaded at %s", token, w.Status().LoadedAt)
		}
	})
}

// TestWatcherTriesARejectedFileAgain: a rejected content takes effect when what it lacked is there.
// The same faults are not reported again.
func TestWatcherTriesARejectedFileAgain(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := watch(t, twoModels)
		w.run()
		w.write(withFile)
		w.polls(30)
		if len(w.faults) != 1 || !strings.Contains(w.faults[0], "env_from.files[0]") {
			t.Fatalf("faults: %q", w.faults)
		}
		reported := w.faults
		w.writeEnv("TOKEN=new\n")
		w.polls(11)
		w.expect("the missing file is there", []int{1}, reported)
		if messages := w.Status().Messages(); len(messages) > 0 {
			t.Errorf("faults: %q", messages)
		}
	})
}

// TestWatcherApplyFails checks that a configuration that Apply rejects is reported like a file with
// faults, and tried again on Reload and after a while.
func TestWatcherApplyFails(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := watch(t, oneModel)
		w.run()
		w.refuseWith(errors.New("no room"))
		w.write(twoModels)
		w.polls(4)
		w.expect("refused", nil, []string{" no room"})
		if s := w.Status(); len(w.Current().Models) != 1 || len(s.Faults) != 1 || !s.Refused {
			t.Errorf("in force: %d models, %+v", len(w.Current().Models), s)
		}
		w.refuseWith(nil)
		if err := w.Reload(false); err != nil {
			t.Error(err)
		}
		w.expect("asked again", []int{2}, []string{" no room"})
		if w.Status().Refused {
			t.Error("the file that is in force counts as refused")
		}
		w.refuseWith(errors.New("no room"))
		w.write(oneModel)
		w.polls(30)
		w.expect("refused often", []int{2}, []string{" no room", " no room"})
		w.refuseWith(nil)
		w.polls(11)
		w.expect("tried again", []int{2, 1}, []string{" no room", " no room"})
	})
}

func TestO2_WatcherNamesWhatNeedsARestart(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := watch(t, oneModel)
		w.write(oneModel + "admin: 127.0.0.1:9999\n")
		if err := w.Reload(false); err != nil {
			t.Fatal(err)
		}
		w.write(twoModels + "admin: 127.0.0.1:9999\n")
		if err := w.Reload(false); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff([]string{"admin"}, w.Status().NeedsRestart); diff != "" {
			t.Error(diff)
		}
		if messages := w.Status().Messages(); len(messages) > 0 {
			t.Errorf("a change that waits for a restart is shown as a fault of the file: %q", messages)
		}
		w.write(twoModels)
		if err := w.Reload(false); err != nil {
			t.Fatal(err)
		}
		if fields := w.Status().NeedsRestart; len(fields) > 0 {
			t.Errorf("back to the values of the start: %q", fields)
		}
	})
}

// A process that takes the place of a failed one has fields of before and the file of now.
func TestO2_WatcherNamesWhatNeedsARestartFromTheBeginning(t *testing.T) {
	t.Parallel()
	w := NewWatcher(WatcherConfig{Current: parsed(t, "admin: 127.0.0.1:9999"), Started: parsed(t, "{}")})
	if diff := cmp.Diff([]string{"admin"}, w.Status().NeedsRestart); diff != "" {
		t.Error(diff)
	}
}

func TestWatcherWithoutAFile(t *testing.T) {
	t.Parallel()
	w := NewWatcher(WatcherConfig{Current: parsed(t, "{}")})
	if err := w.Reload(false); err == nil {
		t.Error("Reload succeeded without a file")
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if err := w.Run(ctx); err != nil {
		t.Error(err)
	}
	if status := w.Status(); status.Path != "" || len(status.Faults) > 0 {
		t.Errorf("%+v", status)
	}
}

// TestX10_WatcherHoldsBackWhatMustBeConfirmed: a content that needs confirmation changes nothing,
// however often it is read, until it is forced. A faulty content cannot be forced.
func TestX10_WatcherHoldsBackWhatMustBeConfirmed(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := watch(t, twoModels)
		w.config.Confirm = func(next *Config) string {
			if len(next.Models) == 0 {
				return "it removes every model"
			}
			return ""
		}
		w.run()
		w.write("models: []\n")
		w.polls(3)
		held := " it removes every model" + confirmation
		w.expect("held back", nil, []string{held})
		if s := w.Status(); !s.Held || len(s.Faults) != 1 || len(w.Current().Models) != 2 {
			t.Errorf("held back: %+v", s)
		}
		if err := w.Reload(false); err == nil {
			t.Error("a reload put it in force without a word")
		}
		w.write("")
		if err := w.Reload(true); err == nil || !strings.Contains(err.Error(), ":1: the file is empty") {
			t.Errorf("an empty file was forced: %v", err)
		}
		if w.Status().Held {
			t.Error("a faulty file counts as held back")
		}
		w.write("models: []\n")
		if err := w.Reload(true); err != nil {
			t.Fatal(err)
		}
		w.expect("forced", []int{0}, []string{held, held, "1: " + emptyFile})
		if s := w.Status(); s.Held || len(s.Faults) > 0 {
			t.Errorf("forced: %+v", s)
		}
	})
}
