package jwks

import (
	"crypto/sha256"
	"time"
)

const (
	// missingFor is how long tokens with the id of a key are refused at once after the provider was
	// found to have no such key.
	missingFor = 10 * time.Second
	// maxMissing bounds the ids that are remembered as missing.
	maxMissing = 1024
	// readingEvery and maxReadings are a token bucket for the readings that tokens cause. The
	// bucket gets one reading every readingEvery, and holds maxReadings at most. So made-up tokens
	// cause few readings, and the first token of a new key causes one at once.
	readingEvery = 10 * time.Second
	maxReadings  = 10
)

// search bounds how often tokens that no known key has signed cause readings, and how long they
// wait for one. It is not safe for concurrent use. The bucket of the zero value is full.
type search struct {
	// missing maps the SHA-256 of each id that the last readings have not found to the time until
	// which its tokens are refused.
	missing map[[sha256.Size]byte]time.Time
	// spent is when the bucket is full again.
	spent time.Time
}

// reset forgets everything. It is called when the provider has new keys, or is another one.
func (s *search) reset() { *s = search{} }

// isMissing reports whether the provider was just found to have no key of this id.
func (s *search) isMissing(id string, now time.Time) bool {
	until, known := s.missing[sha256.Sum256([]byte(id))]
	return known && now.Before(until)
}

// miss remembers that a reading had no key of this id that has signed a token.
func (s *search) miss(id string, now time.Time) {
	if len(s.missing) >= maxMissing {
		for digest, until := range s.missing {
			if !now.Before(until) {
				delete(s.missing, digest)
			}
		}
	}
	if s.missing == nil {
		s.missing = map[[sha256.Size]byte]time.Time{}
	}
	if len(s.missing) < maxMissing { // else only the readings are bounded
		s.missing[sha256.Sum256([]byte(id))] = now.Add(missingFor)
	}
}

// wait returns the time until tokens may cause a reading.
func (s *search) wait(now time.Time) time.Duration {
	if s.spent.Before(now) {
		return 0
	}
	return max(0, s.spent.Sub(now)-(maxReadings-1)*readingEvery)
}

// spend counts a reading that tokens cause.
func (s *search) spend(now time.Time) {
	if s.spent.Before(now) {
		s.spent = now
	}
	s.spent = s.spent.Add(readingEvery)
}
