package request

import "time"

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

// tokens returns the events with a part of the answer in so many bytes of body. The rest of a
// response that broke off has as many for its bytes as what was read.
func (r *Reading) tokens(bytes int64) int64 {
	if r == nil || r.Tokens <= 0 || r.Bytes <= 0 {
		return 0
	}
	return int64(float64(r.Tokens)*max(1, float64(bytes)/float64(r.Bytes)) + 0.5)
}

// isTruncated reports whether a stream that has ended well for Envoy lacks its end. It had a part
// of an answer, and neither a finish reason nor an end marker.
func (r *Reading) isTruncated() bool {
	return r != nil && r.Tokens > 0 && !r.Ended && r.Finish == ""
}
