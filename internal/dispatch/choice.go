package dispatch

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"github.com/sluice-gateway/sluice/admission"
	"github.com/sluice-gateway/sluice/engines"
	"github.com/sluice-gateway/sluice/internal/openai"
)

// choice is the set of models that a request may go to: one model, or those of a pool that have
// replicas and that its tenant may use.
type choice struct {
	// pool is the name of the pool; empty for a model
	pool string
	// members has at least one model
	members []*modelRoute
}

// resolve finds the model or the pool that the request names. No model has the name of a pool.
func (w *routingTable) resolve(r *Request) (choice, *openai.Error) {
	if pool, ok := w.pools[r.Model]; ok {
		return w.resolvePool(r, pool)
	}
	m, ok := w.snapshot.Resolve(r.Model)
	if !ok || !mayUse(r.Allowed, m.PermittedAs(r.Model)) {
		return choice{}, openai.ModelNotFound("model", r.Model)
	}
	t := w.routes[m.Name]
	switch {
	case m.Launcher == engines.None:
		return choice{}, &openai.Error{Code: openai.CodeInvalidRequest, Param: "model",
			Message: "The model `" + m.Name + "` is served elsewhere: Sluice only admits tasks for it, by POST /schedule."}
	case !t.isCapable(r.Endpoint):
		return choice{}, t.notCapable("The model `"+m.Name+"`", r.Endpoint)
	}
	if fault := t.refuses(r, "model", m.Name); fault != nil {
		return choice{}, fault
	}
	switch {
	case w.drained[m.Name]:
		return choice{}, errDrained("the model `" + m.Name + "`")
	case !t.serves():
		return choice{}, openai.Errorf(openai.CodeNoReplica, "The model `%s` has no replica.", m.Name)
	}
	return choice{members: []*modelRoute{t}}, nil
}

// OwnName returns the own name of the model that a client names, under which its requests count. A
// name that is not of one model, such as that of a pool, stays as it is.
func (d *Dispatcher) OwnName(asked string) string {
	if m, ok := d.config.Fleet.Snapshot().Resolve(asked); ok {
		return m.Name
	}
	return asked
}

// mayUse reports whether the model or pool of this name is allowed; nil allows all.
func mayUse(allowed func(string) bool, name string) bool { return allowed == nil || allowed(name) }

// resolvePool returns the models of a pool that the request may go to. A model that its tenant may
// not use counts as one that does not exist.
func (w *routingTable) resolvePool(r *Request, models []string) (choice, *openai.Error) {
	usable := false
	var incapable *modelRoute
	c := choice{pool: r.Model}
	served, elsewhere, drained := false, false, false
	var refused *openai.Error
	for _, name := range models {
		if !mayUse(r.Allowed, name) {
			continue
		}
		usable = true
		t, ok := w.routes[name]
		if !ok {
			continue
		}
		if t.Launcher != engines.None && !t.isCapable(r.Endpoint) {
			incapable = t
			continue
		}
		if fault := t.refuses(r, "pool", r.Model); fault != nil {
			refused = cmp.Or(refused, fault)
			continue
		}
		served, elsewhere = served || t.Launcher != engines.None, elsewhere || t.Launcher == engines.None
		if w.drained[name] {
			drained = true
		} else if t.serves() {
			c.members = append(c.members, t)
		}
	}
	switch {
	case !usable || !mayUse(r.Allowed, r.Model):
		return choice{}, openai.ModelNotFound("model", r.Model)
	case len(c.members) > 0:
		return c, nil
	case refused != nil && !served:
		return choice{}, refused
	case incapable != nil && !served:
		return choice{}, incapable.notCapable("The pool `"+r.Model+"`", r.Endpoint)
	case elsewhere && !served:
		return choice{}, &openai.Error{Code: openai.CodeInvalidRequest, Param: "model",
			Message: "The models of the pool `" + r.Model + "` are served elsewhere: Sluice only admits tasks for them, by POST /schedule."}
	}
	if drained {
		return choice{}, errDrained("the pool `" + r.Model + "`")
	}
	return choice{}, openai.Errorf(openai.CodeNoReplica, "No model of the pool `%s` has a replica.", r.Model)
}

// refuses returns the error for a request that asks for what clients of the model may not have.
// That is a guarded field that one of its servers may obey, or media of a host that is not
// permitted. Nobody knows what serves at an upstream. The request names the model or pool of this
// name. nil: the request asks for nothing of that kind.
func (t *modelRoute) refuses(r *Request, kind, name string) *openai.Error {
	guards := t.policy.Guards
	if t.joined || t.Launcher == engines.Upstream {
		guards = openai.AllGuards()
	}
	if fields := r.Guarded & guards &^ t.policy.Permitted; fields != 0 {
		field := fields.First()
		return &openai.Error{Code: openai.CodeInvalidRequest, Param: field.Name,
			Message: "Clients of the " + kind + " `" + name + "` may not use " + field.Title() + ", which " + field.Why +
				". Leave it out; only an operator can permit it (permit_fields)."}
	}
	if u, refused := t.policy.MediaHosts.Refused(r.MediaURLs, guards&likeLlamaCpp != 0); refused {
		return &openai.Error{Code: openai.CodeInvalidRequest, Param: u.Field,
			Message: "Clients of the " + kind + " `" + name + "` may not have media fetched from " + u.String() + " (field " + u.Field +
				"). Send the media as a data URL; only an operator can permit the host (media_hosts)."}
	}
	return nil
}

// likeLlamaCpp are fields that only servers obey which may be those of llama.cpp.
var likeLlamaCpp = openai.NewGuards([]string{"id_slot"})

// serves reports whether a request may be dispatched to the model, now or when a replica comes.
func (t *modelRoute) serves() bool {
	return t.Launcher != engines.None && (len(t.replicas) > 0 || t.mayServe)
}

// refresh returns the same choice in a newer routing table. It may be empty.
func (w *routingTable) refresh(c choice) choice {
	now := choice{pool: c.pool}
	for _, m := range c.members {
		if t, ok := w.routes[m.Name]; ok {
			now.members = append(now.members, t)
		}
	}
	return now
}

// model returns the name of the one model; empty for a pool.
func (c choice) model() string {
	if c.pool != "" {
		return ""
	}
	return c.members[0].Name
}

// title names the choice at the beginning of a message, name within one.
func (c choice) title() string { return "The " + strings.TrimPrefix(c.name(), "the ") }

func (c choice) name() string {
	if c.pool != "" {
		return "the pool `" + c.pool + "`"
	}
	return "the model `" + c.members[0].Name + "`"
}

func (c choice) any(is func(*modelRoute) bool) bool { return slices.ContainsFunc(c.members, is) }

func (c choice) all(are func(*modelRoute) bool) bool {
	for _, t := range c.members {
		if !are(t) {
			return false
		}
	}
	return true
}

// patience returns how long the request may wait: the longest that one of the models allows. own is
// the client's own timeout; 0 means none.
func (c choice) patience(own time.Duration) time.Duration {
	var longest time.Duration
	for _, t := range c.members {
		longest = max(longest, t.patience(own))
	}
	return longest
}

// watched reports whether the first token of the request has to be reported, because a limit on
// prefill applies.
func (c choice) watched(tenant admission.TenantLimits) bool {
	return tenant.MaxPrefill > 0 || c.any(func(t *modelRoute) bool {
		return t.policy.MaxPrefillPerReplica > 0 || t.policy.MaxPrefillTokensPerReplica > 0
	})
}

// cacheKeys are the keys of a request on the hash rings of its models. They are computed before the
// request waits, so that its body need not be kept.
type cacheKeys []cacheKey

type cacheKey struct {
	userMessages int
	position     uint64
}

// keys computes the keys of all models of the choice, one per number of user messages. Where all
// models look at the beginnings of the prompt, the key is one of these. To hash a long prompt once
// more takes as long as to read it. A model that has one replica needs no key.
func (c choice) keys(r *Request, p *prompt) cacheKeys {
	keys := make(cacheKeys, 0, 1)
	chained := p.chain.Bytes > 0 && c.all((*modelRoute).isCacheAware)
	for _, t := range c.members {
		n := t.policy.UserMessages
		switch {
		case slices.ContainsFunc(keys, func(k cacheKey) bool { return k.userMessages == n }):
		case chained && n == c.members[0].policy.UserMessages:
			keys = append(keys, cacheKey{n, p.chain.Home})
		case len(c.members) == 1 && t.isAlone():
			keys = append(keys, cacheKey{n, 0})
		default:
			keys = append(keys, cacheKey{n, r.Key(n)})
		}
	}
	return keys
}

// of returns the key over so many user messages. It returns another key if the rules have changed
// since.
func (k cacheKeys) of(userMessages int) uint64 {
	for _, key := range k {
		if key.userMessages == userMessages {
			return key.position
		}
	}
	return k[0].position
}

// PriorityOf returns the priority of this name: "interactive", "batch", or Default for any other
// name.
func PriorityOf(name string) admission.Priority {
	switch name {
	case "interactive":
		return admission.Interactive
	case "batch":
		return admission.Batch
	}
	return admission.Default
}
