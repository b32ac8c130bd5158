package replay_test

import (
	"errors"
	"fmt"
	"runtime"
	"strings"
	"testing"

	"github.com/sluice-gateway/sluice/internal/relay/queue"
	"github.com/sluice-gateway/sluice/internal/relay/replay"
)

// heap returns the bytes of the heap that are in use.
func heap() uint64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// The memory of the replay log is bounded, for small events too.
func TestLogMemory(t *testing.T) {
	for _, stream := range []string{done, token("token"), "data: " + strings.Repeat("x", 1000) + "\n\n"} {
		e := events(stream)[0]
		before := heap()
		b := replay.NewBroadcast(withLog)
		for range 3 * logBytes / (len(stream) + entryOverhead) {
			if err := b.Publish(e); err != nil {
				t.Fatal(err)
			}
		}
		held := int(heap() - before)
		runtime.KeepAlive(b)
		t.Logf("events of %d bytes: %d KiB", len(stream), held>>10)
		if held < logBytes/2 || held > logBytes*3/2 {
			t.Errorf("the log of events of %d bytes holds %d bytes", len(stream), held)
		}
	}
}

// A stream that waits for its next event uses little memory, so that there can be many.
func TestIdleMemory(t *testing.T) {
	const streams, maxBytes = 10_000, 40_000
	type stream struct {
		broadcast  *replay.Broadcast
		subscriber *replay.Subscriber
	}
	e := events(token("token"))[0]
	before := heap()
	all := make([]stream, streams)
	var buf []byte
	for i := range all {
		b := replay.NewBroadcast(replay.Limits{})
		all[i] = stream{b, subscribe(t, b, -1)}
		for n := range 20 { // the subscriber pops four events at a time
			if err := b.Publish(e); err != nil {
				t.Fatal(err)
			}
			for err := error(nil); n%4 == 3 && !errors.Is(err, queue.ErrEmpty); {
				buf, _, err = all[i].subscriber.Pop(buf[:0])
			}
		}
	}
	each := int64(heap()-before) / streams
	runtime.KeepAlive(all)
	t.Logf("%d bytes each", each)
	if each > maxBytes {
		t.Errorf("an idle stream holds %d bytes, want at most %d", each, maxBytes)
	}
}

func TestNoAllocations(t *testing.T) {
	b := replay.NewBroadcast(replay.Limits{})
	b.OnIdle(func(bool) {})
	s := subscribe(t, b, -1)
	e := events(token("token"))[0]
	var buf []byte
	if n := testing.AllocsPerRun(100, func() {
		if b.AwaitRoom(t.Context(), 8) != nil || b.Publish(e) != nil {
			t.Fatal("not published")
		}
		buf, _, _ = s.Pop(buf[:0])
	}); n != 0 {
		t.Errorf("%v allocations per event, want 0", n)
	}
}

func BenchmarkPublishPop(b *testing.B) {
	for name, test := range map[string]struct {
		limits      replay.Limits
		subscribers int
	}{
		"no log":              {subscribers: 1},
		"log":                 {limits: withLog, subscribers: 1},
		"log, 4 subscribers":  {limits: withLog, subscribers: 4},
		"log, no subscribers": {limits: withLog},
	} {
		b.Run(name, func(b *testing.B) {
			broadcast := replay.NewBroadcast(test.limits)
			var all []*replay.Subscriber
			for range test.subscribers {
				all = append(all, subscribe(b, broadcast, -1))
			}
			e := events(token("token"))[0]
			var buf []byte
			b.ReportAllocs()
			for b.Loop() {
				if err := broadcast.Publish(e); err != nil {
					b.Fatal(err)
				}
				for _, s := range all {
					buf, _, _ = s.Pop(buf[:0])
				}
			}
		})
	}
}

// BenchmarkSubscribe measures a client that comes back to a stream with so many events in its log.
func BenchmarkSubscribe(b *testing.B) {
	for _, n := range []int{100, 10_000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			broadcast := replay.NewBroadcast(withLog)
			e := events(token("token"))[0]
			for range n {
				if err := broadcast.Publish(e); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportAllocs()
			for b.Loop() {
				subscribe(b, broadcast, -1).Unsubscribe()
			}
		})
	}
}
