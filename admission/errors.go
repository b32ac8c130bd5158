package admission

import (
	"errors"
	"fmt"
	"time"
)

// Why a request is not admitted. None of them has changed a counter.
var (
	// ErrUnknownModel means that no limits were ever set for the model, or that it was removed.
	ErrUnknownModel = errors.New("admission: unknown model")
	// ErrRemoved means that the model was removed while the request was there.
	ErrRemoved = errors.New("admission: model removed")
	// ErrNeverFits means that the request needs more tokens than the model is ever given: waiting and retrying are in vain.
	ErrNeverFits = errors.New("admission: more tokens than the model has in a minute")
	// ErrQueueFull means that too many requests, or too many bytes, wait already.
	ErrQueueFull = errors.New("admission: queue full")
	// ErrTimeout means that the request has waited as long as it may.
	ErrTimeout = errors.New("admission: waited too long")
)

// RateLimited says that the request's tokens cannot come before its deadline.
type RateLimited struct {
	// RetryAfter is when they would be there, with the tokens of all who wait now.
	RetryAfter time.Duration
}

func (e *RateLimited) Error() string {
	return fmt.Sprintf("admission: token limit reached, retry after %v", e.RetryAfter)
}
