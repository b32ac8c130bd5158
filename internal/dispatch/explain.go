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

// explain turns what admission said into what the client reads.
func (d *Dispatcher) explain(ctx context.Context, c choice, r *Request, err error) *openai.Error {
	var refused *admission.Refused
	switch {
	case ctx.Err() != nil:
		return &openai.Error{Code: openai.CodeRequestTimeout, Status: 499, Message: "The client left."}
	case errors.As(err, &refused):
		return explainRefusal(c.name(), refused)
	case errors.Is(err, admission.ErrNeverFits):
		return &openai.Error{Code: openai.CodeInvalidRequest,
			Message: "The request needs more tokens than " + c.name() + " or its tenant is given in a minute."}
	case errors.Is(err, admission.ErrTimeout):
		return d.explainTimeout(c, r)
	case errors.Is(err, admission.ErrClosed):
		return openai.Errorf(openai.CodeGatewayUnavailable, "The gateway is stopping, and %s has no room at once.", c.name())
	case errors.Is(err, admission.ErrUnavailable):
		return unreachable()
	}
	return openai.Errorf(openai.CodeNoReplica, "%s is no longer served.", c.title())
}

// unreachable is the answer while nobody can say what is shared.
func unreachable() *openai.Error {
	return openai.Errorf(openai.CodeGatewayUnavailable, "The state that all gateways share cannot be reached.")
}

// explainRefusal says which limit it was, and when a retry makes sense.
func explainRefusal(name string, r *admission.Refused) *openai.Error {
	e := &openai.Error{Code: openai.CodeRateLimited, Message: r.Reason.Message(name), RetryAfter: r.RetryAfter,
		Header: quotaHeader(r.Quota)}
	if r.Reason.IsQueue() {
		e.Code = openai.CodeQueueFull
	}
	return e
}

func quotaHeader(q admission.Quota) map[string]string {
	if q.Requests.Limit <= 0 && q.Tokens.Limit <= 0 {
		return nil
	}
	h := make(map[string]string, 6)
	if q.Requests.Limit > 0 {
		h[headers.LimitRequests], h[headers.RemainingRequests], h[headers.ResetRequests] = words(q.Requests)
	}
	if q.Tokens.Limit > 0 {
		h[headers.LimitTokens], h[headers.RemainingTokens], h[headers.ResetTokens] = words(q.Tokens)
	}
	return h
}

// words are an allowance as the headers have it: two numbers, and a duration such as 1.5s or 2m3s.
func words(a admission.Allowance) (limit, remaining, reset string) {
	return strconv.FormatInt(a.Limit, 10), strconv.FormatInt(max(a.Remaining, 0), 10), a.Reset.Round(time.Millisecond).String()
}

func (d *Dispatcher) explainTimeout(c choice, r *Request) *openai.Error {
	now := d.table.Load().again(c)
	switch {
	case r.Timeout > 0 && (len(now.members) == 0 || r.Timeout <= now.patience(0)):
		return &openai.Error{Code: openai.CodeRequestTimeout, Param: "timeout_ms",
			Message: "The request's own timeout ended before it could start."}
	case !now.any(func(t *modelRoute) bool { return len(t.replicas) > 0 || t.cold() }):
		return openai.Errorf(openai.CodeNoReplica, "No replica of %s is ready.", c.name())
	case !now.any(func(t *modelRoute) bool { return len(t.replicas) > 0 }):
		return openai.Errorf(openai.CodeColdStartTimeout, "No replica of %s became ready in time.", c.name())
	}
	return openai.Errorf(openai.CodeQueueTimeout, "%s stayed busy for too long.", c.title())
}

// clip keeps a client's text short enough to be repeated to it.
func clip(s string) string {
	const most = 200
	if len(s) <= most {
		return s
	}
	for i := range s {
		if i > most-4 {
			return s[:i] + "…"
		}
	}
	return s
}
