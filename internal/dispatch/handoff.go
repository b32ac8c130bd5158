package dispatch

import (
	"crypto/rand"
	"encoding/hex"
	"sync"
	"time"

	"github.com/sluice-gateway/sluice/admission"
	"github.com/sluice-gateway/sluice/authz"
	"github.com/sluice-gateway/sluice/internal/openai"
	"github.com/sluice-gateway/sluice/internal/request"
)

// Offer is a request that ext_proc gives to the relay: all that is known of it but its body and the
// headers for the engine, which Envoy brings.
type Offer struct {
	// RequestID is Envoy's own id of the request. The client's is Scan.RequestID.
	RequestID string
	Tenant    *authz.Tenant
	Priority  admission.Priority
	// Path is that of the request, with its query.
	Path string
	Scan openai.Request
	// Task is the client's task that the request belongs to; empty: none.
	Task string
	// Received is when the headers of the request came.
	Received time.Time
	// Foreseen says that the client will have to wait, so that the relay answers it at once.
	Foreseen bool
	// Pending is the request's place in the queue, or its ticket. nil: the relay dispatches it.
	Pending *Pending
	// Record is told what becomes of the request; nil: nobody is.
	Record request.Follower
	// Done is called when the relay is done with a request that it has claimed; never for one that
	// was cancelled. nil: nobody is told.
	Done func()

	claimed chan struct{}
}

// Claimed is closed when the relay has claimed the request, which belongs to the relay alone from
// then on. It is nil before Handoff.Offer.
func (o *Offer) Claimed() <-chan struct{} { return o.claimed }

// Handoff holds the requests that ext_proc has offered and the relay has not claimed yet. ext_proc
// gives Envoy a token in a header, Envoy brings it to the relay with the request. Of Claim and
// Cancel, which may race, the first one wins. The zero value is ready to use.
type Handoff struct {
	offers sync.Map // token → *Offer
}

// Offer keeps o until Claim or Cancel, and returns its token. The token is a secret: whoever has it
// is taken for Envoy.
func (h *Handoff) Offer(o *Offer) (token string) {
	var random [16]byte
	rand.Read(random[:]) //nolint:errcheck // never fails
	token = hex.EncodeToString(random[:])
	o.claimed = make(chan struct{})
	if o.Done == nil {
		o.Done = func() {}
	}
	h.offers.Store(token, o)
	return token
}

// Claim returns the offer of the token, once. False: nobody has offered it, or it was claimed or
// cancelled before.
func (h *Handoff) Claim(token string) (*Offer, bool) {
	o, ok := h.remove(token)
	if ok {
		close(o.claimed)
	}
	return o, ok
}

// Cancel withdraws the offer of a request whose client has left before Envoy brought it, and gives
// up its place in the queue. False: the relay has claimed the request.
func (h *Handoff) Cancel(token string) (cancelled bool) {
	o, ok := h.remove(token)
	if ok && o.Pending != nil {
		o.Pending.Cancel()
	}
	return ok
}

func (h *Handoff) remove(token string) (*Offer, bool) {
	o, ok := h.offers.LoadAndDelete(token)
	if !ok {
		return nil, false
	}
	return o.(*Offer), true
}
