package memory

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
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

// TestReserve shows that Go collects once for many small allocations, and that the room for garbage
// takes no memory. Without the room, Go would collect about eight times.
func TestReserve(t *testing.T) {
	defer debug.SetMemoryLimit(debug.SetMemoryLimit(-1))
	t.Setenv("GOGC", "")
	SetLimit(1 << 30)
	debug.FreeOSMemory()
	m := &Monitor{}
	m.measure()
	before := m.InUse()
	m.Reserve()
	if limit := debug.SetMemoryLimit(-1); limit != 1<<30+garbageRoom {
		t.Errorf("the limit is %d", limit)
	}
	if m.measure(); m.InUse() > before+4<<20 {
		t.Errorf("%d bytes in use after %d", m.InUse(), before)
	}
	runtime.GC()
	var from, to debug.GCStats
	debug.ReadGCStats(&from)
	var garbage []byte
	size := os.Getpagesize()
	for range garbageRoom / size {
		garbage = make([]byte, size)
	}
	debug.ReadGCStats(&to)
	if n := to.NumGC - from.NumGC; n > 1 {
		t.Errorf("%d collections", n)
	}
	_ = garbage
	t.Setenv("GOGC", "50")
	other := &Monitor{}
	if other.Reserve(); other.room != nil {
		t.Error("room although GOGC is set")
	}
	runtime.KeepAlive(m)
}

// TestMonitorSettles shows that a quiet process gives back what its start has left, that it then
// waits, and that a busy process does not collect for it.
func TestMonitorSettles(t *testing.T) {
	m := &Monitor{}
	now := time.Now()
	if m.settle(now) {
		t.Fatal("settled before anything was measured")
	}
	garbage := make([]byte, 64<<20)
	garbage[0] = 1
	if m.settle(now) {
		t.Fatal("settled although the process has allocated 64 MiB")
	}
	runtime.KeepAlive(garbage) // Go may collect it only from here on
	if !m.settle(now) || m.InUse() > 48<<20 {
		t.Fatalf("%d MiB in use after the process was quiet", m.InUse()>>20)
	}
	if m.settle(now.Add(time.Hour)) {
		t.Error("settled without garbage")
	}
	defer debug.SetGCPercent(debug.SetGCPercent(-1)) // only settle collects from here on
	garbage = make([]byte, 64<<20)
	garbage[0] = 1
	m.settle(now.Add(time.Hour)) // a busy process
	if m.settle(now.Add(settleInterval / 2)) {
		t.Error("settled too soon")
	}
	runtime.KeepAlive(garbage)
	if !m.settle(now.Add(settleInterval)) {
		t.Error("did not settle again")
	}
	for range 20 { // quietly
		garbage = make([]byte, quietBytes/2)
		garbage[0] = 1
		if m.settle(now.Add(2 * settleInterval)) {
			t.Fatal("settled although the process was quiet since the last time")
		}
	}
	runtime.KeepAlive(garbage)
	if !m.settle(now.Add(settleInterval + idleInterval)) {
		t.Error("never settled what a quiet process leaves")
	}
}

// TestUnmapProgram shows that the pages of the program are unmapped, and that the program still
// runs.
func TestUnmapProgram(t *testing.T) {
	if UnmapProgram() < 1<<20 {
		t.Error("less than 1 MiB of the program was mapped")
	}
	if s := fmt.Sprintf("%x %v", sha256.Sum256(nil), json.Valid([]byte("{}"))); !strings.HasPrefix(s, "e3b0c442") {
		t.Error(s)
	}
}

// Only what has the content of the file and cannot be written is unmapped.
func TestReadOnlyMappings(t *testing.T) {
	const smaps = `00400000-00410000 r-xp 00000000 fe:00 7          /bin/my sluice
Rss:                  48 kB
Anonymous:             0 kB
VmFlags: rd ex mr mw me
00410000-00420000 r--p 00010000 fe:00 7          /bin/my sluice
Rss:                  16 kB
Anonymous:             4 kB
VmFlags: rd mr mw me
00420000-00430000 rw-p 00020000 fe:00 7          /bin/my sluice
Rss:                  16 kB
Anonymous:             0 kB
VmFlags: rd wr mr mw me
00430000-00431000 r--p 00030000 fe:00 7          /bin/my sluice
Rss:                   0 kB
Anonymous:             0 kB
Swap:                  4 kB
VmFlags: rd mr mw me ac
7f0000000000-7f0000001000 r-xp 00000000 fe:00 8  /lib/libc.so
Rss:                   4 kB
Anonymous:             0 kB
7f0000002000-7f0000003000 r--p 00000000 00:00 0
Rss:                   4 kB
Anonymous:             0 kB
`
	want := []mapping{{start: 0x400000, end: 0x410000, resident: 48 << 10}}
	if got := readOnlyMappings([]byte(smaps), "/bin/my sluice"); !slices.Equal(got, want) {
		t.Errorf("%+v", got)
	}
	if got := readOnlyMappings([]byte("nonsense\nx-y r--p 0 0 0 f\n"), "f"); len(got) != 0 {
		t.Errorf("%+v", got)
	}
}

// Reservations that do not fit never show in the total, and refuse nobody else.
func TestX7_ARefusalIsNeverCounted(t *testing.T) {
	b := NewBudget(100)
	var large, small sync.WaitGroup
	stop := make(chan struct{})
	for range 4 {
		large.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				if b.Reserve(Requests, 101) {
					t.Error("more than all was reserved")
					return
				}
			}
		})
	}
	for range 2 {
		small.Go(func() {
			for range 20_000 {
				if !b.Reserve(Requests, 50) {
					t.Error("half of all was refused")
					return
				}
				if total := b.Total(); total > 100 {
					t.Errorf("%d of 100 are in use", total)
				}
				b.Release(Requests, 50)
			}
		})
	}
	small.Wait()
	close(stop)
	large.Wait()
}
