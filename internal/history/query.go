package history

import (
	"math"
	"time"
)

// Query asks for samples.
type Query struct {
	// Model is the name of a model. Empty means the sum of all.
	Model string
	// From and To bound the time. From is in the answer, To is not.
	From, To time.Time
	// Step is the time between two values, a multiple of ten seconds.
	Step time.Duration
}

// Answer is the answer to a Query.
type Answer struct {
	// From is the time of the first value: that of the query, rounded down to a multiple of Step.
	From time.Time
	// Values has for each series one value for each step. NaN means that there is no sample.
	Values [seriesCount][]Number
}

// Knows reports whether there is a sample of a model.
func (s *Store) Knows(model string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.models.knows(model)
}

// Find answers a question. A value of a step that has several samples is their mean, and the
// greatest of them for the 95th percentiles.
func (s *Store) Find(q Query) Answer {
	every := max(1, int64(q.Step/Step))
	from, to := momentOf(q.From), momentOf(q.To)
	from -= from % moment(every)
	n := max(0, (int64(to-from)+every-1)/every)
	a := Answer{From: from.time()}
	counts := make([][seriesCount]int, n)
	for i := range a.Values {
		a.Values[i] = make([]Number, n)
	}
	add := func(m moment, codes *[seriesCount]code) {
		at := int64(m-from) / every
		for i, c := range codes {
			if c == unknown {
				continue
			}
			counts[at][i]++
			a.Values[i][at] = combine(Series(i), a.Values[i][at], Number(c.value()))
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	archive := &s.models
	if q.Model == "" {
		archive = &s.total
	}
	archive.each(q.Model, from, to, add)
	a.finish(counts)
	return a
}

// isPeak reports whether the greatest sample of a step counts, not the mean.
func isPeak(s Series) bool { return s == TTFTp95 || s == InterTokenP95 }

// combine returns the sum of two values, or the greater one.
func combine(s Series, a, b Number) Number {
	if isPeak(s) {
		return max(a, b)
	}
	return a + b
}

// finish divides sums by their counts.
func (a *Answer) finish(counts [][seriesCount]int) {
	for i := range a.Values {
		for at := range a.Values[i] {
			switch n := counts[at][i]; {
			case n == 0:
				a.Values[i][at] = Number(math.NaN())
			case !isPeak(Series(i)):
				a.Values[i][at] /= Number(n)
			}
		}
	}
}
