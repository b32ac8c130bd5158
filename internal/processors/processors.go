// Package processors has the gateway run on as many processors as its work needs.
//
// Go runs goroutines on all processors of the machine. Whenever a goroutine becomes ready, Go wakes
// a further thread that looks for more work. Where there is little work and there are many
// processors, most of these threads find nothing. On a machine with 16 processors, a request cost
// the gateway twice as much as on two of them.
package processors

import (
	"context"
	"os"
	"runtime"
	"runtime/metrics"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sluice-gateway/sluice/internal/beat"
)

const (
	// least is the least number of processors.
	least = 2
	// share is how much of its processors the process may use before it gets another one.
	share = 0.75
	// full is how much of its processors the process uses when more of them might use more. Their
	// number then grows by half.
	full = 0.9
	// interval is the time between two measurements. A process that hardly works is measured each
	// idleInterval.
	interval     = 100 * time.Millisecond
	idleInterval = 200 * time.Millisecond
	// idleUse is how much of one processor a process that hardly works uses.
	idleUse = 0.1
	// memory is for how many seconds the process keeps the processors that it has needed.
	memory = 5
)

// Available returns how many processors the machine or the container has for this program: the
// number that Go chooses, which heeds the limit of the control group. The environment variable
// GOMAXPROCS changes what Go uses, and not what there is.
func Available() int {
	inUse := runtime.GOMAXPROCS(0)
	runtime.SetDefaultGOMAXPROCS() // it ignores the variable
	available := runtime.GOMAXPROCS(0)
	if inUse != available {
		runtime.GOMAXPROCS(inUse)
	}
	return available
}

// Run sets the number of processors that goroutines run on (runtime.GOMAXPROCS) until ctx ends. It
// is at least 2, and at most what Go chose at the beginning, or when the process last used all of
// them. The environment variable GOMAXPROCS fixes it.
func Run(ctx context.Context) error {
	if os.Getenv("GOMAXPROCS") != "" {
		return nil
	}
	defer runtime.SetDefaultGOMAXPROCS()
	follow(ctx, newChooser(runtime.GOMAXPROCS(0), time.Now()), newMeter(), set)
	return nil
}

// follow has a process use as many processors as c chooses. measure returns how long goroutines
// have run and have waited to run since the process began.
func follow(ctx context.Context, c *chooser, measure func() (wanted time.Duration), set func(c *chooser)) {
	wanted, at := measure(), time.Now()
	for period := interval; c.most > least; {
		select {
		case <-ctx.Done():
			return
		case <-beat.After(period):
		}
		nowWanted, now := measure(), time.Now()
		use := (nowWanted - wanted).Seconds() / now.Sub(at).Seconds()
		wanted, at = nowWanted, now
		if c.choose(use, now) {
			set(c)
		}
		period = interval
		if use < idleUse {
			period = idleInterval
		}
	}
}

// set has goroutines run on what was chosen. All processors are what Go chooses, which follows the
// limit of the process's control group.
func set(c *chooser) {
	if c.now < c.most {
		runtime.GOMAXPROCS(c.now)
		return
	}
	runtime.SetDefaultGOMAXPROCS()
	c.now = runtime.GOMAXPROCS(0)
	c.most = c.now
}

// newMeter returns a function that measures for follow: the CPU time of the process, and the time
// that its goroutines have waited for a processor. Without the second, a process that other
// programs keep from its processors would seem to have little to do.
func newMeter() func() time.Duration {
	samples := []metrics.Sample{{Name: "/sched/latencies:seconds"}}
	return func() time.Duration {
		metrics.Read(samples)
		return usedTime() + waitedTime(samples[0].Value.Float64Histogram())
	}
}

// usedTime returns the CPU time that the process has used.
func usedTime() time.Duration {
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		return 0 // it fails only for arguments that do not exist
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// waitedTime returns how long goroutines have waited to run, by the runtime's histogram, which
// counts one wait of eight. It leaves out waits that last no longer than it takes to wake a thread.
func waitedTime(h *metrics.Float64Histogram) time.Duration {
	const counted, shortest = 8, 500e-6
	seconds := 0.0
	for i, n := range h.Counts {
		if least := h.Buckets[i]; n > 0 && least >= shortest {
			seconds += float64(n) * least
		}
	}
	return time.Duration(counted * seconds * float64(time.Second))
}

// chooser chooses the number of processors.
type chooser struct {
	most int
	// now is the number that was chosen last.
	now int
	// needed has the greatest number that was needed in each of the last seconds since begun.
	// second is the last one of them.
	needed [memory]int
	begun  time.Time
	second int
}

// newChooser returns a chooser for at most so many processors. It begins with all of them,
// because a process that starts has much to do.
func newChooser(most int, now time.Time) *chooser {
	c := &chooser{most: most, now: most, begun: now}
	for i := range c.needed {
		c.needed[i] = most
	}
	return c
}

// choose chooses the number of processors for a process that would have used so many of them since
// the last measurement. It returns whether the number is another one than before.
func (c *chooser) choose(use float64, now time.Time) bool {
	need := int(use/share) + 1
	if use >= full*float64(c.now) {
		need = max(need, c.now+(c.now+1)/2)
	}
	second := int(now.Sub(c.begun) / time.Second)
	for c.second = max(c.second, second-memory); c.second < second; {
		c.second++
		c.needed[c.second%memory] = 0
	}
	slot := &c.needed[c.second%memory]
	*slot = max(*slot, need)
	before := c.now
	c.now = min(max(slices.Max(c.needed[:]), least), c.most)
	return c.now != before
}
