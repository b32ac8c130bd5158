package api

import (
	"context"
	"net/http"
	"time"

	"github.com/sluice-gateway/sluice/internal/headers"
	"github.com/sluice-gateway/sluice/internal/openai"
)

// Tasks admits work that callers do elsewhere, on a backend of their own, and report as done (POST /schedule, /renew, /complete). All
// methods are safe for concurrent use. Tasks belong to their tenant: those of others are not found.
type Tasks interface {
	// Schedule admits the work, or says when to ask again. It may wait as long as the request allows, and no longer than ctx.
	Schedule(ctx context.Context, r ScheduleRequest) (ScheduleAnswer, *openai.Error)
	// Complete ends the task of this id. tokens is what it cost in the end; nil: as was estimated. A task that has ended is not found.
	Complete(ctx context.Context, tenant, id string, tokens *int) (found bool, fault *openai.Error)
	// Renew makes the task's lease begin anew and says how long it lasts.
	Renew(ctx context.Context, tenant, id string) (lease time.Duration, found bool, fault *openai.Error)
}

// ScheduleRequest asks for the admission of one task.
type ScheduleRequest struct {
	// Tenant is who calls.
	Tenant string
	// Priority is interactive, default or batch; "" is the tenant's own.
	Priority string
	// EstimatedTokens is what the task will cost, prompt and answer together.
	EstimatedTokens int
	// RequestID is the caller's own name for the work: a second call with it finds the task of the first. "": none.
	RequestID string
	// Pool or Model to choose from; at most one of them is set. With neither it is the first pool, or all models if there is no pool.
	Pool, Model string
	// MaxWait is how long the answer may take when there is no room at once. 0: no time.
	MaxWait time.Duration
}

// ScheduleAnswer is either a wait or a task.
type ScheduleAnswer struct {
	// Wait is the time after which to ask again.
	Wait time.Duration
	// Model to call, and the handle for completion.
	Model, TaskID string
}

const (
	// maxTokens is the largest number of tokens that a call may name.
	maxTokens = 1 << 31
	// maxWait is the longest that /schedule holds a call, in milliseconds: shorter than any proxy's patience should be.
	maxWait = 300_000
)

// routes adds the calls of the batch API.
func (c Config) routes(mux *http.ServeMux) {
	for path, serve := range map[string]func(http.ResponseWriter, *http.Request) *openai.Error{
		"/schedule": c.schedule, "/complete": c.complete, "/renew": c.renew,
	} {
		mux.HandleFunc(path, func(w http.ResponseWriter, r *http.Request) {
			fault := notPost(r)
			if fault == nil {
				fault = serve(w, r)
			}
			if fault != nil {
				fail(w, fault)
			}
		})
	}
}

func notPost(r *http.Request) *openai.Error {
	if r.Method == http.MethodPost {
		return nil
	}
	fault := methodNotAllowed(r)
	fault.Header = map[string]string{"allow": http.MethodPost}
	return fault
}

func (c Config) schedule(w http.ResponseWriter, r *http.Request) *openai.Error {
	ask, fault := readSchedule(w, r)
	if fault != nil {
		return fault
	}
	answer, fault := c.Tasks.Schedule(r.Context(), ask)
	if fault != nil {
		return fault
	}
	if answer.TaskID != "" && ask.RequestID == "" && r.Context().Err() != nil {
		// The caller has left and cannot ask for this task again, so nobody would ever end it. (One with a request id is kept for
		// the next call, or until its lease ends.)
		none := 0
		if _, fault := c.Tasks.Complete(context.WithoutCancel(r.Context()), ask.Tenant, answer.TaskID, &none); fault != nil {
			return fault
		}
		answer = ScheduleAnswer{}
	}
	if answer.TaskID == "" {
		write(w, 200, struct {
			Wait int64 `json:"wait_for_ms"`
		}{max(ceilMillis(answer.Wait), 1)})
		return nil
	}
	write(w, 200, struct {
		Model string `json:"model_backend_id"`
		Task  string `json:"task_id"`
	}{answer.Model, answer.TaskID})
	return nil
}

// ceilMillis rounds up, so that who waits so long does not come too early.
func ceilMillis(d time.Duration) int64 {
	ms := d.Milliseconds()
	if d%time.Millisecond > 0 {
		ms++
	}
	return ms
}

func readSchedule(w http.ResponseWriter, r *http.Request) (ScheduleRequest, *openai.Error) {
	ask := ScheduleRequest{Tenant: r.Header.Get(headers.Tenant), Priority: r.Header.Get(headers.Priority)}
	var tokens, wait *int64
	fault := readObject(w, r, map[string]member{
		"estimated_tokens": count(&tokens, maxTokens),
		"request_id":       name(&ask.RequestID),
		"pool":             name(&ask.Pool),
		"model":            name(&ask.Model),
		"max_wait_ms":      count(&wait, maxWait),
	})
	if fault == nil {
		fault = oneRequestID(r, &ask.RequestID)
	}
	switch {
	case fault != nil:
		return ask, fault
	case tokens == nil:
		return ask, invalid("estimated_tokens", "is missing")
	case ask.Pool != "" && ask.Model != "":
		return ask, invalid("model", "and pool exclude each other: give one of them, or none")
	}
	ask.EstimatedTokens = int(*tokens)
	if wait != nil {
		ask.MaxWait = time.Duration(*wait) * time.Millisecond
	}
	return ask, nil
}

// oneRequestID takes the request id from the header that means the same. Two that differ are a mistake.
func oneRequestID(r *http.Request, id *string) *openai.Error {
	values := r.Header.Values(headers.IdempotencyKey)
	if len(values) == 0 {
		return nil
	}
	if len(values) > 1 || *id != "" && *id != values[0] {
		return invalid(headers.IdempotencyKey, "differs from request_id, or is there twice")
	}
	if wrong := nameable(values[0]); wrong != "" {
		return invalid(headers.IdempotencyKey, wrong)
	}
	*id = values[0]
	return nil
}

func (c Config) complete(w http.ResponseWriter, r *http.Request) *openai.Error {
	var id string
	var actual, prompt, completion *int64
	fault := readObject(w, r, map[string]member{
		"task_id":           name(&id),
		"actual_tokens":     count(&actual, maxTokens),
		"prompt_tokens":     count(&prompt, maxTokens),
		"completion_tokens": count(&completion, maxTokens),
	})
	switch {
	case fault != nil:
		return fault
	case id == "":
		return invalid("task_id", "is missing")
	case actual != nil && (prompt != nil || completion != nil):
		return invalid("actual_tokens", "is the sum of prompt_tokens and completion_tokens: give it or them")
	case completion != nil && prompt == nil:
		return invalid("prompt_tokens", "is missing beside completion_tokens")
	}
	found, fault := c.Tasks.Complete(r.Context(), r.Header.Get(headers.Tenant), id, sum(actual, prompt, completion))
	return answerTask(w, found, fault, struct {
		OK bool `json:"ok"`
	}{true})
}

// sum adds the numbers that are there; nil when none is.
func sum(numbers ...*int64) *int {
	var total *int
	for _, n := range numbers {
		if n == nil {
			continue
		}
		if total == nil {
			total = new(int)
		}
		*total += int(*n)
	}
	return total
}

func (c Config) renew(w http.ResponseWriter, r *http.Request) *openai.Error {
	var id string
	if fault := readObject(w, r, map[string]member{"task_id": name(&id)}); fault != nil {
		return fault
	}
	if id == "" {
		return invalid("task_id", "is missing")
	}
	lease, found, fault := c.Tasks.Renew(r.Context(), r.Header.Get(headers.Tenant), id)
	return answerTask(w, found, fault, struct {
		OK    bool  `json:"ok"`
		Lease int64 `json:"lease_ms"` // rounded down: who renews in time does so before the end
	}{true, lease.Milliseconds()})
}

// answerTask writes the answer about a task that was found. That it was not is the one error that is not shaped like OpenAI's: callers of the
// batch API know it so.
func answerTask(w http.ResponseWriter, found bool, fault *openai.Error, answer any) *openai.Error {
	switch {
	case fault != nil:
		return fault
	case !found:
		write(w, 404, struct {
			Error string `json:"error"`
		}{"Task not found"})
	default:
		write(w, 200, answer)
	}
	return nil
}
