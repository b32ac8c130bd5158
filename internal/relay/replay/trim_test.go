package replay_test

import (
	"io"
	"math/rand/v2"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluice-gateway/sluice/internal/relay/queue"
	"github.com/sluice-gateway/sluice/internal/relay/replay"
)

func TestTrimByAge(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := replay.NewFan(replay.Limits{Keep: 5 * time.Second})
		list := events(numbered(20))
		for _, e := range list {
			time.Sleep(time.Second)
			if err := f.Push(e); err != nil {
				t.Fatal(err)
			}
		}
		// The last is number 19, and number 14 is five seconds old.
		wantGone(t, f, 12)
		wantGone(t, f, -1)
		rest := strings.TrimPrefix(numbered(20), numbered(14))
		want(t, attach(t, f, 13), rest, queue.ErrEmpty)
		// When nothing comes, nothing goes: neither while an engine thinks nor after the end.
		time.Sleep(time.Minute)
		want(t, attach(t, f, 13), rest, queue.ErrEmpty)
		replaying := attach(t, f, 13)
		push(t, f, done)
		wantGone(t, f, 18)
		want(t, attach(t, f, 19), done, queue.ErrEmpty)
		want(t, replaying, rest+done, queue.ErrEmpty) // what was there when it came is its own
		f.End(nil)
		time.Sleep(time.Minute)
		want(t, attach(t, f, 19), done, io.EOF)
	})
}

func TestTrimByBytes(t *testing.T) {
	small, large, huge := "data: 1\n\n", "data: "+strings.Repeat("x", 2000)+"\n\n", "data: "+strings.Repeat("y", 3000)+"\n\n"
	size := func(stream string) (n int) {
		for _, e := range events(stream) {
			n += len(e.Raw) + counted
		}
		return n
	}
	f := replay.NewFan(replay.Limits{Keep: time.Hour, KeepBytes: size(large + small)})
	push(t, f, small+large+small)
	wantGone(t, f, -1)
	want(t, attach(t, f, 0), large+small, queue.ErrEmpty)
	push(t, f, small)
	wantGone(t, f, 0)
	want(t, attach(t, f, 1), small+small, queue.ErrEmpty)
	// One that is larger than all that may be kept is passed on and not kept.
	l := attach(t, f, 3)
	push(t, f, huge)
	wantGone(t, f, 3)
	want(t, l, huge, queue.ErrEmpty)
	want(t, attach(t, f, 4), "", queue.ErrEmpty)
}

// Whatever was pushed, exactly the newest events that fit can be had.
func TestTrimModel(t *testing.T) {
	for seed := range uint64(200) {
		r := rand.New(rand.NewPCG(seed, 1))
		most := r.IntN(5000)
		f := replay.NewFan(replay.Limits{Keep: time.Hour, KeepBytes: max(most, 1)})
		var raws []string
		for range 1 + r.IntN(200) {
			raws = append(raws, "data: "+strings.Repeat("y", r.IntN(400))+"\n\n")
			push(t, f, raws[len(raws)-1])
		}
		first, held := len(raws), 0
		for first > 0 && held+len(raws[first-1])+counted <= most {
			first--
			held += len(raws[first]) + counted
		}
		if first > 0 {
			wantGone(t, f, int64(first)-2)
		}
		want(t, attach(t, f, int64(first)-1), strings.Join(raws[first:], ""), queue.ErrEmpty)
	}
}
