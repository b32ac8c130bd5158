package request

import (
	"math"
	"time"
)

// Reading is what Envoy has read of a native response while it passed. Envoy reads a sample of the
// responses. Of a response that breaks off it may lack the last second.
type Reading struct {
	// Tokens is the number of events with a part of the answer. Bytes is how much of the body had
	// come by then.
	Tokens, Bytes int64
	// First and Last are the times of the first and the last of these events. They are the zero
	// time if there was none.
	First, Last time.Time
	// Ended says that the stream had its end marker.
	Ended bool
	// Finish is the finish reason; empty if the response has none.
	Finish string
	// Gaps is the number of times between two of these events, by GapClass. They share a map with
	// nobody who changes it.
	Gaps map[int]int64
}

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

// tokens returns the events with a part of the answer in so many bytes of body. The rest of a
// response that broke off has as many for its bytes as what was read.
func (r *Reading) tokens(bytes int64) int64 {
	if r == nil || r.Tokens <= 0 || r.Bytes <= 0 {
		return 0
	}
	return int64(float64(r.Tokens)*max(1, float64(bytes)/float64(r.Bytes)) + 0.5)
}

// isTruncated reports whether a stream that has ended well for Envoy lacks its end: it had a part
// of an answer, and neither a finish reason nor an end marker.
func (r *Reading) isTruncated() bool {
	return r != nil && r.Tokens > 0 && !r.Ended && r.Finish == ""
}
