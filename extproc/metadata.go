package extproc

import (
	"strconv"
	"sync"

	"google.golang.org/protobuf/types/known/structpb"

	"github.com/sluice-gateway/sluice/internal/dispatch"
	"github.com/sluice-gateway/sluice/internal/headers"
)

// dynamicMetadata makes the dynamic metadata that Envoy keeps with each request. Envoy writes it
// into the access log, from which a restarted gateway learns the tenants of the streams that still
// run. Envoy also copies the tenant's remaining quota from it into response headers.
//
// All requests of a tenant share one value, if the tenant has no limits and the gateway shares its
// state with no other gateway. The zero value is ready to use.
type dynamicMetadata struct {
	byTenant sync.Map // tenant → *structpb.Struct
}

// of returns the metadata of a native request: its tenant, its lease and the tenant's remaining
// quota.
func (m *dynamicMetadata) of(tenant string, t *dispatch.Ticket) *structpb.Struct {
	lease, tokens := t.Lease()
	quota := t.Quota()
	if lease == "" && quota == nil {
		return m.ofTenant(tenant)
	}
	fields := make(map[string]*structpb.Value, 3+len(quota))
	fields[headers.MetadataTenant] = structpb.NewStringValue(tenant)
	if lease != "" {
		fields[headers.MetadataLease] = structpb.NewStringValue(lease)
		fields[headers.MetadataTokens] = structpb.NewStringValue(strconv.Itoa(tokens))
	}
	for name, value := range quota {
		fields[name] = structpb.NewStringValue(value)
	}
	return inNamespace(fields)
}

// ofTenant returns the metadata of a request that has no lease yet.
func (m *dynamicMetadata) ofTenant(tenant string) *structpb.Struct {
	if made, ok := m.byTenant.Load(tenant); ok {
		return made.(*structpb.Struct)
	}
	all := inNamespace(map[string]*structpb.Value{headers.MetadataTenant: structpb.NewStringValue(tenant)})
	made, _ := m.byTenant.LoadOrStore(tenant, all)
	return made.(*structpb.Struct)
}

// inNamespace puts the fields under the namespace of Sluice's metadata.
func inNamespace(fields map[string]*structpb.Value) *structpb.Struct {
	return &structpb.Struct{Fields: map[string]*structpb.Value{
		headers.Metadata: structpb.NewStructValue(&structpb.Struct{Fields: fields})}}
}
