package admission

import (
	"errors"
	"fmt"
	"time"
)

// The errors of Admit, Schedule and the methods for tasks. A request that fails with one of them
// was charged nothing.
var (
	// ErrUnknownModel means that the model has no limits, that the pool does not exist, or that
	// none of its models is known.
	ErrUnknownModel = errors.New("admission: unknown model")
	// ErrRemoved means that the model or the pool was removed while the request waited.
	ErrRemoved = errors.New("admission: model removed")
	// ErrNeverFits means that the request needs more tokens than the model, the tenant or its key
	// gets in a minute. A retry is in vain.
	ErrNeverFits = errors.New("admission: the request needs more tokens than its limit per minute")
	// ErrTimeout means that the request has waited as long as it may.
	ErrTimeout = errors.New("admission: waited too long")
	// ErrClosed means that the Controller was closed and the request would have to wait.
	ErrClosed = errors.New("admission: closed")
	// ErrUnknownTask means that the tenant has no such task: it never existed, has ended, or has
	// expired.
	ErrUnknownTask = errors.New("admission: unknown task")
	// ErrTaskEnded means that the task of this key was completed a short time ago.
	ErrTaskEnded = errors.New("admission: the task of this key has ended")
	// ErrTaskBusy means that another request of the task runs.
	ErrTaskBusy = errors.New("admission: another request of the task is running")
	// ErrUnavailable means that the shared state did not answer, and that this gateway does not
	// know.
	ErrUnavailable = errors.New("admission: shared state does not answer")
	// ErrNotRecorded means that the task journal cannot be written, or is closed. A new task was
	// not admitted; a renewed one holds its lease, but not over a restart.
	ErrNotRecorded = errors.New("admission: the task cannot be recorded")
)

// Refused says why a request may not go on, and when a retry has a chance. It is returned at once,
// except for the reason Evicted.
type Refused struct {
	// Reason is never Granted, Unavailable or Stale.
	Reason Reason
	// RetryAfter is when the missing capacity can be there, as far as is known, or a little later.
	// It is at most 5 % later, or 50 ms where 5 % are less, or 1 s where 5 % are more. Requests
	// that are refused together are told different times.
	RetryAfter time.Duration
	// Key names the key whose own limit Reason is about. "" means that of the tenant or the model.
	Key string
	// Quota is what the tenant has left, or the key.
	Quota Quota
}

func (e *Refused) Error() string {
	return fmt.Sprintf("admission: %v, retry after %v", e.Reason, e.RetryAfter)
}
