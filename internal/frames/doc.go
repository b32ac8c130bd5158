// Package frames is the transport of package internal/decide over the frames of Envoy's filter
// (envoy/filter). Package internal/gateway runs it. Each worker thread of an Envoy has a
// connection, which is a Unix stream socket. This comment defines the protocol. wire.go reads and
// writes frames, conn.go a connection, and record.go reads the records of requests.
//
// # Frames
//
// A frame is a head of 16 bytes and a payload. Numbers are little-endian.
//
//	offset  size  what
//	0       4     length of the payload in bytes
//	4       1     type
//	5       1     flags
//	6       2     0
//	8       8     id: a request of the connection; 0: the connection itself
//
// The filter gives each request an id that it uses once in the life of the connection. A frame with
// an id that the receiver does not know concerns a request that has ended. It is ignored. A frame
// of an unknown type, or one that is malformed, ends the connection.
//
// # From the filter
//
//	Hello (1)    id 0: the first frame. u32 version of the protocol, u32 index of the worker,
//	             u64 number that the filter chose at random when Envoy loaded it, u32 blocks of
//	             the memory that it shares (see below), 0: none; u64 number of the connection
//	Headers (2)  a list of the request's headers. Flag 1: the request has no body
//	Body (3)     the whole body. If the request ends while it is sent, the rest is zeros, and End
//	             follows
//	End (4)      the request has ended: a record of it. It frees the id. An End that did not leave
//	             before its connection broke comes over the next one, with an id that is new there
//	Live (5)     a request that was decided on an earlier connection and still runs. It follows
//	             Hello, or comes when that connection has ended after Bye: u64 microseconds since
//	             its beginning, then a list as that of a record, with "id", "route", "upstream",
//	             "cluster", "replica", where known, and the metadata
//	First (6)    the next bytes of the response's body, from its beginning, if Go has asked for
//	             them: until Heard, and at most 64 KiB of all. After bytes that the gateway may
//	             lack, because of a connection that broke or took no more, the payload is empty
//	Shared (7)   the whole body is in shared memory: u32 its first block, u32 its length in bytes
//	Ready (8)    id 0: the first frame of an inlet (see below). u32 index of the worker, u64
//	             number that the filter chose at random
//
// Envoy reads a body while the gateway may already look at the headers. The filter does not wait
// for an answer to Headers. It keeps the body in Envoy's buffer until the request is decided.
//
// # From the gateway
//
//	Welcome (1)  id 0: the answer to Hello. u32 version of the protocol, u32 milliseconds that a
//	             request waits for a word after its body was sent, u32 1 if the filter may send
//	             Shared, else 0. If the version is another one than that of Hello, the payload
//	             lacks the last number, the filter ends the connection, and the access log has the
//	             ends of the requests that the filter has decided before
//	Go (2)       the request goes on. u16 number of headers to set, u16 of headers to remove, u16
//	             of values of metadata, u16 0; then as many pairs, names and pairs. Flag 1: the
//	             rest of the payload replaces the body. Flag 2: the client does not learn which
//	             replica has answered. Envoy then chooses the route again
//	Reply (3)    the request is answered by this: u16 status, u16 number of headers, u16 length of
//	             the details that Envoy's log shows, u16 0; then the headers, the details, the
//	             body. If the response has begun, the filter resets the request
//	Wait (4)     the request waits: u32 milliseconds until the filter may give it up
//	Again (5)    the gateway has a successor, or its answer was lost: the filter sends Headers and
//	             Body once more, with a new id, over a new connection. The old id is free
//	Bye (6)      id 0: a further request goes over a new connection. Frames of the requests of
//	             this connection still use it. The filter closes it after the last of them
//	Heard (7)    the gateway wants no more First of the request
//	Join (8)     id 0: the first frame over an inlet. u64 number of the connection
//
// Metadata is set under the namespace "sluice", as strings. Names of headers are in lower case, and
// values have no CR, LF or NUL. A header with an empty value is removed.
//
// # Lists
//
// A list is a u16 with the number of its pairs, a u16 0, and the pairs. A pair is a u16 with the
// length of the name, a u16 0, a u32 with the length of the value, the name and the value. A name
// alone is a u16 with its length, and its bytes.
//
// # Record
//
// A record is these numbers, each an i64, and then a list. Times are in microseconds. -1 means that
// it is not known.
//
//	status, bytes of the request's body, bytes of the response's body, attempts, duration,
//	time from the beginning to the first byte of the response's body,
//	time from the beginning to the last byte from upstream, time from the beginning to the first
//	byte to upstream, beginning (since 1970)
//
// The list has strings under these names, where known: "method" and "path" (as the client has sent
// them, at most 1 KiB of each), "id" (x-request-id), "route", "details", "flags" (Envoy's short
// names with commas), "upstream" (address and port), "cluster", "replica" (metadata of the host),
// "usage" and "read" (see below), "unframed" ("1": only the end of its connection ends the
// response), and every string of the dynamic metadata of the namespace "sluice", with "@" before
// its name, but for those that begin with "x-". Names that the gateway does not know are ignored.
//
// # What is read of a response
//
// A Go with the header x-sluice-observe (headers.Observe) has the filter send First. A Go with the
// header x-sluice-usage (headers.Usage) has the filter read the response while it passes. The
// filter does not set these headers, so Envoy's own readers have no part in it. At the end, "usage"
// has three numbers: tokens of the prompt, of the answer, and those of the prompt that came from
// the cache, or -1. A response that tells only the total has it for its prompt, and -1 for its
// answer. "usage" is missing if the response has not come to its end, has another status than 200
// to 299, or is compressed. It is also missing if the response tells no usage, or has a part that
// is no JSON. If the value of the header asks for the stream too, "read" has what package xds
// describes for the Lua reader (streamReaderSource).
//
// # Shared memory
//
// A body of more than 16 KiB need not go through the socket, where it would be copied twice and
// wake the gateway several times. Each connection has memory that both ends map: a file without a
// name, whose descriptor comes with the first byte of Hello (SCM_RIGHTS) and which cannot shrink.
// It begins with a map of 4096 bytes, and blocks of 32 KiB follow. The map has a bit for each
// block, in words of 64 bits of the machine, the lowest bit first. The filter sets the bits of a
// body, copies it there and sends Shared. The gateway reads it in place and clears the bits, also
// if the request has ended meanwhile. A body for which there is no room comes as Body. The memory
// ends with its connection.
//
// # Inlets
//
// What the gateway says can go to the worker directly. Otherwise a thread of the filter reads it
// and then wakes the worker. Envoy's bootstrap has a listener on a unix socket for that. After
// Hello the gateway connects there. Envoy chooses the worker that has the fewest of these
// connections, and the worker says its index in Ready. The gateway keeps connections to other
// workers until those say Hello. To the worker of the connection it says Join, and then all that it
// has to say. A worker closes an inlet whose Join names none of its connections, or one that has an
// inlet. An inlet that ends, or says a malformed frame, ends its connection too. When the
// connection ends first, the worker still reads the inlet to its end, for the time of Welcome at
// most. What the gateway has written to the connection before Join may be read after what it writes
// to the inlet. So no frame depends on another one that went before. A Heard that is read before
// its Go has no effect, and the gateway says it again for the next First. Without inlets, as with
// an Envoy that has none, the gateway writes to the connection.
//
// # Deadlines and faults
//
// A request may hear nothing for the time of Welcome after its body was sent (2 s until Welcome).
// It then goes on undecided, and finds only the route to a cluster that does not exist. So does
// each request that no connection can take. A connection that breaks ends the waits of its
// undecided requests in the same way. The thread reads what has come before it ends a wait, because
// Envoy may have stood still meanwhile. Requests that are decided run on. If they end while there
// is no connection, the filter sends Live and End of them later. The Ends that wait on a connection
// that breaks leave over the next one. The filter keeps at most 1 MiB of such frames. Those that
// the socket has taken and no gateway has read are lost. A connection that takes nothing for the
// time of Welcome counts as broken. One that takes less than what comes is told of no further
// request while 16 MiB of frames wait. So a client that fills the queue breaks no connection. Ends
// always have room.
package frames
