package keys

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/sluice-gateway/sluice/admission/redis"
	"github.com/sluice-gateway/sluice/internal/redistest"
	"github.com/sluice-gateway/sluice/internal/testutil"
)

// backends returns a function for each kind of backend that opens the same keys again.
func backends(t *testing.T) map[string]func() Backend {
	t.Helper()
	path := filepath.Join(t.TempDir(), "keys.json")
	url := redistest.URL(redistest.Start(t))
	return map[string]func() Backend{
		"file": func() Backend { return File(path) },
		"redis": func() Backend {
			client, err := redis.NewClient(redis.Server{URL: url}, 0)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { client.Close() })
			return Redis(client, nil)
		},
	}
}

func TestB4_KeysAreStoredAndSharedAndRevoked(t *testing.T) {
	for name, open := range backends(t) {
		t.Run(name, func(t *testing.T) {
			var mine, others []Key
			a := New(Config{Backend: open(), Apply: func(all []Key) { mine = all }, Log: zap.NewNop()})
			b := New(Config{Backend: open(), Apply: func(all []Key) { others = all }, Log: zap.NewNop()})
			now := time.Now().UTC().Truncate(time.Second)
			for i, id := range []string{"one", "two"} {
				if err := a.Add(t.Context(), Key{ID: id, Hash: "sha256:" + id, Tenant: "acme", Created: now.Add(time.Duration(i) * time.Second)}); err != nil {
					t.Fatal(err)
				}
			}
			if err := b.Read(t.Context()); err != nil || len(others) != 2 || others[0].ID != "one" || len(mine) != 2 {
				t.Fatalf("%v, %v, %v", mine, others, err)
			}
			if found, err := b.Remove(t.Context(), "one"); !found || err != nil {
				t.Fatal(found, err)
			}
			if found, err := b.Remove(t.Context(), "one"); found || err != nil {
				t.Error("revoked twice", err)
			}
			if err := a.Read(t.Context()); err != nil || len(mine) != 1 || mine[0].ID != "two" {
				t.Errorf("after the revocation: %v, %v", mine, err)
			}
		})
	}
}

// Thousands of keys cost nearly nothing while they do not change. They are read all the time.
func TestB4_ManyKeysCostNothingWhileNothingChanges(t *testing.T) {
	path := filepath.Join(t.TempDir(), "keys.json")
	var many []Key
	for i := range 1000 {
		many = append(many, Key{ID: fmt.Sprint("k", i), Tenant: "acme"})
	}
	if err := replace(path, many); err != nil {
		t.Fatal(err)
	}
	told := 0
	s := New(Config{Backend: File(path), Apply: func(all []Key) { told = len(all) }, Log: zap.NewNop()})
	read := func() {
		if err := s.Read(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	read()
	if n := testing.AllocsPerRun(10, read); n > 100 || told != 1000 {
		t.Errorf("%v allocations, %d keys", n, told)
	}
	if err := replace(path, many[1:]); err != nil {
		t.Fatal(err)
	}
	if read(); told != 999 {
		t.Errorf("%d keys after another process has removed one", told)
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if read(); told != 0 {
		t.Errorf("%d keys without a file", told)
	}
}

// TestB4_ManyKeysInRedisAreReadOnce: while the keys do not change, Redis is not asked for all of
// them. A change of another gateway is noticed, also of one of an earlier release, which does not
// change the version, and so is the loss of all keys.
func TestB4_ManyKeysInRedisAreReadOnce(t *testing.T) {
	open := backends(t)["redis"]
	mine, other := open(), open()
	client := other.(*shared).client
	reads := func() string {
		_, rest, _ := strings.Cut(client.Info(t.Context(), "commandstats").Val(), "cmdstat_hgetall:calls=")
		calls, _, _ := strings.Cut(rest, ",")
		return calls
	}
	wantKeys := func(when string, n int) {
		t.Helper()
		for range 3 {
			if all, err := mine.Load(t.Context()); err != nil || len(all) != n {
				t.Errorf("%s: %v, %v", when, all, err)
			}
		}
		before := reads()
		if _, err := mine.Load(t.Context()); err != nil || reads() != before {
			t.Errorf("%s: the keys are read again, %v", when, err)
		}
	}
	check := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	wantKeys("none", 0)
	check(other.Add(t.Context(), Key{ID: "one", Tenant: "acme"}))
	check(other.Add(t.Context(), Key{ID: "two", Tenant: "acme"}))
	wantKeys("two", 2)
	_, err := other.Remove(t.Context(), "one")
	check(err)
	check(other.Add(t.Context(), Key{ID: "three", Tenant: "acme"}))
	wantKeys("one in the place of another", 2)
	check(client.HDel(t.Context(), redisKeys, "two").Err())
	wantKeys("removed without a version", 1)
	check(client.FlushAll(t.Context()).Err())
	wantKeys("lost, and written again", 1)
}

// TestB4_KeysInACluster: a key and the version of the keys are changed at one node together.
func TestB4_KeysInACluster(t *testing.T) {
	client, err := redis.NewClient(redis.Server{URL: redistest.URL(redistest.Cluster(t)...)}, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { client.Close() })
	mine, other := Redis(client, nil), Redis(client, nil)
	for _, id := range []string{"one", "two"} {
		if err := other.Add(t.Context(), Key{ID: id, Tenant: "acme"}); err != nil {
			t.Fatal(err)
		}
	}
	if found, err := other.Remove(t.Context(), "one"); !found || err != nil {
		t.Fatal(found, err)
	}
	if all, err := mine.Load(t.Context()); err != nil || len(all) != 1 || all[0].ID != "two" {
		t.Errorf("%v, %v", all, err)
	}
}

// TestB4_TheClockOfOneNodeCounts: the clocks of the nodes of a cluster may differ. That of the node
// with the uses of keys is asked.
func TestB4_TheClockOfOneNodeCounts(t *testing.T) {
	cluster := redistest.Cluster(t)
	client, err := redis.NewClient(redis.Server{URL: redistest.URL(cluster...)}, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { client.Close() })
	b := Redis(client, nil)
	for range 30 {
		if err := b.SaveUses(t.Context(), map[string]time.Time{"k": time.Now()}); err != nil {
			t.Fatal(err)
		}
	}
	if n := redistest.AskedForTime(t, cluster); n != 1 {
		t.Errorf("%d nodes were asked for the time", n)
	}
}

func TestB4_TheFirstReadIsToldWithoutKeysToo(t *testing.T) {
	told := 0
	s := New(Config{Backend: File(filepath.Join(t.TempDir(), "keys.json")), Apply: func([]Key) { told++ }, Log: zap.NewNop()})
	for range 2 {
		if err := s.Read(t.Context()); err != nil || told != 1 {
			t.Errorf("told %d times, %v", told, err)
		}
	}
}

func TestB4_ADamagedFileRevokesNothing(t *testing.T) {
	path := filepath.Join(t.TempDir(), "keys.json")
	var told []Key
	s := New(Config{Backend: File(path), Apply: func(all []Key) { told = all }, Log: zap.NewNop()})
	if err := s.Add(t.Context(), Key{ID: "one"}); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := s.Read(t.Context()); err == nil || len(told) != 1 || len(s.List()) != 1 {
		t.Errorf("%v, %v", told, err)
	}
	err := s.Add(t.Context(), Key{ID: "two"})
	if found, failed := s.Remove(t.Context(), "one"); err == nil || found || failed == nil || len(told) != 1 {
		t.Errorf("a new key: %v; a revocation: %v, %v; in force: %v", err, found, failed, told)
	}
	if text, err := os.ReadFile(path); err != nil || string(text) != "{" {
		t.Errorf("the file, which somebody may repair, has become %q, %v", text, err)
	}
}

// A key that a full disk does not take is not made, and the others stay.
func TestB4_AFullDiskLosesNoKey(t *testing.T) {
	path := filepath.Join(t.TempDir(), "keys.json")
	var told []Key
	s := New(Config{Backend: File(path), Apply: func(all []Key) { told = all }, Log: zap.NewNop()})
	if err := errors.Join(s.Add(t.Context(), Key{ID: "one"}), os.Symlink("/dev/full", path+".new")); err != nil {
		t.Fatal(err)
	}
	if err := s.Add(t.Context(), Key{ID: "two"}); !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("a full disk: %v", err)
	}
	if err := s.Read(t.Context()); err != nil || len(told) != 1 || told[0].ID != "one" {
		t.Errorf("%v, in force: %v", err, told)
	}
}

// A file is read again when it was replaced or changed, also by one of the same size or time.
func TestB4_EachChangeOfTheFileIsNoticed(t *testing.T) {
	path, then := filepath.Join(t.TempDir(), "keys.json"), time.Now().Add(-time.Hour)
	change := func(at, id string, when time.Time) {
		if err := errors.Join(os.WriteFile(at, []byte(`[{"id":"`+id+`"}]`), 0o600), os.Chtimes(at, when, when)); err != nil {
			t.Fatal(err)
		}
	}
	b := File(path)
	for _, step := range []struct {
		what string
		do   func()
		want string
	}{
		{"at first", func() { change(path, "a", then) }, "a"},
		{"another time", func() { change(path, "b", then.Add(time.Second)) }, "b"},
		{"another size", func() { change(path, "cc", then.Add(time.Second)) }, "cc"},
		{"another file", func() {
			change(path+"-next", "dd", then.Add(time.Second))
			if err := os.Rename(path+"-next", path); err != nil {
				t.Fatal(err)
			}
		}, "dd"},
	} {
		step.do()
		if all, err := b.Load(t.Context()); err != nil || len(all) != 1 || all[0].ID != step.want {
			t.Errorf("%s: %v, %v", step.what, all, err)
		}
	}
}

// A folder that cannot be reached has not lost its keys.
func TestB4_AFileThatCannotBeFoundRevokesNothing(t *testing.T) {
	folder := filepath.Join(t.TempDir(), "folder")
	if err := os.Mkdir(folder, 0o700); err != nil {
		t.Fatal(err)
	}
	var told []Key
	s := New(Config{Backend: File(filepath.Join(folder, "keys.json")), Apply: func(all []Key) { told = all }, Log: zap.NewNop()})
	if err := s.Add(t.Context(), Key{ID: "one"}); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(os.Rename(folder, folder+"-away"), os.WriteFile(folder, nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	if err := s.Read(t.Context()); err == nil || len(told) != 1 {
		t.Errorf("%v, in force: %v", err, told)
	}
	if read, err := s.Fault(); !read || err == nil {
		t.Errorf("the fault is %v, read before: %v", err, read)
	}
	if found, err := s.Remove(t.Context(), "one"); found || err == nil || len(told) != 1 {
		t.Errorf("a revocation that was not stored: %v, %v, in force: %v", found, err, told)
	}
}

// hangingBackend answers no Load until release is closed, also when the context ends.
type hangingBackend struct {
	Backend
	asked, release chan struct{}
}

func (h *hangingBackend) Load(ctx context.Context) ([]Key, error) {
	select {
	case h.asked <- struct{}{}:
	default:
	}
	<-h.release
	return h.Backend.Load(ctx)
}

func TestB4_AHangingBackendBlocksNeitherListsNorStops(t *testing.T) {
	h := &hangingBackend{Backend: File(filepath.Join(t.TempDir(), "keys.json")), asked: make(chan struct{}, 1), release: make(chan struct{})}
	defer close(h.release)
	s := New(Config{Backend: h, Apply: func([]Key) {}, Log: zap.NewNop()})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	ended, listed := make(chan struct{}), make(chan struct{})
	go func() { defer close(ended); _ = s.Run(ctx) }()
	<-h.asked
	go func() { defer close(listed); s.List() }()
	await := func(what string, done chan struct{}) {
		t.Helper()
		select {
		case <-done:
		case <-time.After(testutil.Patience):
			t.Fatalf("%s still waits for the backend", what)
		}
	}
	await("List", listed)
	cancel()
	await("Run", ended)
}

func TestB4_AReadOfAHangingBackendEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := &hangingBackend{Backend: File(filepath.Join(t.TempDir(), "keys.json")), asked: make(chan struct{}, 1), release: make(chan struct{})}
		s := New(Config{Backend: h, Apply: func([]Key) {}, Log: zap.NewNop()})
		began := time.Now()
		if err := s.Read(t.Context()); !errors.Is(err, context.DeadlineExceeded) || time.Since(began) != readTimeout {
			t.Errorf("after %v: %v", time.Since(began), err)
		}
		close(h.release)
		if err := s.Read(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

// A backend that hangs is asked once, and again when it has answered.
func TestB4_AHangingBackendIsAskedOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := &hangingBackend{Backend: File(filepath.Join(t.TempDir(), "keys.json")), asked: make(chan struct{}, 9), release: make(chan struct{})}
		s := New(Config{Backend: h, Apply: func([]Key) {}, Log: zap.NewNop()})
		for range 3 {
			if err := s.Read(t.Context()); !errors.Is(err, context.DeadlineExceeded) {
				t.Error(err)
			}
		}
		if n := len(h.asked); n != 1 {
			t.Errorf("asked %d times without an answer", n)
		}
		close(h.release)
		if err := s.Read(t.Context()); err != nil || len(h.asked) != 2 {
			t.Errorf("asked %d times: %v", len(h.asked), err)
		}
	})
}

func TestB4_TheLastUseOfAKeyIsThatOfTheLastGateway(t *testing.T) {
	minute := time.Now().UTC().Truncate(time.Minute)
	for name, open := range backends(t) {
		t.Run(name, func(t *testing.T) {
			mine := map[string]time.Time{"acme/one": minute, "acme/two": minute.Add(-time.Hour)}
			others := map[string]time.Time{"acme/one": minute.Add(-time.Minute), "acme/two": minute}
			a := New(Config{Backend: open(), Used: func() map[string]time.Time { return mine }, Log: zap.NewNop()})
			b := New(Config{Backend: open(), Used: func() map[string]time.Time { return others }, Log: zap.NewNop()})
			for _, s := range []*Store{b, a, b} {
				s.flush(t.Context())
			}
			later := New(Config{Backend: open(), Log: zap.NewNop()})
			for who, s := range map[string]*Store{"a": a, "b": b, "a gateway that starts later": later} {
				if got := s.LastUsed(t.Context()); len(got) != 2 || !got["acme/one"].Equal(minute) || !got["acme/two"].Equal(minute) {
					t.Errorf("%s: %v", who, got)
				}
			}
		})
	}
}

// failingBackend fails while down is set. It then answers a question for last uses after a minute.
type failingBackend struct {
	Backend
	down bool
}

func (f *failingBackend) Load(ctx context.Context) ([]Key, error) {
	if f.down {
		return nil, errors.New("it is down")
	}
	return f.Backend.Load(ctx)
}

func (f *failingBackend) LoadUses(ctx context.Context) (map[string]time.Time, error) {
	if f.down {
		time.Sleep(time.Minute)
		return nil, errors.New("it is down")
	}
	return f.Backend.LoadUses(ctx)
}

// While the backend is down, a list of keys waits for nothing, and shows the uses of other gateways
// as they were.
func TestB4_ABackendThatIsDownKeepsNoListWaiting(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		minute := time.Now().UTC().Truncate(time.Minute)
		f := &failingBackend{Backend: File(filepath.Join(t.TempDir(), "keys.json"))}
		if err := f.SaveUses(t.Context(), map[string]time.Time{"acme/one": minute}); err != nil {
			t.Fatal(err)
		}
		s := New(Config{Backend: f, Apply: func([]Key) {}, Log: zap.NewNop(), Used: func() map[string]time.Time { return map[string]time.Time{"acme/two": minute} }})
		for _, down := range []bool{false, true} {
			f.down = down
			_ = s.Read(t.Context())
			began := time.Now()
			if got := s.LastUsed(t.Context()); len(got) != 2 || !got["acme/one"].Equal(minute) || time.Since(began) > 0 {
				t.Errorf("down: %v: after %v: %v", down, time.Since(began), got)
			}
		}
	})
}

// countingBackend counts what is written.
type countingBackend struct {
	Backend
	saved, failures int
}

func (c *countingBackend) SaveUses(ctx context.Context, uses map[string]time.Time) error {
	if c.failures > 0 {
		c.failures--
		return errors.New("down")
	}
	c.saved++
	return c.Backend.SaveUses(ctx, uses)
}

func TestB4_AUseIsWrittenOnceAMinute(t *testing.T) {
	c := &countingBackend{Backend: File(filepath.Join(t.TempDir(), "keys.json")), failures: 1}
	used := map[string]time.Time{}
	s := New(Config{Backend: c, Used: func() map[string]time.Time { return used }, Log: zap.NewNop()})
	for i, want := range []int{0, 0, 1, 1, 2} {
		if i > 0 {
			used = map[string]time.Time{"acme/one": time.Unix(int64(60*max(i-2, 1)), 0)}
		}
		if s.flush(t.Context()); c.saved != want {
			t.Errorf("flush %d: %d writes, want %d", i, c.saved, want)
		}
	}
}

// deafBackend stores what it is told, and cannot be read while down is set.
type deafBackend struct {
	Backend
	down bool
}

func (d *deafBackend) Load(ctx context.Context) ([]Key, error) {
	if d.down {
		return nil, errors.New("it cannot be read")
	}
	return d.Backend.Load(ctx)
}

// An operator whose key was stored gets the key, which is good at once, also if the keys cannot be
// read after that. The same holds for a revocation.
func TestB4_AChangeIsInForceWithoutAReading(t *testing.T) {
	var inForce []Key
	d := &deafBackend{Backend: File(filepath.Join(t.TempDir(), "keys.json"))}
	s := New(Config{Backend: d, Apply: func(all []Key) { inForce = all }, Log: zap.NewNop()})
	if err := s.Read(t.Context()); err != nil {
		t.Fatal(err)
	}
	d.down = true
	if err := s.Add(t.Context(), Key{ID: "one"}); err != nil || len(inForce) != 1 || len(s.List()) != 1 {
		t.Errorf("made: %v, %v", err, inForce)
	}
	if found, err := s.Remove(t.Context(), "one"); !found || err != nil || len(inForce) != 0 {
		t.Errorf("revoked: %v, %v, %v", found, err, inForce)
	}
}

// A gateway that could not read the keys yet puts none in force when one is made: the list would
// lack the others, and so revoke them.
func TestB4_AChangeBeforeTheFirstReadingRevokesNothing(t *testing.T) {
	path := filepath.Join(t.TempDir(), "keys.json")
	if err := File(path).Add(t.Context(), Key{ID: "before"}); err != nil {
		t.Fatal(err)
	}
	var inForce [][]Key
	d := &deafBackend{Backend: File(path), down: true}
	s := New(Config{Backend: d, Apply: func(all []Key) { inForce = append(inForce, all) }, Log: zap.NewNop()})
	if err := s.Add(t.Context(), Key{ID: "new"}); err != nil || len(inForce) != 0 {
		t.Errorf("%v, in force without a reading: %v", err, inForce)
	}
	d.down = false
	if err := s.Read(t.Context()); err != nil || len(inForce) != 1 || len(inForce[0]) != 2 {
		t.Errorf("%v, in force: %v", err, inForce)
	}
}

// The oldest key is the first, whatever its id is. Of two keys of one moment the ids decide.
func TestB4_KeysAreListedByAge(t *testing.T) {
	b, now := File(filepath.Join(t.TempDir(), "keys.json")), time.Now().UTC()
	for i, id := range []string{"c", "b", "a"} {
		if err := b.Add(t.Context(), Key{ID: id, Created: now.Add(time.Duration(i/2) * time.Second)}); err != nil {
			t.Fatal(err)
		}
	}
	s := New(Config{Backend: b, Apply: func([]Key) {}, Log: zap.NewNop()})
	if err := s.Read(t.Context()); err != nil {
		t.Fatal(err)
	}
	if all := s.List(); len(all) != 3 || all[0].ID != "b" || all[1].ID != "c" || all[2].ID != "a" {
		t.Errorf("the list is %v", all)
	}
}

// The last of MaxKeys keys is made, and no more.
func TestB4_NoMoreThanMaxKeys(t *testing.T) {
	s := New(Config{Backend: File(filepath.Join(t.TempDir(), "keys.json")), Apply: func([]Key) {}, Log: zap.NewNop()})
	for n, want := range map[int]error{MaxKeys - 1: nil, MaxKeys: ErrFull} {
		s.keys = make([]Key, n)
		if err := s.Add(t.Context(), Key{ID: "one"}); !errors.Is(err, want) {
			t.Errorf("with %d keys: %v, want %v", n, err, want)
		}
	}
}

// Each time that the keys can no longer be read is logged once.
func TestB4_EachFaultIsLoggedOnce(t *testing.T) {
	core, logged := observer.New(zap.InfoLevel)
	d := &deafBackend{Backend: File(filepath.Join(t.TempDir(), "keys.json"))}
	s := New(Config{Backend: d, Apply: func([]Key) {}, Log: zap.New(core)})
	for times := 1; times <= 2; times++ {
		for _, d.down = range []bool{true, true, false} {
			_ = s.Read(t.Context())
		}
		if n := logged.FilterMessageSnippet("not read").Len(); n != times {
			t.Errorf("%d faults were logged, want %d", n, times)
		}
	}
}

// TestB4_ACallerThatGoesIsNoFault: whoever has made a key may leave before the keys are read again.
// That is no reason to say that they cannot be read.
func TestB4_ACallerThatGoesIsNoFault(t *testing.T) {
	d := &deafBackend{Backend: File(filepath.Join(t.TempDir(), "keys.json")), down: true}
	s := New(Config{Backend: d, Apply: func([]Key) {}, Log: zap.NewNop()})
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := s.Add(ctx, Key{ID: "one", Tenant: "acme"}); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Fault(); err != nil {
		t.Error(err)
	}
}

// Run follows the changes of other gateways, and stores the uses of keys every few seconds and when
// it ends.
func TestB4_RunFollowsChangesAndStoresUses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		path, use := filepath.Join(t.TempDir(), "keys.json"), new(atomic.Pointer[time.Time])
		setUse := func(at int64) { use.Store(new(time.Unix(at, 0).UTC())) }
		setUse(6000)
		var told []Key
		s := New(Config{Backend: File(path), Apply: func(all []Key) { told = all }, Log: zap.NewNop(),
			Used: func() map[string]time.Time { return map[string]time.Time{"acme/one": *use.Load()} }})
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error)
		go func() { ended <- s.Run(ctx) }()
		for i, id := range []string{"one", "two", "three"} {
			if err := File(path).Add(t.Context(), Key{ID: id}); err != nil {
				t.Fatal(err)
			}
			time.Sleep(interval)
			synctest.Wait()
			if len(told) != i+1 {
				t.Errorf("%d keys after another gateway has made %s", len(told), id)
			}
		}
		wantUse := func(when string) {
			t.Helper()
			if all, err := File(path).LoadUses(t.Context()); err != nil || !all["acme/one"].Equal(*use.Load()) {
				t.Errorf("%s: the stored uses are %v, %v", when, all, err)
			}
		}
		for _, at := range []int64{6060, 6120} {
			setUse(at)
			time.Sleep(flushInterval)
			synctest.Wait()
			wantUse("while it runs")
		}
		setUse(6180)
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		wantUse("at the end")
	})
}
