// Package jsonscan is the one JSON tokenizer of Sluice: it reads JSON in one pass, in place, and
// builds no tree. The readers of requests, of engines' events and of errors (internal/openai,
// internal/openai/sse, internal/openai/delta) and the merger of chunks (internal/relay/queue) use
// it.
//
// A [Reader] says where values stand, so that its caller can pass them on, cut them out or add to
// them byte for byte. Reading allocates nothing, except that [Reader.Name] and [Reader.Text]
// allocate for a string with escapes.
//
// The grammar is RFC 8259 as encoding/json reads it, with two differences:
//
//   - A text that is nested deeper than [MaxDepth] levels is refused, because reading recurses.
//   - [Reader.RequireUTF8] decides whether strings must be UTF-8.
//
// Requests must be UTF-8. An engine may replace a byte that is no UTF-8, while Sluice compares and
// hashes the byte itself: the two would read different requests. What an engine writes need not be
// UTF-8. An engine that streams token by token may split one character over two events, and Sluice
// passes both on as they came. The merger of chunks requires UTF-8, because a merged chunk would
// hide which bytes came with which event.
//
// The names of an object's members are always compared without their escapes, because every other
// reader of JSON does the same.
package jsonscan
