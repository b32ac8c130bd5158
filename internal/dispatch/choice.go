package dispatch

import (
	"slices"
	"strings"
	"time"

	"github.com/sluice-gateway/sluice/admission"
	"github.com/sluice-gateway/sluice/engines"
	"github.com/sluice-gateway/sluice/internal/openai"
)

// choice is what a request may go to: one model, or those of a pool that have replicas and that its
// tenant may use.
type choice struct {
	// pool is its name; empty for a model
	pool string
	// members are one or more
	members []*modelRoute
}

// resolve finds the model or the pool of this name. A pool goes before a discovered model of the
// same name.
func (w *routingTable) resolve(r *Request) (choice, *openai.Error) {
	if pool, ok := w.pools[r.Model]; ok {
		return w.resolvePool(r, pool)
	}
	m, ok := w.snapshot.Resolve(r.Model)
	if !ok {
		return choice{}, &openai.Error{Code: openai.CodeModelNotFound, Param: "model",
			Message: "The model `" + clip(r.Model) + "` does not exist."}
	}
	if fault := mayUse(r.Allowed, "model", m.Name); fault != nil {
		return choice{}, fault
	}
	t := w.routes[m.Name]
	switch {
	case m.Launcher == engines.None:
		return choice{}, &openai.Error{Code: openai.CodeInvalidRequest, Param: "model",
			Message: "The model `" + m.Name + "` is served elsewhere: it is only admitted here, by POST /schedule."}
	case !t.serves():
		return choice{}, openai.Errorf(openai.CodeNoReplica, "The model `%s` has no replica.", m.Name)
	}
	return choice{members: []*modelRoute{t}}, nil
}

// mayUse refuses a name that is not allowed; what is the field that named it, and the word for it.
func mayUse(allowed func(string) bool, what, name string) *openai.Error {
	if allowed == nil || allowed(name) {
		return nil
	}
	return &openai.Error{Code: openai.CodeForbiddenModel, Param: what,
		Message: "This API key may not use the " + what + " `" + name + "`."}
}

func (w *routingTable) resolvePool(r *Request, models []string) (choice, *openai.Error) {
	if fault := mayUse(r.Allowed, "model", r.Model); fault != nil {
		return choice{}, fault
	}
	c := choice{pool: r.Model}
	forbidden, served := true, false
	for _, name := range models {
		t, ok := w.routes[name]
		if !ok || r.Allowed != nil && !r.Allowed(name) {
			continue
		}
		forbidden, served = false, served || t.Launcher != engines.None
		if t.serves() {
			c.members = append(c.members, t)
		}
	}
	switch {
	case len(c.members) > 0:
		return c, nil
	case forbidden:
		return choice{}, &openai.Error{Code: openai.CodeForbiddenModel, Param: "model",
			Message: "This API key may not use any model of the pool `" + r.Model + "`."}
	case !served:
		return choice{}, &openai.Error{Code: openai.CodeInvalidRequest, Param: "model",
			Message: "The models of the pool `" + r.Model + "` are served elsewhere: they are only admitted here, by POST /schedule."}
	}
	return choice{}, openai.Errorf(openai.CodeNoReplica, "No model of the pool `%s` has a replica.", r.Model)
}

// serves says that a request may go here now, or soon.
func (t *modelRoute) serves() bool {
	return t.Launcher != engines.None && (len(t.replicas) > 0 || t.hope)
}

// again returns the same choice in a newer routing table. It may be empty.
func (w *routingTable) again(c choice) choice {
	now := choice{pool: c.pool}
	for _, m := range c.members {
		if t, ok := w.routes[m.Name]; ok {
			now.members = append(now.members, t)
		}
	}
	return now
}

// model is the one model; empty for a pool.
func (c choice) model() string {
	if c.pool != "" {
		return ""
	}
	return c.members[0].Name
}

// title is how the choice is called at the beginning of a message, name elsewhere.
func (c choice) title() string { return "The " + strings.TrimPrefix(c.name(), "the ") }

func (c choice) name() string {
	if c.pool != "" {
		return "the pool `" + c.pool + "`"
	}
	return "the model `" + c.members[0].Name + "`"
}

func (c choice) any(is func(*modelRoute) bool) bool { return slices.ContainsFunc(c.members, is) }

// patience is how long the request may wait: the longest that one of the models allows.
func (c choice) patience(own time.Duration) time.Duration {
	var longest time.Duration
	for _, t := range c.members {
		longest = max(longest, t.patience(own))
	}
	return longest
}

// watched says whether somebody wants to know when the request has its first token.
func (c choice) watched(tenant admission.TenantLimits) bool {
	return tenant.MaxPrefill > 0 || c.any(func(t *modelRoute) bool { return t.policy.MaxPrefillPerReplica > 0 })
}

// cacheKeys are the keys of a request on the rings of the models it may go to. They are made before
// it waits, so that its body need not be kept.
type cacheKeys []cacheKey

type cacheKey struct {
	userMessages int
	position     uint64
}

func (c choice) keys(key func(userMessages int) uint64) cacheKeys {
	keys := make(cacheKeys, 0, 1)
	for _, t := range c.members {
		if n := t.policy.UserMessages; !slices.ContainsFunc(keys, func(k cacheKey) bool { return k.userMessages == n }) {
			keys = append(keys, cacheKey{n, key(n)})
		}
	}
	return keys
}

// of is the key over so many user messages, or another one if the rules have changed since.
func (k cacheKeys) of(userMessages int) uint64 {
	for _, key := range k {
		if key.userMessages == userMessages {
			return key.position
		}
	}
	return k[0].position
}

// PriorityOf is the priority of this name: interactive, batch, or anything else for the default.
func PriorityOf(name string) admission.Priority {
	switch name {
	case "interactive":
		return admission.Interactive
	case "batch":
		return admission.Batch
	}
	return admission.Default
}
