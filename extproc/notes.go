package extproc

import (
	"sync"

	"google.golang.org/protobuf/types/known/structpb"

	"github.com/sluice-gateway/sluice/internal/headers"
)

// notes are what Envoy is to keep with a request as dynamic metadata, for its access log: a gateway that was restarted learns from it
// whose the streams are that still run. They are the same for all requests of a tenant and are made once. The zero value is ready to use.
type notes struct {
	byTenant sync.Map // tenant → *structpb.Struct
}

func (n *notes) of(tenant string) *structpb.Struct {
	if made, ok := n.byTenant.Load(tenant); ok {
		return made.(*structpb.Struct)
	}
	note := &structpb.Struct{Fields: map[string]*structpb.Value{headers.NoteTenant: structpb.NewStringValue(tenant)}}
	all := &structpb.Struct{Fields: map[string]*structpb.Value{headers.Metadata: structpb.NewStructValue(note)}}
	made, _ := n.byTenant.LoadOrStore(tenant, all)
	return made.(*structpb.Struct)
}
