package dispatch

import (
	"time"

	"github.com/sluice-gateway/sluice/admission"
	"github.com/sluice-gateway/sluice/authz"
	"github.com/sluice-gateway/sluice/internal/openai"
	"github.com/sluice-gateway/sluice/internal/prefix"
)

// Request is the part of a request that dispatch reads.
type Request struct {
	// Model or pool, as the client named it.
	Model string
	// Tenant is who calls, Priority how urgent it is.
	Tenant   string
	Priority admission.Priority
	// APIKey names the caller's key if it has limits of its own, KeyShown is how messages name it.
	APIKey, KeyShown string
	// Allowed reports whether the tenant may use the model of this name; nil allows all.
	Allowed func(model string) bool
	// Key returns the cache key over so many user messages (package ringhash: XXH64).
	Key func(userMessages int) uint64
	// ID is the client's own request id; empty when it gave none.
	ID string
	// Session names the session that the request belongs to, within its tenant. Empty means none.
	Session string
	// Previous names the session of the response that the request continues. Empty means none.
	Previous string
	// Task is the id of the task that the request belongs to and that was admitted before; empty
	// means none.
	Task string
	// PromptBytes, MaxTokens and Choices are the input of the estimate. MaxTokens 0 means that the
	// client set no bound, Choices 0 means one answer. NoOutput says that the answer has no text.
	// MediaParts are the images, sounds and files of the prompt, which PromptBytes does not count.
	PromptBytes, MediaParts, MaxTokens, Choices int
	NoOutput                                    bool
	// Free says that the model computes nothing for the request. MediaOutput is what an answer of
	// speech or images counts as, in tokens; 0 means that the answer is text.
	Free bool
	// Background says that the engine generates the response in the background, so that the answer
	// may come before the response.
	Background  bool
	MediaOutput int
	// Guarded and MediaURLs are those of openai.Request.
	Guarded   openai.Guards
	MediaURLs []openai.MediaURL
	// TellsUsage says that an engine tells its token count in the answer without being asked.
	TellsUsage bool
	// Endpoint and Stream say what the client asked for.
	Endpoint openai.Endpoint
	Stream   bool
	// Bytes is the memory that the request occupies while it waits.
	Bytes int
	// Timeout is the client's own bound on the whole request, MaxDuration that on the response; 0
	// means none.
	Timeout, MaxDuration time.Duration
	// OnWait is called before the request starts to wait, and when it waits long for the verdict of
	// the other gateways. It may be called more than once. May be nil.
	OnWait func()
	// OnBlock is called before the goroutine of Dispatch may block, and before OnWait. It may be
	// called more than once. May be nil.
	OnBlock func()
	// Chain returns the beginnings of the prompt. Their Home is that of a conversation after so
	// many messages of the user. nil means that they are not known.
	Chain func(userMessages int) prefix.Chain
	// Watch lets another goroutine read what the request waits for; nil means that none does.
	Watch *Wait
	// Preempt, unless it is nil, says that the request may be preempted while it is in prefill.
	// Dispatch calls Preempt once, from any goroutine and possibly with Dispatcher.mu held, when a
	// request of a higher priority waits for its slot. Preempt must not call the Dispatcher.
	//
	// The caller of Dispatch then ends the request at the replica and releases the ticket; the
	// attempt is not charged. The caller may dispatch the request again, with Preempted one higher.
	//
	// Preempt may be called shortly before Dispatch has returned the ticket. It is never called
	// after FirstToken has returned true.
	Preempt func()
	// Preempted is how often the request was preempted. A preempted request goes before the others
	// of its tenant and is not refused because of a full queue or a quota. After the third time it
	// is not preempted again.
	Preempted int
}

// Caller identifies who makes a request.
type Caller struct {
	Tenant   *authz.Tenant
	Priority admission.Priority
	// Task is the client's task that the request belongs to; empty: none.
	Task string
}

// LimitedKey returns the name of a caller's key that has limits of its own, or "".
func LimitedKey(t *authz.Tenant) string {
	if t.KeyLimited {
		return t.Key
	}
	return ""
}

// NewRequest builds a Request from the scan of its body. The request keeps scan and body alive
// until its Key and Chain are nil.
func NewRequest(c Caller, scan *openai.Request, body []byte) *Request {
	return &Request{
		Model:       scan.Model,
		Tenant:      c.Tenant.Name,
		APIKey:      LimitedKey(c.Tenant),
		KeyShown:    c.Tenant.KeyShown,
		Priority:    c.Priority,
		Allowed:     c.Tenant.Allows,
		Key:         func(userMessages int) uint64 { return scan.CacheKey(body, userMessages) },
		Chain:       func(userMessages int) prefix.Chain { return scan.Chain(body, userMessages) },
		ID:          scan.RequestID,
		Session:     scan.Session(),
		Previous:    scan.Previous(),
		Task:        c.Task,
		PromptBytes: scan.PromptBytes(),
		MediaParts:  scan.MediaParts(),
		MaxTokens:   scan.MaxTokens,
		Choices:     scan.Generations(),
		NoOutput:    scan.Endpoint.NoOutput(),
		Free:        scan.Endpoint.Free(),
		Background:  scan.Background,
		Guarded:     scan.Guarded,
		MediaURLs:   scan.MediaURLs,
		MediaOutput: scan.MediaOutput(),
		TellsUsage:  !scan.Stream || scan.IncludeUsage || !scan.Endpoint.Chunked(),
		Endpoint:    scan.Endpoint,
		Stream:      scan.Stream,
		Bytes:       scan.Size,
		Timeout:     scan.Timeout,
		MaxDuration: scan.MaxDuration,
	}
}
