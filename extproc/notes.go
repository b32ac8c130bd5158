package extproc

import (
	"strconv"
	"sync"

	"google.golang.org/protobuf/types/known/structpb"

	"github.com/sluice-gateway/sluice/internal/dispatch"
	"github.com/sluice-gateway/sluice/internal/headers"
)

// notes are what Envoy is to keep with a request as dynamic metadata: for its access log, from
// which a gateway that was restarted learns whose the streams are that still run, and for the
// headers that tell the client what it has left. Those of a tenant without limits, in a gateway
// that shares its state with nobody, are the same for all its requests and are made once. The zero
// value is ready to use.
type notes struct {
	byTenant sync.Map // tenant → *structpb.Struct
}

func (n *notes) of(tenant string, t *dispatch.Ticket) *structpb.Struct {
	lease, tokens := t.Lease()
	quota := t.Quota()
	if lease == "" && quota == nil {
		return n.ofTenant(tenant)
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

func (n *notes) ofTenant(tenant string) *structpb.Struct {
	if made, ok := n.byTenant.Load(tenant); ok {
		return made.(*structpb.Struct)
	}
	all := inNamespace(map[string]*structpb.Value{headers.MetadataTenant: structpb.NewStringValue(tenant)})
	made, _ := n.byTenant.LoadOrStore(tenant, all)
	return made.(*structpb.Struct)
}

func inNamespace(fields map[string]*structpb.Value) *structpb.Struct {
	return &structpb.Struct{Fields: map[string]*structpb.Value{
		headers.Metadata: structpb.NewStructValue(&structpb.Struct{Fields: fields})}}
}
