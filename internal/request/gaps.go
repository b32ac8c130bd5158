package request

import (
	"maps"
	"math"
	"slices"
	"time"
)

// Gaps between tokens are counted in classes whose bounds grow by gapGrowth. So a percentile is at
// most 1 % wrong, and about a thousand classes cover gaps up to an hour. The reader in Envoy
// (xds/streamreader.lua) has the same classes.
const (
	gapGrowth   = 1.02
	shortestGap = 10 * time.Microsecond
	maxGapClass = 2000
)

// GapClass returns the class of a gap.
func GapClass(gap time.Duration) int {
	return int(math.Round(math.Log(float64(max(gap, shortestGap))/float64(shortestGap)) / math.Log(gapGrowth)))
}

// GapLength returns the length of the gaps of a class, in seconds.
func GapLength(class int) float64 {
	return shortestGap.Seconds() * math.Pow(gapGrowth, float64(min(max(class, 0), maxGapClass)))
}

// GapCounts counts the gaps of a model's streams, each of them measured. Native and managed streams
// are apart, because different shares of the two are measured. The zero value has none. It is not
// safe for concurrent use.
type GapCounts struct{ native, managed gapsOfWay }

// gapsOfWay are the gaps of native or of managed streams. measured counts the measured gaps by
// class. n is their number, all that of all streams, measured or not.
type gapsOfWay struct {
	measured map[int]int64
	n, all   int64
}

func (c *gapsOfWay) add(class int, n int64) {
	if c.measured == nil {
		c.measured = map[int]int64{}
	}
	c.measured[class] += n
	c.n += n
}

// addTo adds the counts to sum.
func (c *gapsOfWay) addTo(sum *gapsOfWay) {
	for class, n := range c.measured {
		sum.add(class, n)
	}
	sum.all += c.all
}

// Measured counts one measured gap of a managed stream, by its class.
func (c *GapCounts) Measured(class int) { c.managed.add(class, 1) }

// Finished counts a stream that has ended with so many gaps. If it is native, read are those of its
// gaps that were measured, by class. Those of a managed one are counted by Measured.
func (c *GapCounts) Finished(native bool, gaps int64, read map[int]int64) {
	if !native {
		c.managed.all += gaps
		return
	}
	c.native.all += gaps
	for class, n := range read {
		c.native.add(class, n)
	}
}

// AddTo adds the counts to sum.
func (c *GapCounts) AddTo(sum *GapCounts) {
	c.native.addTo(&sum.native)
	c.managed.addTo(&sum.managed)
}

// IsEmpty reports whether no gap was counted.
func (c *GapCounts) IsEmpty() bool {
	return c.native.all+c.native.n+c.managed.all+c.managed.n == 0
}

// Weigh adds the weights of the measured gaps to those in w. The measured native gaps weigh as much
// as all native gaps, and the managed ones likewise.
func (c *GapCounts) Weigh(w GapWeights) {
	for _, way := range []*gapsOfWay{&c.native, &c.managed} {
		for class, n := range way.measured {
			w[class] += float64(n) * float64(max(way.all, way.n)) / float64(way.n)
		}
	}
}

// GapWeights are the weights of gaps by class.
type GapWeights map[int]float64

// Quantiles returns for each share the length of the shortest class such that it and all shorter
// ones have at least this share of the weight, in seconds. The shares ascend. It returns false if
// there is no gap.
func (w GapWeights) Quantiles(shares ...float64) (seconds []float64, ok bool) {
	all, passed := 0.0, 0.0
	classes := slices.Sorted(maps.Keys(w))
	for _, class := range classes {
		all += w[class]
	}
	const rounding = 1e-9 // of the sums
	for _, class := range classes {
		passed += w[class]
		for len(seconds) < len(shares) && passed >= (shares[len(seconds)]-rounding)*all {
			seconds = append(seconds, GapLength(class))
		}
	}
	return seconds, len(classes) > 0
}
