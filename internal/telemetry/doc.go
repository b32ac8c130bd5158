// Package telemetry is what Sluice says about itself: its log, with a line for every request, its
// Prometheus metrics, and the requests that run or have just ended.
//
// Envoy carries every request and knows how it ended; Sluice knows who called and what it decided.
// The two halves meet here: AccessLog receives Envoy's gRPC access log and turns each record into
// an Entry, Requests joins the Entry by request id with what the dispatcher reported through a
// Live, Metrics counts the joined Request, and RequestLog writes its line. Of what Sluice's own
// relay carried, the relay tells how it ended (Live.Carried), and that wins over Envoy's record.
// Answers that Envoy gave alone (a 503 while Sluice was away, a 413) reach no filter but do reach
// the access log, so nothing goes uncounted.
//
// Nothing in this package ever holds a key, a prompt, a completion or a query string.
package telemetry
