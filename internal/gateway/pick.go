package gateway

import (
	"github.com/sluice-gateway/sluice/authz"
	"github.com/sluice-gateway/sluice/internal/admin"
	"github.com/sluice-gateway/sluice/internal/dispatch"
	"github.com/sluice-gateway/sluice/internal/openai"
	"github.com/sluice-gateway/sluice/ringhash"
)

// pick explains to which replica of a model a request would go.
func (g *Gateway) pick(model string, q admin.PickQuestion) (admin.Pick, *openai.Error) {
	question := dispatch.Question{Key: ringhash.Key([]byte(q.Key)), PromptTokens: q.PromptTokens}
	if q.Request != nil {
		question.Request = dispatch.NewRequest(dispatch.Caller{Tenant: &authz.Tenant{Name: q.Tenant}}, q.Request, q.Body)
	}
	r, ok := g.dispatcher.Explain(model, question)
	if !ok {
		return admin.Pick{}, openai.Errorf(openai.CodeModelNotFound, "The model `%s` does not exist.", model)
	}
	p := admin.Pick{Position: r.Key, Picked: r.Picked, Reason: r.Reason, PromptTokens: r.PromptTokens}
	for _, c := range r.Order {
		p.Replicas = append(p.Replicas, admin.PickReplica{ID: c.ID, Load: c.Load, Candidate: c.Free, MatchedTokens: c.MatchedTokens,
			UncachedTokens: c.UncachedTokens, WaitingTokens: c.WaitingTokens, Rate: c.Rate, Predicted: c.TTFT})
	}
	return p, nil
}
