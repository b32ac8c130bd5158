package extproc

import (
	"strconv"
	"sync"

	"google.golang.org/protobuf/types/known/structpb"

	"github.com/sluice-gateway/sluice/internal/dispatch"
	"github.com/sluice-gateway/sluice/internal/headers"
)

// dynamicMetadata makes what Envoy is to keep with a request as dynamic metadata. Envoy's access
// log carries it, from which a gateway that was restarted learns whose the streams are that still
// run; and Envoy puts the tenant's remaining quota into response headers from it. For a tenant
// without limits, in a gateway that shares its state with no other, it is the same for all requests
// and is made once. The zero value is ready to use.
type dynamicMetadata struct {
	byTenant sync.Map // tenant → *structpb.Struct
}

// of returns the metadata of a native request: its tenant, its lease and what the tenant has left.
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

func inNamespace(fields map[string]*structpb.Value) *structpb.Struct {
	return &structpb.Struct{Fields: map[string]*structpb.Value{
		headers.Metadata: structpb.NewStructValue(&structpb.Struct{Fields: fields})}}
}
