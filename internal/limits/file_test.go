package limits

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
)

func TestFile(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "state", "limits.json")
	a, b := File(path), File(path)
	records, first, err := a.Load(t.Context())
	if err != nil || len(records) != 0 || first != "" {
		t.Fatalf("%v %q %v", records, first, err)
	}
	// What a crash left behind does not disturb.
	if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path+".tmp", []byte("{"), 0o644)); err != nil {
		t.Fatal(err)
	}
	want := Records{"model/a/b": {Values{"weight": 2}, Values{"weight": 1}}, "tenant/Zoë \"q\"": {Values{"weight": 3}, nil}}
	if ok, err := a.Save(t.Context(), want, first); !ok || err != nil {
		t.Fatal(ok, err)
	}
	if ok, err := b.Save(t.Context(), Records{"model/late": {Values{"weight": 9}, nil}}, first); ok || err != nil {
		t.Errorf("a change of an old version: %v, %v", ok, err)
	}
	got, second, err := b.Load(t.Context())
	if diff := cmp.Diff(want, got); diff != "" || err != nil || second == first {
		t.Errorf("%v, version %q: %s", err, second, diff)
	}
	if ok, err := b.Save(t.Context(), Records{"model/a/b": {}, "model/c": {Values{"weight": 4}, nil}}, second); !ok || err != nil {
		t.Fatal(ok, err)
	}
	got, third, err := a.Load(t.Context())
	want = Records{"model/c": {Values{"weight": 4}, nil}, "tenant/Zoë \"q\"": {Values{"weight": 3}, nil}}
	if diff := cmp.Diff(want, got); diff != "" || err != nil || third == second {
		t.Errorf("%v, version %q: %s", err, third, diff)
	}
	if info, err := os.Stat(path); err != nil || info.Mode() != 0o600 {
		t.Errorf("%v %v", info.Mode(), err)
	}
	if ok, err := a.Save(t.Context(), Records{"model/c": {}, "tenant/Zoë \"q\"": {}}, third); !ok || err != nil {
		t.Fatal(ok, err)
	}
	if got, version, err := a.Load(t.Context()); len(got) != 0 || version == "" || err != nil {
		t.Errorf("a file that was emptied is not one that never was: %v %q %v", got, version, err)
	}
}

func TestFaultyFile(t *testing.T) {
	t.Parallel()
	for _, text := range []string{"", "{", "null", "{}", "[]", `{"limits":{}} x`, `{"limits":{"model/a":{"values":{"weight":1.5}}}}`,
		`{"limits":{"model/a":{"values":{"weight":"1"}}}}`, `{"limits":{"model/a":{"value":{}}}}`} {
		path := filepath.Join(t.TempDir(), "limits.json")
		if err := errors.Join(os.WriteFile(path, []byte(text), 0o600), os.WriteFile(path+".bad", []byte("older"), 0o600)); err != nil {
			t.Fatal(err)
		}
		b := New(Config{Backend: File(path)})
		err := b.Sync(t.Context(), map[string]Values{"model/a": {"weight": 3}}, nil)
		if err == nil || !strings.Contains(err.Error(), path) || !strings.Contains(err.Error(), path+".bad.1") {
			t.Errorf("%s: %v", text, err)
		}
		for name, want := range map[string]string{path + ".bad": "older", path + ".bad.1": text} {
			if got, err := os.ReadFile(name); err != nil || string(got) != want {
				t.Errorf("%s: %s has %q, %v", text, name, got, err)
			}
		}
		if e := patch(t, b, "model/a", changeOf("max_concurrent_requests", int64Ptr(4))); !cmp.Equal(e.Values, model(3, 4, 0)) {
			t.Errorf("%s: %+v", text, e)
		}
		b = New(Config{Backend: File(path)})
		sync1(t, b, map[string]Values{"model/a": {"weight": 3}})
		if e := entry(t, b, "model/a"); !cmp.Equal(e.Values, model(3, 4, 0)) {
			t.Errorf("%s: after a restart %+v", text, e)
		}
	}
}

// TestUnreadableFile: a file that cannot be read may be good, so it stays where it is and nothing
// replaces it.
func TestUnreadableFile(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "limits.json")
	if err := os.Mkdir(path, 0o700); err != nil {
		t.Fatal(err)
	}
	b := New(Config{Backend: File(path)})
	for range 2 {
		if err := b.Sync(t.Context(), map[string]Values{"model/a": {"weight": 3}}, nil); err == nil || !strings.Contains(err.Error(), path) {
			t.Errorf("%v", err)
		}
	}
	if ok, err := File(path).Save(t.Context(), Records{}, ""); ok || err == nil {
		t.Errorf("%v %v", ok, err)
	}
	if info, err := os.Stat(path); err != nil || !info.IsDir() {
		t.Errorf("%v %v", info, err)
	}
	if entry(t, b, "model/a").Values["weight"] != 3 {
		t.Error("the file's value does not hold")
	}
}

// TestFileIsLocked: while another process changes the file, a change waits until its context ends.
func TestFileIsLocked(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "limits.json")
	other, err := os.OpenFile(path+".lock", os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.Flock(int(other.Fd()), unix.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	changed := Records{"model/a": {Values{"weight": 1}, nil}}
	if ok, err := File(path).Save(ended, changed, ""); ok || !errors.Is(err, context.Canceled) {
		t.Errorf("%v %v", ok, err)
	}
	if _, err := os.Stat(path); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the file was written without the lock: %v", err)
	}
	saved := make(chan error)
	go func() {
		ok, err := File(path).Save(t.Context(), changed, "")
		if !ok && err == nil {
			err = errors.New("lost a race that was none")
		}
		saved <- err
	}()
	other.Close()
	if err := <-saved; err != nil {
		t.Error(err)
	}
}

// TestX13_FileDamagedAtEveryByte: whatever byte is damaged and wherever the file is cut, the start
// after it has limits. They are the overrides, or those of the configuration once the file is put
// aside.
func TestX13_FileDamagedAtEveryByte(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "limits.json")
	file := map[string]Values{"model/a": {"weight": 3}}
	first := New(Config{Backend: File(path)})
	sync1(t, first, file)
	patch(t, first, "model/a", changeOf("max_concurrent_requests", int64Ptr(4)))
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	start := func(what string, i int, content []byte) {
		t.Helper()
		folder := t.TempDir()
		damaged := filepath.Join(folder, "limits.json")
		if err := os.WriteFile(damaged, content, 0o600); err != nil {
			t.Fatal(err)
		}
		o := New(Config{Backend: File(damaged)})
		fault := o.Sync(t.Context(), file, nil)
		if e, ok := o.Get("model/a"); !ok || e.Values == nil {
			t.Errorf("%s byte %d: model a has no limits: %v", what, i, fault)
		}
		if kept, err := os.ReadFile(damaged + ".bad"); fault != nil && (err != nil || string(kept) != string(content)) {
			t.Errorf("%s byte %d: %v, and the file was not kept: %v", what, i, fault, err)
		}
	}
	for i := range text {
		start("cut at", i, text[:i])
		damaged := append([]byte{}, text...)
		damaged[i] ^= 1 << (i % 8)
		start("damaged", i, damaged)
	}
}
