package extproc

import (
	core "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	extproc "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"

	"github.com/sluice-gateway/sluice/internal/dispatch"
	"github.com/sluice-gateway/sluice/internal/headers"
	"github.com/sluice-gateway/sluice/internal/openai"
)

// decide has the request dispatched. It answers the client with an error, sends the request to its
// replica, or offers the request to the relay. nil means that the client has left.
func (x *exchange) decide(scan *openai.Request, body []byte) *extproc.ProcessingResponse {
	r := dispatch.NewRequest(dispatch.Caller{Tenant: x.tenant, Priority: x.priority, Task: x.head.task}, scan, body)
	r.OnWait = x.extendTimeout
	ctx, dispatcher := x.envoy.Context(), x.server.Dispatcher
	var ticket *dispatch.Ticket
	var managed *dispatch.Managed
	var fault *openai.Error
	if x.server.Handoff == nil {
		ticket, fault = dispatcher.Dispatch(ctx, r)
	} else {
		ticket, managed, fault = dispatcher.DispatchOrHandOff(ctx, r)
	}
	if fault != nil && x.server.successor.Load() != nil {
		x.moved = true // this process dispatches no more
		return nil
	}
	x.decided, x.first = true, nil
	switch {
	case managed != nil:
		return x.offer(scan, managed)
	case fault == nil:
		return x.sendNative(scan, body, ticket)
	case scan.Stream && ctx.Err() != nil:
		return nil // the client has left
	}
	return x.refuse(fault)
}

// offer offers the request to the relay. The answer makes Envoy route the request to the relay,
// with the token of the offer in a header.
func (x *exchange) offer(scan *openai.Request, m *dispatch.Managed) *extproc.ProcessingResponse {
	record := x.record // the callback must not use x, which ends before the relay is done
	offer := &dispatch.Offer{
		RequestID: x.head.id, Tenant: x.tenant, Priority: x.priority, Path: x.head.enginePath, Scan: *scan, Task: x.head.task,
		Received: x.received, Foreseen: m.ClientWaits, Pending: m.Pending, Record: record, Done: func() { record.Close(nil) },
	}
	x.token = x.server.Handoff.Offer(offer)
	x.claimed = offer.Claimed()
	set := x.head.appendPath([]*core.HeaderValueOption{header(headers.Handoff, x.token)})
	if scan.Stream {
		set = append(set, header(headers.Stream, "1"))
	}
	if gateway := x.gateway(); gateway != "" { // only this gateway has the offer
		set = append(set, header(headers.Endpoint, gateway))
	}
	return &extproc.ProcessingResponse{
		DynamicMetadata: x.server.metadata.ofTenant(x.tenant),
		Response: &extproc.ProcessingResponse_RequestBody{RequestBody: &extproc.BodyResponse{Response: &extproc.CommonResponse{
			ClearRouteCache: true, HeaderMutation: &extproc.HeaderMutation{SetHeaders: set},
		}}},
	}
}

// awaitClaim waits until the relay has claimed the request. Until the claim, only this exchange can
// see that the client leaves.
//
// The exchange then ends without a further message. Envoy takes this end as the processor's word
// that the processor wants no more messages. Answers that Envoy has received stay in force, and a
// message that Envoy waits for is skipped (ext_proc.cc, onGrpcClose).
func (x *exchange) awaitClaim() error {
	left := make(chan error, 1)
	go func() { // Recv returns at the latest when Process has returned
		_, err := x.envoy.Recv()
		left <- err
	}()
	select {
	case <-x.claimed:
		return nil
	case err := <-left: // a message here concerns a response that did not come from the relay, and needs no answer
		return ignoreOrdinaryEnd(err)
	}
}
