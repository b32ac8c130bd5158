// Package sse reads and writes server-sent events (WHATWG HTML, section 9.2) on the way from an engine to a client, and
// finds in them what a gateway has to know.
//
// [Scanner] is fed bytes as they come from the network and yields events that keep their exact bytes, so that they can be
// passed on as they came. [Chunk] reads an event's data, a chunk of a chat or a completion or an event of the Responses
// API: whether it carries a token, what ends, what was used. [Tracker] sees a whole stream and says at its end whether
// that was one: a connection that merely closes is no end. The Append functions write events.
//
// On the usual path nothing is allocated and nothing is copied. Data that is not understood is passed on and counts as
// nothing: a fault in metering never fails a stream.
package sse
