package openai

import "bytes"

// attribution is how the first block of the system prompt of Claude Code begins. The block names
// the version of the client, and a hash that differs from conversation to conversation. It is meant
// for Anthropic's billing, and Anthropic's models do not read it.
const attribution = "x-anthropic-billing-header:"

// IsAttribution reports whether a part of the content of a message is such a block. A block that
// reached an engine would take from conversations the beginning that they have in common, and with
// it the prefix cache. So translated requests lose the block, as in vLLM, and chains and cache keys
// leave it out. A text of more than one line is a prompt too, because some clients join all blocks
// of the prompt. The text may stand as in JSON, where a line feed has a backslash.
func IsAttribution(text []byte) bool {
	return bytes.HasPrefix(text, []byte(attribution)) && !bytes.ContainsAny(text, "\\\n")
}
