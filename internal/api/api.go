// Package api is what Sluice itself answers on Envoy's listener: the list of models, the batch API (/schedule, /renew, /complete) and
// the health check. Envoy routes these paths to Sluice's HTTP socket; who calls was settled by ext_authz before and comes in a header
// that clients cannot set.
package api

import (
	"encoding/json"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/sluice-gateway/sluice/engines"
	"github.com/sluice-gateway/sluice/internal/headers"
	"github.com/sluice-gateway/sluice/internal/openai"
)

// Config is what the handler works with.
type Config struct {
	Fleet *engines.Fleet
	// Allowed says whether the tenant of this name may use the model or ask for the pool of this name.
	Allowed func(tenant, model string) bool
	// Pools are the names of the pools; nil: there are none.
	Pools func() []string
	// Created is shown as the models' time of creation.
	Created time.Time
	// Tasks is what the batch API works on; nil: there is no batch API.
	Tasks Tasks
}

// New returns the handler.
func New(c Config) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /health", func(w http.ResponseWriter, _ *http.Request) { write(w, 200, map[string]string{"status": "ok"}) })
	mux.HandleFunc("GET /v1/models", c.list)
	mux.HandleFunc("GET /v1/models/{id...}", c.get) // a model's name may hold slashes
	if c.Tasks != nil {
		c.routes(mux)
	}
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) { fail(w, methodNotAllowed(r)) })
	return mux
}

func methodNotAllowed(r *http.Request) *openai.Error {
	return &openai.Error{Code: openai.CodeInvalidRequest, Status: 405, Message: "This URL does not take " + r.Method + " requests."}
}

func (c Config) list(w http.ResponseWriter, r *http.Request) {
	tenant, may := r.Header.Get(headers.Tenant), []string(nil)
	for name, m := range c.Fleet.Snapshot().Models {
		if c.Allowed(tenant, name) {
			may = append(append(may, name), m.Adapters...)
		}
	}
	for _, name := range c.pools() {
		if c.Allowed(tenant, name) {
			may = append(may, name)
		}
	}
	slices.Sort(may)
	list := openai.NewModelList()
	for _, name := range slices.Compact(may) { // a discovered model may have the name of a pool
		list.Data = append(list.Data, c.card(name))
	}
	write(w, 200, list)
}

func (c Config) get(w http.ResponseWriter, r *http.Request) {
	if r.PathValue("id") == "" { // a slash too many
		c.list(w, r)
		return
	}
	name, shown, ok := c.resolve(r.PathValue("id"))
	if ok && !c.Allowed(r.Header.Get(headers.Tenant), name) {
		fail(w, &openai.Error{Code: openai.CodeForbiddenModel, Param: "model",
			Message: "This API key may not use the model `" + name + "`."})
		return
	}
	if !ok {
		fail(w, &openai.Error{Code: openai.CodeModelNotFound, Param: "model",
			Message: "The model `" + strings.ToValidUTF8(r.PathValue("id"), "?") + "` does not exist."})
		return
	}
	write(w, 200, c.card(shown))
}

// resolve finds the name of the model or the pool that a client means, and what it is shown as. A pool is shown like a model, because it can be
// asked like one, and so is an adapter.
func (c Config) resolve(asked string) (name, shown string, ok bool) {
	if slices.Contains(c.pools(), asked) {
		return asked, asked, true
	}
	m, ok := c.Fleet.Snapshot().Resolve(asked)
	switch {
	case !ok:
		return "", "", false
	case slices.Contains(m.Adapters, asked):
		return m.Name, asked, true
	}
	return m.Name, m.Name, true
}

func (c Config) pools() []string {
	if c.Pools == nil {
		return nil
	}
	return c.Pools()
}

func (c Config) card(name string) openai.ModelCard {
	return openai.NewModelCard(name, "sluice", c.Created)
}

func fail(w http.ResponseWriter, e *openai.Error) {
	w.Header().Set(headers.Source, headers.SourceGateway)
	e.Answer(w)
}

func write(w http.ResponseWriter, status int, v any) {
	b, err := json.Marshal(v)
	if err != nil {
		status, b = 500, (&openai.Error{Message: "The answer could not be written."}).Body()
	}
	writeBytes(w, status, b)
}

func writeBytes(w http.ResponseWriter, status int, b []byte) {
	w.Header().Set("content-type", "application/json")
	w.Header().Set(headers.Source, headers.SourceGateway)
	w.WriteHeader(status)
	w.Write(b) // the client may be gone; nobody is left to tell
}
