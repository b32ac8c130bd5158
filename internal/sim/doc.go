// Package sim is a simulated inference engine: it serves the OpenAI API as vLLM does, with the
// timing of a GPU, but without a model. The command sluice sim serves it; the quick start, load
// tests and end-to-end tests use it.
//
// # Time
//
// An accepted request gets its response headers at once, and the first event of a stream with its
// first token. It waits for one of MaxNumSeqs slots, for room in the prefill queue
// (MaxBatchedTokens), and for memory. The engine prefills one request after the other, with
// PrefillRate tokens per second, lengthened by PrefillSlowdown for each decoding request. Tokens
// found in the prefix cache cost nothing. All prefilled requests decode together: each step gives
// every running request one token and lasts
//
//	TokenInterval × (1 + BatchSlowdown × (decoding − 1))
//
// A client that disconnects frees its slot at once. With all speeds at zero, every answer is
// complete immediately. POST /sim/pace {"token_interval":"0s"} changes TokenInterval, also for
// requests that are running. Tests so keep streams until they have seen what they wait for.
//
// # Memory
//
// The memory has CacheTokens tokens, in blocks of BlockSize. A running request holds the blocks of
// its prompt and of its answer. A finished request leaves its full blocks as the prefix cache. Of
// the blocks that no running request holds, the least recently used is overwritten first. A prompt
// skips the full blocks that are in memory, but never its last token. cache_salt keeps prompts
// apart. When running requests need more memory than there is, the one that was admitted last goes
// back into the queue (a preemption). The tests with the tag vllm compare all this with vLLM.
//
// # Content
//
// Answers are readable sentences made from the caller's own words. They depend only on the request,
// the seed and the engine's name, so the same request gets the same answer. A chat is answered with
// tool calls if it offers tools and mentions the word "tool" or the name of a tool. It is also if
// its tool_choice requires a call. max_tokens, min_tokens and ignore_eos set the length of the
// answer.
//
// # Faults
//
// The request header x-sim-fault, the field Config.Fault, or POST /sim/fault
// {"fault":"cut=3","times":1} inject faults into requests of clients. The header overrides the
// other two. Several faults are joined by commas. N counts server-sent events, including [DONE]. A
// response that is not streamed breaks in the middle of its body, whatever N is.
//
//	status=503              this status with an error body, at once
//	status=429:7            the same with this Retry-After in seconds; 0: none
//	hang  hang=2s           no response headers, for that long or until the client disconnects
//	reset-before-headers    the connection is reset before the first byte of a response
//	exit  exit=N            the process exits with code 1: before the headers, or after N events.
//	                        As Config.Fault without N: Run itself fails after LoadTime
//	slow=50ms               a pause before every event, or before the body
//	stall=N  stall=N:10s    after N events none, until the client disconnects or for that long
//	cut=N                   after N events the connection is closed inside the unfinished body
//	eof=N                   after N events the body ends cleanly, without finish_reason and [DONE]
//	error=N                 after N events an error event, then a clean end without [DONE]
//	malformed=N             the event after the first N is half of a JSON document
//	huge=N                  the event after the first N is padded by 1 MiB
//	duplicate  duplicate=N  every event, or the one after the first N, is sent twice
//	gzip                    the body is compressed although the client did not ask for it
//	close                   the response has no length: only the end of its connection ends it
//	early-close             the connection is closed before the first byte of a response
//	length=N                the Content-Length is N bytes too large; with a negative N too small
//	garbage                 other bytes follow the response
//	type=text/html          the response has this Content-Type
//	1xx                     interim responses without end, and no response
//	endless-header          a header without end
//	gzip-bomb               1 MiB that unpacks to 1 GiB, although the client did not ask for it
//	unhealthy               GET /health answers 503, all other requests work (not by header)
//	none                    no fault, whatever the process-wide fault is
//
// # Inspection
//
// GET /sim/requests returns the last requests of clients, oldest first. Each has the length and
// SHA-256 of its raw body and some of its headers (of credentials only the names). DELETE
// /sim/requests removes them. GET /sim/usage returns what finished requests have used, and the
// others. GET /sim/state returns what is running and waiting. GET /metrics has gauges, counters and
// histograms under vLLM's names. POST /reset_prefix_cache empties the prefix cache.
package sim
