package leaves

import "bytes"

// rules says what the names of an object's members mean.
type rules uint8

const (
	rulesNone   rules = iota // all members are of the object's class
	rulesRoot                // the object itself, and a response in an event of the Responses API
	rulesChoice              // an element of choices
	rulesOutput              // what the model says
	rulesCall                // a tool call
	rulesAudio               // audio that the model speaks
	rulesTokens              // log probabilities
	rulesItems               // the items of an answer that is no text: embeddings, ranks, scores
)

// keyNames are the members at the top of a typed event that belong to its name. An event that has
// the first one needs no item.
var keyNames = [...]string{"output_index", "content_index", "summary_index", "index", itemName}

const itemName = "item_id"

// The names that are known. The tables only read them.
var (
	// metaNames are texts at the top that name something. They are no output of the model.
	metaNames = set("id", "object", "model", "type", "status", "system_fingerprint", "service_tier", "item_id", "event_id",
		"response_id", "previous_response_id", "obfuscation", "provider", "truncation", "user", "safety_identifier", "prompt_cache_key",
		"tool_choice", "instructions")
	// echoNames are objects and lists at the top that repeat the request.
	echoNames = set("tools", "tool_choice", "metadata", "instructions", "text", "reasoning", "prompt", "prompt_logprobs",
		"input_messages", "moderation")
	// choiceMeta are such texts in a choice.
	choiceMeta = set("finish_reason", "native_finish_reason", "stop_reason", "matched_stop", "object")
	// outputMeta are such texts in what the model says.
	outputMeta = set("role", "type", "status", "object", "format")
	// opaqueNames are values that cannot be read.
	opaqueNames = set("encrypted_content", "b64_json", "image_url", "data", "partial_image_b64", "image_b64")
	// callNames are lists and objects of tool calls.
	callNames = set("tool_calls", "function_call")
	// lastEvents are the types of the events that end a response.
	lastEvents = set("response.completed", "response.incomplete", "response.failed", "transcript.text.done")
	// wholeEvents are the last words of the types of events whose texts are whole.
	wholeEvents = set("created", "in_progress", "completed", "incomplete", "failed", "queued", "searching", "interpreting",
		"generating", "added", "done", "error", "segment")
	// ranks are the positions of a choice's texts in a stream, by the name of a member of the
	// message. Those that are not listed come with the text.
	ranks = map[string]uint8{"reasoning_content": 0, "reasoning": 0, "reasoning_details": 0, "thinking": 0, "thinking_blocks": 0,
		"refusal": 2, "tool_calls": 3, "function_call": 3, "audio": 3}

	knownNames = known()

	// vocabulary has the words of the API's own constants: types, roles, objects, states.
	vocabulary = set("chat", "completion", "completions", "chunk", "text", "list", "embedding", "embeddings", "model", "response", "output",
		"item", "added", "done", "part", "content", "reasoning", "summary", "function", "call", "calls", "arguments", "refusal", "delta",
		"created", "in", "progress", "completed", "incomplete", "failed", "queued", "searching", "interpreting", "generating", "error",
		"transcript", "transcription", "segment", "mcp", "custom", "tool", "input", "file", "search", "web", "code", "interpreter", "image",
		"generation", "partial", "stop", "length", "filter", "assistant", "system", "developer", "user", "annotation", "audio", "message",
		"thinking", "encrypted", "rerank", "score", "default", "auto", "none", "required", "disabled")
)

// IsConstant reports whether a value is a constant of the API, which no rule is about.
func IsConstant(value []byte) bool {
	for word := range bytes.FieldsFuncSeq(value, func(r rune) bool { return r == '.' || r == '_' }) {
		if !vocabulary[string(word)] {
			return false
		}
	}
	return true
}

const (
	// rankText is the rank of text, and rankLast that of what a choice has beside its message.
	rankText = 1
	rankLast = 4
	// rankItem is the rank of everything in a response, whose items are in the order of a stream.
	rankItem = 5
)

func set(names ...string) map[string]bool {
	s := make(map[string]bool, len(names))
	for _, n := range names {
		s[n] = true
	}
	return s
}

// known returns the names of the API. They are constants of engines and never what a model says.
func known() map[string]bool {
	all := set("choices", "index", "delta", "message", "content", "text", "logprobs", "token_ids", "prompt_token_ids", "token", "logprob",
		"bytes", "rank", "decoded_token", "top_logprobs", "tokens", "token_logprobs", "text_offset", "created", "created_at", "completed_at",
		"usage", "function", "custom", "name", "arguments", "input", "output", "item", "part", "response", "error", "code", "param",
		"call_id", "summary", "annotations", "incomplete_details", "reason", "sequence_number", "transcript", "expires_at",
		"prompt_tokens", "completion_tokens", "total_tokens", "prompt_tokens_details", "completion_tokens_details", "cached_tokens",
		"input_tokens", "output_tokens", "input_tokens_details", "output_tokens_details", "reasoning_tokens", "audio_tokens",
		"accepted_prediction_tokens", "rejected_prediction_tokens", "embedding", "results", "document", "documents", "relevance_score",
		"score", "segments", "words", "word", "start", "end", "seek", "duration", "language", "task", "temperature", "avg_logprob",
		"compression_ratio", "no_speech_prob", "speaker", "timings", "top_p", "max_output_tokens", "parallel_tool_calls", "store",
		"background", "n", "s", "x_groq", "kv_transfer_params", "signature", "images", "videos", "url", "parsed", "action", "queries", "query",
		"server_label", "output_text", "max_tool_calls", "conversation", "phase", "log_probs", "retryable", "retry_after_ms",
		"billing", "frequency_penalty", "presence_penalty", "prompt_cache_retention", "verbosity", "effort", "strict", "parameters")
	for _, more := range []map[string]bool{metaNames, echoNames, choiceMeta, outputMeta, opaqueNames, callNames} {
		for name := range more {
			all[name] = true
		}
	}
	for name := range ranks {
		all[name] = true
	}
	for _, name := range keyNames {
		all[name] = true
	}
	return all
}

func (p *Path) describeEvent(typ []byte) {
	p.rules, p.Class, p.rank = rulesRoot, Text, rankItem
	if last := typ[bytes.LastIndexAny(typ, "._")+1:]; wholeEvents[string(last)] || bytes.HasSuffix(typ, []byte("in_progress")) {
		p.Class = Complete
	}
}

func (p *Path) describe(c *Path) {
	c.known = knownNames[c.name]
	if c.name == "index" && p.index >= 0 {
		c.role = roleIndex
		return
	}
	switch p.rules {
	case rulesRoot:
		p.describeTop(c)
	case rulesChoice:
		describeChoiceMember(c)
	case rulesOutput, rulesCall, rulesAudio:
		p.describeOutput(c)
	case rulesItems:
		describeItemMember(c)
	case rulesNone, rulesTokens:
	}
}

// describeTop describes a member at the top, or of a response.
func (p *Path) describeTop(c *Path) {
	c.rules = rulesNone
	if p.index == root {
		c.Class = Brief
	}
	switch {
	case metaNames[c.name] && !c.container, echoNames[c.name] && c.container:
		c.Class = Meta
	}
	switch c.name {
	case "type":
		if p.index == root {
			c.role = roleType
		}
	case "choices":
		c.role = roleChoices
	case "status":
		c.role = roleStatus
	case "incomplete_details":
		c.role, c.Class = roleDetails, Meta
	case "usage":
		c.role, c.Class = roleUsage, Meta
	case "response":
		c.rules = rulesRoot
	case "output":
		c.role = roleOutput
		c.output(p)
	case "error":
		c.Class = Complete
	case "logprobs", "token_ids":
		c.tokens()
	case "data", "results":
		c.rules, c.collapse = rulesItems, true
	case "text":
		if !c.container {
			c.output(p)
		}
	case "delta", "item", "part", "segments", "words", "transcript", "output_text", "refusal", "arguments", "input":
		c.output(p)
	}
	if opaqueNames[c.name] && !c.container {
		c.Class = Opaque
	}
}

// output makes p something that the model says, as a part of its parent.
func (p *Path) output(parent *Path) {
	p.rules, p.rank, p.Class = rulesOutput, rankItem, Text
	if parent.Class == Complete {
		p.Class = Complete
	}
}

// tokens makes p log probabilities, or what else repeats a text.
func (p *Path) tokens() { p.role, p.rules, p.Class, p.rank = roleSpare, rulesTokens, Tokens, rankLast }

func describeChoiceMember(c *Path) {
	c.rules, c.Class, c.rank = rulesNone, Brief, rankLast
	switch c.name {
	case "delta", "message":
		c.role, c.rules, c.Class, c.rank = roleBody, rulesOutput, Text, rankText
	case "text":
		c.role, c.Class, c.rank = roleBody, Text, rankText
	case "finish_reason":
		c.role = roleFinish
	case "logprobs", "token_ids", "prompt_token_ids", "prompt_logprobs":
		c.tokens()
	}
	if choiceMeta[c.name] {
		c.Class = Meta
	}
}

// describeOutput describes a member of what the model says.
func (p *Path) describeOutput(c *Path) {
	if rank, ok := ranks[c.name]; ok && p.rules == rulesOutput && p.rank == rankText {
		c.rank = rank
	}
	switch {
	case callNames[c.name]:
		c.rules = rulesCall
	case c.name == "audio":
		c.rules = rulesAudio
	case c.name == "logprobs", c.name == "token_ids":
		c.tokens()
	case opaqueNames[c.name]:
		c.rules, c.Class = rulesNone, Opaque
	case outputMeta[c.name] && !c.container:
		c.Class = Meta
	case c.Class == Text && (c.name == "id" || c.name == "call_id" || p.rules == rulesCall && c.name == "name"):
		c.Class = Brief
	}
}

// describeItemMember describes a member of an item of an answer that is no text.
func describeItemMember(c *Path) {
	c.rules = rulesNone
	switch c.name {
	case "embedding":
		if !c.container {
			c.Class = Number
		}
	case "document", "object", "id":
		c.Class = Meta // the client's own documents come back
	}
}
