// Package api answers what Sluice itself serves on Envoy's listener: the list of models, the batch
// API (/schedule, /renew, /complete) and the health check. The gateway uses its handler on the HTTP
// socket to which Envoy routes these paths. Envoy's ext_authz has authenticated the caller before,
// and sets the tenant in a header that clients cannot set.
package api

import (
	"encoding/json"
	"net/http"
	"slices"
	"time"

	"github.com/sluice-gateway/sluice/engines"
	"github.com/sluice-gateway/sluice/internal/headers"
	"github.com/sluice-gateway/sluice/internal/openai"
	"github.com/sluice-gateway/sluice/internal/request"
	"github.com/sluice-gateway/sluice/internal/routes"
)

// Config is what the handler needs.
type Config struct {
	// Fleet has the models to list.
	Fleet *engines.Fleet
	// Allowed returns what reports whether a caller may use the model or pool of this name. The
	// caller is the name of a tenant, and the digest of its key, which may be empty.
	Allowed func(tenant, key string) func(model string) bool
	// Pools returns the names of the pools and their models. nil means that there are no pools.
	Pools func() map[string][]string
	// Created is the time of creation that all models show.
	Created time.Time
	// Tasks is what the batch API works on. nil means that there is no batch API.
	Tasks Tasks
	// Requests keeps the requests of callers. nil means that nobody keeps them.
	Requests *request.Store
}

// New returns the handler. It answers every other path with 405.
func New(c Config) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc(routes.HealthPath, c.onGet(func(w http.ResponseWriter, _ *http.Request) {
		writeJSON(w, 200, map[string]string{"status": "ok"})
	}))
	mux.HandleFunc(routes.ModelsPath, c.onGet(c.list))
	// The name of a model may contain slashes.
	mux.HandleFunc(routes.ModelsPath+"/{id...}", c.onGet(c.get))
	if c.Tasks != nil {
		c.handleTasks(mux)
	}
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) { c.fail(w, r, methodNotAllowed(r, "")) })
	return timed(mux)
}

// onGet returns a handler that has serve answer GET and HEAD.
func (c Config) onGet(serve http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodGet || r.Method == http.MethodHead {
			serve(w, r)
			return
		}
		c.fail(w, r, methodNotAllowed(r, "GET, HEAD"))
	}
}

// methodNotAllowed returns the error of a request that no handler takes. allow are the methods that
// its path takes. Empty: none.
func methodNotAllowed(r *http.Request, allow string) *openai.Error {
	fault := &openai.Error{Code: openai.CodeInvalidRequest, Status: 405, Message: "This URL does not take " + r.Method + " requests."}
	if allow != "" {
		fault.Header = map[string]string{"allow": allow}
	}
	return fault
}

// allowed returns what reports whether the caller of a request may use a model.
func (c Config) allowed(r *http.Request) func(model string) bool {
	return c.Allowed(r.Header.Get(headers.Tenant), r.Header.Get(headers.Key))
}

// list answers with the models and pools that the tenant may call. A model that is served elsewhere
// cannot be called: it is for /schedule alone.
func (c Config) list(w http.ResponseWriter, r *http.Request) {
	allowed := c.allowed(r)
	models := c.Fleet.Snapshot().Models
	canCall := func(name string) bool {
		m := models[name]
		return m != nil && m.Launcher != engines.None && allowed(name)
	}
	var names []string
	for name, m := range models {
		if canCall(name) {
			names = append(names, name)
		}
		for _, adapter := range m.Adapters {
			if m.Launcher != engines.None && allowed(adapter) {
				names = append(names, adapter)
			}
		}
	}
	for name, members := range c.pools() {
		if allowed(name) && slices.ContainsFunc(members, canCall) {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	list := openai.NewModelList()
	// While a new configuration is put in force, a discovered model may have the name of a pool.
	for _, name := range slices.Compact(names) {
		list.Data = append(list.Data, c.card(name))
	}
	if isOfAnthropic(r) {
		list = list.ForAnthropic()
	}
	c.answer(w, r, 200, list)
}

// isOfAnthropic reports whether the client speaks Anthropic's API.
func isOfAnthropic(r *http.Request) bool { return r.Header.Get(openai.VersionHeader) != "" }

// get answers with one model or pool.
func (c Config) get(w http.ResponseWriter, r *http.Request) {
	// The path is /v1/models/.
	if r.PathValue("id") == "" {
		c.list(w, r)
		return
	}
	name, ok := c.resolve(r.PathValue("id"))
	if !ok || !c.allowed(r)(name) {
		c.fail(w, r, openai.ModelNotFound("model", r.PathValue("id")))
		return
	}
	card := c.card(name)
	if isOfAnthropic(r) {
		card = card.ForAnthropic()
	}
	c.answer(w, r, 200, card)
}

// resolve finds the model or pool that a client names. name is the name to authorize, and the id in
// the answer. Pools and adapters are shown like models, because clients can name them like models.
func (c Config) resolve(id string) (name string, ok bool) {
	if _, ok := c.pools()[id]; ok {
		return id, true
	}
	m, ok := c.Fleet.Snapshot().Resolve(id)
	if !ok {
		return "", false
	}
	return m.PermittedAs(id), true
}

// pools returns the names of the pools and their models.
func (c Config) pools() map[string][]string {
	if c.Pools == nil {
		return nil
	}
	return c.Pools()
}

// card returns the entry of a model, an adapter or a pool in the list of models. A pool has no task
// and no state of its own.
func (c Config) card(name string) openai.ModelCard {
	card := openai.NewModelCard(name, "sluice", c.Created)
	if _, isPool := c.pools()[name]; isPool {
		return card
	}
	if m, ok := c.Fleet.Snapshot().Resolve(name); ok {
		card.Task, card.ContextLength, card.State = string(m.Task), m.ContextLength, stateOf(m)
	}
	return card
}

// States of a model in the list of models.
const (
	// stateReady: a replica serves at once.
	stateReady = "ready"
	// stateStarting: a replica is being started. stateCold: a request starts one.
	stateStarting, stateCold = "starting", "cold"
	// stateFailed: every replica has failed. stateUnavailable: there is none, and no request starts
	// one.
	stateFailed, stateUnavailable = "failed", "unavailable"
)

// stateOf returns the state of a model. It is empty for a model that is served elsewhere.
func stateOf(m *engines.ModelSnapshot) string {
	has := func(states ...engines.State) bool {
		return slices.ContainsFunc(m.Replicas, func(r engines.Replica) bool { return slices.Contains(states, r.State) })
	}
	switch {
	case m.Launcher == engines.None:
		return ""
	case has(engines.Ready):
		return stateReady
	case has(engines.Starting, engines.Pending):
		return stateStarting
	case has(engines.Failed):
		return stateFailed
	case m.Launcher != engines.Upstream && m.Desired == 0 && m.MaxReplicas > 0:
		return stateCold
	}
	return stateUnavailable
}

func (c Config) fail(w http.ResponseWriter, r *http.Request, e *openai.Error) { c.failFor(w, r, "", e) }

// failFor answers a request for a model or a pool with an error.
func (c Config) failFor(w http.ResponseWriter, r *http.Request, model string, e *openai.Error) {
	c.Requests.AnsweredFor(r, model, e.HTTPStatus(), e)
	w.Header().Set(headers.Source, headers.SourceGateway)
	e.AnswerWith(w, e.BodyFor(r.Header.Get(openai.VersionHeader)))
}

// answer answers the request of a caller.
func (c Config) answer(w http.ResponseWriter, r *http.Request, status int, v any) {
	c.answerFor(w, r, "", status, v)
}

// answerFor answers the request of a caller for a model or a pool.
func (c Config) answerFor(w http.ResponseWriter, r *http.Request, model string, status int, v any) {
	c.Requests.AnsweredFor(r, model, status, nil)
	writeJSON(w, status, v)
}

func writeJSON(w http.ResponseWriter, status int, v any) {
	b, err := json.Marshal(v)
	if err != nil {
		status, b = 500, (&openai.Error{Message: "The answer could not be written."}).Body()
	}
	w.Header().Set("content-type", "application/json")
	w.Header().Set(headers.Source, headers.SourceGateway)
	w.WriteHeader(status)
	// A write fails only if the client is gone.
	w.Write(b)
}
