package extproc

import (
	core "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	extproc "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"

	"github.com/sluice-gateway/sluice/internal/dispatch"
	"github.com/sluice-gateway/sluice/internal/headers"
	"github.com/sluice-gateway/sluice/internal/openai"
)

// decide refuses the request, lets it go to its replica, or has Envoy bring it to the relay.
func (x *exchange) decide(scan *openai.Request, body []byte) *extproc.ProcessingResponse {
	asked := dispatch.NewRequest(dispatch.Caller{Tenant: x.tenant, Priority: x.priority, Task: x.head.task}, scan, body)
	asked.OnWait = x.stretch
	ctx, dispatcher := x.envoy.Context(), x.server.Dispatcher
	var ticket *dispatch.Ticket
	var managed *dispatch.Managed
	var fault *openai.Error
	if x.server.Handoff == nil {
		ticket, fault = dispatcher.Dispatch(ctx, asked)
	} else {
		ticket, managed, fault = dispatcher.DispatchOrHandOff(ctx, asked)
	}
	switch {
	case managed != nil:
		return x.offer(scan, managed)
	case fault == nil:
		return x.native(scan, body, ticket)
	case scan.Stream && ctx.Err() != nil:
		return nil // its client has left
	}
	return x.refuse(fault)
}

// offer has Envoy bring the request to the relay.
func (x *exchange) offer(scan *openai.Request, m *dispatch.Managed) *extproc.ProcessingResponse {
	record := x.record // not the exchange, which ends before
	offer := &dispatch.Offer{
		RequestID: x.head.id, Tenant: x.tenant, Priority: x.priority, Path: x.head.path, Scan: *scan, Task: x.head.task,
		Received: x.received, Foreseen: m.ClientWaits, Pending: m.Pending, Record: record, Done: func() { record.Close(nil) },
	}
	x.token = x.server.Handoff.Offer(offer)
	x.claimed = offer.Claimed()
	set := []*core.HeaderValueOption{header(headers.Handoff, x.token)}
	if scan.Stream {
		set = append(set, header(headers.Stream, "1"))
	}
	return &extproc.ProcessingResponse{
		DynamicMetadata: x.server.metadata.ofTenant(x.tenant.Name),
		Response: &extproc.ProcessingResponse_RequestBody{RequestBody: &extproc.BodyResponse{Response: &extproc.CommonResponse{
			ClearRouteCache: true, HeaderMutation: &extproc.HeaderMutation{SetHeaders: set},
		}}},
	}
}

// awaitClaim waits until the relay has claimed the request; until then nobody else hears of a
// client that leaves. Then nothing is left to say, and Envoy takes the end of the exchange for the
// processor's word that it wants no more messages. (ext_proc.cc, onGrpcClose: what has been said
// holds, what Envoy waits for at that moment goes on as it is.)
func (x *exchange) awaitClaim() error {
	left := make(chan error, 1)
	go func() { // Recv returns at the latest when Process has
		_, err := x.envoy.Recv()
		left <- err
	}()
	select {
	case <-x.claimed:
		return nil
	case err := <-left: // a message would be of a response that is not the relay's, of which nothing has to be said either
		return ended(err)
	}
}
