package admission

import (
	"sync"
	"time"
)

const (
	defaultMaxQueue      = 1000
	defaultQueueTimeout  = 60 * time.Second
	defaultMaxQueueBytes = 1 << 30
)

// Limits bound what one model is given and who may wait for it. The zero value has no limits but the queue's.
type Limits struct {
	// MaxConcurrent is how many leases there may be at once. 0 or less means no limit.
	MaxConcurrent int
	// TokensPerMinute is the size of the model's token bucket, which is full at first and fills evenly at this many tokens a
	// minute. 0 or less means no limit; more than about 7.6e10 is taken as that.
	TokensPerMinute int
	// MaxQueue is how many requests may wait. 0 means 1000; below 0, nobody waits: who cannot go at once gets ErrQueueFull.
	MaxQueue int
	// QueueTimeout is how long a request may wait that says nothing else (Request.Timeout). 0 or less means one minute.
	QueueTimeout time.Duration
}

// maxQueue is MaxQueue with its default.
func (l Limits) maxQueue() int {
	if l.MaxQueue == 0 {
		return defaultMaxQueue
	}
	return l.MaxQueue
}

// timeout is how long a request that asks for this timeout may wait.
func (l Limits) timeout(asked time.Duration) time.Duration {
	switch {
	case asked > 0:
		return asked
	case l.QueueTimeout > 0:
		return l.QueueTimeout
	}
	return defaultQueueTimeout
}

// capacity is what one model has to give. It knows no queue; its owner locks it.
type capacity struct {
	limits   Limits
	inFlight int
	bucket   bucket
}

func (c *capacity) set(l Limits, now time.Time) {
	c.limits = l
	c.bucket.resize(l.TokensPerMinute, now)
}

// fits reports whether the bucket can ever hold so many tokens.
func (c *capacity) fits(tokens int) bool {
	return c.bucket.perMinute == 0 || int64(tokens) <= c.bucket.perMinute
}

// free reports whether there may be one more lease.
func (c *capacity) free() bool {
	return c.limits.MaxConcurrent <= 0 || c.inFlight < c.limits.MaxConcurrent
}

func (c *capacity) take(tokens int) {
	c.inFlight++
	c.bucket.take(tokens)
}

// bucket is a token bucket in whole numbers, so that what it gives in any time is exact. A token is 60 million units; a bucket
// of n tokens a minute gains n units each microsecond.
type bucket struct {
	// perMinute is the bucket's size and its gain in a minute. 0 means no limit; nothing else matters then.
	perMinute int64
	// level is in units.
	level int64
	// at is the time that level is of.
	at time.Time
}

const (
	unitsPerToken = 60_000_000
	// maxTokens keeps twice a full bucket within an int64.
	maxTokens = (1<<63 - 1) / unitsPerToken / 2
	// longestWait, in minutes, is what longer waits are taken for.
	longestWait = 1 << 20
)

func (b *bucket) size() int64 { return b.perMinute * unitsPerToken }

// resize changes the limit. A bucket that had none starts full.
func (b *bucket) resize(perMinute int, now time.Time) {
	unlimited := b.perMinute == 0
	b.refill(now)
	b.perMinute = int64(min(max(perMinute, 0), maxTokens))
	b.level = min(b.level, b.size())
	if unlimited {
		b.level, b.at = b.size(), now
	}
}

// refill brings level up to now. A clock that stands or goes back adds nothing and takes nothing away.
func (b *bucket) refill(now time.Time) {
	elapsed := now.Sub(b.at)
	if elapsed >= time.Minute {
		b.level, b.at = b.size(), now
		return
	}
	// The part of a microsecond that is left over counts the next time, because at moves on by whole ones.
	if whole := elapsed.Microseconds(); whole > 0 {
		b.level = min(b.size(), b.level+whole*b.perMinute)
		b.at = b.at.Add(time.Duration(whole) * time.Microsecond)
	}
}

// wait is the time until the bucket will have given so many tokens, if nobody else takes any: 0 when it has them now. It may be
// asked about more than fits in at once.
func (b *bucket) wait(tokens int64, now time.Time) time.Duration {
	if b.perMinute == 0 {
		return 0
	}
	b.refill(now)
	missing := tokens - b.level/unitsPerToken
	if missing <= 0 {
		return 0
	}
	minutes, rest := missing/b.perMinute, missing%b.perMinute
	if minutes >= longestWait {
		return longestWait * time.Minute
	}
	units := rest*unitsPerToken - b.level%unitsPerToken
	micros := units / b.perMinute
	if units%b.perMinute > 0 {
		micros++
	}
	return time.Duration(minutes)*time.Minute + time.Duration(micros)*time.Microsecond + b.at.Sub(now)
}

// take removes tokens; wait must have been 0 for them.
func (b *bucket) take(tokens int) {
	if b.perMinute > 0 {
		b.level -= int64(tokens) * unitsPerToken
	}
}

// refund puts back tokens that were taken and not used.
func (b *bucket) refund(tokens int) {
	b.level = min(b.size(), b.level+min(int64(tokens), b.perMinute)*unitsPerToken)
}

// tokens is what the bucket holds; -1 without a limit.
func (b *bucket) tokens(now time.Time) float64 {
	if b.perMinute == 0 {
		return -1
	}
	b.refill(now)
	return float64(b.level) / float64(unitsPerToken)
}

// heldBytes counts the bytes of all waiting requests of all models. Its lock is taken last, inside a model's.
type heldBytes struct {
	most int64

	mu  sync.Mutex
	sum int64 // guarded by mu
}

// take adds n, unless that would be too much.
func (h *heldBytes) take(n int64) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if n > h.most-h.sum {
		return false
	}
	h.sum += n
	return true
}

func (h *heldBytes) give(n int64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.sum -= n
}
