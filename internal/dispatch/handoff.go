package dispatch

import (
	"crypto/rand"
	"encoding/hex"
	"strings"
	"sync"
	"time"

	"github.com/sluice-gateway/sluice/admission"
	"github.com/sluice-gateway/sluice/authz"
	"github.com/sluice-gateway/sluice/internal/openai"
	"github.com/sluice-gateway/sluice/internal/request"
)

// Offer is a request that ext_proc gives to the relay. It has everything but the body and the
// headers for the engine, which Envoy sends to the relay.
type Offer struct {
	// RequestID is Envoy's own id of the request. The client's is Scan.RequestID.
	RequestID string
	Tenant    *authz.Tenant
	Priority  admission.Priority
	// Path is the path of the request, with its query.
	Path string
	Scan openai.Request
	// Task is the client's task that the request belongs to; empty: none.
	Task string
	// Received is when the headers of the request arrived.
	Received time.Time
	// Foreseen says that the client will have to wait, so that the relay answers it at once.
	Foreseen bool
	// Pending is the request's wait in the queue, or its ticket. nil means that the relay
	// dispatches the request.
	Pending *Pending
	// Record follows what happens to the request; nil means that nothing does.
	Record request.Follower
	// Done is called when the relay has finished a request that it had claimed. It is never called
	// for a cancelled offer. It may be nil.
	Done func()
	// Claimed is called when the relay has claimed the request, which belongs to the relay alone
	// from then on. It must be quick. It may be nil.
	Claimed func()
}

// Handoff holds the requests that ext_proc has offered and the relay has not claimed yet. ext_proc
// gives Envoy a token in a header, and Envoy sends it to the relay with the request. Claim and
// Cancel may race: the first one wins. The zero value is ready to use.
type Handoff struct {
	// Process names the process of this Handoff in its tokens, see ProcessOf. It does not change
	// after the first Offer.
	Process string
	offers  sync.Map // token → *Offer
}

// Offer keeps o until Claim or Cancel, and returns its token. The token is a secret, because the
// relay takes a caller with the token for Envoy.
func (h *Handoff) Offer(o *Offer) (token string) {
	var random [16]byte
	rand.Read(random[:]) //nolint:errcheck // never fails
	token = h.Process + tokenMark + hex.EncodeToString(random[:])
	if o.Done == nil {
		o.Done = func() {}
	}
	h.offers.Store(token, o)
	return token
}

// tokenMark separates the process from the secret in a token.
const tokenMark = "."

// ProcessOf returns the name of the process that has made the offer of a token; empty: it has none.
func ProcessOf(token string) string {
	process, _, _ := strings.Cut(token, tokenMark)
	return process
}

// Claim returns the offer of the token, once. False means that the token is unknown, or that the
// offer was claimed or cancelled before.
func (h *Handoff) Claim(token string) (*Offer, bool) {
	o, ok := h.remove(token)
	if ok && o.Claimed != nil {
		o.Claimed()
	}
	return o, ok
}

// Cancel withdraws the offer of a request whose client disconnected before Envoy reached the relay,
// and cancels its wait. False means that the relay has claimed the request.
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
