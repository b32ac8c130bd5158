package sse_test

import "strings"

// Streams in the manner of the engines, with their habits of spacing, line ends and order.
var golden = map[string]struct {
	stream   string
	usage    string // prompt/completion/cached
	tokens   int64
	finish   string
	noMarker bool // it ends without [DONE]
}{
	"vllm": {
		stream: `data: {"id":"chatcmpl-1","object":"chat.completion.chunk","created":1700000000,"model":"m","choices":[{"index":0,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}],"prompt_token_ids":null}

data: {"id":"chatcmpl-1","object":"chat.completion.chunk","created":1700000000,"model":"m","choices":[{"index":0,"delta":{"content":"Hé"},"logprobs":null,"finish_reason":null,"token_ids":null}]}

data: {"id":"chatcmpl-1","object":"chat.completion.chunk","created":1700000000,"model":"m","choices":[{"index":0,"delta":{"reasoning_content":"hm"},"logprobs":null,"finish_reason":null}],"usage":{"prompt_tokens":9,"total_tokens":10,"completion_tokens":1}}

data: {"id":"chatcmpl-1","object":"chat.completion.chunk","created":1700000000,"model":"m","choices":[{"index":0,"delta":{"content":""},"logprobs":null,"finish_reason":"stop","stop_reason":null}]}

data: {"id":"chatcmpl-1","object":"chat.completion.chunk","created":1700000000,"model":"m","choices":[],"usage":{"prompt_tokens":9,"total_tokens":12,"completion_tokens":3,"prompt_tokens_details":{"cached_tokens":8}}}

data: [DONE]

`, usage: "9/3/8", tokens: 2, finish: "stop",
	},
	"llama.cpp": {
		stream: `data: {"choices":[{"finish_reason":null,"index":0,"delta":{"role":"assistant","content":null}}],"created":1700000000,"id":"chatcmpl-2","model":"m","system_fingerprint":"b1-0","object":"chat.completion.chunk"}

data: {"choices":[{"finish_reason":null,"index":0,"delta":{"content":" one"}}],"created":1700000000,"id":"chatcmpl-2","model":"m","system_fingerprint":"b1-0","object":"chat.completion.chunk"}

data: {"choices":[{"finish_reason":"length","index":0,"delta":{}}],"created":1700000001,"id":"chatcmpl-2","model":"m","system_fingerprint":"b1-0","object":"chat.completion.chunk"}

data: {"choices":[],"created":1700000001,"id":"chatcmpl-2","model":"m","object":"chat.completion.chunk","usage":{"completion_tokens":1,"prompt_tokens":4,"total_tokens":5},"timings":{"prompt_n":4,"predicted_per_second":31.5}}

data: [DONE]

`, usage: "4/1/0", tokens: 1, finish: "length",
	},
	"openai with two choices and a tool": {
		stream: `data: {"id":"c","object":"chat.completion.chunk","created":1,"model":"m","service_tier":"default","system_fingerprint":null,"choices":[{"index":0,"delta":{"role":"assistant","content":null,"tool_calls":[{"index":0,"id":"call_1","type":"function","function":{"name":"f","arguments":""}}],"refusal":null},"logprobs":null,"finish_reason":null}],"usage":null,"obfuscation":"x"}

data: {"id":"c","object":"chat.completion.chunk","created":1,"model":"m","choices":[{"index":1,"delta":{"role":"assistant","refusal":"No"},"finish_reason":null}],"usage":null}

data: {"id":"c","object":"chat.completion.chunk","created":1,"model":"m","choices":[{"index":0,"delta":{"tool_calls":[{"index":0,"function":{"arguments":"{}"}}]},"finish_reason":null}],"usage":null}

data: {"id":"c","object":"chat.completion.chunk","created":1,"model":"m","choices":[{"index":1,"delta":{},"finish_reason":"stop"}],"usage":null}

data: {"id":"c","object":"chat.completion.chunk","created":1,"model":"m","choices":[{"index":0,"delta":{},"finish_reason":"tool_calls"}],"usage":null}

data: {"id":"c","object":"chat.completion.chunk","created":1,"model":"m","choices":[],"usage":{"prompt_tokens":20,"completion_tokens":7,"total_tokens":27,"prompt_tokens_details":{"cached_tokens":0,"audio_tokens":0},"completion_tokens_details":{"reasoning_tokens":0}}}

data: [DONE]

`, usage: "20/7/0", tokens: 3, finish: "tool_calls",
	},
	"tgi: no space, no marker": {
		stream: `data:{"object":"chat.completion.chunk","id":"","created":1,"model":"m","system_fingerprint":"3","choices":[{"index":0,"delta":{"role":"assistant","content":"a"},"logprobs":null,"finish_reason":null}]}

data:{"object":"chat.completion.chunk","id":"","created":1,"model":"m","system_fingerprint":"3","choices":[{"index":0,"delta":{"role":"assistant","content":"b"},"logprobs":null,"finish_reason":"eos_token"}]}

`, tokens: 2, finish: "eos_token", noMarker: true,
	},
	"completions, pings, CRLF": {
		stream: strings.ReplaceAll(`: ping

data: {"id":"d","object":"text_completion","choices":[{"index":0,"text":" x","logprobs":null,"finish_reason":null}]}

: ping

data: {"id":"d","object":"text_completion","choices":[{"index":0,"text":"","finish_reason":"stop"}],"usage":{"prompt_tokens":1,"completion_tokens":1}}

data: [DONE]

`, "\n", "\r\n"), usage: "1/1/0", tokens: 1, finish: "stop",
	},
	"responses": {
		stream: `event: response.created
data: {"type":"response.created","sequence_number":0,"response":{"id":"r","status":"in_progress","error":null,"usage":null,"output":[]}}

event: response.output_item.added
data: {"type":"response.output_item.added","sequence_number":1,"output_index":0,"item":{"type":"message","content":[]}}

event: response.output_text.delta
data: {"type":"response.output_text.delta","sequence_number":2,"output_index":0,"content_index":0,"delta":"Hi","logprobs":[]}

event: response.function_call_arguments.delta
data: {"type":"response.function_call_arguments.delta","sequence_number":3,"output_index":1,"delta":"{}"}

event: response.completed
data: {"type":"response.completed","sequence_number":4,"response":{"id":"r","status":"completed","error":null,"usage":{"input_tokens":5,"input_tokens_details":{"cached_tokens":2},"output_tokens":6,"total_tokens":11}}}

`, usage: "5/6/2", tokens: 2, noMarker: true, finish: "stop",
	},
}
