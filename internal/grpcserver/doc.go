// Package grpcserver serves gRPC to Envoy over HTTP/2, with little CPU for short streams. Packages
// extproc and internal/telemetry use it for what each request costs, and internal/gateway runs it.
//
// A connection has one goroutine that reads, the reader. The reader parses frames in place and
// calls the Handler of the stream that a message belongs to. So a stream costs no goroutine. A
// Handler that is about to block calls Stream.Block first: another goroutine then becomes the
// reader, and the first one ends with the call. Answers are gathered until the reader has handled
// all that it has read, and then leave by one write.
//
// Methods that nobody has registered go to an http.Handler, such as a grpc.Server, which has a
// goroutine for each stream.
//
// The peers are Envoys over a Unix socket or with mutual TLS, and processes of this gateway. A peer
// that breaks the protocol loses its connection. Flow control bounds what a stream may send before
// it is read, and what waits for a peer that does not read. A peer over TCP that sends nothing and
// answers no PING loses its connection, too.
//
// Read server.go (what the others use), reader.go (the frames that come), send.go (those that
// leave), and other.go (the way to the http.Handler). The protocol is RFC 9113.
package grpcserver
