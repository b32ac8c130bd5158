package gateway

import (
	"context"
	"time"

	"github.com/sluice-gateway/sluice/authz"
	"github.com/sluice-gateway/sluice/internal/api"
	"github.com/sluice-gateway/sluice/internal/dispatch"
	"github.com/sluice-gateway/sluice/internal/openai"
)

// tasks implements api.Tasks, the interface of the batch API, with the dispatcher.
type tasks struct {
	dispatcher *dispatch.Dispatcher
	auth       *authz.Authenticator
}

// Schedule implements api.Tasks. It refuses a tenant that was deleted after the request was
// authenticated.
func (t tasks) Schedule(ctx context.Context, r api.ScheduleRequest) (api.ScheduleAnswer, *openai.Error) {
	tenant, ok := t.auth.Caller(r.Tenant, r.Key)
	if !ok {
		return api.ScheduleAnswer{}, openai.Errorf(openai.CodeInvalidAPIKey, "Incorrect API key provided.")
	}
	task, wait, fault := t.dispatcher.Schedule(ctx, dispatch.TaskRequest{
		Tenant: r.Tenant, APIKey: dispatch.LimitedKey(tenant), Priority: dispatch.PriorityOf(r.Priority), Allowed: tenant.Allows,
		Pool: r.Pool, Model: r.Model, Key: r.RequestID, Tokens: r.EstimatedTokens, MaxWait: r.MaxWait,
	})
	return api.ScheduleAnswer{Wait: wait, Model: task.Model, TaskID: task.ID}, fault
}

// Complete implements api.Tasks.
func (t tasks) Complete(ctx context.Context, tenant, id string, tokens *int) (bool, *openai.Error) {
	actual := -1
	if tokens != nil {
		actual = *tokens
	}
	return t.dispatcher.Complete(ctx, tenant, id, actual)
}

// Renew implements api.Tasks.
func (t tasks) Renew(ctx context.Context, tenant, id string) (time.Duration, bool, *openai.Error) {
	return t.dispatcher.Renew(ctx, tenant, id)
}
