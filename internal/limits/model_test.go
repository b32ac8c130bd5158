package limits

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// referenceOverrides is the rule in its simplest form: what was patched, and what the file said
// last. It keeps all over restarts.
type referenceOverrides struct {
	patched map[string]map[string]int64
	// file has an entry for every key that was ever named, or that exists without being named;
	// named says which.
	file  map[string]map[string]int64
	named map[string]bool
	there map[string]bool
}

func defaultValue(field string) int64 {
	if field == "weight" {
		return 1
	}
	return 0
}

func fields(key string) []string { return slices.Sorted(maps.Keys(patchableLimits()[kindOf(key)])) }

func (n *referenceOverrides) sync(file map[string]Values) {
	n.there = map[string]bool{}
	for key, values := range file {
		n.there[key] = true
		if n.file[key] == nil {
			n.file[key], n.patched[key] = map[string]int64{}, map[string]int64{}
			for _, f := range fields(key) {
				n.file[key][f] = defaultValue(f)
			}
		}
		for _, f := range fields(key) {
			now, ok := values[f]
			if !ok {
				now = defaultValue(f)
			}
			if now != n.file[key][f] {
				delete(n.patched[key], f)
			}
			n.file[key][f] = now
		}
		n.named[key] = values != nil
	}
	for key := range n.file {
		if !n.there[key] && n.named[key] {
			delete(n.file, key)
			delete(n.patched, key)
			delete(n.named, key)
		}
	}
}

func (n *referenceOverrides) entry(key string) Entry {
	e := Entry{Values: Values{}, Patched: []string{}}
	if n.named[key] {
		e.File = Values{}
	}
	for _, f := range fields(key) {
		v, ok := n.patched[key][f]
		if !ok {
			v = n.file[key][f]
		}
		e.Values[f] = v
		if e.File != nil {
			e.File[f] = n.file[key][f]
		}
		if v != n.file[key][f] {
			e.Patched = append(e.Patched, f)
		}
	}
	return e
}

var keys = []string{"model/always", "model/x", "model/org/y", "model/found", "tenant/always", "tenant/z", "tenant/"}

func randomFile(r *rand.Rand) map[string]Values {
	file := map[string]Values{}
	for _, key := range keys {
		always := key == "model/always" || key == "tenant/always"
		if !always && r.IntN(4) == 0 {
			continue
		}
		file[key] = Values{}
		if key == "model/found" && r.IntN(5) > 0 {
			file[key] = nil
			continue
		}
		for _, f := range fields(key) {
			if r.IntN(2) == 0 {
				file[key][f] = defaultValue(f) + r.Int64N(2)
			}
		}
	}
	return file
}

func randomChange(r *rand.Rand, key string) map[string]*int64 {
	change := map[string]*int64{}
	for _, f := range fields(key) {
		switch r.IntN(4) {
		case 0:
			change[f] = int64Ptr(defaultValue(f) + r.Int64N(3))
		case 1:
			change[f] = nil
		}
	}
	return change
}

// TestAgainstTheRule compares Overrides on both backends with the rule, over random changes of the
// file, patches and restarts.
func TestAgainstTheRule(t *testing.T) {
	t.Parallel()
	for seed := range uint64(60) {
		r := rand.New(rand.NewPCG(seed, 1))
		var backend Backend = &memoryBackend{}
		steps := 200
		if seed%10 == 0 {
			backend, steps = File(filepath.Join(t.TempDir(), "state", "limits.json")), 60
		}
		rule := &referenceOverrides{patched: map[string]map[string]int64{}, file: map[string]map[string]int64{}, named: map[string]bool{}}
		b := New(Config{Backend: backend})
		restarts, patches := 0, 0
		for step := range steps {
			switch key := keys[r.IntN(len(keys))]; {
			case step == 0 || r.IntN(4) == 0:
				file := randomFile(r)
				sync1(t, b, file)
				rule.sync(file)
			case r.IntN(6) == 0:
				restarts++
				b = New(Config{Backend: backend})
				file := randomFile(r)
				sync1(t, b, file)
				rule.sync(file)
			case rule.there[key]:
				patches++
				change := randomChange(r, key)
				patch(t, b, key, change)
				for f, v := range change {
					if delete(rule.patched[key], f); v != nil {
						rule.patched[key][f] = *v
					}
				}
			}
			for _, key := range keys {
				got, ok := b.Get(key)
				if ok != rule.there[key] {
					t.Fatalf("seed %d, step %d: %s known %v", seed, step, key, ok)
				}
				if ok {
					if diff := cmp.Diff(rule.entry(key), got); diff != "" {
						t.Fatalf("seed %d, step %d: %s (-rule +overrides)\n%s", seed, step, key, diff)
					}
				}
			}
		}
		if restarts == 0 || patches == 0 {
			t.Fatal("nothing was tried")
		}
	}
}

// TestOverridesConverge: whatever several gateways did, and with whatever files, they agree once
// they have read the same file and each other's changes.
func TestOverridesConverge(t *testing.T) {
	t.Parallel()
	for seed := range uint64(100) {
		r := rand.New(rand.NewPCG(seed, 2))
		backend := &memoryBackend{}
		books := []*Overrides{New(Config{Backend: backend}), New(Config{Backend: backend})}
		for range 60 {
			i := r.IntN(len(books))
			switch key := keys[r.IntN(len(keys))]; r.IntN(5) {
			case 0:
				sync1(t, books[i], randomFile(r))
			case 1:
				books[i] = New(Config{Backend: backend})
			case 2:
				if err := books[i].Reload(t.Context()); err != nil {
					t.Fatal(err)
				}
			default:
				// it may be unknown there
				_, _ = books[i].Patch(t.Context(), key, randomChange(r, key))
			}
		}
		file := randomFile(r)
		for _, b := range books {
			sync1(t, b, file)
		}
		patch(t, books[1], "model/always", changeOf("weight", int64Ptr(77)))
		for _, b := range books {
			if err := b.Reload(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		if diff := cmp.Diff(books[0].current.Load().entries, books[1].current.Load().entries); diff != "" {
			t.Fatalf("seed %d: %s", seed, diff)
		}
		if books[0].Version() != books[1].Version() || entry(t, books[0], "model/always").Values["weight"] != 77 {
			t.Fatal(fmt.Sprint("seed ", seed, ": ", books[0].Version(), " ", books[1].Version()))
		}
	}
}
