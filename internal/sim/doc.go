// Package sim is a simulated inference engine: it speaks the OpenAI API the way vLLM does, keeps time the way a GPU
// would, and knows no model. It serves the quick start, demonstrations, load tests and end-to-end tests of a gateway.
//
// # Time
//
// A request that is accepted gets its response headers at once. It then waits for one of MaxNumSeqs slots, is
// prefilled (one request after the other, PrefillRate tokens a second, tokens found in the prefix cache are free), and
// decodes together with all others: every step gives each running request one token and lasts
//
//	TokenInterval × (1 + BatchSlowdown × (decoding − 1))
//
// A client that leaves frees its slot at once. With all speeds at zero every answer is complete the moment it is asked for.
//
// # Content
//
// Answers are readable sentences made from the caller's own words. They depend on nothing but the request, the seed and the
// engine's name, so the same question gets the same answer. A chat that offers tools and mentions the word "tool" (or one of
// their names), or whose tool_choice forces it, is answered with tool calls. max_tokens, min_tokens and ignore_eos set the length.
//
// # Faults
//
// A request header x-sim-fault, the field Config.Fault, or POST /sim/fault {"fault":"cut=3","times":1} make the engine
// misbehave on every path below /v1; the header wins. Several are joined by commas. N counts server-sent events, [DONE]
// included. An answer that is not streamed breaks in the middle of its body, whatever N is.
//
//	status=503              this status with an error body, at once
//	hang  hang=2s           no response headers, for that long or until the client leaves
//	reset-before-headers    the connection is reset before any byte of a response
//	exit  exit=N            the process ends with code 1: before the headers, or after N events.
//	                        As Config.Fault without N: Run itself fails when LoadTime has passed
//	slow=50ms               a pause before every event, or before the answer
//	stall=N  stall=N:10s    silence after N events, until the client leaves or for that long
//	cut=N                   after N events the connection is closed inside the unfinished body
//	eof=N                   after N events the body ends cleanly, with neither finish_reason nor [DONE]
//	error=N                 after N events one event that holds an error, then a clean end without [DONE]
//	malformed=N             the event after the first N is half a JSON document
//	huge=N                  the event after the first N is padded by 1 MiB
//	duplicate  duplicate=N  every event, or the one after the first N, is sent twice
//	gzip                    the body is compressed although nobody asked for it
//	unhealthy               GET /health answers 503, all else works (not by header)
//	none                    no fault, whatever the process-wide one is
//
// # Looking inside
//
// GET /sim/requests returns the last requests below /v1 with length and SHA-256 of their raw bodies and some of their headers
// (credentials only by name), oldest first; DELETE forgets them. GET /sim/state tells what is running and waiting. GET /metrics
// has the gauges, counters and histograms under vLLM's names. POST /reset_prefix_cache empties the prefix cache.
package sim
