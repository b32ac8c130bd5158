package decide

import (
	"time"

	"github.com/sluice-gateway/sluice/internal/dispatch"
	"github.com/sluice-gateway/sluice/internal/headers"
	"github.com/sluice-gateway/sluice/internal/openai"
	"github.com/sluice-gateway/sluice/internal/routes"
)

// decide has the request dispatched. It answers the client with an error, sends the request to its
// replica, or offers the request to the relay. nil means that the client has left, or that the
// request moves.
func (x *Exchange) decide(scan *openai.Request, body []byte) *Answer {
	r := dispatch.NewRequest(dispatch.Caller{Tenant: x.tenant, Priority: x.priority, Task: x.head.task}, scan, body)
	r.OnWait, r.OnBlock = x.wait, x.envoy.Block
	ctx := x.envoy.Context()
	ticket, managed, fault := x.decider.Dispatcher.DispatchOrHandOff(ctx, r)
	if fault != nil && x.decider.Retired() {
		x.moved = true // this process dispatches no more
		return nil
	}
	x.decided = true
	switch {
	case managed != nil:
		r.Key, r.Chain = nil, nil // they use the body
		return x.offer(scan, managed)
	case fault == nil:
		return x.sendNative(scan, body, ticket)
	case scan.Stream && ctx.Err() != nil:
		return nil // the client has left
	}
	return x.refuse(fault)
}

// wait tells Envoy, once, that the request may wait for as long as a request may be held. Otherwise
// a held request would fail after the time in which Envoy notices a gateway that hangs.
func (x *Exchange) wait() {
	if !x.waits {
		x.waits = true
		x.record.SetWaits()
		x.envoy.Wait(routes.HoldTimeout)
	}
}

// sendNative returns the answer with which Envoy sends the request to the replica of its ticket.
func (x *Exchange) sendNative(scan *openai.Request, body []byte, t *dispatch.Ticket) *Answer {
	waited := time.Since(x.scanned)
	x.record.SetNative(t, t.Model, t.Replica(), waited)
	x.record.SetPrediction(t.Prediction())
	a := x.newAnswer()
	a.setNative(t, scan, body, departure{waited, x.traceparent()})
	a.Metadata = x.metadata(scan)
	a.Metadata.setTicket(t)
	a.Metadata.Task = x.head.task
	return a
}

// offer offers the request to the relay. The answer makes Envoy route the request to the relay,
// with the token of the offer in a header.
func (x *Exchange) offer(scan *openai.Request, m *dispatch.Managed) *Answer {
	// The callback must not use x, which ends before the relay is done.
	d, record, alive := x.decider, x.record, x.alive()
	offer := &dispatch.Offer{
		RequestID: x.head.id, Tenant: x.tenant, Priority: x.priority, Path: x.head.enginePath, Scan: *scan, Task: x.head.task,
		Received: x.received, Foreseen: m.ClientWaits, Pending: m.Pending, Record: record,
		Done: func() {
			record.Close(nil)
			d.lose(record, alive)
		},
		Claimed: x.envoy.Claimed,
	}
	x.token = x.decider.Handoff.Offer(offer)
	a := x.newAnswer()
	a.set(headers.Handoff, x.token)
	a.set(headers.Route, routes.Decided{Relay: true, Stream: scan.Stream}.Key())
	if gateway := x.envoy.Gateway(); gateway != "" { // only this gateway has the offer
		a.set(headers.Endpoint, gateway)
	}
	a.Metadata = x.metadata(scan)
	return a
}

// metadata returns the metadata that native and managed requests have.
func (x *Exchange) metadata(scan *openai.Request) Metadata {
	m := Metadata{Tenant: x.tenant.Name, Key: x.tenant.Key, Budget: x.budget}
	if scan.Endpoint.OfMessages() {
		m.RequestID = x.head.id
	}
	return m
}

// usualHeaders is how many headers most answers set at most.
const usualHeaders = 8

// newAnswer returns the exchange's answer that has Envoy route the request. It has the path for the
// engine, if the client has used another one.
func (x *Exchange) newAnswer() *Answer {
	a := &x.answer
	a.Kind, a.Set = Go, make([]Header, 0, usualHeaders)
	if x.head.enginePath != x.head.path {
		a.set(":path", x.head.enginePath)
	}
	return a
}

// traceparent returns the traceparent header for the engine. It is empty if the request is not
// traced; Envoy then passes on the header of the client, if there is one.
func (x *Exchange) traceparent() string {
	own, traced := x.decider.Trace(x.head.traceparent)
	if !traced {
		return ""
	}
	x.record.SetTrace(own, x.head.traceparent)
	return own
}
