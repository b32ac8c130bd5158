package usage

import (
	"sync"
	"time"
)

const (
	// settleTime is how long a jump of the machine's clock must last before it counts.
	settleTime = 5 * time.Minute
	// maxSlip is the largest change of the clock between two readings that is no jump.
	maxSlip = time.Minute
)

// steadyClock is the clock of the machine without its jumps, forward or back, until they have
// lasted for settleTime. Until then it continues from the time before the jump. So a clock that is
// wrong for a moment moves neither usage nor budgets into another day or month. A steadyClock is
// safe for concurrent use.
type steadyClock struct {
	// read returns the time by the machine's clock, and the time since a fixed moment by a clock
	// that cannot be set.
	read func() (wall time.Time, elapsed time.Duration)

	mu sync.Mutex
	// wall and elapsed are what read returned when the machine's clock was last believed.
	wall    time.Time
	elapsed time.Duration
	// jumped is the elapsed time at which a jump was first read that does not count yet; nil: there
	// is none.
	jumped *time.Duration
}

// newSteadyClock returns a clock that believes the machine's clock as it is now.
func newSteadyClock() *steadyClock {
	start := time.Now()
	return &steadyClock{read: func() (time.Time, time.Duration) {
		now := time.Now()
		return now.Round(0), now.Sub(start)
	}, wall: start.Round(0)}
}

func (c *steadyClock) now() time.Time {
	now, _ := c.look()
	return now
}

// correct converts a time that was just read from the machine's clock into a time of this clock.
func (c *steadyClock) correct(wall time.Time) time.Time {
	_, ahead := c.look()
	return wall.Add(-ahead)
}

// look returns the time, and by how much the machine's clock is ahead of it.
func (c *steadyClock) look() (now time.Time, ahead time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	wall, elapsed := c.read()
	now = c.wall.Add(elapsed - c.elapsed)
	ahead = wall.Sub(now)
	if ahead.Abs() > maxSlip {
		if c.jumped == nil {
			c.jumped = &elapsed
		}
		if elapsed-*c.jumped < settleTime {
			return now, ahead
		}
	}
	c.wall, c.elapsed, c.jumped = wall, elapsed, nil
	return wall, 0
}
