package dispatch

import (
	"github.com/sluice-gateway/sluice/authz"
	"github.com/sluice-gateway/sluice/engines"
	"github.com/sluice-gateway/sluice/internal/openai"
)

// SetModel names the model of a request that names none: the default model, if the tenant may use
// it, else the only model that the tenant can call. A request that names a model is not changed.
// The fault has code invalid_request and param model.
func (d *Dispatcher) SetModel(scan *openai.Request, tenant *authz.Tenant) *openai.Error {
	if scan.Model != "" {
		return nil
	}
	w := d.current()
	if name := w.defaultModel; name != "" && w.mayCall(name, tenant.Allows) {
		scan.Model = name
		return nil
	}
	if name, ok := w.onlyModel(tenant.Allows); ok {
		scan.Model = name
		return nil
	}
	return &openai.Error{Code: openai.CodeInvalidRequest, Param: "model",
		Message: "model is missing, and there is no default_model that the caller may use: name one of the models that GET /v1/models lists."}
}

// mayCall reports whether a model or pool has this name and is allowed.
func (w *routingTable) mayCall(name string, allowed func(string) bool) bool {
	if _, ok := w.pools[name]; ok {
		return allowed(name)
	}
	m, ok := w.snapshot.Resolve(name)
	return ok && allowed(m.PermittedAs(name))
}

// onlyModel returns the model that the caller can call if there is only one. A caller who may use a
// pool has a choice. A model that is served elsewhere cannot be called.
func (w *routingTable) onlyModel(allowed func(string) bool) (only string, ok bool) {
	for name := range w.pools {
		if allowed(name) {
			return "", false
		}
	}
	for name, t := range w.routes {
		if t.Launcher == engines.None || !allowed(name) {
			continue
		}
		if ok {
			return "", false
		}
		only, ok = name, true
	}
	return only, ok
}
