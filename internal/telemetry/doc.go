// Package telemetry implements Sluice's log, with a line for every request, its Prometheus metrics,
// and the receiver of Envoy's access log. Package internal/gateway uses it, and subscribes Metrics
// and RequestLog to the requests of internal/request.
//
// AccessLog receives Envoy's gRPC access log and converts each record to a request.Entry.
//
// No value in this package ever contains a key, a prompt, a completion or a query string.
package telemetry
