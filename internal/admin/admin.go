// Package admin serves the operator's listener: a page, a JSON API, the metrics and the two health
// endpoints. The package internal/gateway uses it and gives it the data by the funcs of Config.
//
// The package keeps no state. For every request it reads the running parts through these funcs. The
// page is plain HTML, CSS and JavaScript that is embedded in the binary. It reads the same JSON API
// as other clients.
//
// Access says who may use the listener. Without it, everybody who reaches the listener is an
// operator, so the configuration then allows only a loopback address. The type guard protects the
// API from hostile web pages in the operator's browser. Every call that may change something gives
// a line in the log.
package admin

import (
	"cmp"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/json"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"go.uber.org/zap"

	"github.com/sluice-gateway/sluice/engines"
	"github.com/sluice-gateway/sluice/internal/condition"
	"github.com/sluice-gateway/sluice/internal/history"
	"github.com/sluice-gateway/sluice/internal/openai"
	"github.com/sluice-gateway/sluice/internal/request"
	"github.com/sluice-gateway/sluice/internal/usage"
)

// Config holds the funcs from which New's handler reads its answers. All are required. They are
// called concurrently and must not block.
type Config struct {
	// Listen is the host:port that the handler is served on. On a loopback address the handler
	// answers only requests whose Host header names a loopback host.
	Listen string
	// Fleet returns the current fleet.
	Fleet func() *engines.Snapshot
	// Status returns the status of Sluice and of its Envoy.
	Status func() Status
	// NotReady returns the reasons for which this gateway cannot take requests, one sentence each.
	// An empty list means ready.
	NotReady func() []string
	// Conditions returns the conditions of the gateway, those that need attention first.
	Conditions func() []condition.Condition
	// ModelLoad returns the load and the limits of a model.
	ModelLoad func(model string) ModelLoad
	// ReplicaLoad returns the load of a replica.
	ReplicaLoad func(engines.Replica) ReplicaLoad
	// Nodes returns the nodes that run local replicas, as they were last read. A node that was not
	// read yet has an empty name.
	Nodes func() []engines.Node
	// Upstreams returns what is known of the servers that someone else runs.
	Upstreams func() []Upstream
	// Requests returns the running and the last finished requests, at most limit of each, and the
	// number of running requests (see request.Store.List).
	Requests func(limit int) ([]request.Summary, int)
	// Request returns a request of Requests by its id (see request.Store.Find).
	Request func(id string) (request.Detail, bool)
	// TraceURL is the address of a trace, with {trace_id} in the place of its id. If it is empty,
	// requests have no link.
	TraceURL string
	// Strategy returns the name of the routing strategy of a model.
	Strategy func(model string) string
	// Tenants returns the tenants.
	Tenants func() []Tenant
	// Pools returns the pools.
	Pools func() []Pool
	// Usage answers what was used.
	Usage func(context.Context, usage.Question) usage.Answer
	// Limits returns the limits of "model/NAME" or "tenant/NAME" that can be changed at run time.
	// values are those in force, and patched are the names of the changed limits. file has the
	// values of the file, and is empty if the file does not name the key. ok is false for an
	// unknown key.
	Limits func(key string) (values, file map[string]int64, patched []string, ok bool)
	// PatchLimits changes limits of a key of Limits: all that changes names, or none. A nil value
	// restores the value of the file. Error.Param names the field at fault. Once PatchLimits has
	// returned, Limits returns the new values.
	PatchLimits func(ctx context.Context, key string, changes map[string]*int64) *openai.Error
	// Pick returns the replica that a request would go to. The model exists. Pick changes nothing.
	Pick func(model string, q PickQuestion) (Pick, *openai.Error)
	// Reload reads the configuration file again. force puts a file in force that is held back until
	// an operator confirms it. The error lists the faults of the file.
	Reload func(ctx context.Context, force bool) error
	// PlanReload says what Reload would change with this content of the file; empty: as it is now.
	// The error lists the faults of the content.
	PlanReload func(content []byte) (ReloadPlan, error)
	// Actions are what an operator can have the gateway do.
	Actions Actions
	// Keys makes, lists and revokes keys.
	Keys Keys
	// Chat sends a chat completion to the clients' listener of this gateway, with the key of a
	// tenant or without one. The caller closes the body of the response. See NewChat.
	Chat func(ctx context.Context, body []byte, key string) (*http.Response, error)
	// History holds the samples of the last 24 hours.
	History *history.Store
	// Events are sent by /api/v1/events.
	Events *Events
	// Metrics serves /metrics.
	Metrics http.Handler
	// Access returns who may use the listener. If its result is nil, everybody may change
	// everything.
	Access func() *Access
	// SessionKey signs the cookies of logins. If it is empty, New makes one, and logins end with
	// the process.
	SessionKey []byte
	// Log receives failed reloads, and the audit lines. If Log is nil, they are not logged.
	Log *zap.Logger
}

// New returns the handler of the admin listener.
func New(c Config) http.Handler {
	c.Log = cmp.Or(c.Log, zap.NewNop())
	if len(c.SessionKey) == 0 {
		c.SessionKey = make([]byte, sha256.Size)
		_, _ = rand.Read(c.SessionKey) // crypto/rand never fails
	}
	h := &handler{Config: c, guard: newGuard(c.Listen), strangers: strangersLog(c.Log)}
	h.routes, h.open = h.table(), map[string]bool{"/healthz": true, "/readyz": true, loginPath: true, sessionPath: true}
	for path := range pageFiles() {
		h.open[path] = true
	}
	return h
}

// NewHealth returns the handler of a listener that serves only /healthz, /readyz and /metrics, to
// everybody. It uses Listen, NotReady and Metrics of c.
func NewHealth(c Config) http.Handler {
	c.Access, c.Log = func() *Access { return nil }, zap.NewNop()
	h := &handler{Config: c, guard: newGuard(c.Listen), onlyFixed: true}
	h.routes = map[string]route{
		"/healthz": {http.MethodGet: h.healthz},
		"/readyz":  {http.MethodGet: h.readyz},
		"/metrics": {http.MethodGet: h.Metrics.ServeHTTP},
	}
	return h
}

// The paths of a login, its end, and the question who is logged in.
const (
	loginPath   = "/api/v1/login"
	logoutPath  = "/api/v1/logout"
	sessionPath = "/api/v1/session"
)

// The paths of one model begin with modelsPath. Where a request would go is at pickSuffix.
const (
	modelsPath = "/api/v1/models/"
	pickSuffix = "/pick"
)

// handler implements the admin listener.
type handler struct {
	Config
	guard *guard
	// routes holds the endpoints with a fixed path. onlyFixed: there are no others.
	routes    map[string]route
	onlyFixed bool
	// open holds the paths that need no authentication.
	open map[string]bool
	// strangers logs the calls without valid credentials.
	strangers *zap.Logger
}

// route holds the handlers of one path by HTTP method. The handler of GET also serves HEAD.
type route map[string]http.HandlerFunc

// allowed returns the methods of the route, for the header Allow.
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
		"/healthz":           {http.MethodGet: h.healthz},
		"/readyz":            {http.MethodGet: h.readyz},
		"/metrics":           {http.MethodGet: h.Metrics.ServeHTTP},
		"/api/v1/status":     {http.MethodGet: h.status},
		"/api/v1/conditions": {http.MethodGet: h.conditions},
		"/api/v1/models":     {http.MethodGet: h.models},
		"/api/v1/replicas":   {http.MethodGet: h.replicas},
		"/api/v1/requests":   {http.MethodGet: h.requests},
		"/api/v1/nodes":      {http.MethodGet: h.nodes},
		"/api/v1/upstreams":  {http.MethodGet: h.upstreams},
		"/api/v1/tenants":    {http.MethodGet: h.tenants},
		"/api/v1/usage":      {http.MethodGet: h.usage},
		"/api/v1/pools":      {http.MethodGet: h.pools},
		"/api/v1/history":    {http.MethodGet: h.history},
		"/api/v1/events":     {http.MethodGet: h.events},
		"/api/v1/reload":     {http.MethodPost: h.reload},
		keysPath:             {http.MethodGet: h.listKeys, http.MethodPost: h.newKey},
		playgroundPath:       {http.MethodPost: h.playground},
		sessionPath:          {http.MethodGet: h.session},
		loginPath:            {http.MethodPost: h.login},
		logoutPath:           {http.MethodPost: h.logout},
	}
	for path, file := range pageFiles() {
		routes[path] = route{http.MethodGet: file.ServeHTTP}
	}
	return routes
}

func (h *handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	protect(w.Header())
	if fault := h.guard.check(r); fault != nil {
		writeError(w, fault)
		return
	}
	route, ok := h.find(r.URL.EscapedPath())
	if !ok {
		message := "Unknown admin URL."
		if strings.HasPrefix(r.URL.Path, "/v1/") {
			message += " This is the listener for operators. Clients call the address of `listen`."
		}
		writeError(w, notFound(message))
		return
	}
	caller, fault := h.admit(r)
	if fault != nil {
		h.refuse(w, r, caller, fault)
		return
	}
	method := r.Method
	if method == http.MethodHead {
		method = http.MethodGet
	}
	serve, ok := route[method]
	if !ok {
		w.Header().Set("Allow", route.allowed())
		writeError(w, refusal(http.StatusMethodNotAllowed, "This URL allows only the methods "+route.allowed()+"."))
		return
	}
	if r = withAudit(r, caller); isRead(r) {
		serve(w, r)
		return
	}
	h.audited(serve, w, r)
}

// admit returns who has sent the request, or the error to answer it with. The caller of an open
// path has no name.
func (h *handler) admit(r *http.Request) (caller, *openai.Error) {
	if path := r.URL.EscapedPath(); h.open[path] || isView(path) {
		return caller{}, nil
	}
	c, fault := h.authenticate(r)
	if fault == nil && r.URL.EscapedPath() != logoutPath {
		fault = c.authorize(r)
	}
	return c, fault
}

// find returns the route of an escaped path. The path is escaped because the name of a model or a
// tenant may contain slashes. http.ServeMux is not used because it would change some names when it
// cleans the path.
func (h *handler) find(path string) (route, bool) {
	if h.onlyFixed {
		r, ok := h.routes[path]
		return r, ok
	}
	if rest, ok := strings.CutPrefix(path, modelsPath); ok {
		return h.findModel(rest)
	}
	if rest, ok := strings.CutPrefix(path, "/api/v1/tenants/"); ok {
		name, ok := strings.CutSuffix(rest, "/limits")
		return h.limitsRoute(func(serve subjectHandler) http.HandlerFunc { return h.ofTenant(name, serve) }), ok
	}
	if rest, ok := strings.CutPrefix(path, replicasPath); ok {
		return h.findReplica(rest)
	}
	if rest, ok := strings.CutPrefix(path, requestsPath); ok {
		return h.findRequest(rest)
	}
	if id, ok := strings.CutPrefix(path, keysPath+"/"); ok {
		return route{http.MethodDelete: named(id, "key's id", h.revokeKey)}, true
	}
	if isView(path) {
		path = "/"
	}
	r, ok := h.routes[path]
	return r, ok
}

// findRequest returns the route of a path below requestsPath.
func (h *handler) findRequest(rest string) (route, bool) {
	id, action, ok := strings.Cut(rest, "/")
	if !ok {
		return route{http.MethodGet: h.requestDetail(id)}, true
	}
	return route{http.MethodPost: named(id, "request's id", h.cancelRequest)}, action == "cancel"
}

// findModel returns the route of a path below /api/v1/models/. rest is the part after that prefix.
func (h *handler) findModel(rest string) (route, bool) {
	if name, ok := strings.CutSuffix(rest, "/limits"); ok {
		return h.limitsRoute(func(serve subjectHandler) http.HandlerFunc {
			return h.ofModel(name, func(w http.ResponseWriter, r *http.Request, m *engines.ModelSnapshot) { serve(w, r, h.modelSubject(m)) })
		}), true
	}
	if name, ok := strings.CutSuffix(rest, pickSuffix); ok {
		return route{http.MethodGet: h.ofModel(name, h.pick), http.MethodPost: h.ofModel(name, h.pickBody)}, true
	}
	if name, ok := strings.CutSuffix(rest, "/routing"); ok {
		return route{http.MethodGet: h.ofModel(name, h.routing)}, true
	}
	return h.findModelAction(rest)
}

// named returns the handler of an endpoint whose path has a name or an id. raw is that name or id,
// escaped as in the path, and what says what it is.
func named(raw, what string, serve func(w http.ResponseWriter, r *http.Request, name string)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		name, err := url.PathUnescape(raw)
		if err != nil {
			writeError(w, openai.Errorf(openai.CodeInvalidRequest, "The %s in the URL has an invalid percent-encoding.", what))
			return
		}
		serve(w, r, name)
	}
}

// modelHandler serves an endpoint of one model.
type modelHandler func(http.ResponseWriter, *http.Request, *engines.ModelSnapshot)

// ofModel returns the handler of an endpoint of one model. raw is the model's name or alias,
// escaped as in the path.
func (h *handler) ofModel(raw string, serve modelHandler) http.HandlerFunc {
	return named(raw, "model's name", func(w http.ResponseWriter, r *http.Request, name string) {
		m, ok := h.Fleet().Resolve(name)
		if !ok {
			writeError(w, openai.Errorf(openai.CodeModelNotFound, "The model `%s` does not exist. `sluice models` lists the models.", name))
			return
		}
		serve(w, r, m)
	})
}

func notFound(message string) *openai.Error {
	return refusal(http.StatusNotFound, message)
}

func writeError(w http.ResponseWriter, e *openai.Error) { e.Answer(w) }

func writeJSON(w http.ResponseWriter, status int, v any) {
	body, err := json.Marshal(v)
	if err != nil { // a type of this package that cannot be encoded is a bug
		panic(err)
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, _ = w.Write(append(body, '\n'))
}
