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

// A producer that waits is never further ahead than it may be, and the slowest sets the pace.
func TestAwait(t *testing.T) {
	const below = 4
	for _, limits := range []replay.Limits{kept, {}} {
		synctest.Test(t, func(t *testing.T) {
			f := replay.NewFan(limits)
			slow := attach(t, f, -1)
			if limits.Keep > 0 {
				go hear(attach(t, f, -1))
			}
			go func() {
				for _, e := range events(numbered(50)) {
					if err := f.Await(t.Context(), below); err != nil {
						t.Error(err)
					}
					if err := f.Push(e); err != nil {
						t.Error(err)
					}
				}
				f.End(nil)
			}()
			got := ""
			for taken := uint64(0); ; taken++ {
				synctest.Wait()
				if ahead := f.Next() - taken; f.Next() < 50 && ahead != below {
					t.Fatalf("%d wait", ahead)
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

// What waits for one who leaves, is dropped, or does not listen any more holds nobody up.
func TestAwaitEnds(t *testing.T) {
	for name, test := range map[string]struct {
		what func(*replay.Fan, *replay.Listener, context.CancelCauseFunc)
		want error
	}{
		"left":    {what: func(_ *replay.Fan, l *replay.Listener, _ context.CancelCauseFunc) { l.Detach() }},
		"dropped": {what: func(f *replay.Fan, _ *replay.Listener, _ context.CancelCauseFunc) { f.Drop(errBroken) }},
		"context": {what: func(_ *replay.Fan, _ *replay.Listener, cancel context.CancelCauseFunc) { cancel(errBroken) }, want: errBroken},
		"taken":   {what: func(_ *replay.Fan, l *replay.Listener, _ context.CancelCauseFunc) { popAll(l) }},
	} {
		synctest.Test(t, func(t *testing.T) {
			f := replay.NewFan(kept)
			l := attach(t, f, -1)
			if err := f.Await(t.Context(), 0); err != nil { // as 1: nothing waits
				t.Fatal(err)
			}
			push(t, f, numbered(3))
			ctx, cancel := context.WithCancelCause(t.Context())
			defer cancel(nil)
			answer := make(chan error, 1)
			go func() { answer <- f.Await(ctx, 3) }()
			synctest.Wait()
			select {
			case err := <-answer:
				t.Fatalf("%s: not awaited: %v", name, err)
			default:
			}
			test.what(f, l, cancel)
			if err := <-answer; !errors.Is(err, test.want) {
				t.Errorf("%s: %v", name, err)
			}
		})
	}
}

// Of two who are behind one alone is not enough.
func TestAwaitAll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := replay.NewFan(kept)
		a, b := attach(t, f, -1), attach(t, f, -1)
		push(t, f, numbered(3))
		free := false
		go func() {
			if err := f.Await(t.Context(), 3); err != nil {
				t.Error(err)
			}
			free = true
		}()
		synctest.Wait()
		popAll(a)
		synctest.Wait()
		if free {
			t.Error("one is still behind")
		}
		popAll(b)
		synctest.Wait()
		if !free {
			t.Error("nobody is behind")
		}
	})
}

// One who replays waits for nothing, however much it is.
func TestAwaitReplay(t *testing.T) {
	f := replay.NewFan(kept)
	push(t, f, numbered(100))
	attach(t, f, -1)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := f.Await(ctx, 1); err != nil {
		t.Error(err)
	}
}

func TestReady(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := replay.NewFan(kept)
		first := attach(t, f, -1)
		push(t, f, token("a"))
		<-first.Ready()
		second := attach(t, f, -1)
		<-second.Ready() // for what it replays
		want(t, second, token("a"), queue.ErrEmpty)
		f.End(nil)
		<-second.Ready()
		want(t, second, "", io.EOF)
		third := attach(t, f, 0)
		<-third.Ready() // for the end
		<-first.Ready()
		f.Drop(errBroken)
		<-first.Ready()
		want(t, first, "", errBroken)
	})
}

func TestOnIdle(t *testing.T) {
	f := replay.NewFan(replay.Limits{Keep: time.Hour, Queue: queue.Limits{Soft: 1, Hard: 1}})
	var told []bool
	f.OnIdle(func(idle bool) {
		told = append(told, idle)
		if idle != (f.Listeners() == 0) { // and the lock is not held
			t.Errorf("told %v, %d listen", idle, f.Listeners())
		}
	})
	push(t, f, numbered(2)) // nobody has come yet
	a, b := attach(t, f, -1), attach(t, f, -1)
	a.Detach()
	a.Detach()
	b.Detach()
	slow := attach(t, f, 1)
	push(t, f, numbered(2)) // gives it up
	slow.Detach()
	attach(t, f, -1)
	if d := cmp.Diff([]bool{true, false, true, false}, told); d != "" {
		t.Error(d)
	}
}

// What is told last is so, even when somebody comes while it is told, or the one who is told does something.
func TestOnIdleReenters(t *testing.T) {
	f := replay.NewFan(kept)
	var told []bool
	var back *replay.Listener
	depth := 0
	f.OnIdle(func(idle bool) {
		depth++
		defer func() { depth-- }()
		if depth > 1 {
			t.Error("told while it is told")
		}
		told = append(told, idle)
		if idle && back == nil {
			back = attach(t, f, -1)
		}
	})
	attach(t, f, -1).Detach()
	if d := cmp.Diff([]bool{true, false}, told); d != "" {
		t.Error(d)
	}
}

// With many who come and go the last word is right.
func TestOnIdleLast(t *testing.T) {
	for range 50 {
		f := replay.NewFan(kept)
		var last bool
		f.OnIdle(func(idle bool) { last = idle })
		var all sync.WaitGroup
		for range 4 {
			all.Go(func() {
				for range 20 {
					l, err := f.Attach(-1)
					if err != nil {
						t.Error(err)
						return
					}
					l.Detach()
				}
			})
		}
		all.Wait()
		if !last {
			t.Fatal("told that somebody is there")
		}
	}
}
