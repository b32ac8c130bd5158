package telemetry

import (
	"time"

	"github.com/sluice-gateway/sluice/internal/headers"
	"github.com/sluice-gateway/sluice/internal/request"
	"github.com/sluice-gateway/sluice/internal/routes"
)

// observed subscribes m, which may be nil, and the others to the requests of s. It returns what the
// access log is told to.
func observed(s *request.Store, m *Metrics, others ...func(request.Summary)) func(request.Entry) {
	s.Subscribe(request.Subscribers{Retried: m.Retried, Finished: append([]func(request.Summary){m.Finished}, others...)})
	return func(e request.Entry) { s.Observe(e) }
}

// final is Envoy's record of a request that a replica served.
func final(id string) request.Entry {
	return request.Entry{
		Log: headers.LogRequests, RequestID: id, Method: "POST", Path: "/v1/chat/completions", Status: 200, Details: "via_upstream",
		Upstream: "127.0.0.1:41000", Cluster: "model/chat", Model: "chat", Replica: "chat-0", Attempts: 1, Streamed: true,
		BytesIn: 100, BytesOut: 2000, Start: time.Now().Add(-3 * time.Second), Duration: 3 * time.Second,
		FirstByte: 200 * time.Millisecond, UpstreamDuration: 2 * time.Second,
	}
}

// relayed is Envoy's record of a stream that the relay carried: it knows no replica, and its first
// byte is a heartbeat's.
func relayed(id string) request.Entry {
	e := final(id)
	e.Cluster, e.Model, e.Replica, e.Upstream, e.Route = headers.RelayCluster, "", "", "", routes.RelayStream
	e.FirstByte, e.LastByte, e.UpstreamDuration, e.Duration = 50*time.Millisecond, 3*time.Second, 2900*time.Millisecond, 3*time.Second
	return e
}

// whole is what the relay tells of a stream that was whole.
func whole() request.Outcome {
	return request.Outcome{Model: "chat", Replica: "chat-1", TTFT: time.Second, Held: 400 * time.Millisecond, Decode: 2 * time.Second,
		Usage:  request.Usage{Prompt: 7, Completion: 11, Known: true, Cached: 5, CachedKnown: true},
		Finish: "stop", Attempts: 2, Answered: true}
}
