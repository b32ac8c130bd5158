package admission

import "time"

const (
	defaultMaxQueue      = 1000
	defaultQueueTimeout  = 60 * time.Second
	defaultMaxQueueBytes = 1 << 30
	defaultAgeing        = 30 * time.Second
	// maxWeight keeps the product of a weight and tokens within an int64.
	maxWeight = 1 << 20
)

// Limits bound what one model grants, and which requests may wait for it. The zero value has the
// default limits of the queue and no others. LimitTable has a row for each field.
type Limits struct {
	// MaxConcurrent is the number of leases at once. 0 or less means no limit.
	MaxConcurrent int
	// TokensPerMinute is the size of the model's token bucket. The bucket is full at first and
	// fills evenly at this rate. 0 or less means no limit. A limit above 3.8e10 counts as 3.8e10.
	TokensPerMinute int
	// MaxQueue is the number of requests that may wait. 0 means 1000. Below 0 no request waits: one
	// that cannot be admitted at once is Refused with QueueFull.
	MaxQueue int
	// QueueTimeout is how long a request without a Request.Timeout may wait. 0 or less means one
	// minute.
	QueueTimeout time.Duration
	// Weight is the model's share of the tokens of its pools. 0 or less means 1.
	Weight int
}

// TenantLimits bound one tenant over all models. The zero value has no limits and the weight 1.
// LimitTable has a row for each field.
type TenantLimits struct {
	// Weight is the tenant's share of a model beside other tenants of its band. 0 or less means 1.
	Weight int
	// RequestsPerMinute and TokensPerMinute are the sizes of buckets that are full at first. 0 or
	// less means no limit. Answers that were larger than their estimates put the tokens in debt, of
	// up to 60 full buckets.
	RequestsPerMinute, TokensPerMinute int
	// MaxConcurrent bounds the tenant's requests that run or wait. 0 or less means no limit.
	MaxConcurrent int
	// MaxPrefill bounds the tenant's requests that are at a replica and have had no token yet.
	// Further requests wait. 0 or less means no limit.
	MaxPrefill int
	// MaxQueueBytes bounds the sum of Request.Bytes of the tenant's waiters. 0 or less means no
	// limit but Config.MaxQueueBytes.
	MaxQueueBytes int64
}

func (l Limits) weight() int64 { return boundedWeight(l.Weight) }

func (l TenantLimits) weight() int64 { return boundedWeight(l.Weight) }

// boundedWeight is a weight between 1 and maxWeight.
func boundedWeight(w int) int64 { return int64(min(max(w, 1), maxWeight)) }

// maxQueue is MaxQueue with its default.
func (l Limits) maxQueue() int {
	if l.MaxQueue == 0 {
		return defaultMaxQueue
	}
	return l.MaxQueue
}

// timeout is how long a request with this Request.Timeout may wait.
func (l Limits) timeout(requested time.Duration) time.Duration {
	switch {
	case requested > 0:
		return requested
	case l.QueueTimeout > 0:
		return l.QueueTimeout
	}
	return defaultQueueTimeout
}

// isReached reports whether n things use up the limit. A limit of 0 or less is never reached.
func isReached(n, limit int) bool { return limit > 0 && n >= limit }

// fitsBucket reports whether a bucket of perMinute tokens can ever hold these tokens.
func fitsBucket(tokens, perMinute int) bool {
	return perMinute <= 0 || tokens <= min(perMinute, maxTokens)
}
