package replay_test

import (
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/sluice-gateway/sluice/internal/relay/queue"
	"github.com/sluice-gateway/sluice/internal/relay/replay"
)

// fitfulClient is a client that accepts everything at once, only a part of it, or nothing.
type fitfulClient struct {
	subscriber *replay.Subscriber
	// room is the number of bytes that the client accepts without waiting.
	room atomic.Int64
	// The subscriber's lock guards the fields below.
	appended, received strings.Builder
	next               uint64
	inline             int // events that were written inline
	fault              error
}

func (c *fitfulClient) add(raw []byte, number uint64) {
	if number != c.next {
		c.fault = errors.Join(c.fault, fmt.Errorf("event %d came when %d was due", number, c.next))
	}
	c.next = number + 1
	c.appended.Write(raw)
}

// Append implements replay.InlineWriter.
func (c *fitfulClient) Append(raw []byte, number uint64) {
	c.add(raw, number)
	c.inline++
}

// TryFlush implements replay.InlineWriter.
func (c *fitfulClient) TryFlush() (whole bool) {
	text := c.appended.String()
	n := min(int64(len(text)), c.room.Load())
	c.room.Add(-n)
	c.received.WriteString(text[:n])
	c.appended.Reset()
	c.appended.WriteString(text[n:])
	return int(n) == len(text)
}

// flushAll sends everything, as a write that waits for the client does.
func (c *fitfulClient) flushAll() {
	c.received.WriteString(c.appended.String())
	c.appended.Reset()
}

// run is the subscriber's goroutine. It returns the error of Broadcast.Close.
func (c *fitfulClient) run(random *rand.Rand) error {
	for {
		<-c.subscriber.Ready()
		if random.IntN(4) == 0 {
			c.subscriber.Lock() // as for a heartbeat
			c.flushAll()
			c.subscriber.Unlock()
		}
		if err := c.popAll(); err != nil {
			return err
		}
	}
}

// popAll pops the events that wait, and sends them.
func (c *fitfulClient) popAll() error {
	c.subscriber.Lock()
	defer c.subscriber.Unlock()
	for {
		raw, number, err := c.subscriber.Pop(nil)
		switch {
		case err == nil:
			c.add(raw, number)
		case errors.Is(err, queue.ErrEmpty):
			c.flushAll()
			c.subscriber.ResumeInline()
			return nil
		default:
			c.flushAll()
			return err
		}
	}
}

// A client receives every event once and in order, however often it falls behind and catches up,
// and whether it subscribed at the beginning or later.
func TestInlineWritesLoseNothing(t *testing.T) {
	t.Parallel()
	runs := 300
	if testing.Short() {
		runs = 50
	}
	const n = 400
	all := numbered(n)
	list := events(all)
	var inline, queued int
	for seed := range runs {
		random := rand.New(rand.NewPCG(uint64(seed), 1))
		limits := replay.Limits{Queue: queue.Limits{MaxEvents: n + 1}}
		late := 0 // the events that are published before the client subscribes
		if seed%2 == 0 {
			limits.LogBytes, late = logBytes, random.IntN(n/2)
		}
		b := replay.NewBroadcast(limits)
		for _, e := range list[:late] {
			if err := b.Publish(e); err != nil {
				t.Fatal(err)
			}
		}
		c := &fitfulClient{subscriber: subscribe(t, b, -1)}
		c.subscriber.SetInlineWriter(c)
		var running sync.WaitGroup
		var ended error
		running.Go(func() { ended = c.run(rand.New(rand.NewPCG(uint64(seed), 2))) })
		for i, e := range list[late:] {
			c.room.Store(int64(random.IntN(400)))
			if err := b.Publish(e); err != nil {
				t.Fatal(err)
			}
			if random.IntN(3) == 0 || late+i == n-1 {
				b.Flush()
			}
			if random.IntN(4) == 0 {
				runtime.Gosched()
			}
		}
		b.Close(nil)
		running.Wait()
		if c.received.String() != all || c.fault != nil || !errors.Is(ended, io.EOF) {
			t.Fatalf("seed %d: %d bytes of %d were received, %v, %v", seed, c.received.Len(), len(all), c.fault, ended)
		}
		inline, queued = inline+c.inline, queued+n-c.inline
	}
	t.Logf("%d events were written inline, %d were queued", inline, queued)
	if inline == 0 || queued == 0 {
		t.Errorf("%d events were written inline and %d were queued, want some of both", inline, queued)
	}
}

// Nothing is written inline after Unsubscribe, and a client that comes back receives the rest.
func TestInlineWritesStop(t *testing.T) {
	t.Parallel()
	b := replay.NewBroadcast(withLog)
	list := events(numbered(4))
	c := &fitfulClient{subscriber: subscribe(t, b, -1)}
	c.subscriber.SetInlineWriter(c)
	c.room.Store(1 << 20)
	for i, e := range list {
		if i == 2 {
			c.subscriber.Unsubscribe()
		}
		if err := b.Publish(e); err != nil {
			t.Fatal(err)
		}
		b.Flush()
	}
	if want := numbered(2); c.received.String() != want || c.appended.Len() > 0 {
		t.Errorf("received %q, want %q", c.received.String(), want)
	}
	rest, _, _ := popAll(subscribe(t, b, 1))
	if want := strings.TrimPrefix(numbered(4), numbered(2)); rest != want {
		t.Errorf("the client that came back received %q, want %q", rest, want)
	}
}
