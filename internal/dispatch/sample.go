package dispatch

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/sluice-gateway/sluice/internal/steady"
)

// Envoy reads a sample of the native responses, because reading a stream costs more than carrying
// it where the code of the reader is in no cache (docs/costs.md). The first response of a model is
// in the sample, streams and others apart. A later one is in it at most each sampleEvery for its
// model, and needs credit. All responses of the gateway earn the credit, 1 for sampleShare of them,
// and time earns it, 1 in sampleIdle. So a busy gateway has a small share of its responses read,
// and a gateway with few requests has nearly all of them read.
const (
	sampleEvery = time.Second
	sampleShare = 64
	sampleIdle  = 10 * time.Second
	// maxSamples is the greatest credit. Half of it is for models that were not sampled for
	// sampleRarely.
	maxSamples   = 16
	sampleRarely = 10 * time.Second
)

// sampler remembers when a model was sampled last. The zero value never was.
type sampler struct {
	// streams and others are by steady.Nanos; 0: never.
	streams, others atomic.Int64
}

// sampleCredit is how many responses may be read. The zero value has the greatest credit.
type sampleCredit struct {
	// seen is the number of responses that have not earned yet.
	seen atomic.Int64

	mu sync.Mutex
	// missing is how much less than maxSamples the credit is, at the time at; guarded by mu.
	missing float64
	at      time.Time
}

// spend takes 1 from the credit. It returns false if that would leave less than reserve.
func (c *sampleCredit) spend(now time.Time, reserve float64) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	earned := float64(c.seen.Swap(0))/sampleShare + max(0, float64(now.Sub(c.at))/float64(sampleIdle))
	c.missing, c.at = max(0, c.missing-earned), now
	if maxSamples-c.missing-1 < reserve {
		return false
	}
	c.missing++
	return true
}

// sampleBudget counts what the gateway may do a few times in a second. The zero value has its whole
// budget.
type sampleBudget struct {
	// used is the current second by steady.Nanos, times 256, plus the number of times in it.
	used atomic.Int64
}

// acquire counts one time. It returns false if there were so many in this second; perSecond is at
// most 255.
func (b *sampleBudget) acquire(now time.Time, perSecond int64) bool {
	second := steady.Nanos(now) / int64(time.Second) << 8
	for {
		used := b.used.Load()
		if used < second { // else the second is the same, or later than that of a goroutine that is late
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
func (s *sampler) acquire(stream bool, credit *sampleCredit, now time.Time) bool {
	credit.seen.Add(1)
	last := &s.others
	if stream {
		last = &s.streams
	}
	was, at := last.Load(), steady.Nanos(now)
	passed := time.Duration(at - was)
	reserve := 0.0
	if passed < sampleRarely {
		reserve = maxSamples / 2
	}
	if was != 0 && (passed < sampleEvery || !credit.spend(now, reserve)) {
		return false
	}
	return last.CompareAndSwap(was, at)
}

// AcquireSample reports whether Envoy is to read the response of the request, which goes to its
// replica natively. The caller must then have it read.
func (t *Ticket) AcquireSample(stream bool) bool {
	return !t.dispatcher.config.NoSamples && t.estimator.sampler.acquire(stream, &t.dispatcher.samples, time.Now())
}
