package dispatch

import (
	"context"
	"errors"
	"strconv"
	"time"

	"github.com/sluice-gateway/sluice/admission"
	"github.com/sluice-gateway/sluice/internal/headers"
	"github.com/sluice-gateway/sluice/internal/openai"
)

// explain turns an error of admission into the error for the client.
func (d *Dispatcher) explain(ctx context.Context, c choice, r *Request, err error) *openai.Error {
	var refused *admission.Refused
	switch {
	case ctx.Err() != nil:
		return &openai.Error{Code: openai.CodeCancelled, Message: "The client disconnected."}
	case errors.As(err, &refused):
		return explainRefusal(c.name(), r.KeyShown, refused)
	case errors.Is(err, admission.ErrNeverFits):
		return &openai.Error{Code: openai.CodeInvalidRequest,
			Message: "The request needs more tokens than " + c.name() + ", its tenant or its key may use in a minute. " +
				"Send a shorter prompt or a lower max_tokens."}
	case errors.Is(err, admission.ErrTimeout):
		return d.explainTimeout(c, r)
	case errors.Is(err, errHopeless):
		return d.explainHopeless(c)
	case errors.Is(err, admission.ErrClosed):
		return openai.Errorf(openai.CodeGatewayUnavailable, "The gateway is stopping, and %s has no free slot now.", c.name())
	case errors.Is(err, admission.ErrUnavailable):
		return unreachable()
	case errors.Is(err, admission.ErrUnknownTask):
		return noSuchTask()
	case errors.Is(err, admission.ErrTaskBusy):
		return taskBusy()
	}
	return openai.Errorf(openai.CodeNoReplica, "%s is no longer served.", c.title())
}

// unreachable returns the error for clients while the state that gateways share cannot be reached.
func unreachable() *openai.Error {
	return openai.Errorf(openai.CodeGatewayUnavailable, "The state that all gateways share cannot be reached.")
}

const (
	// notRecordedRetry is the Retry-After when a task cannot be recorded: somebody has to free
	// space.
	notRecordedRetry = 5 * time.Second
	// stoppingRetry is the Retry-After of a process that no longer records tasks: its successor
	// does.
	stoppingRetry = time.Second
)

// notRecorded is the error for a task that was not recorded, for the reason err.
func notRecorded(err error) *openai.Error {
	if errors.Is(err, admission.ErrClosed) {
		return &openai.Error{Code: openai.CodeGatewayUnavailable, RetryAfter: stoppingRetry,
			Message: "The gateway is restarting or stopping, and records no task now. Try again."}
	}
	return &openai.Error{Code: openai.CodeGatewayUnavailable, RetryAfter: notRecordedRetry,
		Message: "The gateway cannot record the task, because it cannot write its state directory. Try again later."}
}

// explainRefusal returns the error that names the exceeded limit and the time after which a retry
// makes sense.
func explainRefusal(name, key string, r *admission.Refused) *openai.Error {
	e := &openai.Error{Code: openai.CodeRateLimited, Message: r.Reason.Message(name), RetryAfter: r.RetryAfter,
		Header: quotaHeader(r.Quota)}
	if r.Key != "" {
		e.Message = r.Reason.MessageOfKey("`" + key + "`")
	}
	if r.Reason.IsQueue() {
		e.Code = openai.CodeQueueFull
	}
	return e
}

// quotaHeader returns the response headers of the tenant's remaining quota. It is nil if the tenant
// has no limits per minute.
func quotaHeader(q admission.Quota) map[string]string {
	if q.Requests.Limit <= 0 && q.Tokens.Limit <= 0 {
		return nil
	}
	h := make(map[string]string, 6)
	QuotaHeaders(q, func(name, value string) bool {
		h[name] = value
		return true
	})
	return h
}

// QuotaHeaders calls yield for the response headers of each limit in a quota, until yield returns
// false.
func QuotaHeaders(q admission.Quota, yield func(name, value string) bool) {
	for _, limit := range [...]struct {
		admission.Allowance
		limit, remaining, reset string
	}{
		{q.Requests, headers.LimitRequests, headers.RemainingRequests, headers.ResetRequests},
		{q.Tokens, headers.LimitTokens, headers.RemainingTokens, headers.ResetTokens},
	} {
		if limit.Limit <= 0 {
			continue
		}
		most, left, reset := formatAllowance(limit.Allowance)
		if !yield(limit.limit, most) || !yield(limit.remaining, left) || !yield(limit.reset, reset) {
			return
		}
	}
}

// formatAllowance formats an allowance for the headers: limit and remaining as numbers, reset as a
// duration such as 1.5s or 2m3s. The three share one allocation.
func formatAllowance(a admission.Allowance) (limit, remaining, reset string) {
	var space [64]byte
	b := strconv.AppendInt(space[:0], a.Limit, 10)
	first := len(b)
	b = strconv.AppendInt(b, max(a.Remaining, 0), 10)
	second := len(b)
	all := string(append(b, a.Reset.Round(time.Millisecond).String()...))
	return all[:first], all[first:second], all[second:]
}

// explainTimeout returns the error of a request that waited too long. The newest routing table says
// why.
func (d *Dispatcher) explainTimeout(c choice, r *Request) *openai.Error {
	now := d.table.Load().refresh(c)
	switch {
	case r.Timeout > 0 && (len(now.members) == 0 || r.Timeout <= now.patience(0)):
		return &openai.Error{Code: openai.CodeRequestTimeout, Param: "timeout_ms",
			Message: "The request's own timeout expired before the request could start."}
	case !now.any(func(t *modelRoute) bool { return len(t.replicas) > 0 || t.cold() }):
		if fault := now.keepsFailing(c.title(), time.Now()); fault != nil {
			return fault
		}
		return openai.Errorf(openai.CodeNoReplica, "No replica of %s is ready.", c.name())
	case !now.any(func(t *modelRoute) bool { return len(t.replicas) > 0 }):
		return &openai.Error{Code: openai.CodeColdStartTimeout, RetryAfter: now.startsIn(time.Now()),
			Message: "No replica of " + c.name() + " became ready in time. The start goes on."}
	}
	return openai.Errorf(openai.CodeQueueTimeout, "%s stayed busy for too long.", c.title())
}

// clip cuts a client's text to 200 bytes, so that a message may repeat it.
func clip(s string) string {
	const maxBytes = 200
	if len(s) <= maxBytes {
		return s
	}
	for i := range s {
		if i > maxBytes-4 {
			return s[:i] + "…"
		}
	}
	return s
}
