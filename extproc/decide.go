package extproc

import (
	"time"

	core "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	extproc "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"

	"github.com/sluice-gateway/sluice/internal/dispatch"
	"github.com/sluice-gateway/sluice/internal/headers"
	"github.com/sluice-gateway/sluice/internal/openai"
	"github.com/sluice-gateway/sluice/internal/relay"
)

// decide says which way the request goes: to its replica when there is one, or to the relay, where its client hears something meanwhile.
func (x *exchange) decide(scan *openai.Request, body []byte) *extproc.ProcessingResponse {
	asked := x.asked(scan, body)
	way := relay.Way{Mode: relay.Native, Patience: relay.Forever}
	if x.server.Relay != nil {
		way = x.server.Relay.Way(scan, asked)
	}
	switch way.Mode {
	case relay.Managed:
		return x.hand(scan, nil, way.Foreseen)
	case relay.Auto:
		return x.patiently(scan, body, asked, way.Patience)
	}
	asked.OnWait = x.stretch
	ticket, fault := x.server.Dispatcher.Dispatch(x.envoy.Context(), asked)
	if fault != nil {
		return x.refuse(fault)
	}
	if way.Mode == relay.Native && scan.Stream {
		return x.native(scan, body, ticket) // as it is asked for
	}
	return x.leave(scan, body, ticket)
}

// leave has the request go to its replica: by Envoy, or by the relay if the request has waited for that replica to come. Envoy's workers learn of a
// replica a turn of their event loops after its main thread has acknowledged it, and in that turn they may route all who have waited, to a
// cluster without a host. (A request that came later has made them turn twice by the time it is let go.)
func (x *exchange) leave(scan *openai.Request, body []byte, t *dispatch.Ticket) *extproc.ProcessingResponse {
	if x.server.Relay != nil && t.Age() < time.Since(x.understood) {
		return x.hand(scan, relay.Granted(t), false)
	}
	return x.native(scan, body, t)
}

// patiently waits for the request's turn for so long, and then has the relay wait.
func (x *exchange) patiently(scan *openai.Request, body []byte, asked *dispatch.Request, patience time.Duration) *extproc.ProcessingResponse {
	waits := make(chan struct{}, 1)
	asked.OnWait = func() { waits <- struct{}{} }
	pending := x.server.Relay.Begin(asked)
	select { // most have their turn at once
	case <-pending.Done():
		return x.turn(scan, body, pending)
	case <-waits:
		x.stretch()
	}
	enough := time.NewTimer(patience)
	defer enough.Stop()
	select {
	case <-pending.Done():
		return x.turn(scan, body, pending)
	case <-enough.C:
		return x.hand(scan, pending, true)
	case <-x.envoy.Context().Done():
		pending.Abandon()
		return nil
	}
}

// turn takes what has come of a wait.
func (x *exchange) turn(scan *openai.Request, body []byte, p *relay.Pending) *extproc.ProcessingResponse {
	ticket, fault := p.Result()
	if fault != nil {
		return x.refuse(fault)
	}
	return x.leave(scan, body, ticket)
}

// hand has Envoy bring the request to the relay, with its place in the queue if it has one.
func (x *exchange) hand(scan *openai.Request, pending *relay.Pending, foreseen bool) *extproc.ProcessingResponse {
	entry := x.entry // not the exchange, which ends before
	offer := &relay.Offer{Pending: pending, Over: func() { entry.Ended(nil) }, Call: relay.Call{
		RequestID: x.request.id, Tenant: x.tenant, Priority: x.priority, Path: x.request.path, Scan: *scan, Task: x.request.task,
		Received: x.received, Foreseen: foreseen, Entry: entry,
	}}
	x.offer = x.server.Relay.Offer(offer)
	x.accepted = offer.Accepted()
	set := []*core.HeaderValueOption{header(headers.Handoff, x.offer)}
	if scan.Stream {
		set = append(set, header(headers.Stream, "1"))
	}
	return &extproc.ProcessingResponse{
		DynamicMetadata: x.server.notes.ofTenant(x.tenant.Name),
		Response: &extproc.ProcessingResponse_RequestBody{RequestBody: &extproc.BodyResponse{Response: &extproc.CommonResponse{
			ClearRouteCache: true, HeaderMutation: &extproc.HeaderMutation{SetHeaders: set},
		}}},
	}
}

// bring waits until Envoy has brought the request to the relay; until then nobody else hears of a client that leaves. Then nothing is left to say,
// and Envoy takes the end of the exchange for the processor's word that it wants no more messages. (ext_proc.cc, onGrpcClose: what has
// been said holds, what Envoy waits for at that moment goes on as it is.)
func (x *exchange) bring() error {
	left := make(chan error, 1)
	go func() { // Recv returns at the latest when Process has
		_, err := x.envoy.Recv()
		left <- err
	}()
	select {
	case <-x.accepted:
		return nil
	case err := <-left: // a message would be of a response that is not the relay's, of which nothing has to be said either
		return ended(err)
	}
}
