package admission

import (
	"fmt"
	"strings"
)

// Reason says what became of a claim or of a request.
type Reason uint8

// The reasons. Their numbers appear in the replies of the Redis script, which gets them from
// Reasons.
const (
	// Granted means that nothing stands in the way.
	Granted Reason = iota
	// ModelConcurrency means that the model has as many leases as Limits.MaxConcurrent allows.
	ModelConcurrency
	// ModelTokens means that the model's bucket has too few tokens.
	ModelTokens
	// TenantRequests means that the tenant has used up its requests per minute.
	TenantRequests
	// TenantTokens means that the tenant's bucket has too few tokens.
	TenantTokens
	// TenantStreams means that the tenant has as many requests as TenantLimits.MaxConcurrent
	// allows.
	TenantStreams
	// TenantPrefill means that as many requests of the tenant are in prefill as
	// TenantLimits.MaxPrefill allows.
	TenantPrefill
	// ReplicaFull means that the replica has as many requests as Slot.Limit allows.
	ReplicaFull
	// TenantBytes means that the tenant's waiters hold as many bytes as TenantLimits.MaxQueueBytes
	// allows.
	TenantBytes
	// QueueFull means that too many requests, or requests of too many bytes, wait already.
	QueueFull
	// Evicted means that the request waited, and that a request before it in order needed its room
	// in the queue.
	Evicted
	// TaskEnded means that the request's task does not exist, or no longer.
	TaskEnded
	// TaskBusy means that another request of the task runs.
	TaskBusy
	// Unavailable means that the shared state did not answer in time.
	Unavailable
	// Stale means that the limits changed while the shared state was asked. The claim is sent
	// again.
	Stale

	reasonCount
)

// reasonRow is what is known of one Reason.
type reasonRow struct {
	// name is what the Redis script calls the reason. "" means that the script never answers it.
	name string
	// text is Reason.String.
	text string
	// message is Reason.Message, with {} for what is asked for. "" means that the reason makes a
	// request wait and never refuses it.
	message string
	// key is the message if the limit is that of a key, with {} for the key. "" means that keys
	// have no such limit.
	key string
	// queue is Reason.IsQueue. limit is Reason.isLimit.
	queue, limit bool
	// fails is the error of a request that the reason ends. nil means that it ends none, or that
	// the request is Refused.
	fails error
}

// reasonTable has a row for every Reason. A Reason without one fails the tests.
var reasonTable = [reasonCount]reasonRow{
	Granted:          {name: "GRANTED", text: "granted"},
	ModelConcurrency: {name: "MODEL_CONCURRENCY", text: "model is busy", limit: true},
	ModelTokens: {name: "MODEL_TOKENS", text: "model's token limit reached", limit: true,
		message: "No tokens are left in this minute for {}."},
	TenantRequests: {name: "TENANT_REQUESTS", text: "tenant's request limit reached", limit: true,
		message: "Your requests per minute are used up.",
		key:     "The requests per minute of the key {} are used up."},
	TenantTokens: {name: "TENANT_TOKENS", text: "tenant's token limit reached", limit: true,
		message: "Your tokens per minute are used up.",
		key:     "The tokens per minute of the key {} are used up."},
	TenantStreams: {name: "TENANT_STREAMS", text: "tenant has too many requests at once", limit: true,
		message: "You have as many requests at once as you may.",
		key:     "The key {} has as many requests at once as it may."},
	TenantPrefill: {name: "TENANT_PREFILL", text: "tenant has too many requests in prefill", limit: true},
	ReplicaFull:   {name: "REPLICA_FULL", text: "replica is full"},
	TenantBytes: {text: "tenant's waiting requests are too large", queue: true,
		message: "Your waiting requests hold as many bytes as they may."},
	QueueFull: {text: "queue is full", queue: true, message: "The queue of {} is full."},
	Evicted: {text: "another request needed the room in the queue", queue: true,
		message: "The request gave up its place in the queue of {} to one that goes before it."},
	TaskEnded:   {name: "TASK_ENDED", text: "task has ended", fails: ErrUnknownTask},
	TaskBusy:    {name: "TASK_BUSY", text: "task has a running request", fails: ErrTaskBusy},
	Unavailable: {text: "shared state does not answer"},
	Stale:       {text: "limits have changed"},
}

// Reasons returns the reasons that the script of a Shared may answer, by the names that it has for
// them.
func Reasons() map[string]Reason {
	reasons := map[string]Reason{}
	for r, row := range reasonTable {
		if row.name != "" {
			reasons[row.name] = Reason(r)
		}
	}
	return reasons
}

// String returns the reason in words, for logs.
func (r Reason) String() string {
	if r < reasonCount {
		return reasonTable[r].text
	}
	return fmt.Sprintf("reason %d", uint8(r))
}

// Message returns what a client reads that is refused for this reason. subject is what the client
// asked for, such as "the model `m`". A reason that never refuses has the message of QueueFull.
func (r Reason) Message(subject string) string {
	if !r.refuses() {
		r = QueueFull
	}
	return strings.ReplaceAll(reasonTable[r].message, "{}", subject)
}

// MessageOfKey returns what a client reads that is refused because of a limit of its key. key is
// how the key is shown.
func (r Reason) MessageOfKey(key string) string {
	if r >= reasonCount || reasonTable[r].key == "" {
		return r.Message("the key " + key)
	}
	return strings.ReplaceAll(reasonTable[r].key, "{}", key)
}

// IsQueue reports whether a refusal for this reason is about the queue, and not about a rate.
// Clients get another error code for it.
func (r Reason) IsQueue() bool { return !r.refuses() || reasonTable[r].queue }

// refuses reports whether a request may be refused for this reason.
func (r Reason) refuses() bool { return r < reasonCount && reasonTable[r].message != "" }

// isLimit reports whether a limit of a model or of a tenant that Shared counts stands in the way.
func (r Reason) isLimit() bool { return r < reasonCount && reasonTable[r].limit }

// fails returns the error of a request that the reason ends without a refusal, or nil.
func (r Reason) fails() error {
	if r < reasonCount {
		return reasonTable[r].fails
	}
	return nil
}
