// Package admin is what an operator looks at: one page and a JSON API on a listener of its own, with the metrics and the two
// health endpoints beside them.
//
// It decides nothing and keeps nothing. Every answer is read from the running parts through the funcs of Config at the moment
// of the request. The page is plain HTML, CSS and JavaScript in this binary; it reads the same API as everybody else.
//
// There is no login: the listener is on loopback unless the operator says otherwise. What a hostile web page in the operator's
// browser could do is warded off here (see guard).
package admin

import (
	"context"
	"encoding/json"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"go.uber.org/zap"

	"github.com/sluice-gateway/sluice/engines"
	"github.com/sluice-gateway/sluice/internal/openai"
	"github.com/sluice-gateway/sluice/internal/request"
)

// Config says where the answers come from. Fleet and Status are needed; an endpoint whose func is nil does not exist. All
// funcs are called concurrently and must be quick.
type Config struct {
	// Listen is the host:port the handler is served on. On a loopback address only requests that name a loopback host
	// are answered.
	Listen string
	// Fleet is the fleet as it is now.
	Fleet func() *engines.Snapshot
	// Status is how Sluice itself and its Envoy are.
	Status func() Status
	// NotReady says in words why requests cannot be served; empty means ready. nil: always ready.
	NotReady func() []string
	// ModelLoad is what a model is doing and may do; nil: nothing is known.
	ModelLoad func(model string) ModelLoad
	// ReplicaLoad is what a replica is doing; nil: nothing is known.
	ReplicaLoad func(engines.Replica) ReplicaLoad
	// Nodes are the hosts that local replicas are launched on, as they were last read; one that was not read yet has no name.
	Nodes func() []engines.Node
	// Requests are the running and the last finished requests, at most limit of each, and how many run
	// (request.Store.List).
	Requests func(limit int) ([]request.Summary, int)
	// Tenants are the callers.
	Tenants func() []Tenant
	// Pools are the groups of models that a caller may ask for by one name.
	Pools func() []Pool
	// Limits says what can be changed at run time of "model/NAME" or "tenant/NAME": the values in force, those of the file (empty
	// if the file does not name it) and the names of those that were changed. False: nothing is known under that key. nil: all limits
	// are the file's.
	Limits func(key string) (values, file map[string]int64, patched []string, ok bool)
	// PatchLimits changes limits under a key of Limits, all that are named or none; nil takes the file's value again. It says which
	// field is at fault in Error.Param. When it returns, Limits gives the new values. nil: limits cannot be changed.
	PatchLimits func(ctx context.Context, key string, changes map[string]*int64) *openai.Error
	// Pick says where a request with this cache key would go. The model exists.
	Pick func(model, key string) (Pick, *openai.Error)
	// Reload reads the configuration file again; the error lists its faults.
	Reload func(context.Context) error
	// Metrics serves /metrics.
	Metrics http.Handler
	// Log hears of failed reloads; nil: nobody does.
	Log *zap.Logger
}

// New returns the handler of the admin listener.
func New(c Config) http.Handler {
	if c.Log == nil {
		c.Log = zap.NewNop()
	}
	h := &handler{Config: c, guard: newGuard(c.Listen)}
	h.routes = h.table()
	return h
}

type handler struct {
	Config
	guard  *guard
	routes map[string]route
}

// route is one path: what it does by method. GET stands for HEAD too.
type route map[string]http.HandlerFunc

func (r route) allowed() string {
	methods := slices.Collect(maps.Keys(r))
	if r[http.MethodGet] != nil {
		methods = append(methods, http.MethodHead)
	}
	slices.Sort(methods)
	return strings.Join(methods, ", ")
}

func (h *handler) table() map[string]route {
	routes := map[string]route{
		"/healthz":         {http.MethodGet: h.healthz},
		"/readyz":          {http.MethodGet: h.readyz},
		"/api/v1/status":   {http.MethodGet: h.status},
		"/api/v1/models":   {http.MethodGet: h.models},
		"/api/v1/replicas": {http.MethodGet: h.replicas},
	}
	for path, file := range pageFiles() {
		routes[path] = route{http.MethodGet: file.ServeHTTP}
	}
	if h.Requests != nil {
		routes["/api/v1/requests"] = route{http.MethodGet: h.requests}
	}
	if h.Nodes != nil {
		routes["/api/v1/nodes"] = route{http.MethodGet: h.nodes}
	}
	if h.Tenants != nil {
		routes["/api/v1/tenants"] = route{http.MethodGet: h.tenants}
	}
	if h.Pools != nil {
		routes["/api/v1/pools"] = route{http.MethodGet: h.pools}
	}
	if h.Reload != nil {
		routes["/api/v1/reload"] = route{http.MethodPost: h.reload}
	}
	if h.Metrics != nil {
		routes["/metrics"] = route{http.MethodGet: h.Metrics.ServeHTTP}
	}
	return routes
}

// ServeHTTP implements http.Handler.
func (h *handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	protect(w.Header())
	if fault := h.guard.check(r); fault != nil {
		writeError(w, fault)
		return
	}
	route, ok := h.find(r.URL.EscapedPath())
	if !ok {
		writeError(w, notFound("Unknown admin URL."))
		return
	}
	method := r.Method
	if method == http.MethodHead {
		method = http.MethodGet
	}
	serve, ok := route[method]
	if !ok {
		w.Header().Set("Allow", route.allowed())
		writeError(w, &openai.Error{Code: openai.CodeInvalidRequest, Status: http.StatusMethodNotAllowed,
			Message: "This URL takes " + route.allowed() + "."})
		return
	}
	serve(w, r)
}

// find works on the escaped path because the name of a model or a tenant may hold slashes, and some names would not survive the
// cleaning that http.ServeMux does.
func (h *handler) find(path string) (route, bool) {
	if rest, ok := strings.CutPrefix(path, "/api/v1/models/"); ok {
		return h.findModel(rest)
	}
	if rest, ok := strings.CutPrefix(path, "/api/v1/tenants/"); ok {
		name, ok := strings.CutSuffix(rest, "/limits")
		if !ok || h.Tenants == nil && h.Limits == nil {
			return nil, false
		}
		return h.limitsRoute(func(serve subjectHandler) http.HandlerFunc { return h.ofTenant(name, serve) }), true
	}
	r, ok := h.routes[path]
	return r, ok
}

func (h *handler) findModel(rest string) (route, bool) {
	if name, ok := strings.CutSuffix(rest, "/limits"); ok {
		return h.limitsRoute(func(serve subjectHandler) http.HandlerFunc {
			return h.ofModel(name, func(w http.ResponseWriter, r *http.Request, m *engines.ModelSnapshot) { serve(w, r, h.modelSubject(m)) })
		}), true
	}
	if name, ok := strings.CutSuffix(rest, "/pick"); ok && h.Pick != nil {
		return route{http.MethodGet: h.ofModel(name, h.pick)}, true
	}
	return nil, false
}

// ofModel serves an endpoint of one model, named by the raw part of a path; aliases are resolved.
func (h *handler) ofModel(raw string, serve func(http.ResponseWriter, *http.Request, *engines.ModelSnapshot)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		name, err := url.PathUnescape(raw)
		if err != nil {
			writeError(w, openai.Errorf(openai.CodeInvalidRequest, "The model's name in the URL is not well escaped."))
			return
		}
		m, ok := h.Fleet().Resolve(name)
		if !ok {
			writeError(w, openai.Errorf(openai.CodeModelNotFound, "The model `%s` does not exist.", name))
			return
		}
		serve(w, r, m)
	}
}

func notFound(message string) *openai.Error {
	return &openai.Error{Code: openai.CodeInvalidRequest, Status: http.StatusNotFound, Message: message}
}

func writeError(w http.ResponseWriter, e *openai.Error) { e.Answer(w) }

func writeJSON(w http.ResponseWriter, status int, v any) {
	body, err := json.Marshal(v)
	if err != nil { // a value of ours that cannot be rendered
		panic(err)
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, _ = w.Write(append(body, '\n'))
}
