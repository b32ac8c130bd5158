package replay_test

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluice-gateway/sluice/internal/relay/replay"
)

type generation struct{ name string }

type registry = replay.Registry[*generation]

func newRegistry(limit int) *registry { return &registry{Max: limit} }

func key(id string) replay.Key { return replay.Key{Tenant: "t", ID: id} }

// claim claims an id that must be free.
func claim(t *testing.T, s *registry, id string) *generation {
	t.Helper()
	g, fresh, err := s.Claim(key(id), [32]byte{}, func() *generation { return &generation{name: id} })
	if err != nil || !fresh || g.name != id {
		t.Fatalf("%s: %v, fresh %v, %v", id, g, fresh, err)
	}
	return g
}

// wantKnown fails the test unless the registry holds exactly these ids.
func wantKnown(t *testing.T, s *registry, ids ...string) {
	t.Helper()
	if s.Len() != len(ids) {
		t.Errorf("%d generations are known, want %q", s.Len(), ids)
	}
	for _, id := range ids {
		if g, ok := s.Find(key(id)); !ok || g.name != id {
			t.Errorf("%s: %v", id, g)
		}
	}
}

func TestClaim(t *testing.T) {
	s := newRegistry(0)
	g := claim(t, s, "a")
	none := func() *generation { t.Error("created again"); return nil }
	if again, fresh, err := s.Claim(key("a"), [32]byte{}, none); again != g || fresh || err != nil {
		t.Errorf("again: %v, %v, %v", again, fresh, err)
	}
	if _, _, err := s.Claim(key("a"), [32]byte{1}, none); !errors.Is(err, replay.ErrConflict) {
		t.Errorf("another request: %v", err)
	}
	if _, ok := s.Find(replay.Key{Tenant: "other", ID: "a"}); ok {
		t.Error("another tenant finds it")
	}
	if _, fresh, err := s.Claim(replay.Key{Tenant: "other", ID: "a"}, [32]byte{1}, func() *generation { return &generation{} }); !fresh || err != nil {
		t.Errorf("another tenant: %v, %v", fresh, err)
	}
	s.Forget(key("a"), &generation{})
	if s.Len() != 2 {
		t.Error("Forget has forgotten another generation")
	}
	s.Forget(key("a"), g)
	s.Forget(key("a"), g)
	if _, ok := s.Find(key("a")); ok || s.Len() != 1 {
		t.Error("Forget has not forgotten the generation")
	}
	claim(t, s, "a")
}

func TestClaimTogether(t *testing.T) {
	s := newRegistry(0)
	for round := range 50 {
		var made atomic.Int32
		var fresh atomic.Int32
		var first atomic.Pointer[generation]
		var all sync.WaitGroup
		for range 8 {
			all.Go(func() {
				g, isFresh, err := s.Claim(key(fmt.Sprint(round)), [32]byte{}, func() *generation { made.Add(1); return &generation{} })
				if err != nil || !first.CompareAndSwap(nil, g) && first.Load() != g {
					t.Errorf("another one: %v", err)
				}
				if isFresh {
					fresh.Add(1)
				}
			})
		}
		all.Wait()
		if made.Load() != 1 || fresh.Load() != 1 {
			t.Fatalf("%d made, %d fresh", made.Load(), fresh.Load())
		}
	}
}

func TestExpire(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newRegistry(0)
		a, b, c := claim(t, s, "a"), claim(t, s, "b"), claim(t, s, "c")
		s.Expire(key("a"), a, 5*time.Second)
		s.Expire(key("b"), b, 5*time.Second)
		s.Expire(key("c"), a, 5*time.Second) // a belongs to another key
		s.Expire(key("d"), a, 5*time.Second)
		time.Sleep(4 * time.Second)
		synctest.Wait()
		wantKnown(t, s, "a", "b", "c")
		s.Expire(key("b"), b, 5*time.Second) // again
		s.Forget(key("a"), a)
		newer := claim(t, s, "a") // the timer of the first a must not forget the second
		time.Sleep(2 * time.Second)
		synctest.Wait()
		wantKnown(t, s, "a", "b", "c")
		time.Sleep(3 * time.Second)
		synctest.Wait()
		wantKnown(t, s, "a", "c")
		s.Expire(key("c"), c, 0)
		synctest.Wait()
		wantKnown(t, s, "a")
		s.Expire(key("a"), newer, time.Minute) // Forget must stop the timer
		s.Forget(key("a"), newer)
		wantKnown(t, s)
	})
}

func TestMax(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newRegistry(3)
		a, b := claim(t, s, "a"), claim(t, s, "b")
		claim(t, s, "c")
		none := func() *generation { t.Error("created"); return nil }
		if _, _, err := s.Claim(key("d"), [32]byte{}, none); !errors.Is(err, replay.ErrFull) {
			t.Errorf("past the bound: %v", err)
		}
		if _, fresh, err := s.Claim(key("a"), [32]byte{}, none); fresh || err != nil {
			t.Errorf("one that is known: %v", err)
		}
		s.Expire(key("b"), b, time.Minute)
		s.Expire(key("b"), b, time.Hour) // again: it is forgotten once
		s.Expire(key("a"), a, time.Minute)
		claim(t, s, "d")
		wantKnown(t, s, "a", "c", "d")
		claim(t, s, "e")
		wantKnown(t, s, "c", "d", "e")
		if _, _, err := s.Claim(key("f"), [32]byte{}, none); !errors.Is(err, replay.ErrFull) {
			t.Errorf("past the bound: %v", err)
		}
		time.Sleep(2 * time.Hour) // the timers of generations that were forgotten early
		synctest.Wait()
		wantKnown(t, s, "c", "d", "e")
	})
}

// A generation whose time is prolonged at the moment at which it runs out either stays or is gone.
// It is never found first and forgotten then.
func TestExpireRaces(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newRegistry(0)
		prolonged := 0
		for range 200 {
			a := claim(t, s, "a")
			s.Expire(key("a"), a, time.Second)
			b, _, err := s.Claim(key("b"), [32]byte{}, func() *generation {
				time.Sleep(time.Second) // holds the lock until the timer waits for it
				return &generation{name: "b"}
			})
			if err != nil {
				t.Fatal(err)
			}
			s.Expire(key("a"), a, time.Second)
			_, ok := s.Find(key("a"))
			synctest.Wait()
			if _, still := s.Find(key("a")); ok && !still {
				t.Fatal("forgotten too early")
			}
			if ok {
				prolonged++
			}
			time.Sleep(time.Second)
			synctest.Wait()
			s.Forget(key("b"), b)
			wantKnown(t, s)
		}
		t.Logf("%d of 200 were prolonged", prolonged)
	})
}
