package relay

import (
	"sync"
	"sync/atomic"
	"time"
)

const (
	// gapSampling is the share of managed streams of which token gaps are observed: one in so many.
	gapSampling = 4
	// maxGapModels is of how many models the streams are counted.
	maxGapModels = 1 << 14
	// maxGaps is how many gaps between tokens are reported at once.
	maxGaps = 32
	// maxGapAge is how old the first gap may be before the next one has all of them reported.
	maxGapAge = time.Second
)

// gapSampler chooses the streams whose token gaps are observed: the first of each model, and then
// one in gapSampling of the model.
type gapSampler struct {
	// streams has an *atomic.Uint64 for the name of each model: the number of its streams.
	streams sync.Map
	// models is about how many names streams has.
	models atomic.Int64
}

// next counts a stream of the model that has a token, and reports whether it is observed. Names of
// models come and go, so next forgets all of them when there are too many.
func (s *gapSampler) next(model string) bool {
	count, ok := s.streams.Load(model)
	if !ok {
		if s.models.Add(1) > maxGapModels {
			s.streams.Clear()
			s.models.Store(1)
		}
		count, _ = s.streams.LoadOrStore(model, new(atomic.Uint64))
	}
	return count.(*atomic.Uint64).Add(1)%gapSampling == 1
}

// tokenGaps holds the gaps between the tokens of a stream that were not reported yet. A report of
// one gap costs more than the parsing of its event, and a report of many costs hardly more than of
// one.
type tokenGaps struct {
	gaps []time.Duration
	// since is when the first of them ended.
	since time.Time
	// report reports gaps. nil: the gaps of this stream are not observed.
	report func(gaps ...time.Duration)
}

// add adds the gap between the token before and the one that comes now.
func (t *tokenGaps) add(before, now time.Time) {
	if t.report == nil {
		return
	}
	if len(t.gaps) == 0 {
		t.since = now
	}
	t.gaps = append(t.gaps, now.Sub(before))
	if len(t.gaps) == maxGaps || now.Sub(t.since) >= maxGapAge {
		t.flush()
	}
}

// flush reports all gaps. A stream does so before its client learns of its end, and when it ends.
func (t *tokenGaps) flush() {
	if len(t.gaps) > 0 {
		t.report(t.gaps...)
		t.gaps = t.gaps[:0]
	}
}
