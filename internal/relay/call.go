package relay

import (
	"crypto/sha256"
	"encoding/binary"
	"net/http"
	"time"

	"github.com/sluice-gateway/sluice/admission"
	"github.com/sluice-gateway/sluice/authz"
	"github.com/sluice-gateway/sluice/internal/dispatch"
	"github.com/sluice-gateway/sluice/internal/headers"
	"github.com/sluice-gateway/sluice/internal/memory"
	"github.com/sluice-gateway/sluice/internal/openai"
	"github.com/sluice-gateway/sluice/internal/openai/messages"
	"github.com/sluice-gateway/sluice/internal/relay/replay"
	"github.com/sluice-gateway/sluice/internal/request"
)

// Call is a request for one generation. It does not change after it was given to the relay.
type Call struct {
	// RequestID is Envoy's own id of the request, for the log. The client's own id, its name for
	// the call, is Scan.RequestID.
	RequestID string
	Tenant    *authz.Tenant
	Priority  admission.Priority
	// Path is the path that the engine is asked at, with its query: "/v1/chat/completions".
	Path string
	// Header has the client's headers that the engine gets.
	Header http.Header
	// Body is the request's body as the client has sent it, and Scan what was read of it.
	Body []byte
	Scan openai.Request
	// Task is the client's task that the request belongs to. Empty: none.
	Task string
	// Received is when the request came. Its timeouts count from then.
	Received time.Time
	// Patient says that a client that accepts no events holds up the engine after
	// queue.DefaultMergeAfter events, for Config.Patience at most. Other clients get merged events
	// and are cut off in the end. It is for protocols in which the client says how much it wants.
	Patient bool
	// Foreseen says that the client will have to wait, so that it gets a heartbeat at once.
	Foreseen bool
	// EmptyChunks says that heartbeats are chunks without content, for a client that cannot read
	// comments.
	EmptyChunks bool
	// OnConnection says that the call is one of several on a connection and has no request of its
	// own at Envoy.
	OnConnection bool
	// Alive reports whether the Envoy lives through which a call has come that has no Entry yet. If
	// that Envoy has died, nobody tells how the call has ended. nil: not known.
	Alive func() bool
	// Entry is told what becomes of the call. nil: nobody is.
	Entry request.Follower

	// memory is the reservation for Body. nil: there is none.
	memory *memory.Hold
	// original is the client's request to the Messages API, from which Path, Body and Scan were
	// translated. nil: they are the client's own. originalBody is its body.
	original     *originalRequest
	originalBody []byte
	// movedOptions are the options of a client of the Messages API whose request another process
	// has translated. That process also translates the answer for the client. A client that comes
	// back to this process gets the Messages API from this process. nil: there is no such client.
	movedOptions *messages.Options
}

// CallParams are what a call is made of that did not come through ext_proc: a request on a
// WebSocket or a gRPC stream.
type CallParams struct {
	Tenant *authz.Tenant
	// Priority is the name of the priority. Empty: the tenant's own.
	Priority string
	// Path names the endpoint, "/v1/chat/completions". Body is a request to it as JSON.
	Path string
	Body []byte
	// Header has the client's headers that the engine gets. nil: none.
	Header http.Header
	// RequestID is Envoy's id of the request, or derived from it, for the log.
	RequestID string
	Received  time.Time
}

// NewCall reads the body as ext_proc reads the bodies of its requests. The error is for the client.
func NewCall(p CallParams) (*Call, *openai.Error) {
	endpoint, ok := openai.EndpointOf(p.Path)
	if !ok || endpoint.OfMessages() { // its answers have a form of their own
		return nil, openai.Errorf(openai.CodeInvalidRequest, "There is nothing at this path.")
	}
	scan, fault := openai.Scan(endpoint, "application/json", p.Body)
	if fault != nil {
		return nil, fault
	}
	priority, fault := p.Tenant.PriorityOf(p.Priority)
	if fault != nil {
		return nil, fault
	}
	if fault := scan.SetSessionID(headers.SessionID, p.Header.Get(headers.SessionID)); fault != nil {
		return nil, fault
	}
	return &Call{RequestID: p.RequestID, Tenant: p.Tenant, Priority: dispatch.PriorityOf(priority), Path: p.Path, Header: p.Header,
		Body: p.Body, Scan: scan, Received: p.Received}, nil
}

// callOfOffer returns the call that ext_proc has offered, without its body and its headers.
func callOfOffer(o *dispatch.Offer) *Call {
	return &Call{RequestID: o.RequestID, Tenant: o.Tenant, Priority: o.Priority, Path: o.Path, Scan: o.Scan, Task: o.Task,
		Received: o.Received, Foreseen: o.Foreseen, Entry: o.Record}
}

// isNamed reports whether the client has given the call a request id, so that it can be resumed,
// joined and cancelled.
func (c *Call) isNamed() bool { return c.Scan.RequestID != "" }

// wantsEvents reports whether the client can read a stream and no whole answer in its place. A
// patient call is one over gRPC or WebSocket.
func (c *Call) wantsEvents() bool {
	return c.Scan.Stream && c.Scan.Endpoint.Generates() && !c.Patient
}

func (c *Call) key() replay.Key { return replay.Key{Tenant: c.Tenant.Name, ID: c.Scan.RequestID} }

// fingerprint returns a hash of the path and the body without the options of Sluice. It also hashes
// the options of a client of the Messages API, which a translated body lacks. It tells apart two
// requests with the same request id. The options of Sluice do not count: headers can say the same,
// and a client that comes back has less time. Of a form it has the parts: a client that repeats one
// chooses another boundary.
func (c *Call) fingerprint() [32]byte {
	h := sha256.New()
	h.Write([]byte(c.Path))
	h.Write([]byte{0})
	body, _ := c.Scan.Strip(c.Body)
	for _, piece := range c.Scan.Pieces(body) {
		h.Write(binary.BigEndian.AppendUint64(nil, uint64(len(piece))))
		h.Write(piece)
	}
	if o := c.clientOptions(); o != nil {
		h.Write([]byte{0})
		h.Write([]byte(formatOptions(o)))
	}
	return [32]byte(h.Sum(nil))
}

// Asked returns the request to the dispatcher. It has no request id, because the relay itself makes
// sure that a named call runs once.
func (c *Call) Asked() dispatch.Request {
	scan, body := &c.Scan, c.Body
	if c.original != nil { // the prompt has the beginnings that ext_proc sees
		scan, body = &c.original.scan, c.originalBody
	}
	asked := dispatch.NewRequest(dispatch.Caller{Tenant: c.Tenant, Priority: c.Priority, Task: c.Task}, scan, body)
	asked.ID = ""
	return *asked
}

// arrival returns what the call's record and its trace begin with.
func (c *Call) arrival() request.Arrival {
	return request.Arrival{ID: c.RequestID, ClientID: c.Scan.RequestID, Method: http.MethodPost, Path: c.Path, Tenant: c.Tenant.Name,
		Key: c.Tenant.Key, Model: c.Scan.Model,
		Stream: c.Scan.Stream, Bytes: len(c.Body), OnConnection: c.OnConnection}
}
