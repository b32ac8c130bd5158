// Package api is what Sluice itself answers on Envoy's listener: the list of models and the health check. Envoy routes these
// paths to Sluice's HTTP socket; who calls was settled by ext_authz before and comes in a header that clients cannot set.
package api

import (
	"encoding/json"
	"maps"
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
	// Allowed says whether the tenant of this name may use the model of this name.
	Allowed func(tenant, model string) bool
	// Created is shown as the models' time of creation.
	Created time.Time
}

// New returns the handler.
func New(c Config) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /health", func(w http.ResponseWriter, _ *http.Request) { write(w, 200, map[string]string{"status": "ok"}) })
	mux.HandleFunc("GET /v1/models", c.list)
	mux.HandleFunc("GET /v1/models/{id...}", c.get) // a model's name may hold slashes
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		fail(w, &openai.Error{Code: openai.CodeInvalidRequest, Status: 405, Message: "This URL does not take " + r.Method + " requests."})
	})
	return mux
}

func (c Config) list(w http.ResponseWriter, r *http.Request) {
	models := c.Fleet.Snapshot().Models
	list := openai.NewModelList()
	for _, name := range slices.Sorted(maps.Keys(models)) {
		if c.Allowed(r.Header.Get(headers.Tenant), name) {
			list.Data = append(list.Data, c.card(name))
		}
	}
	write(w, 200, list)
}

func (c Config) get(w http.ResponseWriter, r *http.Request) {
	if r.PathValue("id") == "" { // a slash too many
		c.list(w, r)
		return
	}
	m, ok := c.Fleet.Snapshot().Resolve(r.PathValue("id"))
	if ok && !c.Allowed(r.Header.Get(headers.Tenant), m.Name) {
		fail(w, &openai.Error{Code: openai.CodeForbiddenModel, Param: "model",
			Message: "This API key may not use the model `" + m.Name + "`."})
		return
	}
	if !ok {
		fail(w, &openai.Error{Code: openai.CodeModelNotFound, Param: "model",
			Message: "The model `" + strings.ToValidUTF8(r.PathValue("id"), "?") + "` does not exist."})
		return
	}
	write(w, 200, c.card(m.Name))
}

func (c Config) card(name string) openai.ModelCard {
	return openai.NewModelCard(name, "sluice", c.Created)
}

func fail(w http.ResponseWriter, e *openai.Error) { writeBytes(w, e.HTTPStatus(), e.Body()) }

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
