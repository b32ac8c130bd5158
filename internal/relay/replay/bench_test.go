package replay_test

import (
	"errors"
	"fmt"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/sluice-gateway/sluice/internal/relay/queue"
	"github.com/sluice-gateway/sluice/internal/relay/replay"
)

// heap is how many bytes are in use.
func heap() uint64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// What is kept is bounded in memory, small events as well, and Drop lets go of it.
func TestKeptMemory(t *testing.T) {
	const most = 4 << 20
	for _, stream := range []string{done, token("token"), "data: " + strings.Repeat("x", 1000) + "\n\n"} {
		e := events(stream)[0]
		before := heap()
		f := replay.NewFan(kept)
		for range 3 * most / (len(stream) + counted) {
			if err := f.Push(e); err != nil {
				t.Fatal(err)
			}
		}
		held := int(heap() - before)
		f.Drop(errBroken)
		after := int(heap()) - int(before)
		runtime.KeepAlive(f)
		t.Logf("events of %d bytes: %d KiB, then %d", len(stream), held>>10, after>>10)
		if held < most/2 || held > most*3/2 || after > most/8 {
			t.Errorf("%d bytes are held, and %d after the end", held, after)
		}
	}
}

// Streams that wait for their next event must be many.
func TestIdleMemory(t *testing.T) {
	const streams, most = 10_000, 40_000
	type stream struct {
		f *replay.Fan
		l *replay.Listener
	}
	e := events(token("token"))[0]
	before := heap()
	all := make([]stream, streams)
	var buf []byte
	for i := range all {
		f := replay.NewFan(replay.Limits{})
		all[i] = stream{f, attach(t, f, -1)}
		for n := range 20 { // some come together
			if err := f.Push(e); err != nil {
				t.Fatal(err)
			}
			for err := error(nil); n%4 == 3 && !errors.Is(err, queue.ErrEmpty); {
				buf, _, err = all[i].l.Pop(buf[:0])
			}
		}
	}
	each := int64(heap()-before) / streams
	runtime.KeepAlive(all)
	t.Logf("%d bytes each", each)
	if each > most {
		t.Errorf("an idle stream holds %d bytes", each)
	}
}

func TestNoAllocations(t *testing.T) {
	f := replay.NewFan(replay.Limits{})
	f.OnIdle(func(bool) {})
	l := attach(t, f, -1)
	e := events(token("token"))[0]
	var buf []byte
	if n := testing.AllocsPerRun(100, func() {
		if f.Await(t.Context(), 8) != nil || f.Push(e) != nil {
			t.Fatal("not pushed")
		}
		buf, _, _ = l.Pop(buf[:0])
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func BenchmarkPushPop(b *testing.B) {
	for name, test := range map[string]struct {
		limits    replay.Limits
		listeners int
	}{
		"unkept":  {listeners: 1},
		"kept":    {limits: replay.Limits{Keep: 5 * time.Second}, listeners: 1},
		"kept, 4": {limits: replay.Limits{Keep: 5 * time.Second}, listeners: 4},
		"nobody":  {limits: replay.Limits{Keep: 5 * time.Second}},
	} {
		b.Run(name, func(b *testing.B) {
			f := replay.NewFan(test.limits)
			var all []*replay.Listener
			for range test.listeners {
				all = append(all, attach(b, f, -1))
			}
			e := events(token("token"))[0]
			var buf []byte
			b.ReportAllocs()
			for b.Loop() {
				if err := f.Push(e); err != nil {
					b.Fatal(err)
				}
				for _, l := range all {
					buf, _, _ = l.Pop(buf[:0])
				}
			}
		})
	}
}

// BenchmarkAttach is one who comes back to a stream that has kept so many events.
func BenchmarkAttach(b *testing.B) {
	for _, n := range []int{100, 10_000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			f := replay.NewFan(kept)
			e := events(token("token"))[0]
			for range n {
				if err := f.Push(e); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportAllocs()
			for b.Loop() {
				attach(b, f, -1).Detach()
			}
		})
	}
}
