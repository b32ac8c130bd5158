// Package grpcapi speaks llm.v1 over gRPC (api/llm/v1), in both directions. internal/gateway uses
// it. [Server] takes the calls of clients and has the relay run them as managed streams. [Workers]
// calls engines that serve llm.v1 and looks to the relay like HTTP to an engine of OpenAI's API.
//
// # Errors
//
// One mapping from HTTP status to gRPC code holds in both directions, that of api/llm/v1. A status
// has an llm.v1.Error among its details and, where a retry may help, google.rpc.RetryInfo. Before a
// stream has sent its first chunk, only the status reports an error, so that a client's retry
// policy, which acts on nothing else, may act. Once a stream has sent its first chunk, which may be
// a heartbeat, its last chunk holds the same Error. This Error is for clients whose libraries make
// it hard to read the details of a status.
//
// # Time
//
// A client's deadline bounds the answer as timeout_ms does; the shorter of the two counts. A worker
// gets the time that is left.
package grpcapi
