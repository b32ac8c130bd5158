// Package grpcapi speaks gRPC's llm.v1 (examples/grpc), both ways. The [Server] takes calls of clients and has them run as any managed
// stream; [Workers] calls engines that serve llm.v1, and looks to the relay like HTTP to an engine of OpenAI's API.
//
// # Errors
//
// One mapping holds in both directions: that of api/llm/v1, from HTTP status to code. A status has an llm.v1.Error among its
// details and, where a retry may help, google.rpc.RetryInfo. Before anything of a stream was sent the status alone tells, so that a
// client's own retry policy, which acts on nothing else, may act on it. Once something was sent, be it a heartbeat, the same Error also comes
// as the last chunk, for clients whose libraries make it hard to read details.
//
// # Time
//
// A client's deadline bounds the answer as timeout_ms does, the shorter of the two. What a worker is told is what is left of it.
package grpcapi
