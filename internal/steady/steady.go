// Package steady tells times by a clock that nobody sets, as numbers that fit into an atomic.Int64.
// Packages that compare such a number with the time now use it. A time.Time needs no such clock as
// long as it keeps the reading of the monotonic clock that time.Now gives it.
package steady

import "time"

// started is a time of this process, with which Nanos begins.
var started = time.Now()

// Nanos returns a time in nanoseconds. It is the Unix time as long as nobody has set the clock of
// the machine since this process has started.
func Nanos(t time.Time) int64 { return started.UnixNano() + int64(t.Sub(started)) }
