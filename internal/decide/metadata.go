package decide

import (
	"strconv"

	"github.com/sluice-gateway/sluice/admission"
	"github.com/sluice-gateway/sluice/internal/dispatch"
	"github.com/sluice-gateway/sluice/internal/headers"
)

// Metadata is the dynamic metadata that Envoy keeps with a request. Envoy writes it into the record
// of the request, from which a restarted gateway learns the tenants of the streams that still run.
// Envoy also copies the tenant's remaining quota, Budget and RequestID from it into response
// headers.
type Metadata struct {
	// Tenant is the name of the tenant, and Key that of its key. Key is empty if there is none.
	Tenant, Key string
	// Lease is the id of the request's lease, and Tokens how many tokens it is estimated to cost.
	// Both are empty if the gateway shares its state with no other gateway.
	Lease, Tokens string
	// Task is the id of the task of a native request. It is empty if there is none.
	Task string
	// Quota is what the tenant has left. It is zero if the tenant has no limits.
	Quota admission.Quota
	// Budget says which budgets of the caller are reached. It is empty if none is.
	Budget string
	// RequestID is Envoy's id of the request for a client of the Messages API. It is empty for
	// other clients.
	RequestID string
}

// setTicket adds what only a native request has.
func (m *Metadata) setTicket(t *dispatch.Ticket) {
	m.Quota = t.QuotaLeft()
	if lease, tokens := t.Lease(); lease != "" {
		m.Lease, m.Tokens = lease, strconv.Itoa(tokens)
	}
}

// All calls yield for each value of m.
func (m *Metadata) All(yield func(name, value string) bool) {
	for _, v := range [...]Header{
		{headers.MetadataTenant, m.Tenant}, {headers.MetadataKey, m.Key}, {headers.MetadataLease, m.Lease}, {headers.MetadataTokens, m.Tokens},
		{headers.MetadataTask, m.Task}, {headers.Budget, m.Budget}, {headers.MessagesRequestID, m.RequestID},
	} {
		if (v.Value != "" || v.Name == headers.MetadataTenant) && !yield(v.Name, v.Value) {
			return
		}
	}
	dispatch.QuotaHeaders(m.Quota, yield)
}
