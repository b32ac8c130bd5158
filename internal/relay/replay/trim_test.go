package replay_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/sluice-gateway/sluice/internal/relay/queue"
	"github.com/sluice-gateway/sluice/internal/relay/replay"
)

func TestTrimByBytes(t *testing.T) {
	small, large, huge := "data: 1\n\n", "data: "+strings.Repeat("x", 2000)+"\n\n", "data: "+strings.Repeat("y", 3000)+"\n\n"
	size := func(stream string) (n int) {
		for _, e := range events(stream) {
			n += len(e.Raw) + entryOverhead
		}
		return n
	}
	b := replay.NewBroadcast(replay.Limits{LogBytes: size(large + small)})
	push(t, b, small+large+small)
	wantNotKept(t, b, -1)
	want(t, subscribe(t, b, 0), large+small, queue.ErrEmpty)
	push(t, b, small)
	wantNotKept(t, b, 0)
	want(t, subscribe(t, b, 1), small+small, queue.ErrEmpty)
	// An event that is larger than the log is delivered and not kept.
	l := subscribe(t, b, 3)
	push(t, b, huge)
	wantNotKept(t, b, 3)
	want(t, l, huge, queue.ErrEmpty)
	want(t, subscribe(t, b, 4), "", queue.ErrEmpty)
}

// The log always keeps exactly the newest events that fit.
func TestTrimModel(t *testing.T) {
	for seed := range uint64(200) {
		r := rand.New(rand.NewPCG(seed, 1))
		limit := r.IntN(5000)
		b := replay.NewBroadcast(replay.Limits{LogBytes: max(limit, 1)})
		var raws []string
		for range 1 + r.IntN(200) {
			raws = append(raws, "data: "+strings.Repeat("y", r.IntN(400))+"\n\n")
			push(t, b, raws[len(raws)-1])
		}
		first, held := len(raws), 0
		for first > 0 && held+len(raws[first-1])+entryOverhead <= limit {
			first--
			held += len(raws[first]) + entryOverhead
		}
		if first > 0 {
			wantNotKept(t, b, int64(first)-2)
		}
		want(t, subscribe(t, b, int64(first)-1), strings.Join(raws[first:], ""), queue.ErrEmpty)
	}
}

// A broadcast tells each event that it drops, in order, before a subscriber that needs them all
// receives those that are kept.
func TestDroppedEvents(t *testing.T) {
	b := replay.NewBroadcast(replay.Limits{LogBytes: 3 * (len("data: 0\n\n") + entryOverhead)})
	dropped, all := "", ""
	b.OnDrop(func(raw []byte) { dropped += string(raw) })
	idle := false
	b.OnIdle(func(is bool) { idle = is })
	for i := range 10 {
		event := fmt.Sprintf("data: %d\n\n", i)
		push(t, b, event)
		all += event
		kept := max(i-2, 0)                                        // the number of the first event that is kept
		for _, after := range []int64{int64(kept) - 1, int64(i)} { // all that a client may have seen
			before := "unset"
			s, err := b.SubscribeKept(after, func() { before = dropped })
			if err != nil {
				t.Fatal(err)
			}
			want(t, s, all[kept*len(event):], queue.ErrEmpty)
			if before != all[:kept*len(event)] || idle {
				t.Errorf("after %d events these were dropped: %q; idle: %v", i+1, before, idle)
			}
			s.Unsubscribe()
		}
		for _, after := range []int64{int64(kept) - 2, int64(i) + 1} {
			if _, err := b.SubscribeKept(after, func() { t.Errorf("it begins after event %d of %d", after, i) }); !errors.Is(err, replay.ErrNotKept) {
				t.Errorf("after event %d of %d: %v", after, i, err)
			}
		}
	}
}
