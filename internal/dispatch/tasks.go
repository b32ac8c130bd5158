package dispatch

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/sluice-gateway/sluice/admission"
	"github.com/sluice-gateway/sluice/internal/headers"
	"github.com/sluice-gateway/sluice/internal/openai"
)

// TaskRequest asks for a task: the right to call a model elsewhere.
type TaskRequest struct {
	Tenant   string
	Priority admission.Priority
	// Allowed says whether the tenant may use the model or pool of this name; nil allows all.
	Allowed func(name string) bool
	// Pool or Model to take; neither means the first pool, or all models where there is none.
	Pool, Model string
	// Key is the caller's own id of the request; a repeated one finds the same task. Empty: none.
	Key string
	// Tokens it will cost.
	Tokens int
	// MaxWait is how long the caller is willing to wait for the answer; 0 means not at all.
	MaxWait time.Duration
}

// Schedule admits a task, or says how long to wait before asking again.
func (d *Dispatcher) Schedule(ctx context.Context, r TaskRequest) (admission.Task, time.Duration, *openai.Error) {
	w := d.table.Load()
	ask, fault := w.taskRequest(r)
	if fault != nil {
		return admission.Task{}, 0, fault
	}
	task, wait, err := d.admission.Schedule(ctx, ask)
	if err != nil {
		return admission.Task{}, 0, explainTask(ctx, ask, err)
	}
	if task.ID != "" && !w.offers(ask, task.Model) {
		return admission.Task{}, 0, &openai.Error{Code: openai.CodeRequestIDConflict, Param: "request_id",
			Message: "The task of this request_id was admitted to the model `" + task.Model + "`, which this call does not ask for."}
	}
	return task, wait, nil
}

// offers says whether the model is one that was asked for. A task that a repeated call finds may be
// of another one. What a pool has lost since is no mistake of the caller's, so only a model that is
// in another pool counts.
func (w *routingTable) offers(ask admission.TaskRequest, model string) bool {
	if ask.Model != "" {
		return ask.Model == model
	}
	if slices.Contains(w.admissionPools[ask.Pool], model) {
		return true
	}
	for _, models := range w.pools {
		if slices.Contains(models, model) {
			return false
		}
	}
	return true
}

// taskRequest finds the models that a task may go to. They need no replica: who calls them does it
// elsewhere.
func (w *routingTable) taskRequest(r TaskRequest) (admission.TaskRequest, *openai.Error) {
	ask := admission.TaskRequest{Tenant: r.Tenant, Key: r.Key, Allowed: r.Allowed, Priority: r.Priority, Tokens: r.Tokens,
		Lease: w.taskLease, MaxWait: r.MaxWait}
	switch {
	case r.Model != "" && r.Pool != "":
		return ask, &openai.Error{Code: openai.CodeInvalidRequest, Param: "pool", Message: "Name a pool or a model, not both."}
	case r.Model != "":
		m, ok := w.snapshot.Resolve(r.Model)
		if !ok {
			return ask, &openai.Error{Code: openai.CodeModelNotFound, Param: "model", Message: "The model `" + clip(r.Model) + "` does not exist."}
		}
		ask.Model = m.Name
		return ask, mayUse(r.Allowed, "model", m.Name)
	}
	ask.Pool = r.Pool
	models, ok := w.pools[r.Pool]
	if r.Pool == "" {
		ask.Pool, models = w.taskPool, w.admissionPools[w.taskPool]
	} else if !ok {
		return ask, &openai.Error{Code: openai.CodeModelNotFound, Param: "pool", Message: "The pool `" + clip(r.Pool) + "` does not exist."}
	}
	if r.Pool != "" {
		if fault := mayUse(r.Allowed, "pool", r.Pool); fault != nil {
			return ask, fault
		}
	}
	switch {
	case len(models) == 0:
		return ask, openai.Errorf(openai.CodeModelNotFound, "There is no model.")
	case r.Allowed != nil && !slices.ContainsFunc(models, r.Allowed):
		return ask, openai.Errorf(openai.CodeForbiddenModel, "This API key may not use any of these models.")
	}
	return ask, nil
}

func explainTask(ctx context.Context, ask admission.TaskRequest, err error) *openai.Error {
	var refused *admission.Refused
	switch {
	case ctx.Err() != nil:
		return &openai.Error{Code: openai.CodeRequestTimeout, Status: 499, Message: "The client left."}
	case errors.Is(err, admission.ErrNeverFits):
		return &openai.Error{Code: openai.CodeInvalidRequest, Param: "estimated_tokens",
			Message: "No model is ever given so many tokens in a minute: the task can never be admitted."}
	case errors.Is(err, admission.ErrUnavailable):
		return unreachable()
	case errors.As(err, &refused):
		return explainRefusal("the models", refused)
	}
	return openai.Errorf(openai.CodeModelNotFound, "The models of %s%s are gone.", ask.Pool, ask.Model)
}

// Complete ends a task; actual is what it has cost, negative if that is not known. False: the
// tenant has no such task.
func (d *Dispatcher) Complete(ctx context.Context, tenant, id string, actual int) (bool, *openai.Error) {
	return found(d.admission.Complete(ctx, tenant, id, actual))
}

// Renew makes a task last longer. False: the tenant has no such task.
func (d *Dispatcher) Renew(ctx context.Context, tenant, id string) (time.Duration, bool, *openai.Error) {
	lease := d.table.Load().taskLease
	_, err := d.admission.Renew(ctx, tenant, id, lease)
	ok, fault := found(err)
	return lease, ok, fault
}

func found(err error) (bool, *openai.Error) {
	switch {
	case err == nil:
		return true, nil
	case errors.Is(err, admission.ErrUnknownTask):
		return false, nil
	}
	return false, unreachable()
}

// byTask narrows the choice to the model that the request's task was admitted to, and makes the
// task last longer.
func (d *Dispatcher) byTask(ctx context.Context, w *routingTable, c choice, r *Request) (choice, *openai.Error) {
	task, err := d.admission.Renew(ctx, r.Tenant, r.Task, w.taskLease)
	if ok, fault := found(err); fault != nil {
		return c, fault
	} else if !ok {
		return c, &openai.Error{Code: openai.CodeInvalidRequest, Param: headers.TaskID, Message: "There is no such task."}
	}
	for _, t := range c.members {
		if t.Name == task.Model {
			return choice{members: []*modelRoute{t}}, nil
		}
	}
	return c, &openai.Error{Code: openai.CodeInvalidRequest, Param: headers.TaskID,
		Message: "The task was admitted to the model `" + task.Model + "`, not to " + c.name() + "."}
}

// inTask claims the task for one request at a time: what was admitted once must not run many times
// at once.
func (d *Dispatcher) inTask(r *Request, release func()) (func(), bool) {
	end, ok := d.ids.claim(r.Tenant, "task\x00"+r.Task)
	if !ok {
		release()
		return nil, false
	}
	return func() {
		end()
		release()
	}, true
}
