package relay

// Sink receives one call. A sink is an HTTP response in this package, a conversation over WebSocket
// in internal/relay/realtime, or a gRPC stream in internal/relay/grpcapi.
//
// The relay calls the methods one after the other, from different goroutines. An error says that
// the client cannot be reached any more: no further method is called, and the call ends unless
// other clients share it.
type Sink interface {
	// Answer writes a whole answer that is no stream: the engine's response to a request that asked
	// for none, or its refusal. Only Finish follows.
	Answer(*Answer) error
	// Event writes the next event of the stream, in the form of server-sent events with its blank
	// line. Events that had to wait may have been merged into one. number counts events from 0; a
	// merged event has the number of its last part. raw is valid until Event returns.
	Event(raw []byte, number uint64) error
	// Flush says that no further event waits.
	Flush() error
	// Heartbeat tells the client what its call waits for. It is called when no event has come for
	// the interval of heartbeats, and at once when a wait is foreseen.
	Heartbeat(Progress) error
	// Finish is the last call. Result.Fault is nil when the stream or the answer was whole.
	Finish(Result) error
}

// SelectiveSink is a Sink whose client may get nothing of an event, as a comment that its protocol
// does not have. Such an event takes the place of no heartbeat.
type SelectiveSink interface {
	Sink
	// Passed counts the events of which the client gets something.
	Passed() int64
}

// InlineSink is a Sink with a fast path. The goroutine that reads an event from the engine writes
// the event to the client, as long as the client accepts everything without waiting.
type InlineSink interface {
	Sink
	// CanWriteInline reports whether the fast path can be used for this client.
	CanWriteInline() bool
	// Append adds an event to the buffer, as Event does, and writes nothing.
	Append(raw []byte, number uint64)
	// TryFlush writes the buffer as far as the client accepts it without waiting. If a part is
	// left, whole is false and a call of Flush follows.
	TryFlush() (whole bool, err error)
}
