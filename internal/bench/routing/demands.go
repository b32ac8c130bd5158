package main

import "fmt"

// demand is what the strategy `prefix` must achieve at a point, beside another rule.
type demand struct {
	about string
	// other is the rule, atMost the largest ratio of the strategy's figure to the other's.
	other  string
	atMost float64
	// figure is the mean or a percentile of the time to the first token
	figure func(outcome) float64
	// everywhere says that the demand holds at all points of the sweep, not only on the trace with
	// the usual fleet.
	everywhere bool
}

func mean(o outcome) float64 { return o.mean }
func p99(o outcome) float64  { return o.p99 }

var demands = []demand{
	{"mean", memoryName, 0.5, mean, false},
	{"mean", scoresName, 0.65, mean, false},
	{"mean", oracleName, 1.1, mean, false},
	{"p99", memoryName, 1, p99, false},
	{"p99", scoresName, 1, p99, false},
	{"p99", oracleName, 1.1, p99, false},
	{"mean", leastName, 1.02, mean, true},
}

// slack is the difference of times, in seconds, that no client notices.
const slack = 0.001

// ratio is the strategy's figure divided by the other's.
func (d *demand) ratio(p *point) float64 {
	return d.figure(p.outcomes[oursName]) / d.figure(p.outcomes[d.other])
}

// isMet reports whether the demand is met at the point, or does not hold there.
func (d *demand) isMet(p *point) bool {
	if !d.everywhere && !p.isDemanded() {
		return true
	}
	return d.figure(p.outcomes[oursName]) <= d.atMost*d.figure(p.outcomes[d.other])+slack
}

// missed lists the demands that the strategy does not meet, one line each.
func missed(points []*point) (lines []string) {
	for _, p := range points {
		for i := range demands {
			if d := &demands[i]; !d.isMet(p) {
				lines = append(lines, fmt.Sprintf("%s, %s, caches of %s, load %g: the %s is %.2f × that of %s, demanded is %g ×.",
					p.workload.name, p.fleetName(), p.cacheName(), p.load, d.about, d.ratio(p), d.other, d.atMost))
			}
		}
	}
	return lines
}
