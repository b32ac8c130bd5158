// Package openai is the one reader of OpenAI's API: the requests, the error codes, engines' errors
// and the model list. Every part that meets a client's request uses it: extproc, internal/relay,
// internal/dispatch, internal/api and authz.
//
// [Scan] validates a request's whole body in one pass. It builds no tree and copies no text. The
// result is a [Request]: the model, whether the answer is to be streamed, and the options that are
// meant for Sluice itself. [Request.CacheKey] hashes the beginning of a conversation, so that
// conversations with the same beginning are served by one replica and its prefix cache.
// [Request.Strip] removes Sluice's own options before an engine sees the body. A body without them
// is forwarded byte for byte.
//
// Two parsers that disagree on a body are a security hole: the gateway would check one model and
// the engine would serve another. So Scan is strict. JSON is RFC 8259 to the letter, in UTF-8, at
// most 256 levels deep, without duplicate fields at the top level. Forms (multipart/form-data, RFC
// 7578) are the subset that all clients send and all servers read alike. The fuzz tests compare
// both with the readers of the standard library.
//
// An error names fields and byte offsets and never a value, so that no prompt, key or completion
// gets into it.
package openai
