package replay_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluice-gateway/sluice/internal/relay/queue"
	"github.com/sluice-gateway/sluice/internal/relay/replay"
)

// client leaves and comes back as it likes, and writes down what it gets.
type client struct {
	l    *replay.Listener
	last int64
	got  strings.Builder
}

func newClient() *client { return &client{last: -1} }

// pop takes an event; each must be the next one, unless some were merged.
func (c *client) pop(merging bool) error {
	raw, number, err := c.l.Pop(nil)
	if err != nil {
		return err
	}
	if n := int64(number); n != c.last+1 && !(merging && n > c.last) {
		return fmt.Errorf("event %d after %d", n, c.last)
	}
	c.last = int64(number)
	c.got.Write(raw)
	return nil
}

func (c *client) leave() {
	if c.l != nil {
		c.l.Detach()
		c.l = nil
	}
}

// step does something at random.
func (c *client) step(t *testing.T, r *rand.Rand, f *replay.Fan, merging bool) {
	switch k := r.IntN(8); {
	case k == 0:
		c.leave()
	case c.l == nil:
		c.l = attach(t, f, c.last)
	default:
		for range r.IntN(5) {
			if err := c.pop(merging); errors.Is(err, queue.ErrEmpty) {
				return
			} else if err != nil {
				t.Fatal(err)
			}
		}
	}
}

// finish reads to the end.
func (c *client) finish(t *testing.T, f *replay.Fan, merging bool) string {
	if c.l == nil {
		c.l = attach(t, f, c.last)
	}
	for {
		err := c.pop(merging)
		if errors.Is(err, io.EOF) {
			return c.got.String()
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

// script is a random stream, and what a kept fan makes of it.
func script(r *rand.Rand) (stream, heard string) {
	var all, some strings.Builder
	for range r.IntN(40) {
		event := [...]string{
			beat, token(fmt.Sprint(r.IntN(1000))), token("é\\n"),
			"id: 7\r\ndata: a\r\ndata: b\r\n\r\n",
			"data: " + strings.Repeat("z", r.IntN(1500)) + "\n\n",
		}[r.IntN(5)]
		all.WriteString(event)
		if event != beat {
			some.WriteString(event)
		}
	}
	return all.String() + done, some.String() + done
}

// Clients that are cut off anywhere, and come back at any time, have the whole stream in the end, byte for byte.
func TestResume(t *testing.T) {
	for seed := range uint64(1000) {
		r := rand.New(rand.NewPCG(seed, 2))
		stream, heard := script(r)
		f := replay.NewFan(kept)
		clients := []*client{newClient(), newClient(), newClient()}[:1+r.IntN(3)]
		for _, e := range events(stream) {
			for _, c := range clients {
				c.step(t, r, f, false)
			}
			if err := f.Push(e); err != nil {
				t.Fatal(err)
			}
		}
		f.End(nil)
		for i, c := range clients {
			if got := c.finish(t, f, false); got != heard {
				t.Fatalf("seed %d, client %d: got %q, want %q", seed, i, got, heard)
			}
		}
	}
}

// content is what a client puts together.
func content(t *testing.T, stream string) string {
	var b strings.Builder
	for _, e := range events(stream) {
		var c struct {
			Choices []struct {
				Delta struct {
					Content string `json:"content"`
				} `json:"delta"`
			} `json:"choices"`
		}
		if e.IsDone() {
			b.WriteString("|done")
			continue
		}
		if err := json.Unmarshal(e.Data, &c); err != nil {
			t.Fatal(err)
		}
		b.WriteString(c.Choices[0].Delta.Content)
	}
	return b.String()
}

// Slow ones, whose events are merged, leave and come back, too: nothing is missing and nothing twice.
func TestResumeMerged(t *testing.T) {
	merged := false
	for seed := range uint64(200) {
		r := rand.New(rand.NewPCG(seed, 3))
		f := replay.NewFan(replay.Limits{Keep: time.Hour, Queue: queue.Limits{Soft: 1 + r.IntN(3)}})
		stream := ""
		c := newClient()
		for i := range 5 + r.IntN(40) {
			event := token(fmt.Sprint(i, " "))
			stream += event
			push(t, f, event)
			if r.IntN(3) == 0 {
				c.step(t, r, f, true)
			}
		}
		push(t, f, done)
		f.End(nil)
		got := c.finish(t, f, true)
		merged = merged || len(events(got)) < len(events(stream))
		if a, b := content(t, stream+done), content(t, got); a != b {
			t.Fatalf("seed %d: %q became %q", seed, a, b)
		}
	}
	if !merged {
		t.Error("nothing was merged")
	}
}

// The same with everybody at the same time: nobody misses anything, and nobody sleeps for ever.
func TestConcurrentResume(t *testing.T) {
	const total = 3000
	whole := numbered(total)
	synctest.Test(t, func(t *testing.T) {
		f := replay.NewFan(replay.Limits{Keep: time.Hour, Queue: queue.Limits{Hard: total, Soft: total}})
		idle := 0
		f.OnIdle(func(bool) { idle++ }) // one at a time: the race detector sees it
		var all sync.WaitGroup
		for seed := range uint64(6) {
			all.Go(func() {
				if got, err := comeAndGo(f, rand.New(rand.NewPCG(seed, 4))); got != whole || !errors.Is(err, io.EOF) {
					t.Errorf("client %d: %d bytes of %d, %v", seed, len(got), len(whole), err)
				}
			})
		}
		all.Go(func() {
			for i, e := range events(whole) {
				if err := f.Push(e); err != nil {
					t.Error(err)
				}
				if i%500 == 499 {
					time.Sleep(time.Second) // everybody has caught up and waits
				}
			}
			f.End(nil)
		})
		all.Wait()
		if f.Listeners() != 0 {
			t.Errorf("%d listen", f.Listeners())
		}
	})
}

// comeAndGo hears a stream in pieces.
func comeAndGo(f *replay.Fan, r *rand.Rand) (string, error) {
	c := newClient()
	defer c.leave()
	for {
		if c.l == nil {
			l, err := f.Attach(c.last)
			if err != nil {
				return c.got.String(), err
			}
			c.l = l
		}
		err := c.pop(false)
		switch {
		case errors.Is(err, queue.ErrEmpty):
			<-c.l.Ready()
		case err != nil:
			return c.got.String(), err
		case r.IntN(50) == 0:
			c.leave()
		}
	}
}
