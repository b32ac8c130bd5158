package processors

import (
	"context"
	"fmt"
	"math"
	"runtime"
	"runtime/metrics"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// TestChoice has the use of a process on 16 processors, and how many of them it then gets. Each use
// lasts a second, in ten measurements.
func TestChoice(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name   string
		uses   []float64
		wanted string // the number at the end of each second
	}{
		{"it keeps what it began with for five seconds", []float64{0, 0, 0, 0, 0, 0, 0}, "16 16 16 16 16 2 2"},
		{"a steady load", []float64{0, 0, 0, 0, 0, 1.2, 1.6, 1.6, 3.2, 3.2}, "16 16 16 16 16 2 3 3 5 5"},
		{"a load that fills what there is", []float64{0, 0, 0, 0, 0, 0, 16, 16}, "16 16 16 16 16 2 16 16"},
		{"peaks are kept for five seconds", []float64{0, 0, 0, 0, 0, 1.6, 0.1, 0.1, 0.1, 0.1, 0.1}, "16 16 16 16 16 3 3 3 3 3 2"},
		{"never more than there are", []float64{20, 20, 20}, "16 16 16"},
	} {
		begun := time.Now()
		chooser := newChooser(16, begun)
		var got []string
		for second, use := range c.uses {
			for tenth := range 10 {
				use := min(use, float64(chooser.now)) // a process cannot use more than it has
				chooser.choose(use, begun.Add(time.Duration(second)*time.Second+time.Duration(tenth)*100*time.Millisecond))
			}
			got = append(got, fmt.Sprint(chooser.now))
		}
		if text := strings.Join(got, " "); text != c.wanted {
			t.Errorf("%s: %s, want %s", c.name, text, c.wanted)
		}
	}
}

// TestChoiceAfterAPause: a machine that was suspended has no seconds that tell anything.
func TestChoiceAfterAPause(t *testing.T) {
	t.Parallel()
	begun := time.Now()
	c := newChooser(16, begun)
	if c.choose(0, begun.Add(1000*time.Hour)); c.now != least {
		t.Errorf("%d processors after a pause, want %d", c.now, least)
	}
}

// TestProcessorsFollowTheLoad has a process that uses all processors it gets, but for pauses.
func TestProcessorsFollowTheLoad(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		var busy atomic.Bool
		var has atomic.Int64
		has.Store(16)
		used, last := time.Duration(0), time.Now()
		measure := func() time.Duration {
			if busy.Load() {
				used += time.Since(last) * time.Duration(has.Load())
			}
			last = time.Now()
			return used
		}
		go follow(ctx, newChooser(16, time.Now()), measure, func(c *chooser) { has.Store(int64(c.now)) })
		for _, step := range []struct {
			busy  bool
			after time.Duration
			want  int64
		}{
			{false, 4 * time.Second, 16}, {false, 2 * time.Second, 2}, {true, time.Second, 16}, {true, 10 * time.Second, 16},
			{false, 4 * time.Second, 16}, {false, 2 * time.Second, 2},
		} {
			busy.Store(step.busy)
			time.Sleep(step.after)
			synctest.Wait()
			if n := has.Load(); n != step.want {
				t.Errorf("busy %v, after %v: %d processors, want %d", step.busy, step.after, n, step.want)
			}
		}
	})
}

// TestGoGetsWhatIsChosen: the number is Go's own when it is the greatest. It belongs to the whole
// process, so no other test runs meanwhile.
func TestGoGetsWhatIsChosen(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(0))
	own := Available()
	c := &chooser{most: 100, now: 7}
	if set(c); runtime.GOMAXPROCS(0) != 7 {
		t.Errorf("Go runs on %d processors, 7 were chosen", runtime.GOMAXPROCS(0))
	}
	if n := Available(); n != own || runtime.GOMAXPROCS(0) != 7 {
		t.Errorf("there are %d processors, and Go runs on %d; want %d and 7", n, runtime.GOMAXPROCS(0), own)
	}
	c.now = 100
	if set(c); runtime.GOMAXPROCS(0) != own || c.now != own || c.most != own {
		t.Errorf("Go runs on %d processors, %d are its own choice: %+v", runtime.GOMAXPROCS(0), own, c)
	}
}

// TestWaitsCount: goroutines that wait for a processor want it as much as those that run. Four
// goroutines share one processor, so three of them wait, also if other programs use the machine.
func TestWaitsCount(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	measure := newMeter()
	wanted, used, begun := measure(), usedTime(), time.Now()
	var busy atomic.Bool
	busy.Store(true)
	defer busy.Store(false)
	for range 4 {
		go func() {
			for busy.Load() {
			}
		}()
	}
	for measure()-wanted < 2*(usedTime()-used) || usedTime() == used {
		if time.Since(begun) > 30*time.Second {
			t.Fatalf("in %v goroutines have wanted %v of a processor, of which they have got %v", time.Since(begun), measure()-wanted, usedTime()-used)
		}
		time.Sleep(50 * time.Millisecond)
	}
}

// TestShortWaitsDoNotCount: they are the time that it takes to wake a thread.
func TestShortWaitsDoNotCount(t *testing.T) {
	t.Parallel()
	h := &metrics.Float64Histogram{Buckets: []float64{math.Inf(-1), 0, 100e-6, 1e-3, 1e-2, math.Inf(1)}, Counts: []uint64{0, 500, 500, 4, 1}}
	if got, want := waitedTime(h), 8*(4*time.Millisecond+10*time.Millisecond); got.Round(time.Microsecond) != want {
		t.Errorf("%v, want %v", got, want)
	}
}

// TestTheEnvironmentFixesTheNumber: who sets GOMAXPROCS knows better.
func TestTheEnvironmentFixesTheNumber(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(7))
	t.Setenv("GOMAXPROCS", "7")
	synctest.Test(t, func(t *testing.T) { // in which Run could not end
		if err := Run(t.Context()); err != nil || runtime.GOMAXPROCS(0) != 7 {
			t.Errorf("%v, %d processors", err, runtime.GOMAXPROCS(0))
		}
	})
}
