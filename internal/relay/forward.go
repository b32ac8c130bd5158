package relay

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"strconv"
	"time"

	"github.com/sluice-gateway/sluice/authz"
	"github.com/sluice-gateway/sluice/internal/dispatch"
	"github.com/sluice-gateway/sluice/internal/headers"
	"github.com/sluice-gateway/sluice/internal/openai"
	"github.com/sluice-gateway/sluice/internal/relay/replay"
)

// claimLease is how long a request id stays ours without a word; package peers says one in time.
const claimLease = time.Minute

// forward has another gateway carry the call. The body was read already.
func (r *Relay) forward(w http.ResponseWriter, req *http.Request, c *Call, owner string) {
	there := asForwarded(req.Clone(req.Context()), c)
	result := Result{}
	if fault := r.config.Peers.Forward(w, there, owner); fault != nil {
		result.Fault = fault
		fail(w, fault)
	}
	if c.Entry != nil {
		c.Entry.Carried(result)
	}
}

// asForwarded makes a request one that another gateway takes for the call.
func asForwarded(there *http.Request, c *Call) *http.Request {
	there.Body, there.ContentLength = io.NopCloser(bytes.NewReader(c.Body)), int64(len(c.Body))
	there.Header.Set(headers.Tenant, c.Tenant.Name)
	there.Header.Set(headers.Priority, priorityName(c))
	if c.Scan.RequestID != "" {
		there.Header.Set(headers.IdempotencyKey, c.Scan.RequestID)
	}
	if c.Scan.Timeout > 0 {
		there.Header.Set(headers.Timeout, strconv.FormatInt(c.Scan.Timeout.Milliseconds(), 10))
	}
	if c.Patient {
		there.Header.Set(headers.Patient, "1")
	}
	there.Header.Del(headers.Handoff)
	return there
}

func priorityName(c *Call) string {
	for _, name := range []string{authz.Interactive, authz.Batch} {
		if dispatch.PriorityOf(name) == c.Priority {
			return name
		}
	}
	return authz.Default
}

// PeerHandler answers what other gateways forward. tenant finds who a forwarded request is of.
func (r *Relay) PeerHandler(tenant func(name string) (*authz.Tenant, bool), maxBody int64) http.Handler {
	return r.routes(func(w http.ResponseWriter, req *http.Request) {
		c, fault := forwarded(req, tenant, maxBody)
		if fault != nil {
			fail(w, fault)
			return
		}
		r.carry(w, req, c, nil)
	})
}

// forwarded is a call that another gateway has authenticated.
func forwarded(req *http.Request, tenant func(string) (*authz.Tenant, bool), maxBody int64) (*Call, *openai.Error) {
	t, ok := tenant(req.Header.Get(headers.Tenant))
	if !ok {
		return nil, openai.Errorf(openai.CodeInvalidAPIKey, "This gateway does not know the tenant.")
	}
	endpoint, ok := openai.EndpointOf(req.URL.Path)
	if !ok {
		return nil, openai.Errorf(openai.CodeInvalidRequest, "There is nothing at this path.")
	}
	body, err := io.ReadAll(io.LimitReader(req.Body, maxBody+1))
	if err != nil || int64(len(body)) > maxBody {
		return nil, openai.Errorf(openai.CodeInvalidRequest, "The request body did not arrive.")
	}
	scan, fault := openai.Scan(endpoint, req.Header.Get("content-type"), body)
	if fault != nil {
		return nil, fault
	}
	if id := req.Header.Get(headers.IdempotencyKey); id != "" {
		scan.RequestID = id
	}
	if ms, err := strconv.ParseInt(req.Header.Get(headers.Timeout), 10, 64); err == nil && ms > 0 {
		scan.Timeout = time.Duration(ms) * time.Millisecond
	}
	return &Call{RequestID: req.Header.Get(headers.RequestID), Tenant: t, Priority: dispatch.PriorityOf(req.Header.Get(headers.Priority)),
		Path: req.URL.RequestURI(), Header: passed(req.Header), Body: body, Scan: scan, Received: time.Now(),
		Patient: req.Header.Get(headers.Patient) != ""}, nil
}

// released gives a request id back to all gateways, unless another call than this one has it now.
func (r *Relay) released(key replay.Key, by *generation) {
	if r.config.Peers == nil {
		return
	}
	if now, again := r.named.Find(key); again && now != by {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	r.config.Peers.Release(ctx, key.Tenant, key.ID)
}
