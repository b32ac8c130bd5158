package main

import (
	"slices"
	"time"
)

// target is the time to the first token that the table measures against, and window the time over
// which it is a mean.
const (
	target = 6 * time.Second
	window = 10 * time.Second
)

// outcome is what a rule made of a workload.
type outcome struct {
	// above is the share of the time in which requests had their first tokens later than target, on
	// average over each window.
	above float64
	// mean and p90 are of the times to the first token.
	mean, p90 time.Duration
	// hours is the sum of the times of all replicas, from their starts on, in hours. replicas is
	// their mean number.
	hours, replicas float64
	// changes counts the changes of the number of replicas, turns those in which it fell after it
	// had risen.
	changes, turns int
}

// outcome sums up the simulation. end is when the last request came.
func (s *simulation) outcome(end time.Time) outcome {
	for _, r := range s.replicas {
		s.spent += max(end.Sub(r.born), 0)
	}
	times := make([]time.Duration, len(s.arrivals))
	var sum time.Duration
	windows := map[int64][]time.Duration{}
	for i, a := range s.arrivals {
		times[i] = a.ttft
		sum += a.ttft
		at := a.at.UnixNano() / int64(window)
		windows[at] = append(windows[at], a.ttft)
	}
	above := 0
	for _, w := range windows {
		if mean(w) > target {
			above++
		}
	}
	slices.Sort(times)
	return outcome{
		above: float64(above) / float64(len(windows)),
		mean:  sum / time.Duration(len(times)), p90: times[len(times)*9/10],
		hours: s.spent.Hours(), replicas: float64(s.spent) / float64(end.Sub(time.Unix(0, 0))),
		changes: s.changes, turns: s.turns,
	}
}

func mean(list []time.Duration) time.Duration {
	var sum time.Duration
	for _, d := range list {
		sum += d
	}
	return sum / time.Duration(len(list))
}
