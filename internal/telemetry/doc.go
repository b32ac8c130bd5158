// Package telemetry is what Sluice says about itself: its log, with a line for every request, and
// its Prometheus metrics. Package internal/gateway uses it, and subscribes Metrics and RequestLog
// to the requests of internal/request.
//
// AccessLog receives Envoy's gRPC access log and turns each record into a request.Entry.
//
// Nothing in this package ever holds a key, a prompt, a completion or a query string.
package telemetry
