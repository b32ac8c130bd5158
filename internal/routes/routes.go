// Package routes is the table of the routes that Envoy serves to clients. Package xds uses it to
// build Envoy's route configuration, and the packages that answer requests use its paths and names.
//
// A new route is one new row of Table. The tests of this package walk the table and name every
// place that lacks the row.
package routes

import (
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/sluice-gateway/sluice/internal/headers"
)

// The names of the routes as Envoy writes them into the access log. Requests to engines begin on
// Undecided and move to one of Engine, Stream, Relay and RelayStream when ext_proc has decided.
const (
	// Engine is the name of the routes to a replica, and Stream of those with a streamed response.
	Engine = "engine"
	Stream = "stream"
	// Relay is the name of the route of requests that ext_proc has given to the relay of managed
	// streams. RelayStream is that of those among them that ask for a streamed response.
	Relay       = "relay"
	RelayStream = "relay_stream"
	// Undecided is the name of the route of all other requests. It leads to no server.
	Undecided = "undecided"
	// Connect is the name of the route that refuses CONNECT, which has no path to match.
	Connect = "connect"

	// Models and the names below are the routes of what Sluice answers itself.
	Models   = "models"
	Health   = "health"
	Schedule = "schedule"
	Tasks    = "tasks"
	Realtime = "realtime"
	Streams  = "streams"
	// StoredResponses is the name of the route to responses that a replica keeps.
	StoredResponses = "stored_responses"
	GRPC            = "grpc"
)

// IsStreamed reports whether requests on the route of this name ask for a streamed response.
func IsStreamed(name string) bool { return name == Stream || name == RelayStream }

// The paths of what Sluice answers itself.
const (
	ModelsPath   = "/v1/models"
	HealthPath   = "/health"
	SchedulePath = "/schedule"
	CompletePath = "/complete"
	RenewPath    = "/renew"
	RealtimePath = "/v1/realtime"
	StreamsPath  = "/v1/streams/"
	// StoredPath is the path of the responses that replicas keep.
	StoredPath = "/v1/responses/"
	GRPCPath   = "/llm.v1.Inference"
)

// StreamID returns the client's id of a stream from an escaped path of the route Streams:
// /v1/streams/{id} and /v1/streams/{id}/cancel. A query must be cut off before. It returns false if
// the path names no id.
func StreamID(path string) (id string, cancel, ok bool) {
	escaped, cancel := strings.CutSuffix(strings.TrimPrefix(path, StreamsPath), "/cancel")
	id, err := url.PathUnescape(escaped)
	if err != nil || id == "" || strings.Contains(escaped, "/") {
		return "", cancel, false
	}
	return id, cancel, true
}

// MaxSmallBody is the largest request body in bytes of a route with SmallBody.
const MaxSmallBody = 64 << 10

// HoldTimeout is the longest time for which Envoy holds a request that waits for its decision. It
// is the longest that Envoy's ext_proc allows, and longer than the longest wait that the
// configuration file may set.
const HoldTimeout = time.Hour

const (
	// apiTimeout bounds the answers that Sluice gives at once.
	apiTimeout = 10 * time.Second
	// scheduleTimeout bounds the wait of a call of /schedule. Sluice itself answers earlier.
	scheduleTimeout = 6 * time.Minute
)

// Backend is the part that answers the requests of a route.
type Backend string

const (
	// Replica is a replica of the model that the request names. ext_proc chooses it.
	Replica Backend = "replica"
	// API is package internal/api.
	API Backend = "API"
	// RelayHandlers is the HTTP server of managed streams.
	RelayHandlers Backend = "relay"
	// GRPCService is Sluice's gRPC service for clients.
	GRPCService Backend = "gRPC service"
)

// Cluster is the name of the Envoy cluster of the backend. It is empty for Replica, whose clusters
// depend on the model.
func (b Backend) Cluster() string {
	switch b {
	case API:
		return headers.APICluster
	case RelayHandlers:
		return headers.RelayCluster
	case GRPCService:
		return headers.GRPCCluster
	}
	return ""
}

// Auth says which part authenticates the caller.
type Auth string

const (
	// ByDecision means that the filter or ext_proc has the key checked before Envoy reads the body.
	ByDecision Auth = "API key (before the body)"
	// ByExtAuthz means that Envoy asks ext_authz, and refuses the request when ext_authz is away.
	ByExtAuthz Auth = "API key (ext_authz)"
	// NoAuth means that everybody may call.
	NoAuth Auth = "none"
)

// Match says which paths belong to a route.
type Match int

const (
	// Exact matches the path alone.
	Exact Match = iota
	// Subtree matches the path and all paths below it. For HTTP, all percent signs must be valid
	// escapes.
	Subtree
	// Below matches the paths below the path, which ends with a slash, and the path itself. What
	// follows the path may be any text whose percent signs are valid escapes.
	Below
)

// Protocol is what a client speaks on a route.
type Protocol string

const (
	// HTTP is plain HTTP.
	HTTP Protocol = "HTTP"
	// WebSocket is a WebSocket. The backend refuses plain HTTP requests.
	WebSocket Protocol = "WebSocket"
	// OverGRPC is gRPC. Envoy does not match other requests to the route.
	OverGRPC Protocol = "gRPC"
)

// Route is one row of the table.
type Route struct {
	// Name is the name in Envoy's access log. Several rows may share a name.
	Name string
	// Path and Match say which requests belong to the route. Aliases are further paths of it. The
	// backend sees Path in their place.
	Path    string
	Aliases []string
	Match   Match
	// Methods are the methods that Envoy accepts on the path; nil means all of them. Where it is
	// nil, the backend refuses the methods that it does not know and names those that it does.
	Methods []string
	// Protocol is HTTP, except on routes for WebSockets and for gRPC.
	Protocol Protocol
	Backend  Backend
	Auth     Auth
	// SmallBody means that Envoy refuses bodies of more than MaxSmallBody bytes. Without it, the
	// routes to replicas have the limit of the configuration file and the others have none.
	SmallBody bool
	// Timeout is the longest time until the end of the response. 0 means that the backend sets its
	// own limits.
	Timeout time.Duration
	// Purpose says in one phrase what the route is for.
	Purpose string
}

// inference returns the row of a path that replicas answer. Its aliases are the path without /v1,
// or with it if the engines' path has none, and those that are given.
func inference(path, purpose string, aliases ...string) Route {
	other, ok := strings.CutPrefix(path, "/v1")
	if !ok {
		other = "/v1" + path
	}
	return Route{
		Name: Engine, Path: path, Aliases: append([]string{other}, aliases...), Methods: []string{"POST"}, Protocol: HTTP, Backend: Replica,
		Auth: ByDecision, Purpose: purpose,
	}
}

// table is the table; Table returns a copy.
var table = []Route{
	inference("/v1/chat/completions", "chat completions"),
	inference("/v1/completions", "text completions"),
	inference("/v1/responses", "responses"),
	inference("/v1/responses/input_tokens", "the number of tokens of a response's input"),
	inference("/v1/responses/compact", "a conversation in fewer tokens"),
	inference("/v1/embeddings", "embeddings"),
	inference("/v1/rerank", "ranks documents for a query", "/v2/rerank"),
	inference("/v1/score", "scores pairs of texts"),
	inference("/v1/audio/transcriptions", "speech to text"),
	inference("/v1/audio/translations", "speech to English text"),
	inference("/v1/audio/speech", "text to speech"),
	inference("/v1/images/generations", "images from a text"),
	inference("/v1/images/edits", "images from images and a text"),
	inference("/v1/images/variations", "images from an image"),
	inference("/v1/messages", "Anthropic's Messages API"),
	inference("/v1/messages/count_tokens", "the number of tokens of a prompt"),
	inference("/tokenize", "the tokens of a text"),
	inference("/detokenize", "the text of tokens"),
	{
		Name: Realtime, Path: RealtimePath, Protocol: WebSocket, Backend: RelayHandlers, Auth: ByExtAuthz,
		Purpose: "conversations over a WebSocket",
	},
	{
		Name: Streams, Path: StreamsPath, Match: Below, Protocol: HTTP, Backend: RelayHandlers, Auth: ByExtAuthz, SmallBody: true,
		Purpose: "resumes and cancels streams by their request id",
	},
	{
		Name: StoredResponses, Path: StoredPath, Aliases: []string{"/responses/"}, Match: Below, Protocol: HTTP, Backend: RelayHandlers,
		Auth: ByExtAuthz, SmallBody: true, Purpose: "reads, cancels and deletes responses that their replica keeps",
	},
	{
		Name: GRPC, Path: GRPCPath, Match: Subtree, Protocol: OverGRPC, Backend: GRPCService, Auth: ByExtAuthz,
		Purpose: "llm.v1.Inference",
	},
	{
		Name: Models, Path: ModelsPath, Aliases: []string{"/models"}, Match: Subtree, Protocol: HTTP, Backend: API, Auth: ByExtAuthz, SmallBody: true,
		Timeout: apiTimeout, Purpose: "lists the models that the caller may use",
	},
	{
		Name: Health, Path: HealthPath, Protocol: HTTP, Backend: API, Auth: NoAuth, SmallBody: true,
		Timeout: apiTimeout, Purpose: "health check",
	},
	{
		Name: Schedule, Path: SchedulePath, Protocol: HTTP, Backend: API, Auth: ByExtAuthz, SmallBody: true,
		Timeout: scheduleTimeout, Purpose: "admits a task",
	},
	{
		Name: Tasks, Path: CompletePath, Protocol: HTTP, Backend: API, Auth: ByExtAuthz, SmallBody: true,
		Timeout: apiTimeout, Purpose: "ends a task",
	},
	{
		Name: Tasks, Path: RenewPath, Protocol: HTTP, Backend: API, Auth: ByExtAuthz, SmallBody: true,
		Timeout: apiTimeout, Purpose: "renews the lease of a task",
	},
}

// Table returns the routes in the order in which Envoy gets them.
func Table() []Route { return slices.Clone(table) }

// Of returns the routes of one backend.
func Of(b Backend) []Route {
	return slices.DeleteFunc(Table(), func(r Route) bool { return r.Backend != b })
}
