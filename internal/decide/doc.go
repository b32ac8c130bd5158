// Package decide decides what Envoy does with a request. Packages extproc and internal/frames run
// it: each knows a protocol by which Envoy asks, and is called a transport here. decide
// authenticates the caller, has the request dispatched, and holds the request's ticket until the
// response has ended.
//
// A transport opens an Exchange for each request. It first brings the headers, which carry the API
// key: a caller without a valid key is refused before Envoy reads the body. It then brings the
// body, which names the model. The body is scanned in one pass, and the request is dispatched.
// Dispatch may take long, so Envoy is first told that the request waits. The answer names the Envoy
// cluster and the ordered list of replicas. Response bodies never come here.
//
// The exchange of a native request stays open until the response has ended. Its end releases the
// ticket, and also reports within milliseconds that a client has left. The exchange of a managed
// request ends when the relay has claimed the request. From then on the relay holds the ticket and
// sees the client leave. So no exchange stays open for a managed stream, which may last for hours.
//
// Read exchange.go (the steps of a request), dispatch.go (its decision) and answer.go (what Envoy
// is told).
package decide
