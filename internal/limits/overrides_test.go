package limits

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func int64Ptr(n int64) *int64 { return &n }

// changeOf is a change of one field; nil restores the file's value.
func changeOf(field string, v *int64) map[string]*int64 { return map[string]*int64{field: v} }

func sync1(t *testing.T, b *Overrides, file map[string]Values) {
	t.Helper()
	if err := b.Sync(t.Context(), file, nil); err != nil {
		t.Fatal(err)
	}
}

func patch(t *testing.T, b *Overrides, key string, changes map[string]*int64) Entry {
	t.Helper()
	e, err := b.Patch(t.Context(), key, changes)
	if err != nil {
		t.Fatal(err)
	}
	return e
}

func entry(t *testing.T, b *Overrides, key string) Entry {
	t.Helper()
	e, ok := b.Get(key)
	if !ok {
		t.Fatalf("%s is not known", key)
	}
	return e
}

func model(weight, running, tokens int64) Values {
	return Values{"weight": weight, "max_concurrent_requests": running, "max_tokens_per_minute": tokens}
}

func TestPatchWinsUntilTheFileChanges(t *testing.T) {
	t.Parallel()
	b := New(Config{})
	sync1(t, b, map[string]Values{"model/a/b": {"max_concurrent_requests": 64}, "tenant/acme": {}})
	if diff := cmp.Diff(Entry{model(1, 64, 0), model(1, 64, 0), []string{}}, entry(t, b, "model/a/b")); diff != "" {
		t.Error(diff)
	}
	got := patch(t, b, "model/a/b", map[string]*int64{"weight": int64Ptr(3), "max_concurrent_requests": int64Ptr(2)})
	want := Entry{model(3, 2, 0), model(1, 64, 0), []string{"max_concurrent_requests", "weight"}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	sync1(t, b, map[string]Values{"model/a/b": {"max_concurrent_requests": 64, "max_tokens_per_minute": 9}, "tenant/acme": {}})
	want = Entry{model(3, 2, 9), model(1, 64, 9), []string{"max_concurrent_requests", "weight"}}
	if diff := cmp.Diff(want, entry(t, b, "model/a/b")); diff != "" {
		t.Errorf("another field changed in the file: %s", diff)
	}
	sync1(t, b, map[string]Values{"model/a/b": {"max_concurrent_requests": 32}, "tenant/acme": {}})
	want = Entry{model(3, 32, 0), model(1, 32, 0), []string{"weight"}}
	if diff := cmp.Diff(want, entry(t, b, "model/a/b")); diff != "" {
		t.Errorf("the field changed in the file: %s", diff)
	}
	if diff := cmp.Diff(Entry{model(1, 32, 0), model(1, 32, 0), []string{}}, patch(t, b, "model/a/b", changeOf("weight", nil))); diff != "" {
		t.Errorf("back to the file's: %s", diff)
	}
}

func TestInvalidPatches(t *testing.T) {
	t.Parallel()
	b := New(Config{})
	sync1(t, b, map[string]Values{"model/chat": {}, "tenant/acme": {}})
	version := b.Version()
	for _, c := range []struct {
		key, field string
		value      *int64
		want       string
	}{
		{"model/chat", "weight", int64Ptr(0), "must be at least 1"},
		{"model/chat", "weight", int64Ptr(1_000_001), "must be at most 1000000"},
		{"model/chat", "max_concurrent_requests", int64Ptr(-1), "must be at least 0"},
		{"model/chat", "max_tokens_per_minute", int64Ptr(1_000_000_000_001), "must be at most 1000000000000"},
		{"tenant/acme", "max_prefill", int64Ptr(1_000_000_001), "must be at most 1000000000"},
		{"tenant/acme", "max_concurrent_requests", int64Ptr(1), "is not a limit that can be changed; those are " +
			"max_concurrent_streams, max_prefill, requests_per_minute, tokens_per_minute, weight"},
		{"model/chat", "max_queue", nil, "is not a limit that can be changed; those are max_concurrent_requests, max_tokens_per_minute, weight"},
	} {
		// If one half of a change is bad, the other half is not made either.
		changes := map[string]*int64{"weight": int64Ptr(5)}
		changes[c.field] = c.value
		_, err := b.Patch(t.Context(), c.key, changes)
		var fault *Invalid
		if !errors.As(err, &fault) || fault.Field != c.field || fault.Reason != c.want {
			t.Errorf("%s %s: %v", c.key, c.field, err)
		}
	}
	for _, key := range []string{"model/nope", "tenant/", "tenant", "", "pool/auto"} {
		if _, err := b.Patch(t.Context(), key, changeOf("weight", int64Ptr(5))); !errors.Is(err, ErrUnknown) {
			t.Errorf("%q: %v", key, err)
		}
	}
	if e := entry(t, b, "model/chat"); len(e.Patched) > 0 || b.Version() != version {
		t.Errorf("something was changed: %v", e)
	}
	if e := patch(t, b, "model/chat", nil); len(e.Patched) > 0 || b.Version() != version {
		t.Errorf("no change changes something: %v", e)
	}
}

func TestSyncOfWhatIsNoLimit(t *testing.T) {
	t.Parallel()
	b := New(Config{})
	for _, file := range []map[string]Values{{"pool/auto": nil}, {"model/chat": {"max_queue": 4}}} {
		if err := b.Sync(t.Context(), file, nil); err == nil {
			t.Errorf("%v was taken", file)
		}
	}
	sync1(t, b, map[string]Values{"model/chat": {"weight": -3, "max_concurrent_requests": -1, "max_tokens_per_minute": 1 << 62}})
	if diff := cmp.Diff(model(1, 0, 1_000_000_000_000), entry(t, b, "model/chat").Values); diff != "" {
		t.Error(diff)
	}
}

// TestNotInTheFile: a model that the file does not name keeps its patches while it is away and over
// restarts. What the file named before and names no longer loses them.
func TestNotInTheFile(t *testing.T) {
	t.Parallel()
	backend := &memoryBackend{}
	b := New(Config{Backend: backend})
	sync1(t, b, map[string]Values{"model/found": nil, "model/named": {}, "model/other": {}})
	if len(backend.records) != 2 {
		t.Errorf("a model that nobody spoke of is kept: %v", backend.records)
	}
	if e := patch(t, b, "model/found", changeOf("max_concurrent_requests", int64Ptr(7))); e.File != nil || !cmp.Equal(e.Values, model(1, 7, 0)) {
		t.Errorf("%+v", e)
	}
	patch(t, b, "model/named", changeOf("max_concurrent_requests", int64Ptr(8)))
	sync1(t, b, map[string]Values{"model/other": {}})
	for _, key := range []string{"model/found", "model/named"} {
		if e, ok := b.Get(key); ok {
			t.Errorf("%s is still there: %+v", key, e)
		}
		if _, err := b.Patch(t.Context(), key, changeOf("weight", int64Ptr(2))); !errors.Is(err, ErrUnknown) {
			t.Errorf("%s: %v", key, err)
		}
	}
	b = New(Config{Backend: backend})
	sync1(t, b, map[string]Values{"model/other": {}})
	sync1(t, b, map[string]Values{"model/found": nil, "model/named": {}, "model/other": {}})
	if e := entry(t, b, "model/found"); !cmp.Equal(e.Values, model(1, 7, 0)) {
		t.Errorf("the patch of a model that came again: %+v", e)
	}
	if e := entry(t, b, "model/named"); len(e.Patched) > 0 {
		t.Errorf("the patch of a model that the file had dropped: %+v", e)
	}
	patch(t, b, "model/found", changeOf("max_concurrent_requests", nil))
	if _, ok := backend.records["model/found"]; ok {
		t.Error("the record of a model without a patch is kept")
	}
}

// TestPatchOfAModelThatMayReturn: a model that is discovered keeps its patches while it is away,
// over a restart too, although the file has values for all such models. Without a patch nothing is
// kept.
// A model that the file named before loses its patches, also if it could be discovered.
func TestPatchOfAModelThatMayReturn(t *testing.T) {
	t.Parallel()
	backend := &memoryBackend{}
	discovered, away := Values{"max_concurrent_requests": 4}, map[string]Values{"model/other": {}}
	there := map[string]Values{"model/other": {}, "model/found": discovered, "model/idle": discovered, "model/named": {}}
	mayReturn := func(names ...string) func(string) bool {
		return func(key string) bool { return slices.Contains(names, key) }
	}
	sync2 := func(b *Overrides, file map[string]Values, mayReturn func(string) bool) {
		t.Helper()
		if err := b.Sync(t.Context(), file, mayReturn); err != nil {
			t.Fatal(err)
		}
	}
	b := New(Config{Backend: backend})
	sync2(b, there, mayReturn("model/found", "model/idle"))
	patch(t, b, "model/found", changeOf("max_concurrent_requests", int64Ptr(7)))
	patch(t, b, "model/named", changeOf("max_concurrent_requests", int64Ptr(8)))
	all := mayReturn("model/found", "model/idle", "model/named")
	sync2(b, away, all)
	if _, ok := backend.records["model/idle"]; ok || len(backend.records) != 2 {
		t.Errorf("records: %v", backend.records)
	}
	for _, restarted := range []bool{false, true} {
		if restarted {
			b = New(Config{Backend: backend})
			sync2(b, away, all)
		}
		sync2(b, there, all)
		if e := entry(t, b, "model/found"); e.Values["max_concurrent_requests"] != 7 || e.File["max_concurrent_requests"] != 4 {
			t.Errorf("restarted %v: %+v", restarted, e)
		}
		if e := entry(t, b, "model/named"); len(e.Patched) > 0 {
			t.Errorf("restarted %v: a model that the file had dropped: %+v", restarted, e)
		}
	}
	sync2(b, away, nil)
	if len(backend.records) != 1 {
		t.Errorf("models are no longer discovered, and their records stay: %v", backend.records)
	}
}

// TestKinds: a Sync of models leaves the tenants as they are.
func TestKinds(t *testing.T) {
	t.Parallel()
	b := New(Config{})
	sync1(t, b, map[string]Values{"model/chat": {}, "tenant/acme": {}})
	patch(t, b, "tenant/acme", changeOf("weight", int64Ptr(4)))
	sync1(t, b, map[string]Values{"model/chat": {"weight": 2}})
	if e := entry(t, b, "tenant/acme"); e.Values["weight"] != 4 {
		t.Errorf("%+v", e)
	}
}

// flakyBackend fails or loses races on demand.
type flakyBackend struct {
	memoryBackend
	err   error
	races int
	saves int
}

func (f *flakyBackend) Load(ctx context.Context) (Records, string, error) {
	if f.err != nil {
		return nil, "", f.err
	}
	return f.memoryBackend.Load(ctx)
}

func (f *flakyBackend) Save(ctx context.Context, changed Records, version string) (bool, error) {
	f.saves++
	if f.races > 0 {
		f.races--
		return false, nil
	}
	if f.err != nil {
		return false, f.err
	}
	return f.memoryBackend.Save(ctx, changed, version)
}

func TestBackendFails(t *testing.T) {
	t.Parallel()
	down := errors.New("down")
	backend := &flakyBackend{err: down}
	b := New(Config{Backend: backend})
	if err := b.Sync(t.Context(), map[string]Values{"model/chat": {"weight": 2}}, nil); !errors.Is(err, down) {
		t.Fatal(err)
	}
	if diff := cmp.Diff(Entry{model(2, 0, 0), model(2, 0, 0), []string{}}, entry(t, b, "model/chat")); diff != "" {
		t.Errorf("the file does not hold: %s", diff)
	}
	if _, err := b.Patch(t.Context(), "model/chat", changeOf("weight", int64Ptr(5))); !errors.Is(err, down) {
		t.Error(err)
	}
	if e := entry(t, b, "model/chat"); e.Values["weight"] != 2 {
		t.Errorf("a change that was not kept holds: %+v", e)
	}
	backend.err = nil
	patch(t, b, "model/chat", changeOf("weight", int64Ptr(5)))
	backend.err = down
	if err := b.Sync(t.Context(), map[string]Values{"model/chat": {"weight": 2, "max_concurrent_requests": 9}}, nil); !errors.Is(err, down) {
		t.Fatal(err)
	}
	if err := b.Reload(t.Context()); !errors.Is(err, down) {
		t.Error(err)
	}
	want := Entry{model(5, 9, 0), model(2, 9, 0), []string{"weight"}}
	if diff := cmp.Diff(want, entry(t, b, "model/chat")); diff != "" {
		t.Errorf("the file and the known patch: %s", diff)
	}
	backend.err = nil
	if err := b.Reload(t.Context()); err != nil {
		t.Fatal(err)
	}
	if r := backend.records["model/chat"]; r.File["max_concurrent_requests"] != 9 || r.Values["weight"] != 5 {
		t.Errorf("the backend was not told what it missed: %+v", r)
	}
	if diff := cmp.Diff(want, entry(t, b, "model/chat")); diff != "" {
		t.Errorf("after that: %s", diff)
	}
}

// TestBackendLosesAll: a Redis without a disk comes back empty.
func TestBackendLosesAll(t *testing.T) {
	t.Parallel()
	backend := &memoryBackend{}
	b := New(Config{Backend: backend})
	sync1(t, b, map[string]Values{"model/chat": {}, "tenant/acme": {}})
	patch(t, b, "model/chat", changeOf("weight", int64Ptr(5)))
	backend.records, backend.saves = nil, 0
	if err := b.Reload(t.Context()); err != nil {
		t.Fatal(err)
	}
	if e := entry(t, b, "model/chat"); e.Values["weight"] != 5 || backend.records["model/chat"].Values["weight"] != 5 {
		t.Errorf("the patch is lost: %+v, %+v", e, backend.records)
	}
}

func TestLostRaces(t *testing.T) {
	t.Parallel()
	backend := &flakyBackend{}
	b := New(Config{Backend: backend})
	sync1(t, b, map[string]Values{"model/chat": {}})
	backend.races = 3
	patch(t, b, "model/chat", changeOf("weight", int64Ptr(5)))
	if backend.records["model/chat"].Values["weight"] != 5 {
		t.Error("the change was not kept")
	}
	backend.races, backend.saves = 1000, 0
	if _, err := b.Patch(t.Context(), "model/chat", changeOf("weight", int64Ptr(6))); err == nil || backend.saves != maxTries {
		t.Errorf("%v after %d tries, want an error after %d", err, backend.saves, maxTries)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := b.Patch(ended, "model/chat", changeOf("weight", int64Ptr(6))); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	if e := entry(t, b, "model/chat"); e.Values["weight"] != 5 {
		t.Errorf("%+v", e)
	}
}

// TestForeignRecords: what another version or a person has written is corrected where it is known,
// and kept where it is not.
func TestForeignRecords(t *testing.T) {
	t.Parallel()
	backend := &memoryBackend{}
	backend.Save(t.Context(), Records{
		"model/chat": {Values{"weight": 0, "max_concurrent_requests": -5, "new": 3}, Values{"weight": 2, "max_tokens_per_minute": -1}},
		"pool/auto":  {Values{"x": 1}, Values{"x": 1}},
	}, "")
	b := New(Config{Backend: backend})
	sync1(t, b, map[string]Values{"model/chat": {"weight": 2}})
	if diff := cmp.Diff(Entry{model(2, 0, 0), model(2, 0, 0), []string{}}, entry(t, b, "model/chat")); diff != "" {
		t.Error(diff)
	}
	if backend.records["model/chat"].Values["new"] != 3 || backend.records["pool/auto"].Values["x"] != 1 {
		t.Errorf("%v", backend.records)
	}
}

// TestDifferentFiles: in a rolling update, gateways with the old file and with the new one do not
// overwrite each other: the newest change is in force.
func TestDifferentFiles(t *testing.T) {
	t.Parallel()
	backend := &memoryBackend{}
	older, newer := New(Config{Backend: backend}), New(Config{Backend: backend})
	before := map[string]Values{"tenant/acme": {"weight": 1}, "tenant/leaves": {}}
	sync1(t, older, before)
	sync1(t, newer, map[string]Values{"tenant/acme": {"weight": 3}, "tenant/comes": {}})
	saves := backend.saves
	sync1(t, older, before) // something else in its file has changed
	if err := newer.Reload(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, b := range []*Overrides{older, newer} {
		if e := entry(t, b, "tenant/acme"); e.Values["weight"] != 3 || len(e.Patched) > 0 {
			t.Errorf("%+v", e)
		}
	}
	entry(t, older, "tenant/leaves")
	if _, ok := backend.records["tenant/comes"]; !ok {
		t.Error("a gateway with the old file has dropped a new tenant")
	}
	if err := errors.Join(older.Reload(t.Context()), newer.Reload(t.Context()), older.Reload(t.Context())); err != nil || backend.saves > saves+1 {
		t.Errorf("%v; the gateways changed the records %d times", err, backend.saves-saves)
	}
}

// TestConcurrentPatches: nothing is lost when several gateways change limits at once.
func TestConcurrentPatches(t *testing.T) {
	t.Parallel()
	backend := &memoryBackend{}
	const books, each = 3, 25
	file := map[string]Values{}
	for i := range books * each {
		file[fmt.Sprint("model/", i)] = Values{}
	}
	var all []*Overrides
	for range books {
		b := New(Config{Backend: backend})
		sync1(t, b, file)
		all = append(all, b)
	}
	var running sync.WaitGroup
	for i := range books * each {
		running.Go(func() {
			b, key := all[i%books], fmt.Sprint("model/", i)
			if _, err := b.Patch(t.Context(), key, changeOf("weight", int64Ptr(int64(i+2)))); err != nil {
				t.Error(err)
			}
			b.Get(key)
		})
	}
	running.Wait()
	for _, b := range all {
		if err := b.Reload(t.Context()); err != nil {
			t.Fatal(err)
		}
		for i := range books * each {
			if e := entry(t, b, fmt.Sprint("model/", i)); e.Values["weight"] != int64(i+2) {
				t.Errorf("model/%d: %v", i, e.Values)
			}
		}
		if b.Version() != all[0].Version() {
			t.Errorf("versions %s and %s", b.Version(), all[0].Version())
		}
	}
}

func TestInvalidSaysWhat(t *testing.T) {
	t.Parallel()
	if got := (&Invalid{"weight", "must be at least 1"}).Error(); !strings.Contains(got, "weight must be at least 1") {
		t.Error(got)
	}
}
