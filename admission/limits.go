package admission

import "time"

const (
	defaultMaxQueue      = 1000
	defaultQueueTimeout  = 60 * time.Second
	defaultMaxQueueBytes = 1 << 30
	defaultAgeing        = 30 * time.Second
	maxWeight            = 1 << 20
)

// Limits bound what one model is given and who may wait for it. The zero value has no limits but the queue's.
type Limits struct {
	// MaxConcurrent is how many leases there may be at once. 0 or less means no limit.
	MaxConcurrent int
	// TokensPerMinute is the size of the model's token bucket, which is full at first and fills evenly at this many tokens a
	// minute. 0 or less means no limit; more than about 3.8e10 is taken as that.
	TokensPerMinute int
	// MaxQueue is how many requests may wait. 0 means 1000; below 0, nobody waits: who cannot go at once is Refused with QueueFull.
	MaxQueue int
	// QueueTimeout is how long a request may wait that says nothing else (Request.Timeout). 0 or less means one minute.
	QueueTimeout time.Duration
	// Weight is the model's share of the tokens of its pools while it has room. 0 or less means 1.
	Weight int
}

// weight is Weight with its default and a bound that keeps weight times tokens countable.
func (l Limits) weight() int64 { return weight(l.Weight) }

func weight(w int) int64 { return int64(min(max(w, 1), maxWeight)) }

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

// bucket is a token bucket in whole numbers, so that what it gives in any time is exact. A token is 60 million units; a bucket
// of n tokens a minute gains n units each microsecond.
type bucket struct {
	// perMinute is the bucket's size and its gain in a minute. 0 means no limit; nothing else matters then.
	perMinute int64
	// level is in units.
	level int64
	// at is the time that level is of.
	updatedAt time.Time
}

const (
	unitsPerToken = 60_000_000
	// maxTokens keeps a full bucket, a debt of one and what corrects them within an int64.
	maxTokens = (1<<63 - 1) / unitsPerToken / 4
	// longestWait, in minutes, is what longer waits are taken for.
	maxWaitMinutes = 1 << 20
)

func (b *bucket) size() int64 { return b.perMinute * unitsPerToken }

// resize changes the limit. A bucket that had none starts full.
func (b *bucket) resize(perMinute int, now time.Time) {
	unlimited := b.perMinute == 0
	b.refill(now)
	b.perMinute = int64(min(max(perMinute, 0), maxTokens))
	b.level = min(b.level, b.size())
	if unlimited {
		b.level, b.updatedAt = b.size(), now
	}
}

// refill brings level up to now. A clock that stands or goes back adds nothing and takes nothing away.
func (b *bucket) refill(now time.Time) {
	elapsed := now.Sub(b.updatedAt)
	if elapsed >= time.Minute {
		b.level, b.updatedAt = b.size(), now
		return
	}
	// The part of a microsecond that is left over counts the next time, because at moves on by whole ones.
	if whole := elapsed.Microseconds(); whole > 0 {
		b.level = min(b.size(), b.level+whole*b.perMinute)
		b.updatedAt = b.updatedAt.Add(time.Duration(whole) * time.Microsecond)
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
	if minutes >= maxWaitMinutes {
		return maxWaitMinutes * time.Minute
	}
	units := rest*unitsPerToken - b.level%unitsPerToken
	micros := units / b.perMinute
	if units%b.perMinute > 0 {
		micros++
	}
	return time.Duration(minutes)*time.Minute + time.Duration(micros)*time.Microsecond + b.updatedAt.Sub(now)
}

// correct adds tokens, or takes some away if there are fewer than none. A debt is at most one full bucket.
func (b *bucket) correct(tokens int64) {
	tokens = min(max(tokens, -2*b.perMinute), 2*b.perMinute)
	b.level = min(max(b.level+tokens*unitsPerToken, -b.size()), b.size())
}

// fits reports whether a bucket of so many tokens a minute can ever hold these.
func fits(tokens, perMinute int) bool { return perMinute <= 0 || tokens <= min(perMinute, maxTokens) }

// tokens is what the bucket holds; -1 without a limit.
func (b *bucket) tokens(now time.Time) float64 {
	if b.perMinute == 0 {
		return -1
	}
	b.refill(now)
	return float64(b.level) / float64(unitsPerToken)
}

// spend takes tokens that may not be there, down to a debt of one full bucket. That is so only for what others have granted.
func (b *bucket) charge(tokens int64) {
	if b.perMinute > 0 {
		b.level = max(b.level-tokens*unitsPerToken, -b.size())
	}
}
