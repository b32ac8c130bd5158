// Package sse reads and writes server-sent events (WHATWG HTML, section 9.2), and finds in them
// what a gateway has to know. The relay of managed streams (internal/relay) uses it on the way from
// an engine to a client.
//
// A [Scanner] is fed bytes as they come from the network. It yields events that keep their exact
// bytes, so that the relay can write them as they came. A [Chunk] reads an event's data, which is a
// chunk of a chat or of a completion, or an event of the Responses API. It tells whether the event
// carries a token, what has finished, and what was used. A [Tracker] sees a whole stream and
// reports at its end whether the stream was complete: a connection that merely closes is no proper
// end. The Append functions write events.
//
// Reading the usual event allocates nothing and copies nothing. The relay forwards data that the
// package does not understand, and such data counts as nothing: a fault in metering never fails a
// stream.
package sse
