// Package openai holds what Sluice knows of OpenAI's API: it reads from a request's body what a gateway needs to route it,
// and it has the shapes of errors and of the model list.
//
// [Scan] validates the whole body in one pass and notes where things are; it builds no tree and copies no text. What it
// learns is a [Request]: the model, whether the answer is to be streamed, the options that are meant for Sluice itself.
// [Request.CacheKey] hashes the beginning of a conversation, so that conversations which share it meet on one replica
// (and on its prefix cache). [Request.Strip] takes Sluice's own options out before an engine sees the body; a body without
// them is passed on as it came, byte for byte.
//
// Two parsers that disagree on a body are a hole: the gateway would check one model and the engine serve another. So the
// reader is strict. JSON is RFC 8259 to the letter, in UTF-8, at most 256 levels deep, without duplicate fields at the top
// level. Forms (multipart/form-data, RFC 7578) are the subset that all clients send and all servers read alike. The fuzz
// tests hold both against the readers of the standard library.
//
// Errors name fields and byte offsets, never a value: no prompt, key or completion gets into them.
package openai
