package admission

import "time"

// bucket is a token bucket in whole numbers, so that what it gives over any time is exact. A token
// is 60 million units. A bucket of n tokens per minute gains n units in each microsecond.
type bucket struct {
	// perMinute is the size of the bucket and its gain per minute. 0 means no limit; the other
	// fields then mean nothing.
	perMinute int64
	// level is in units. It is negative while the bucket is in debt.
	level int64
	// updatedAt is the time of level.
	updatedAt time.Time
	// deep lets the debt be as large as what the bucket gains in maxDebtMinutes. Other buckets owe
	// at most what they hold.
	deep bool
}

const (
	unitsPerToken = 60_000_000
	// maxTokens keeps a full bucket, a debt of the same size and a correction of both within an
	// int64.
	maxTokens = (1<<63 - 1) / unitsPerToken / 4
	// maxDebtMinutes bounds the debt of a deep bucket. A tenant whose answer was larger than its
	// estimate waits until it is paid, but no longer than this.
	maxDebtMinutes = 60
	// maxWaitMinutes is what a longer wait counts as.
	maxWaitMinutes = 1 << 20
)

func (b *bucket) size() int64 { return b.perMinute * unitsPerToken }

// maxDebt is the largest debt, in tokens.
func (b *bucket) maxDebt() int64 {
	if !b.deep {
		return b.perMinute
	}
	return max(b.perMinute, min(maxDebtMinutes*b.perMinute, maxTokens))
}

func (b *bucket) lowest() int64 { return -b.maxDebt() * unitsPerToken }

// resize changes the limit. A bucket that had no limit starts full.
func (b *bucket) resize(perMinute int, now time.Time) {
	unlimited := b.perMinute == 0
	b.refill(now)
	b.perMinute = int64(min(max(perMinute, 0), maxTokens))
	b.level = min(max(b.level, b.lowest()), b.size())
	if unlimited {
		b.level, b.updatedAt = b.size(), now
	}
}

// refill brings level up to now. A clock that stands still or goes back changes nothing.
func (b *bucket) refill(now time.Time) {
	elapsed := now.Sub(b.updatedAt)
	if minutes := int64(elapsed / time.Minute); minutes > 0 {
		if minutes > b.maxDebt()/max(b.perMinute, 1) {
			b.level, b.updatedAt = b.size(), now
			return
		}
		b.level = min(b.size(), b.level+minutes*b.size())
		b.updatedAt = b.updatedAt.Add(time.Duration(minutes) * time.Minute)
		elapsed -= time.Duration(minutes) * time.Minute
	}
	// updatedAt moves by whole microseconds, so the rest of a microsecond counts at the next call.
	if whole := elapsed.Microseconds(); whole > 0 {
		b.level = min(b.size(), b.level+whole*b.perMinute)
		b.updatedAt = b.updatedAt.Add(time.Duration(whole) * time.Microsecond)
	}
}

// wait is the time until the bucket has given so many tokens, if nobody else is charged. 0 means
// that it has them now. tokens may be more than the bucket holds.
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

// correct gives tokens back, or takes more if the number is negative. The debt is at most maxDebt.
func (b *bucket) correct(tokens int64) {
	most := b.perMinute + b.maxDebt()
	tokens = min(max(tokens, -most), most)
	b.level = min(max(b.level+tokens*unitsPerToken, b.lowest()), b.size())
}

// correctWithoutDebt is correct, but takes no more tokens than there are.
func (b *bucket) correctWithoutDebt(tokens int64) {
	lowest := min(b.level, 0)
	b.correct(tokens)
	b.level = max(b.level, lowest)
}

// forgive ends the debt.
func (b *bucket) forgive() { b.level = max(b.level, 0) }

// tokens is the level in tokens; -1 without a limit.
func (b *bucket) tokens(now time.Time) float64 {
	if b.perMinute == 0 {
		return -1
	}
	b.refill(now)
	return float64(b.level) / float64(unitsPerToken)
}

// charge takes tokens. They may be missing if other gateways have granted them; the debt is at most
// maxDebt.
func (b *bucket) charge(tokens int64) {
	if b.perMinute > 0 {
		b.level = max(b.level-tokens*unitsPerToken, b.lowest())
	}
}
