package replay_test

import (
	"context"
	"errors"
	"io"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-gateway/sluice/internal/relay/queue"
	"github.com/sluice-gateway/sluice/internal/relay/replay"
)

// A producer that calls AwaitRoom never gets further ahead than it asks for, and the slowest
// subscriber sets the pace.
func TestAwaitRoom(t *testing.T) {
	const below = 4
	for _, limits := range []replay.Limits{withLog, {}} {
		synctest.Test(t, func(t *testing.T) {
			b := replay.NewBroadcast(limits)
			slow := subscribe(t, b, -1)
			if limits.LogBytes > 0 {
				go readAll(subscribe(t, b, -1))
			}
			go func() {
				for _, e := range events(numbered(50)) {
					if err := b.AwaitRoom(t.Context(), below); err != nil {
						t.Error(err)
					}
					if err := b.Publish(e); err != nil {
						t.Error(err)
					}
				}
				b.Close(nil)
			}()
			got := ""
			for taken := uint64(0); ; taken++ {
				synctest.Wait()
				if ahead := b.NextNumber() - taken; b.NextNumber() < 50 && ahead != below {
					t.Fatalf("the producer is %d events ahead, want %d", ahead, below)
				}
				b, _, err := slow.Pop(nil)
				if errors.Is(err, io.EOF) {
					break
				}
				got += string(b)
			}
			if got != numbered(50) {
				t.Errorf("got %q", got)
			}
		})
	}
}

// AwaitRoom returns when the full subscriber leaves or catches up, and when the context ends.
func TestAwaitRoomReturns(t *testing.T) {
	for name, test := range map[string]struct {
		what func(*replay.Broadcast, *replay.Subscriber, context.CancelCauseFunc)
		want error
	}{
		"left":    {what: func(_ *replay.Broadcast, l *replay.Subscriber, _ context.CancelCauseFunc) { l.Unsubscribe() }},
		"context": {what: func(_ *replay.Broadcast, _ *replay.Subscriber, cancel context.CancelCauseFunc) { cancel(errBroken) }, want: errBroken},
		"taken":   {what: func(_ *replay.Broadcast, l *replay.Subscriber, _ context.CancelCauseFunc) { popAll(l) }},
	} {
		synctest.Test(t, func(t *testing.T) {
			b := replay.NewBroadcast(withLog)
			l := subscribe(t, b, -1)
			if err := b.AwaitRoom(t.Context(), 0); err != nil { // 0 means 1: no event waits
				t.Fatal(err)
			}
			push(t, b, numbered(3))
			ctx, cancel := context.WithCancelCause(t.Context())
			defer cancel(nil)
			answer := make(chan error, 1)
			go func() { answer <- b.AwaitRoom(ctx, 3) }()
			synctest.Wait()
			select {
			case err := <-answer:
				t.Fatalf("%s: AwaitRoom returned %v at once", name, err)
			default:
			}
			test.what(b, l, cancel)
			if err := <-answer; !errors.Is(err, test.want) {
				t.Errorf("%s: %v", name, err)
			}
		})
	}
}

// AwaitRoom blocks as long as any subscriber is full.
func TestAwaitRoomOfAll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := replay.NewBroadcast(withLog)
		first, second := subscribe(t, b, -1), subscribe(t, b, -1)
		push(t, b, numbered(3))
		free := false
		go func() {
			if err := b.AwaitRoom(t.Context(), 3); err != nil {
				t.Error(err)
			}
			free = true
		}()
		synctest.Wait()
		popAll(first)
		synctest.Wait()
		if free {
			t.Error("AwaitRoom returned while a subscriber was full")
		}
		popAll(second)
		synctest.Wait()
		if !free {
			t.Error("AwaitRoom blocks although no subscriber is full")
		}
	})
}

// After the patience of the broadcast AwaitRoom cuts off the subscribers that have no room. Every
// event that is taken begins it anew.
func TestAwaitRoomLosesPatience(t *testing.T) {
	for _, limits := range []replay.Limits{withLog, {}} {
		synctest.Test(t, func(t *testing.T) {
			limits.Patience = time.Minute
			b := replay.NewBroadcast(limits)
			idle := false
			b.OnIdle(func(is bool) { idle = is })
			slow := subscribe(t, b, -1)
			for range 3 {
				push(t, b, token("a"))
				time.AfterFunc(50*time.Second, func() { want(t, slow, token("a"), queue.ErrEmpty) })
				if err := b.AwaitRoom(t.Context(), 1); err != nil {
					t.Fatal(err)
				}
			}
			push(t, b, token("a"))
			if err := b.AwaitRoom(t.Context(), 1); errors.Is(err, queue.ErrTooSlow) == (limits.LogBytes > 0) {
				t.Error(err)
			}
			want(t, slow, "", queue.ErrTooSlow)
			if !idle {
				t.Error("nobody was told that no subscriber is left")
			}
		})
	}
}

// AwaitRoom does not wait for a subscriber that hurries.
func TestAwaitRoomIgnoresWhoHurries(t *testing.T) {
	b := replay.NewBroadcast(withLog)
	subscribe(t, b, -1).Hurry()
	push(t, b, numbered(100))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := b.AwaitRoom(ctx, 1); err != nil {
		t.Error(err)
	}
}

// AwaitRoom does not count the events that a subscriber has still to replay.
func TestAwaitRoomIgnoresReplay(t *testing.T) {
	b := replay.NewBroadcast(withLog)
	push(t, b, numbered(100))
	subscribe(t, b, -1)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := b.AwaitRoom(ctx, 1); err != nil {
		t.Error(err)
	}
}

func TestReady(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := replay.NewBroadcast(withLog)
		first := subscribe(t, b, -1)
		push(t, b, token("a"))
		<-first.Ready()
		second := subscribe(t, b, -1)
		<-second.Ready() // for the events that it replays
		want(t, second, token("a"), queue.ErrEmpty)
		b.Close(nil)
		<-second.Ready()
		want(t, second, "", io.EOF)
		third := subscribe(t, b, 0)
		<-third.Ready() // for Close
		<-first.Ready()
		want(t, first, token("a"), io.EOF)
	})
}

func TestOnIdle(t *testing.T) {
	b := replay.NewBroadcast(replay.Limits{LogBytes: logBytes, Queue: queue.Limits{MergeAfter: 1, MaxEvents: 1}})
	var reported []bool
	b.OnIdle(func(idle bool) {
		reported = append(reported, idle)
		if idle != (b.Subscribers() == 0) { // Subscribers also fails if the lock is held
			t.Errorf("onIdle(%v) with %d subscribers", idle, b.Subscribers())
		}
	})
	push(t, b, numbered(2)) // no subscriber has come yet
	first, second := subscribe(t, b, -1), subscribe(t, b, -1)
	first.Unsubscribe()
	first.Unsubscribe()
	second.Unsubscribe()
	slow := subscribe(t, b, 1)
	push(t, b, numbered(2)) // cuts the subscriber off
	slow.Unsubscribe()
	subscribe(t, b, -1)
	if d := cmp.Diff([]bool{true, false, true, false}, reported); d != "" {
		t.Error(d)
	}
}

// The last report is current even if onIdle itself adds a subscriber.
func TestOnIdleReenters(t *testing.T) {
	b := replay.NewBroadcast(withLog)
	var reported []bool
	var back *replay.Subscriber
	depth := 0
	b.OnIdle(func(idle bool) {
		depth++
		defer func() { depth-- }()
		if depth > 1 {
			t.Error("onIdle was called while it ran")
		}
		reported = append(reported, idle)
		if idle && back == nil {
			back = subscribe(t, b, -1)
		}
	})
	subscribe(t, b, -1).Unsubscribe()
	if d := cmp.Diff([]bool{true, false}, reported); d != "" {
		t.Error(d)
	}
}

// When many subscribers come and go, the last report is current.
func TestOnIdleLast(t *testing.T) {
	for range 50 {
		b := replay.NewBroadcast(withLog)
		var last bool
		b.OnIdle(func(idle bool) { last = idle })
		var all sync.WaitGroup
		for range 4 {
			all.Go(func() {
				for range 20 {
					l, err := b.Subscribe(-1)
					if err != nil {
						t.Error(err)
						return
					}
					l.Unsubscribe()
				}
			})
		}
		all.Wait()
		if !last {
			t.Fatal("the last report says that there is a subscriber")
		}
	}
}
