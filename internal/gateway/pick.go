package gateway

import (
	"github.com/sluice-gateway/sluice/internal/admin"
	"github.com/sluice-gateway/sluice/internal/openai"
	"github.com/sluice-gateway/sluice/ringhash"
)

// pick explains to which replica of a model a request would go.
func (g *Gateway) pick(model string, q admin.PickQuestion) (admin.Pick, *openai.Error) {
	key := ringhash.Key([]byte(q.Key))
	if q.Request != nil {
		v, _ := g.dispatcher.View(model)
		key = q.Request.CacheKey(q.Body, v.Policy.UserMessages)
	}
	r, ok := g.dispatcher.Explain(model, key)
	if !ok {
		return admin.Pick{}, openai.Errorf(openai.CodeModelNotFound, "The model `%s` does not exist.", model)
	}
	p := admin.Pick{Position: r.Key, Picked: r.Picked}
	for _, c := range r.Order {
		p.Replicas = append(p.Replicas, admin.PickReplica{ID: c.ID, Load: c.Load, Candidate: c.Free})
	}
	return p, nil
}
