package memory

import (
	"context"
	"math/rand/v2"
	"runtime/debug"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

func TestBudget(t *testing.T) {
	b := NewBudget(1000)
	if !b.Reserve(Requests, 600) || b.Reserve(Answers, 400) || !b.Reserve(Answers, 300) || b.Reserve(Replays, 1) || !b.Reserve(Requests, 100) || b.Reserve(Requests, 1) {
		t.Errorf("%d in use", b.Total())
	}
	if b.Used(Requests) != 700 || b.Used(Answers) != 300 || b.Refused(Answers) != 1 || b.Refused(Replays) != 1 || b.Refused(Requests) != 1 {
		t.Errorf("%d, %d", b.Used(Requests), b.Used(Answers))
	}
	b.Release(Requests, 700)
	b.Release(Answers, 300)
	if b.Total() != 0 || !b.Reserve(Replays, 500) || b.Reserve(Replays, 1) {
		t.Errorf("%d in use", b.Total())
	}
	for _, none := range []*Budget{nil, NewBudget(0)} {
		if !none.Reserve(Replays, 1<<40) || !none.Await(t.Context(), Requests, 1<<40) {
			t.Error("a budget without a limit has refused")
		}
	}
}

func TestAwait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := NewBudget(100)
		b.Reserve(Requests, 80)
		got := make(chan bool)
		go func() { got <- b.Await(t.Context(), Requests, 50) }()
		synctest.Wait()
		b.Release(Requests, 20)
		synctest.Wait()
		b.Release(Requests, 20)
		if !<-got || b.Total() != 90 {
			t.Errorf("%d in use", b.Total())
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if b.Await(ctx, Requests, 50) || b.Refused(Requests) != 1 || b.Total() != 90 {
			t.Errorf("%d in use", b.Total())
		}
	})
}

func TestHold(t *testing.T) {
	b := NewBudget(100 * step)
	h := b.Hold(Requests)
	if !h.Resize(1) || b.Total() != step || !h.Resize(10*step) || b.Total() != 10*step || !h.Resize(9*step) || b.Total() != 10*step {
		t.Errorf("%d in use", b.Total())
	}
	if h.Resize(101*step) || b.Total() != 10*step || !h.Resize(step) || b.Total() != step {
		t.Errorf("%d in use", b.Total())
	}
	h.Release()
	h.Release()
	if b.Total() != 0 {
		t.Errorf("%d in use", b.Total())
	}
	var none Hold
	if !none.Resize(1 << 40) {
		t.Error("a hold without a budget was refused")
	}
	none.Release()
}

// Whatever goroutines do at the same time, nothing is lost and the limit holds.
func TestBudgetConcurrently(t *testing.T) {
	b := NewBudget(1 << 20)
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			h := b.Hold(Kind(rand.IntN(kinds)))
			for range 2000 {
				h.Resize(rand.Int64N(1 << 19))
				if b.Await(t.Context(), Requests, 0) && b.Used(Answers) < 0 {
					t.Error("less than nothing is in use")
				}
			}
			h.Release()
		})
	}
	all.Wait()
	if b.Total() != 0 {
		t.Errorf("%d in use at the end", b.Total())
	}
}

// TestX7_MemoryIsGivenBack shows that the process does not keep what a burst has used.
func TestX7_MemoryIsGivenBack(t *testing.T) {
	b := NewBudget(1 << 30)
	m := &Monitor{Budget: b}
	held := make([]byte, 256<<20)
	for i := 0; i < len(held); i += 4096 {
		held[i] = 1
	}
	b.Reserve(Answers, int64(len(held)))
	m.measure()
	if m.InUse() < 256<<20 || m.free() {
		t.Fatalf("%d MiB in use", m.InUse()>>20)
	}
	held = nil
	b.Release(Answers, 256<<20)
	if !m.free() || m.InUse() > 128<<20 || m.free() {
		t.Errorf("%d MiB in use after it", m.InUse()>>20)
	}
	_ = held
}

func TestX7_SetLimit(t *testing.T) {
	defer debug.SetMemoryLimit(debug.SetMemoryLimit(-1))
	t.Setenv("GOMEMLIMIT", "")
	if n, env := SetLimit(1 << 30); n != 1<<30 || env || debug.SetMemoryLimit(-1) != 1<<30 {
		t.Errorf("%d, %v", n, env)
	}
	t.Setenv("GOMEMLIMIT", "1GiB")
	if n, env := SetLimit(1 << 20); n != 1<<30 || !env {
		t.Errorf("%d, %v", n, env)
	}
}
