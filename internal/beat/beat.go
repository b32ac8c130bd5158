// Package beat gives the moments at which a process does what it does again and again. Each loop
// of the gateway that needs no moment of its own uses it: an idle process then wakes up once for
// all of these loops.
//
// The beats of a period are its whole multiples since the zero time.Time, by the clock of the
// machine. The beats of 2 s are thus beats of 1 s and of 500 ms as well. NTP adjusts the rate of
// that clock and of Go's timers alike. Only a clock that is set moves the beats.
package beat

import "time"

// Until returns the time until the next beat of a period. It is more than 0 and at most the period.
// The period is more than 0.
func Until(period time.Duration) time.Duration { return until(time.Now(), period) }

// After returns a channel that gets the time at the next beat of a period. A loop that waits for
// several channels keeps it until it has received from it, because a new one may miss the beat.
func After(period time.Duration) <-chan time.Time { return time.After(Until(period)) }

func until(now time.Time, period time.Duration) time.Duration {
	return now.Truncate(period).Add(period).Sub(now)
}
