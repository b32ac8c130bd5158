package dispatch

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/sluice-gateway/sluice/admission"
	"github.com/sluice-gateway/sluice/internal/headers"
	"github.com/sluice-gateway/sluice/internal/openai"
)

// TaskRequest asks for the admission of a task: the right to call a model that Sluice does not
// serve itself.
type TaskRequest struct {
	Tenant string
	// APIKey names the caller's key if it has limits of its own.
	APIKey   string
	Priority admission.Priority
	// Allowed says whether the tenant may use the model or pool of this name; nil allows all.
	Allowed func(name string) bool
	// Pool or Model that the task is for. Neither means the first pool, or all models if there is
	// no pool.
	Pool, Model string
	// Key is the caller's own id of the request. A repeated call with the same key returns the same
	// task. Empty means none.
	Key string
	// Tokens is the estimate of the task's cost.
	Tokens int
	// MaxWait is how long Schedule may wait before it answers. 0 means that it does not wait.
	MaxWait time.Duration
}

// Schedule admits a task, or returns how long the caller has to wait before it asks again.
func (d *Dispatcher) Schedule(ctx context.Context, r TaskRequest) (admission.Task, time.Duration, *openai.Error) {
	ask, fault := d.current().taskRequest(r) // a task is rare enough to read the present fleet each time
	if fault != nil {
		return admission.Task{}, 0, fault
	}
	// A call may wait for minutes, in which operators drain models and put them back.
	ask.Allowed = func(model string) bool { return !d.table.Load().drained[model] && mayUse(r.Allowed, model) }
	task, wait, err := d.config.Admission.Schedule(ctx, ask)
	if err != nil {
		return admission.Task{}, 0, explainTask(ctx, ask, err)
	}
	if task.ID != "" && ask.Key != "" && !d.table.Load().allows(ask, task.Model) {
		return admission.Task{}, 0, &openai.Error{Code: openai.CodeRequestIDConflict, Param: "request_id",
			Message: "The task of this request_id was admitted to the model `" + task.Model + "`, which this call does not ask for."}
	}
	return task, wait, nil
}

// allows reports whether a task of this model answers the request ask. A repeated call may find a
// task of another model. A model that has left its pool since then is not the caller's mistake. So
// only a model that is in another pool is refused. w is the newest table: while the call waited, a
// model may have changed its pool.
func (w *routingTable) allows(ask admission.TaskRequest, model string) bool {
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

// taskRequest resolves the models that a task may be admitted to. They need no replica, because the
// caller calls the model elsewhere. The caller sets Allowed.
func (w *routingTable) taskRequest(r TaskRequest) (admission.TaskRequest, *openai.Error) {
	ask := admission.TaskRequest{Tenant: r.Tenant, APIKey: r.APIKey, Key: r.Key, Priority: r.Priority, Tokens: r.Tokens,
		Lease: w.taskLease, Lifetime: w.taskLifetime, MaxWait: r.MaxWait}
	switch {
	case r.Model != "" && r.Pool != "":
		return ask, &openai.Error{Code: openai.CodeInvalidRequest, Param: "pool", Message: "Name a pool or a model, not both."}
	case r.Model != "":
		m, ok := w.snapshot.Resolve(r.Model)
		if !ok || !mayUse(r.Allowed, m.PermittedAs(r.Model)) {
			return ask, openai.ModelNotFound("model", r.Model)
		}
		if w.drained[m.Name] {
			return ask, errDrained("the model `" + m.Name + "`")
		}
		ask.Model = m.Name
		return ask, nil
	}
	ask.Pool = r.Pool
	models, ok := w.pools[r.Pool]
	if r.Pool == "" {
		ask.Pool, models = w.taskPool, w.admissionPools[w.taskPool]
	} else if !ok || !mayUse(r.Allowed, r.Pool) {
		return ask, openai.ModelNotFound("pool", r.Pool)
	}
	if !slices.ContainsFunc(models, func(name string) bool { return !w.drained[name] && mayUse(r.Allowed, name) }) {
		return ask, openai.Errorf(openai.CodeModelNotFound, "There is no model to schedule a task for, or this API key may use none.")
	}
	return ask, nil
}

// explainTask turns an error of admission into the error for the client.
func explainTask(ctx context.Context, ask admission.TaskRequest, err error) *openai.Error {
	var refused *admission.Refused
	switch {
	case ctx.Err() != nil:
		return &openai.Error{Code: openai.CodeCancelled, Message: "The client disconnected."}
	case errors.Is(err, admission.ErrNeverFits):
		return &openai.Error{Code: openai.CodeInvalidRequest, Param: "estimated_tokens",
			Message: "The task needs more tokens than any model, its tenant or its key may use in a minute. It can never be admitted: lower estimated_tokens."}
	case errors.Is(err, admission.ErrUnavailable):
		return unreachable()
	case errors.Is(err, admission.ErrNotRecorded):
		return notRecorded(err)
	case errors.Is(err, admission.ErrTaskEnded):
		return &openai.Error{Code: openai.CodeRequestIDConflict, Param: "request_id",
			Message: "The task of this request_id has ended. Use another request_id for other work."}
	case errors.As(err, &refused):
		return explainRefusal("the models", "of this call", refused)
	}
	return openai.Errorf(openai.CodeModelNotFound, "The models of %s%s are no longer configured.", ask.Pool, ask.Model)
}

// Complete ends a task and corrects its charge to the tokens that its caller declares, but not
// below what its requests have used. Below 0 means that the caller does not know. It returns false
// if the tenant has no such task.
func (d *Dispatcher) Complete(ctx context.Context, tenant, id string, declared int) (bool, *openai.Error) {
	return taskExists(d.config.Admission.Complete(ctx, tenant, id, declared))
}

// Renew extends the lease of a task and returns its new length, which is shorter than
// Rules.TaskLease at the end of the task's lifetime. It returns false if the tenant has no such
// task.
func (d *Dispatcher) Renew(ctx context.Context, tenant, id string) (time.Duration, bool, *openai.Error) {
	lease := d.table.Load().taskLease
	task, err := d.config.Admission.Renew(ctx, tenant, id, lease)
	if left := time.Until(task.Expires); left < lease-renewalDelay {
		lease = max(left, 0)
	}
	ok, fault := taskExists(err)
	return lease, ok, fault
}

// renewalDelay is more than a renewal takes. A lease that is shorter by more is a shorter lease.
const renewalDelay = time.Second

// maxTaskID is longer than any id of a task, in bytes. Longer ids need not be looked up.
const maxTaskID = 64

// noSuchTask is the error for a request under a task that does not exist, or of another tenant.
func noSuchTask() *openai.Error {
	return &openai.Error{Code: openai.CodeInvalidRequest, Param: headers.TaskID, Message: "There is no such task."}
}

// taskBusy is the error for a second request of a task at once.
func taskBusy() *openai.Error {
	return &openai.Error{Code: openai.CodeRequestIDConflict, Param: headers.TaskID,
		Message: "Another request of this task is still running."}
}

// taskExists turns an error of admission about a task into an answer: the task exists, it does not,
// or admission is unavailable.
func taskExists(err error) (bool, *openai.Error) {
	switch {
	case err == nil:
		return true, nil
	case errors.Is(err, admission.ErrUnknownTask):
		return false, nil
	case errors.Is(err, admission.ErrNotRecorded):
		return false, notRecorded(err)
	}
	return false, unreachable()
}

// chooseByTask narrows the choice to the model that the request's task was admitted to. It also
// extends the lease of the task.
func (d *Dispatcher) chooseByTask(ctx context.Context, w *routingTable, c choice, r *Request) (choice, *openai.Error) {
	if len(r.Task) > maxTaskID {
		return c, noSuchTask()
	}
	task, err := d.config.Admission.Renew(ctx, r.Tenant, r.Task, w.taskLease)
	if errors.Is(err, admission.ErrNotRecorded) {
		err = nil // the lease holds; only a restart of this gateway would shorten it
	}
	if ok, fault := taskExists(err); fault != nil {
		return c, fault
	} else if !ok {
		return c, noSuchTask()
	}
	for _, t := range c.members {
		if t.Name == task.Model {
			return choice{members: []*modelRoute{t}}, nil
		}
	}
	return c, &openai.Error{Code: openai.CodeInvalidRequest, Param: headers.TaskID,
		Message: "The task was admitted to the model `" + task.Model + "`, not to " + c.name() + "."}
}

// claimOfTask begins the ids of the claims and the holds of tasks.
const claimOfTask = "task\x00"

// claimTask claims the task for one request at a time, so that the requests of one admission do not
// run in parallel. The returned function releases the claim and calls release. If another request
// has the claim, claimTask calls release and returns false. While a request has the claim, its
// caller is alive, so the task is renewed.
func (d *Dispatcher) claimTask(r *Request, release func()) (func(), bool) {
	end, ok := d.ids.claim(r.Tenant, claimOfTask+r.Task)
	if ok && d.ids.isHeld(r.Tenant, claimOfTask+r.Task) {
		end()
		ok = false
	}
	if !ok {
		release()
		return nil, false
	}
	leave := d.keepTask(r.Tenant, r.Task, d.renewalPause())
	return func() {
		leave()
		end()
		release()
	}, true
}

// holdTask renews the task of a carried or recovered request, and keeps other requests of the task
// away, until leave is called. Only the first call of leave has an effect. A request that has the
// claim of the task already runs on. The task is renewed at once, because nobody may have renewed
// it for a while.
func (d *Dispatcher) holdTask(tenant, id string) (leave func()) {
	if id == "" {
		return func() {}
	}
	end, stop := d.ids.hold(tenant, claimOfTask+id), d.keepTask(tenant, id, 0)
	return sync.OnceFunc(func() {
		stop()
		end()
	})
}

// keepTask renews a task again and again, first after a pause, until leave is called or the task is
// over.
func (d *Dispatcher) keepTask(tenant, id string, pause time.Duration) (leave func()) {
	ctx, cancel := context.WithCancel(context.Background())
	timer := time.AfterFunc(pause, func() { d.renewUntil(ctx, tenant, id) })
	return func() {
		timer.Stop()
		cancel()
	}
}

// renewUntil renews a task again and again, until ctx ends or the task is over.
func (d *Dispatcher) renewUntil(ctx context.Context, tenant, id string) {
	for ctx.Err() == nil {
		if _, ok, fault := d.Renew(ctx, tenant, id); !ok && fault == nil {
			return
		}
		select {
		case <-ctx.Done():
		case <-time.After(d.renewalPause()):
		}
	}
}

// renewalPause is the time between two renewals of a task that is kept. The second may fail.
func (d *Dispatcher) renewalPause() time.Duration { return d.table.Load().taskLease / 3 }
