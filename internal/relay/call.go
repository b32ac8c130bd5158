package relay

import (
	"net/http"
	"time"

	"github.com/sluice-gateway/sluice/authz"
	"github.com/sluice-gateway/sluice/internal/dispatch"
	"github.com/sluice-gateway/sluice/internal/openai"
)

// CallParams are what a call is made of that did not come through ext_proc: a turn of a WebSocket, a gRPC stream.
type CallParams struct {
	Tenant *authz.Tenant
	// Priority is the word for it; empty: the tenant's own.
	Priority string
	// Path names the endpoint, "/v1/chat/completions"; Body is a request to it as JSON.
	Path string
	Body []byte
	// Header is what the engine gets of the client's headers; nil: nothing.
	Header http.Header
	// RequestID is for the log: Envoy's, or derived from it.
	RequestID string
	Received  time.Time
}

// NewCall reads the body as it is read of requests that come by ext_proc. The error is what the client is to be told.
func NewCall(p CallParams) (*Call, *openai.Error) {
	endpoint, ok := openai.EndpointOf(p.Path)
	if !ok {
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
	return &Call{RequestID: p.RequestID, Tenant: p.Tenant, Priority: dispatch.PriorityOf(priority), Path: p.Path, Header: p.Header,
		Body: p.Body, Scan: scan, Received: p.Received}, nil
}
