package extproc

import (
	"sync"

	"google.golang.org/protobuf/types/known/structpb"

	"github.com/sluice-gateway/sluice/internal/decide"
	"github.com/sluice-gateway/sluice/internal/headers"
)

// dynamicMetadata makes the messages with a request's metadata. All requests of a caller share one,
// as far as the metadata says only who the caller is. The zero value is ready to use.
type dynamicMetadata struct {
	byCaller sync.Map // caller → *structpb.Struct
}

// caller is who has sent a request: the name of the tenant and that of its key.
type caller struct{ tenant, key string }

// of returns the message with the metadata of a request.
func (d *dynamicMetadata) of(m *decide.Metadata) *structpb.Struct {
	if !m.OfCaller() {
		return message(m)
	}
	who := caller{m.Tenant, m.Key}
	made, ok := d.byCaller.Load(who)
	if !ok {
		made, _ = d.byCaller.LoadOrStore(who, message(m))
	}
	return made.(*structpb.Struct)
}

// message puts metadata under the namespace of Sluice.
func message(m *decide.Metadata) *structpb.Struct {
	fields := make(map[string]*structpb.Value, 4+len(m.Quota))
	for name, value := range m.All {
		fields[name] = structpb.NewStringValue(value)
	}
	return &structpb.Struct{Fields: map[string]*structpb.Value{
		headers.Metadata: structpb.NewStructValue(&structpb.Struct{Fields: fields})}}
}
