package extproc

import (
	"strconv"
	"sync"

	"google.golang.org/protobuf/types/known/structpb"

	"github.com/sluice-gateway/sluice/authz"
	"github.com/sluice-gateway/sluice/internal/dispatch"
	"github.com/sluice-gateway/sluice/internal/headers"
)

// dynamicMetadata makes the dynamic metadata that Envoy keeps with each request. Envoy writes it
// into the access log, from which a restarted gateway learns the tenants of the streams that still
// run. Envoy also copies the tenant's remaining quota from it into response headers.
//
// All requests of a key share one value, if its tenant has no limits and the gateway shares its
// state with no other gateway. The zero value is ready to use.
type dynamicMetadata struct {
	byCaller sync.Map // caller → *structpb.Struct
}

// caller is who has sent a request: the name of the tenant and that of its key.
type caller struct{ tenant, key string }

// of returns the metadata of a native request: its tenant, key and lease, and the tenant's
// remaining quota.
func (m *dynamicMetadata) of(tenant *authz.Tenant, t *dispatch.Ticket) *structpb.Struct {
	lease, tokens := t.Lease()
	quota := t.Quota()
	if lease == "" && quota == nil {
		return m.ofTenant(tenant)
	}
	fields := make(map[string]*structpb.Value, 4+len(quota))
	setCaller(fields, tenant)
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
func (m *dynamicMetadata) ofTenant(tenant *authz.Tenant) *structpb.Struct {
	who := caller{tenant.Name, tenant.Key}
	if made, ok := m.byCaller.Load(who); ok {
		return made.(*structpb.Struct)
	}
	fields := map[string]*structpb.Value{}
	setCaller(fields, tenant)
	made, _ := m.byCaller.LoadOrStore(who, inNamespace(fields))
	return made.(*structpb.Struct)
}

// setCaller sets the fields that say who has sent a request.
func setCaller(fields map[string]*structpb.Value, tenant *authz.Tenant) {
	fields[headers.MetadataTenant] = structpb.NewStringValue(tenant.Name)
	if tenant.Key != "" {
		fields[headers.MetadataKey] = structpb.NewStringValue(tenant.Key)
	}
}

// inNamespace puts the fields under the namespace of Sluice's metadata.
func inNamespace(fields map[string]*structpb.Value) *structpb.Struct {
	return &structpb.Struct{Fields: map[string]*structpb.Value{
		headers.Metadata: structpb.NewStructValue(&structpb.Struct{Fields: fields})}}
}
