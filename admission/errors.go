package admission

import (
	"errors"
	"fmt"
	"time"
)

// Why a request is not admitted. None of them has changed a counter.
var (
	// ErrUnknownModel means that no limits were ever set for the model, or that it was removed, or that no pool has that name or
	// none of its models is known.
	ErrUnknownModel = errors.New("admission: unknown model")
	// ErrRemoved means that the model or the pool was removed while the request was there.
	ErrRemoved = errors.New("admission: model removed")
	// ErrNeverFits means that the request needs more tokens than the model or the tenant is ever given: waiting and retrying are
	// in vain.
	ErrNeverFits = errors.New("admission: more tokens than there are in a minute")
	// ErrTimeout means that the request has waited as long as it may.
	ErrTimeout = errors.New("admission: waited too long")
	// ErrClosed means that the request would have to wait, and that the Controller was closed.
	ErrClosed = errors.New("admission: closed")
	// ErrUnknownTask means that the tenant has no such task: it never was, has ended, or has expired.
	ErrUnknownTask = errors.New("admission: unknown task")
	// ErrUnavailable means that the shared state did not answer and nobody else knows.
	ErrUnavailable = errors.New("admission: shared state does not answer")
)

// Refused says why a request may not go on and when another try has a chance. It comes at once, but for Evicted.
type Refused struct {
	// Reason is never Granted, Unavailable or Stale.
	Reason Reason
	// RetryAfter is not before what is missing can be there, as far as is known, with some jitter on top so that those who were
	// refused together do not come back together.
	RetryAfter time.Duration
	// Quota of the tenant at that moment.
	Quota Quota
}

func (e *Refused) Error() string {
	return fmt.Sprintf("admission: %v, retry after %v", e.Reason, e.RetryAfter)
}

// String returns the reason in words.
func (r Reason) String() string {
	if int(r) < len(reasonNames) {
		return reasonNames[r]
	}
	return fmt.Sprintf("reason %d", uint8(r))
}

var reasonNames = [...]string{
	Granted:          "granted",
	ModelConcurrency: "model is busy",
	ModelTokens:      "model's token limit reached",
	TenantRequests:   "tenant's request limit reached",
	TenantTokens:     "tenant's token limit reached",
	TenantStreams:    "tenant has too many requests at once",
	TenantPrefill:    "tenant has too many requests in prefill",
	ReplicaFull:      "replica is full",
	TenantBytes:      "tenant's waiting requests are too large",
	QueueFull:        "queue full",
	Evicted:          "made way for another request",
	Unavailable:      "shared state does not answer",
	Stale:            "limits have changed",
}
