package extproc

import "github.com/sluice-gateway/sluice/internal/openai"

// Cancel implements request.Canceller for the requests that Envoy carries. Envoy takes an immediate
// response at any time: before the response has begun, its client gets the error. After that, Envoy
// resets the stream, so that the client never takes what it has for a whole answer. In both cases
// Envoy drops the replica's connection, which ends the work of the engine.
//
// The exchange of a request that the relay has claimed has ended; the relay cancels that request.
func (x *exchange) Cancel() bool {
	x.sending.Lock()
	defer x.sending.Unlock()
	if x.finished {
		return false
	}
	x.cancelled = true
	return x.envoy.Send(immediate(openai.Cancelled(), x.head.isOfMessages())) == nil
}

// finish closes the exchange when nothing is received any more. After that, nothing is sent.
func (x *exchange) finish() {
	x.sending.Lock()
	x.finished = true
	cancelled := x.cancelled
	x.sending.Unlock()
	if cancelled {
		x.fault = openai.Cancelled()
	}
	x.close()
}
