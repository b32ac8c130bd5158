package dispatch

import (
	"sync/atomic"
	"time"
)

// Envoy reads a sample of the native responses, because reading costs as much as half of carrying
// (docs/costs.md). The sample goes by time: the first response of a model at once, then about one
// in sampleEvery for each model, streams and others apart. Beyond samplesPerSecond for the whole
// gateway, a model is sampled once in sampleAtLeast.
const (
	sampleEvery      = time.Second
	sampleAtLeast    = 10 * time.Second
	samplesPerSecond = 4
)

// sampler remembers when a model was sampled last. The zero value never was.
type sampler struct {
	// streams and others are in nanoseconds since 1970.
	streams, others atomic.Int64
}

// sampleBudget counts what the gateway may do a few times in a second. The zero value has its whole
// budget.
type sampleBudget struct {
	// used is the current second since 1970, times 256, plus the number of times in it.
	used atomic.Int64
}

// acquire counts one time. It returns false if there were so many in this second; perSecond is at
// most 255.
func (b *sampleBudget) acquire(now time.Time, perSecond int64) bool {
	second := now.Unix() << 8
	for {
		used := b.used.Load()
		if used < second {
			if b.used.CompareAndSwap(used, second+1) {
				return true
			}
			continue
		}
		if used-second >= perSecond {
			return false
		}
		if b.used.CompareAndSwap(used, used+1) {
			return true
		}
	}
}

// acquire reports whether a response is to be read, and records that it is.
func (s *sampler) acquire(stream bool, budget *sampleBudget, now time.Time) bool {
	last := &s.others
	if stream {
		last = &s.streams
	}
	was := last.Load()
	passed := time.Duration(now.UnixNano() - was)
	if passed < sampleEvery || passed < sampleAtLeast && !budget.acquire(now, samplesPerSecond) {
		return false
	}
	return last.CompareAndSwap(was, now.UnixNano())
}

// AcquireSample reports whether Envoy is to read the response of the request, which goes to its
// replica natively. The caller must then have it read.
func (t *Ticket) AcquireSample(stream bool) bool {
	return !t.dispatcher.unsampled && t.estimator.sampler.acquire(stream, &t.dispatcher.samples, time.Now())
}
