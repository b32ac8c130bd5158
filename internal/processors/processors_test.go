package processors

import (
	"context"
	"fmt"
	"runtime"
	"strings"
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
		{"half a second from two to all", []float64{0, 0, 0, 0, 0, 0, 16}, "16 16 16 16 16 2 16"},
		{"never more than there are", []float64{20, 20, 20}, "16 16 16"},
	} {
		begun := time.Now()
		chooser := newChooser(16, begun)
		var got []string
		n := chooser.now
		for second, use := range c.uses {
			for tenth := range 10 {
				use := min(use, float64(n)) // a process cannot use more than it has
				n = chooser.choose(use, begun.Add(time.Duration(second)*time.Second+time.Duration(tenth)*100*time.Millisecond))
			}
			got = append(got, fmt.Sprint(n))
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
	if n := c.choose(0, begun.Add(1000*time.Hour)); n != least {
		t.Errorf("%d processors after a pause, want %d", n, least)
	}
}

// TestProcessorsFollowTheLoad runs the real thing in a process that may use 8 processors. The
// number is that of the whole process, so no other test runs meanwhile.
func TestProcessorsFollowTheLoad(t *testing.T) {
	t.Setenv("GOMAXPROCS", "")
	defer runtime.SetDefaultGOMAXPROCS()
	runtime.GOMAXPROCS(8)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- Run(ctx) }()
	await(t, "an idle process has few processors", func(n int) bool { return n == least })
	busy := make(chan struct{})
	for range 8 {
		go func() {
			for sum := 0; ; sum++ {
				select {
				case <-busy:
					return
				default:
				}
			}
		}()
	}
	await(t, "a busy one has more", func(n int) bool { return n > least })
	close(busy)
	await(t, "an idle one gives them back", func(n int) bool { return n == least })
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// TestTheEnvironmentFixesTheNumber: who sets GOMAXPROCS knows better.
func TestTheEnvironmentFixesTheNumber(t *testing.T) {
	t.Setenv("GOMAXPROCS", "7")
	synctest.Test(t, func(t *testing.T) {
		if err := Run(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

func await(t *testing.T, what string, is func(n int) bool) {
	t.Helper()
	for deadline := time.Now().Add(30 * time.Second); !is(runtime.GOMAXPROCS(0)); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("it did not come true: %s: there are %d processors", what, runtime.GOMAXPROCS(0))
		}
	}
}
