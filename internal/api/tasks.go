package api

import (
	"cmp"
	"context"
	"net/http"
	"time"

	"github.com/sluice-gateway/sluice/internal/headers"
	"github.com/sluice-gateway/sluice/internal/openai"
	"github.com/sluice-gateway/sluice/internal/routes"
)

// Tasks admits work that callers run on a backend of their own and report as done (POST
// /schedule, /renew, /complete). All methods are safe for concurrent use. A task belongs to its
// tenant; the methods do not find the tasks of other tenants.
type Tasks interface {
	// Schedule admits the work, or says when to ask again. It waits at most as long as the request
	// allows and until ctx ends.
	Schedule(ctx context.Context, r ScheduleRequest) (ScheduleAnswer, *openai.Error)
	// Complete ends the task with this id. tokens is the real cost; nil means that the estimate was
	// right. A task that has ended is not found.
	Complete(ctx context.Context, tenant, id string, tokens *int) (found bool, fault *openai.Error)
	// Renew starts the lease of the task anew and returns how long the lease lasts.
	Renew(ctx context.Context, tenant, id string) (lease time.Duration, found bool, fault *openai.Error)
}

// ScheduleRequest asks for the admission of one task.
type ScheduleRequest struct {
	// Tenant is the name of the caller's tenant. Key is the digest of its key; empty: it has none.
	Tenant, Key string
	// Priority is interactive, default or batch. Empty means the tenant's own priority.
	Priority string
	// EstimatedTokens is the expected cost of the task, prompt and output together.
	EstimatedTokens int
	// RequestID is the caller's own id of the work. A second call with the same id gets the task of
	// the first call. Empty means none.
	RequestID string
	// Pool and Model name what to choose from. At most one of them is set. If neither is set, the
	// first pool is meant, or all models if there is no pool.
	Pool, Model string
	// MaxWait is how long the answer may take if the task cannot be admitted at once. 0 means that
	// the answer comes at once.
	MaxWait time.Duration
}

// ScheduleAnswer is either a task or, if TaskID is empty, a time to wait.
type ScheduleAnswer struct {
	// Wait is the time after which the caller should ask again.
	Wait time.Duration
	// Model is the model to call. TaskID is the id for Renew and Complete.
	Model, TaskID string
}

const (
	// maxTokens is the largest number of tokens that a call may name.
	maxTokens = 1 << 31
	// maxWaitMS is the longest time in milliseconds that /schedule may hold a call. It is shorter
	// than the usual timeouts of proxies.
	maxWaitMS = 300_000
)

// handleTasks adds the handlers of the batch API.
func (c Config) handleTasks(mux *http.ServeMux) {
	for path, serve := range map[string]func(http.ResponseWriter, *http.Request) *openai.Error{
		routes.SchedulePath: c.schedule, routes.CompletePath: c.complete, routes.RenewPath: c.renew,
	} {
		mux.HandleFunc(path, func(w http.ResponseWriter, r *http.Request) {
			if r.Method != http.MethodPost {
				c.fail(w, r, methodNotAllowed(r, http.MethodPost))
			} else if fault := serve(w, r); fault != nil {
				c.fail(w, r, fault)
			}
		})
	}
}

// schedule serves POST /schedule.
func (c Config) schedule(w http.ResponseWriter, r *http.Request) *openai.Error {
	request, fault := readSchedule(w, r)
	var answer ScheduleAnswer
	if fault == nil {
		answer, fault = c.Tasks.Schedule(r.Context(), request)
	}
	if fault != nil {
		c.failFor(w, r, c.askedFor(&request), fault)
		return nil
	}
	if answer.TaskID != "" && request.RequestID == "" && r.Context().Err() != nil {
		// The caller is gone and cannot ask for this task again, so nobody would complete the task.
		// A task with a request id is kept: the next call gets it, or its lease expires.
		noTokens := 0
		if _, fault := c.Tasks.Complete(context.WithoutCancel(r.Context()), request.Tenant, answer.TaskID, &noTokens); fault != nil {
			return fault
		}
		answer = ScheduleAnswer{}
	}
	if answer.TaskID == "" {
		c.answerFor(w, r, c.askedFor(&request), 200, struct {
			Wait int64 `json:"wait_for_ms"`
		}{max(ceilMillis(answer.Wait), 1)})
		return nil
	}
	c.answerFor(w, r, answer.Model, 200, struct {
		Model string `json:"model_backend_id"`
		Task  string `json:"task_id"`
	}{answer.Model, answer.TaskID})
	return nil
}

// askedFor returns the pool that a call of /schedule names, or the own name of the model. It is
// empty if the call names neither.
func (c Config) askedFor(request *ScheduleRequest) string {
	if request.Model == "" || c.Fleet == nil {
		return cmp.Or(request.Pool, request.Model)
	}
	if m, ok := c.Fleet.Snapshot().Resolve(request.Model); ok {
		return m.Name
	}
	return request.Model
}

// ceilMillis returns d in milliseconds, rounded up, so that a caller who waits that long does not
// come too early.
func ceilMillis(d time.Duration) int64 {
	ms := d.Milliseconds()
	if d%time.Millisecond > 0 {
		ms++
	}
	return ms
}

func readSchedule(w http.ResponseWriter, r *http.Request) (ScheduleRequest, *openai.Error) {
	request := ScheduleRequest{Tenant: r.Header.Get(headers.Tenant), Key: r.Header.Get(headers.Key), Priority: r.Header.Get(headers.Priority)}
	var tokens, wait *int64
	fault := readObject(w, r, map[string]fieldParser{
		"estimated_tokens": count(&tokens, maxTokens),
		"request_id":       name(&request.RequestID),
		"pool":             name(&request.Pool),
		"model":            name(&request.Model),
		"max_wait_ms":      count(&wait, maxWaitMS),
	})
	if fault == nil {
		fault = addRequestID(r, &request.RequestID)
	}
	switch {
	case fault != nil:
		return request, fault
	case tokens == nil:
		return request, invalid("estimated_tokens", "is missing")
	case request.Pool != "" && request.Model != "":
		return request, invalid("model", "and pool exclude each other: give one of them, or none")
	}
	request.EstimatedTokens = int(*tokens)
	if wait != nil {
		request.MaxWait = time.Duration(*wait) * time.Millisecond
	}
	return request, nil
}

// addRequestID sets id from the header Idempotency-Key, which means the same as the field
// request_id. Two different values are an error.
func addRequestID(r *http.Request, id *string) *openai.Error {
	values := r.Header.Values(headers.IdempotencyKey)
	if len(values) == 0 {
		return nil
	}
	if len(values) > 1 || *id != "" && *id != values[0] {
		return invalid(headers.IdempotencyKey, "differs from request_id, or is there twice")
	}
	if wrong := nameFault(values[0]); wrong != "" {
		return invalid(headers.IdempotencyKey, wrong)
	}
	*id = values[0]
	return nil
}

// complete serves POST /complete.
func (c Config) complete(w http.ResponseWriter, r *http.Request) *openai.Error {
	var id string
	var actual, prompt, completion *int64
	fault := readObject(w, r, map[string]fieldParser{
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
	return c.answerTask(w, r, found, fault, struct {
		OK bool `json:"ok"`
	}{true})
}

// sum adds the numbers that are set. It returns nil if none is set.
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

// renew serves POST /renew.
func (c Config) renew(w http.ResponseWriter, r *http.Request) *openai.Error {
	var id string
	if fault := readObject(w, r, map[string]fieldParser{"task_id": name(&id)}); fault != nil {
		return fault
	}
	if id == "" {
		return invalid("task_id", "is missing")
	}
	lease, found, fault := c.Tasks.Renew(r.Context(), r.Header.Get(headers.Tenant), id)
	return c.answerTask(w, r, found, fault, struct {
		OK bool `json:"ok"`
		// Lease is rounded down, so that a caller who renews in time does so before the lease
		// expires.
		Lease int64 `json:"lease_ms"`
	}{true, lease.Milliseconds()})
}

// answerTask writes the answer about a task. "Not found" is the one error that does not have
// OpenAI's form: it is part of the protocol of existing callers of the batch API.
func (c Config) answerTask(w http.ResponseWriter, r *http.Request, found bool, fault *openai.Error, answer any) *openai.Error {
	switch {
	case fault != nil:
		return fault
	case !found:
		c.answer(w, r, 404, struct {
			Error string `json:"error"`
		}{"Task not found"})
	default:
		c.answer(w, r, 200, answer)
	}
	return nil
}
