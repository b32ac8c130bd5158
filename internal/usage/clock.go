package usage

import (
	"cmp"
	"os"
	"sync"
	"time"
)

const (
	// clockStep is how many hours ahead of the last believed one the clock may be without a doubt.
	clockStep = 3 * hoursPerDay
	// clockTicks is how many ticks of agingInterval make a time true that is further ahead: a day.
	clockTicks = int(hoursPerDay * time.Hour / agingInterval)
)

// clock judges the clock of the machine, so that a wrong reading drops no rows. It is safe for
// concurrent use.
type clock struct {
	mu sync.Mutex
	// last is the latest hour that was believed, since 1970.
	last int64
	// ahead counts the ticks, one after the other, that are far ahead of last.
	ahead int
}

// newClock returns a clock that believes when the newest journal in a folder was written, or the
// hour now if there is none.
func newClock(dir string, now int64) *clock {
	c := &clock{}
	names, _ := journalsIn(dir) // claimJournal tells of an error
	for _, name := range names {
		if info, err := os.Stat(name); err == nil {
			c.last = max(c.last, hourOf(info.ModTime()))
		}
	}
	c.last = cmp.Or(c.last, now)
	return c
}

// believes reports whether an hour is not far ahead.
func (c *clock) believes(now int64) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return now <= c.last+clockStep
}

// now returns the time of the machine. While that is far ahead, it returns the last believed hour.
// A nil clock believes everything.
func (c *clock) now() time.Time {
	now := time.Now()
	if c == nil || c.believes(hourOf(now)) {
		return now
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return period{start: c.last}.time()
}

// tick reports whether the hour of a tick is believed. doubted says that it is the first of several
// that are not.
func (c *clock) tick(now int64) (believed, doubted bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if now > c.last+clockStep {
		if c.ahead++; c.ahead < clockTicks {
			return false, c.ahead == 1
		}
	}
	c.last, c.ahead = max(c.last, now), 0
	return true, false
}
