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

// client unsubscribes and subscribes again at random, and records the events that it receives.
type client struct {
	subscriber *replay.Subscriber // nil: the client is away
	last       int64              // the number of its last event; -1: none
	got        strings.Builder
}

func newClient() *client { return &client{last: -1} }

// pop receives one event. It must be the next one; when merging, numbers may be skipped.
func (c *client) pop(merging bool) error {
	raw, number, err := c.subscriber.Pop(nil)
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

func (c *client) unsubscribe() {
	if c.subscriber != nil {
		c.subscriber.Unsubscribe()
		c.subscriber = nil
	}
}

// step subscribes, unsubscribes or pops a few events, at random.
func (c *client) step(t *testing.T, r *rand.Rand, b *replay.Broadcast, merging bool) {
	switch k := r.IntN(8); {
	case k == 0:
		c.unsubscribe()
	case c.subscriber == nil:
		c.subscriber = subscribe(t, b, c.last)
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

// finish reads the stream to its end.
func (c *client) finish(t *testing.T, b *replay.Broadcast, merging bool) string {
	if c.subscriber == nil {
		c.subscriber = subscribe(t, b, c.last)
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

// randomStream returns a random stream, and what a broadcast with a replay log delivers of it.
func randomStream(r *rand.Rand) (stream, delivered string) {
	var all, kept strings.Builder
	for range r.IntN(40) {
		event := [...]string{
			heartbeat, token(fmt.Sprint(r.IntN(1000))), token("é\\n"),
			"id: 7\r\ndata: a\r\ndata: b\r\n\r\n",
			"data: " + strings.Repeat("z", r.IntN(1500)) + "\n\n",
		}[r.IntN(5)]
		all.WriteString(event)
		if event != heartbeat {
			kept.WriteString(event)
		}
	}
	return all.String() + done, kept.String() + done
}

// Clients that leave anywhere and come back at any time have the whole stream in the end, byte for
// byte.
func TestResume(t *testing.T) {
	for seed := range uint64(1000) {
		r := rand.New(rand.NewPCG(seed, 2))
		stream, delivered := randomStream(r)
		b := replay.NewBroadcast(withLog)
		clients := []*client{newClient(), newClient(), newClient()}[:1+r.IntN(3)]
		for _, e := range events(stream) {
			for _, c := range clients {
				c.step(t, r, b, false)
			}
			if err := b.Publish(e); err != nil {
				t.Fatal(err)
			}
		}
		b.Close(nil)
		for i, c := range clients {
			if got := c.finish(t, b, false); got != delivered {
				t.Fatalf("seed %d, client %d: got %q, want %q", seed, i, got, delivered)
			}
		}
	}
}

// content returns the text that a client assembles from a stream.
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

// Slow clients, whose events are merged, leave and come back too. Nothing is missing and nothing
// comes twice.
func TestResumeMerged(t *testing.T) {
	merged := false
	for seed := range uint64(200) {
		r := rand.New(rand.NewPCG(seed, 3))
		b := replay.NewBroadcast(replay.Limits{LogBytes: logBytes, Queue: queue.Limits{MergeAfter: 1 + r.IntN(3)}})
		stream := ""
		c := newClient()
		for i := range 5 + r.IntN(40) {
			event := token(fmt.Sprint(i, " "))
			stream += event
			push(t, b, event)
			if r.IntN(3) == 0 {
				c.step(t, r, b, true)
			}
		}
		push(t, b, done)
		b.Close(nil)
		got := c.finish(t, b, true)
		merged = merged || len(events(got)) < len(events(stream))
		if a, b := content(t, stream+done), content(t, got); a != b {
			t.Fatalf("seed %d: %q became %q", seed, a, b)
		}
	}
	if !merged {
		t.Error("nothing was merged")
	}
}

// The same with concurrent clients: no event is missing, and no client sleeps for ever.
func TestConcurrentResume(t *testing.T) {
	const total = 3000
	whole := numbered(total)
	synctest.Test(t, func(t *testing.T) {
		b := replay.NewBroadcast(replay.Limits{LogBytes: logBytes, Queue: queue.Limits{MaxEvents: total, MergeAfter: total}})
		idle := 0
		b.OnIdle(func(bool) { idle++ }) // calls must not overlap: the race detector would report it
		var all sync.WaitGroup
		for seed := range uint64(6) {
			all.Go(func() {
				if got, err := comeAndGo(b, rand.New(rand.NewPCG(seed, 4))); got != whole || !errors.Is(err, io.EOF) {
					t.Errorf("client %d: %d bytes of %d, %v", seed, len(got), len(whole), err)
				}
			})
		}
		all.Go(func() {
			for i, e := range events(whole) {
				if err := b.Publish(e); err != nil {
					t.Error(err)
				}
				if i%500 == 499 {
					time.Sleep(time.Second) // every client has caught up and waits
				}
			}
			b.Close(nil)
		})
		all.Wait()
		if b.Subscribers() != 0 {
			t.Errorf("%d subscribers, want 0", b.Subscribers())
		}
	})
}

// comeAndGo receives a stream in pieces.
func comeAndGo(b *replay.Broadcast, r *rand.Rand) (string, error) {
	c := newClient()
	defer c.unsubscribe()
	for {
		if c.subscriber == nil {
			s, err := b.Subscribe(c.last)
			if err != nil {
				return c.got.String(), err
			}
			c.subscriber = s
		}
		err := c.pop(false)
		switch {
		case errors.Is(err, queue.ErrEmpty):
			<-c.subscriber.Ready()
		case err != nil:
			return c.got.String(), err
		case r.IntN(50) == 0:
			c.unsubscribe()
		}
	}
}
