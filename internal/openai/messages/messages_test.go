package messages

import (
	"encoding/json"
	"runtime"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-gateway/sluice/internal/openai"
)

// equalJSON compares two JSON texts.
func equalJSON(t *testing.T, name string, got []byte, want string) {
	t.Helper()
	var g, w any
	if err := json.Unmarshal(got, &g); err != nil {
		t.Fatalf("%s: %v: %s", name, err, got)
	}
	if err := json.Unmarshal([]byte(want), &w); err != nil {
		t.Fatalf("%s: %v: %s", name, err, want)
	}
	if diff := cmp.Diff(w, g); diff != "" {
		t.Errorf("%s: %s\n%s", name, got, diff)
	}
}

// TestB9_Requests: what a request to the Messages API is as a chat.
func TestB9_Requests(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ body, want string }{
		"plain": {
			`{"model":"m","max_tokens":9,"messages":[{"role":"user","content":"a <b> \u00e9"}]}`,
			`{"model":"m","max_tokens":9,"messages":[{"role":"user","content":"a <b> é"}]}`,
		},
		"all options": {
			`{"model":"m","max_tokens":9,"stream":true,"system":[{"type":"text","text":"a"},{"type":"text","text":"b","cache_control":{"type":"ephemeral"}}],
			"temperature":0.5,"top_p":0.9,"top_k":5,"stop_sequences":["x"],"metadata":{"user_id":"u"},"service_tier":"auto","ignore_eos":true,
			"thinking":null,"request_id":"r","timeout_ms":5,"messages":[{"role":"user","content":"hi"}],
			"output_config":{"format":{"type":"json_schema","schema":{"type":"object"}}}}`,
			`{"model":"m","max_tokens":9,"stream":true,"stream_options":{"include_usage":true},"temperature":0.5,"top_p":0.9,"top_k":5,"stop":["x"],
			"user":"u","ignore_eos":true,"messages":[{"role":"system","content":"a\nb"},{"role":"user","content":"hi"}],
			"response_format":{"type":"json_schema","json_schema":{"name":"output","strict":true,"schema":{"type":"object"}}}}`,
		},
		"the attribution of Claude Code": {
			`{"max_tokens":9,"system":[{"type":"text","text":"x-anthropic-billing-header: cc_version=2.1.197.1c0; cc_entrypoint=cli;"},{"type":"text","text":"a"}],
			"messages":[{"role":"user","content":"hi"}]}`,
			`{"max_tokens":9,"messages":[{"role":"system","content":"a"},{"role":"user","content":"hi"}]}`,
		},
		"an attribution that is joined with the prompt": {
			`{"max_tokens":9,"system":"x-anthropic-billing-header: cch=1;\na","messages":[{"role":"user","content":"hi"}]}`,
			`{"max_tokens":9,"messages":[{"role":"system","content":"x-anthropic-billing-header: cch=1;\na"},{"role":"user","content":"hi"}]}`,
		},
		"system messages": {
			`{"max_tokens":9,"system":"a","messages":[{"role":"system","content":[{"type":"text","text":"b"}]},{"role":"user","content":"hi"},{"role":"system","content":"c"},
			{"role":"assistant","content":[{"type":"tool_use","id":"t","name":"f"}]},{"role":"user","content":[{"type":"tool_result","tool_use_id":"t"}]},{"role":"system","content":"d"},
			{"role":"assistant","content":"x"},{"role":"user","content":[{"type":"text","text":"y"},{"type":"text","text":"z"}]},{"role":"system","content":"e"}]}`,
			`{"max_tokens":9,"messages":[{"role":"system","content":"a\nb"},{"role":"user","content":"hi\n<system-reminder>\nc\n</system-reminder>"},
			{"role":"assistant","content":null,"tool_calls":[{"id":"t","type":"function","function":{"name":"f","arguments":"{}"}}]},
			{"role":"tool","content":"","tool_call_id":"t"},{"role":"user","content":"<system-reminder>\nd\n</system-reminder>"},
			{"role":"assistant","content":"x"},{"role":"user","content":[{"type":"text","text":"y"},{"type":"text","text":"z"},
			{"type":"text","text":"<system-reminder>\ne\n</system-reminder>"}]}]}`,
		},
		"turns of the user that follow each other": {
			`{"max_tokens":9,"messages":[{"role":"user","content":"a"},{"role":"user","content":[]},{"role":"user","content":[{"type":"text","text":"b"}]},
			{"role":"assistant","content":"x"},{"role":"system","content":"c"},{"role":"user","content":[{"type":"image","source":{"type":"url","url":"http://i"}}]},{"role":"user","content":"d"},
			{"role":"assistant","content":"y"},{"role":"assistant","content":"z"},{"role":"user","content":[]},{"role":"user","content":[{"type":"image","source":{"type":"url","url":"http://i"}}]}]}`,
			`{"max_tokens":9,"messages":[{"role":"user","content":"a\nb"},{"role":"assistant","content":"x"},
			{"role":"user","content":[{"type":"text","text":"<system-reminder>\nc\n</system-reminder>"},{"type":"image_url","image_url":{"url":"http://i"}},{"type":"text","text":"d"}]},
			{"role":"assistant","content":"y\nz"},{"role":"user","content":[{"type":"image_url","image_url":{"url":"http://i"}}]}]}`,
		},
		"a turn of the model in several messages": {
			`{"max_tokens":9,"messages":[{"role":"user","content":"a"},{"role":"assistant","content":[{"type":"thinking","thinking":"h"},{"type":"tool_use","id":"t","name":"f"}]},
			{"role":"assistant","content":[{"type":"thinking","thinking":"m"},{"type":"tool_use","id":"u","name":"g"}]},{"role":"user","content":[{"type":"tool_result","tool_use_id":"t"}]}]}`,
			`{"max_tokens":9,"messages":[{"role":"user","content":"a"},{"role":"assistant","content":null,"reasoning_content":"h\nm","tool_calls":[
			{"id":"t","type":"function","function":{"name":"f","arguments":"{}"}},{"id":"u","type":"function","function":{"name":"g","arguments":"{}"}}]},
			{"role":"tool","content":"","tool_call_id":"t"}]}`,
		},
		"results of tools in several messages": {
			`{"max_tokens":9,"messages":[{"role":"user","content":"a"},{"role":"assistant","content":[{"type":"tool_use","id":"t","name":"f"},{"type":"tool_use","id":"u","name":"g"}]},
			{"role":"system","content":"b"},{"role":"user","content":[{"type":"tool_result","tool_use_id":"t","content":"1"},{"type":"text","text":"c"}]},
			{"role":"user","content":[{"type":"tool_result","tool_use_id":"u","content":"2"},{"type":"text","text":"d"}]}]}`,
			`{"max_tokens":9,"messages":[{"role":"user","content":"a"},{"role":"assistant","content":null,"tool_calls":[
			{"id":"t","type":"function","function":{"name":"f","arguments":"{}"}},{"id":"u","type":"function","function":{"name":"g","arguments":"{}"}}]},
			{"role":"tool","content":"1","tool_call_id":"t"},{"role":"tool","content":"2","tool_call_id":"u"},
			{"role":"user","content":"<system-reminder>\nb\n</system-reminder>\nc\nd"}]}`,
		},
		"a system message without a system prompt": {
			`{"max_tokens":9,"messages":[{"role":"system","content":"b"},{"role":"user","content":"hi"}]}`,
			`{"max_tokens":9,"messages":[{"role":"system","content":"b"},{"role":"user","content":"hi"}]}`,
		},
		"tools": {
			`{"max_tokens":9,"tools":[{"name":"f","description":"d","input_schema":{"type":"object"}}],"tool_choice":{"type":"any","disable_parallel_tool_use":true},
			"messages":[{"role":"user","content":"hi"},
			{"role":"assistant","content":[{"type":"thinking","thinking":"hm","signature":"s"},{"type":"text","text":"I ask"},
			{"type":"tool_use","id":"t1","name":"f","input":{"a":1}},{"type":"tool_use","id":"t2","name":"f"}]},
			{"role":"user","content":[{"type":"tool_result","tool_use_id":"t1","content":"one"},
			{"type":"tool_result","tool_use_id":"t2","content":[{"type":"text","text":"two"},{"type":"image","source":{"type":"base64","media_type":"image/png","data":"AA"}}]},
			{"type":"text","text":"and?"}]}]}`,
			`{"max_tokens":9,"tools":[{"type":"function","function":{"name":"f","description":"d","parameters":{"type":"object"}}}],"tool_choice":"required",
			"parallel_tool_calls":false,"messages":[{"role":"user","content":"hi"},
			{"role":"assistant","content":"I ask","reasoning_content":"hm","tool_calls":[{"id":"t1","type":"function","function":{"name":"f","arguments":"{\"a\":1}"}},
			{"id":"t2","type":"function","function":{"name":"f","arguments":"{}"}}]},
			{"role":"tool","tool_call_id":"t1","content":"one"},{"role":"tool","tool_call_id":"t2","content":"two"},
			{"role":"user","content":[{"type":"image_url","image_url":{"url":"data:image/png;base64,AA"}},{"type":"text","text":"and?"}]}]}`,
		},
		"one tool, images by address": {
			`{"max_tokens":1,"tool_choice":{"type":"tool","name":"f"},"messages":[{"role":"user","content":[
			{"type":"image","source":{"type":"url","url":"http://x/y"}},{"type":"document","source":{"type":"text","media_type":"text/plain","data":"doc"}}]}]}`,
			`{"max_tokens":1,"tool_choice":{"type":"function","function":{"name":"f"}},"messages":[{"role":"user","content":[
			{"type":"image_url","image_url":{"url":"http://x/y"}},{"type":"text","text":"doc"}]}]}`,
		},
	} {
		got, _, fault := ToChat([]byte(c.body))
		if fault != nil {
			t.Errorf("%s: %v", name, fault)
			continue
		}
		equalJSON(t, name, got, c.want)
		if _, fault := openai.Scan(openai.Chat, "application/json", got); fault != nil {
			t.Errorf("%s: the chat is refused: %v", name, fault)
		}
	}
	got, o, fault := CountToChat([]byte(`{"model":"m","stream":true,"messages":[{"role":"user","content":"hi"}]}`))
	if fault != nil || !o.Counts {
		t.Fatalf("count: %+v, %v", o, fault)
	}
	equalJSON(t, "count", got, `{"model":"m","max_tokens":1,"messages":[{"role":"user","content":"hi"}]}`)
}

// TestB9_RefusedRequests: what cannot be translated is refused by the name of its field.
func TestB9_RefusedRequests(t *testing.T) {
	t.Parallel()
	user := func(content string) string {
		return `{"max_tokens":1,"messages":[{"role":"user","content":` + content + `}]}`
	}
	for body, param := range map[string]string{
		`{"messages":[{"role":"user","content":"x"}]}`: "max_tokens",
		`{"max_tokens":1}`:               "messages",
		`{"max_tokens":1,"messages":[]}`: "messages",
		`{"max_tokens":1,"messages":[{"role":"tool","content":"x"}]}`: "messages.0.role",
		`{"max_tokens":1,"messages":[{"role":"tool","content":7}]}`:   "messages.0.role",
		user(`7`):                          "messages.0.content",
		user(`[{"text":"x"}]`):             "messages.0.content.0.type",
		user(`[{"type":"image"}]`):         "messages.0.content.0.source.type",
		user(`[7]`):                        "messages.0.content.0",
		user(`[{"type":"text"}]`):          "messages.0.content.0.text",
		user(`[{"type":"text","text":7}]`): "messages.0.content.0.text",
		user(`[{"type":"tool_result"}]`):   "messages.0.content.0.tool_use_id",
		`{"max_tokens":1,"messages":[{"role":"assistant","content":[{"type":"tool_use","name":"f"}]}]}`:                   "messages.0.content.0.id",
		`{"max_tokens":1,"messages":[{"role":"assistant","content":[{"type":"tool_use","id":"t"}]}]}`:                     "messages.0.content.0.name",
		`{"max_tokens":1,"tools":[{"name":"f"}],"messages":[{"role":"user","content":"x"}]}`:                              "tools.0.input_schema",
		`{"max_tokens":1,"tools":[{"name":"f","input_schema":7}],"messages":[{"role":"user","content":"x"}]}`:             "tools.0.input_schema",
		`{"max_tokens":1,"tool_choice":{"type":"tool"},"messages":[{"role":"user","content":"x"}]}`:                       "tool_choice.name",
		`{"max_tokens":1,"messages":[{"role":"system","content":[{"type":"image"}]}]}`:                                    "messages.0.content.0.type",
		`{"max_tokens":1,"messages":[{"role":"user","Content":"x"}]}`:                                                     "messages.0.content",
		user(`[{"type":"image","ſource":{"type":"url","url":"x"}}]`):                                                      "messages.0.content.0.source",
		user(`[{"type":"image","source":{"type":"url","URL":"x"}}]`):                                                      "messages.0.content.0.source.url",
		user(`[{"type":"tool_result","tool_use_id":"t","Content":[]}]`):                                                   "messages.0.content.0.content",
		user(`[{"type":"search_result"}]`):                                                                                "messages.0.content.0.type",
		user(`[{"type":"document","source":{"type":"base64","data":"x"}}]`):                                               "messages.0.content.0.source.type",
		user(`[{"type":"image","source":{"type":"file","file_id":"x"}}]`):                                                 "messages.0.content.0.source.type",
		user(`[{"type":"text","text":"a"},{"type":"tool_result","tool_use_id":"t","content":[{"type":"document"}]}]`):     "messages.0.content.1.content.0.source.type",
		`{"max_tokens":1,"system":[{"type":"image"}],"messages":[{"role":"user","content":"x"}]}`:                         "system.0.type",
		`{"max_tokens":1,"tools":[{"type":"web_search_20250305","name":"s"}],"messages":[{"role":"user","content":"x"}]}`: "tools.0.type",
		`{"max_tokens":1,"tools":[{}],"messages":[{"role":"user","content":"x"}]}`:                                        "tools.0.name",
		`{"max_tokens":1,"tool_choice":{"type":"many"},"messages":[{"role":"user","content":"x"}]}`:                       "tool_choice.type",
		`{"max_tokens":1,"mcp_servers":[{}],"messages":[{"role":"user","content":"x"}]}`:                                  "mcp_servers",
		`{"max_tokens":1,"thinking":7,"messages":[{"role":"user","content":"x"}]}`:                                        "thinking",
		`{"max_tokens":1,"output_format":{"type":"xml"},"messages":[{"role":"user","content":"x"}]}`:                      "output_format",
	} {
		if _, _, fault := ToChat([]byte(body)); fault == nil || fault.Param != param || fault.HTTPStatus() != 400 {
			t.Errorf("%s: %v, want a fault of %s", body, fault, param)
		}
	}
}

// TestB10_LongListsTakeLittleMemory: a body of 8 MiB whose elements take two bytes each is refused
// at its first fault. An answer of many parts takes no time that grows with their square.
func TestB10_LongListsTakeLittleMemory(t *testing.T) {
	numbers := "[" + strings.Repeat("0,", 4<<20) + "0]"
	allocated := func(do func()) uint64 {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		do()
		runtime.ReadMemStats(&after)
		return (after.TotalAlloc - before.TotalAlloc) >> 20
	}
	for param, body := range map[string]string{
		"messages.0":           `{"max_tokens":1,"messages":` + numbers + `}`,
		"messages.0.content.0": `{"max_tokens":1,"messages":[{"role":"user","content":` + numbers + `}]}`,
		"tools.0":              `{"max_tokens":1,"messages":[{"role":"user","content":"x"}],"tools":` + numbers + `}`,
	} {
		mib := allocated(func() {
			if _, _, fault := ToChat([]byte(body)); fault == nil || fault.Param != param {
				t.Errorf("%v, want a fault of %s", fault, param)
			}
		})
		if mib > 64 {
			t.Errorf("%s: %d MiB for a body of 8 MiB", param, mib)
		}
	}
	parts := strings.TrimSuffix(strings.Repeat(`{"text":"aaaaaaaaaa"},`, openai.MaxElements), ",")
	mib := allocated(func() {
		if answer, ok := FromChat([]byte(`{"choices":[{"message":{"content":[`+parts+`]}}]}`), Options{}); !ok || len(answer) < 10*openai.MaxElements {
			t.Errorf("%d bytes, %v", len(answer), ok)
		}
	})
	if mib > 256 {
		t.Errorf("%d MiB for an answer of 2 MiB", mib)
	}
}

// TestB9_Answers: what the answer to a chat is in the Messages API.
func TestB9_Answers(t *testing.T) {
	t.Parallel()
	const head = `"id":"msg_1","type":"message","role":"assistant","model":"m",`
	for name, c := range map[string]struct {
		chat, want string
		o          Options
	}{
		"text": {`{"id":"chatcmpl-1","model":"m","choices":[{"message":{"content":"hi","reasoning_content":"hm"},"finish_reason":"stop"}],
			"usage":{"prompt_tokens":10,"completion_tokens":2,"prompt_tokens_details":{"cached_tokens":4}}}`,
			`{` + head + `"content":[{"type":"text","text":"hi"}],"stop_reason":"end_turn","stop_sequence":null,
			"usage":{"input_tokens":6,"cache_read_input_tokens":4,"output_tokens":2}}`, Options{}},
		"thinking, stop sequence": {`{"id":"1","model":"m","choices":[{"message":{"content":"hi","reasoning":"hm"},"finish_reason":"stop","stop_reason":"x"}]}`,
			`{` + head + `"content":[{"type":"thinking","thinking":"hm","signature":""},{"type":"text","text":"hi"}],"stop_reason":"stop_sequence",
			"stop_sequence":"x","usage":{"input_tokens":0,"cache_read_input_tokens":0,"output_tokens":0}}`, Options{Thinking: true, Stops: []string{"y", "x"}}},
		"thinking by both names": {`{"id":"1","model":"m","choices":[{"message":{"content":"hi","reasoning":"hm","reasoning_content":"hm"},"finish_reason":"stop"}]}`,
			`{` + head + `"content":[{"type":"thinking","thinking":"hm","signature":""},{"type":"text","text":"hi"}],"stop_reason":"end_turn",
			"stop_sequence":null,"usage":{"input_tokens":0,"cache_read_input_tokens":0,"output_tokens":0}}`, Options{Thinking: true}},
		"parts": {`{"id":"1","model":"m","choices":[{"message":{"content":[{"type":"thinking","thinking":[{"type":"text","text":"h"},{"type":"text","text":"m"}]},
			{"type":"text","text":"hi"}]},"finish_reason":"stop"}]}`,
			`{` + head + `"content":[{"type":"thinking","thinking":"hm","signature":""},{"type":"text","text":"hi"}],"stop_reason":"end_turn",
			"stop_sequence":null,"usage":{"input_tokens":0,"cache_read_input_tokens":0,"output_tokens":0}}`, Options{Thinking: true}},
		"tools": {`{"id":"1","model":"m","choices":[{"message":{"content":null,"tool_calls":[
			{"id":"a","type":"function","function":{"name":"f","arguments":"{\"x\":1}"}},{"id":"b","type":"function","function":{"name":"g","arguments":""}},
			{"id":"c","type":"function","function":{"name":"h","arguments":"{\"x"}}]},"finish_reason":"tool_calls"}]}`,
			`{` + head + `"content":[{"type":"tool_use","id":"a","name":"f","input":{"x":1}},{"type":"tool_use","id":"b","name":"g","input":{}},
			{"type":"tool_use","id":"c","name":"h","input":{"arguments":"{\"x"}}],"stop_reason":"tool_use","stop_sequence":null,
			"usage":{"input_tokens":0,"cache_read_input_tokens":0,"output_tokens":0}}`, Options{}},
		"other types": {`{"id":1,"model":"m","choices":[{"message":{"content":null,"tool_calls":[
			{"id":"a","function":{"name":"f","arguments":{"x":[1]}}},{"id":null,"function":{"name":"g","arguments":null}},{"id":7,"function":{"name":"h"}}]},
			"finish_reason":"tool_calls"}],"usage":{"prompt_tokens":3.0,"completion_tokens":1e0,"prompt_tokens_details":{"cached_tokens":2.0}}}`,
			`{` + head + `"content":[{"type":"tool_use","id":"a","name":"f","input":{"x":[1]}},{"type":"tool_use","id":"toolu_1_1","name":"g","input":{}},
			{"type":"tool_use","id":"7","name":"h","input":{}}],"stop_reason":"tool_use","stop_sequence":null,
			"usage":{"input_tokens":1,"cache_read_input_tokens":2,"output_tokens":1}}`, Options{}},
		"no usage": {`{"id":"1","model":"m","choices":[{"message":{"content":"hi"},"finish_reason":"stop"}],
			"usage":{"prompt_tokens":"3","completion_tokens":2,"prompt_tokens_details":[]}}`,
			`{` + head + `"content":[{"type":"text","text":"hi"}],"stop_reason":"end_turn","stop_sequence":null,
			"usage":{"input_tokens":0,"cache_read_input_tokens":0,"output_tokens":2}}`, Options{}},
		"a list for a usage": {`{"id":"1","model":"m","choices":[{"message":{"content":"hi"},"finish_reason":"stop"}],"usage":[-1]}`,
			`{` + head + `"content":[{"type":"text","text":"hi"}],"stop_reason":"end_turn","stop_sequence":null,
			"usage":{"input_tokens":0,"cache_read_input_tokens":0,"output_tokens":0}}`, Options{}},
		"count": {`{"choices":[{}],"usage":{"prompt_tokens":10}}`, `{"input_tokens":10}`, Options{Counts: true}},
	} {
		got, ok := FromChat([]byte(c.chat), c.o)
		if !ok {
			t.Errorf("%s: not translated", name)
			continue
		}
		equalJSON(t, name, got, c.want)
	}
	for _, none := range []string{`[]`, `{}`, `{"choices":[]}`, `{"choices":[{"message":{"content":"h"},"finish_reason":"abort"}]}`} {
		if got, ok := FromChat([]byte(none), Options{}); ok {
			t.Errorf("%s is an answer: %s", none, got)
		}
	}
	for _, none := range []string{`{"choices":[{}]}`, `{"choices":[{}],"usage":{"prompt_tokens":-3}}`} {
		if got, ok := FromChat([]byte(none), Options{Counts: true}); ok {
			t.Errorf("a count without usage: %s", got)
		}
	}
}

// translateAll translates the data of events and returns the data of the translated ones.
func translateAll(o Options, data ...string) string {
	s := Stream{Options: o}
	var out []byte
	for _, d := range data {
		out = s.Append(out, []byte("data: "+d+"\n\n"))
	}
	return string(out)
}

const wantStream = `event: message_start
data: {"message":{"id":"msg_1","type":"message","role":"assistant","model":"m","content":[],"stop_reason":null,"stop_sequence":null,"usage":{"input_tokens":0,"cache_read_input_tokens":0,"output_tokens":0}},"type":"message_start"}

event: content_block_start
data: {"content_block":{"type":"thinking","thinking":"","signature":""},"index":0,"type":"content_block_start"}

event: content_block_delta
data: {"type":"content_block_delta","index":0,"delta":{"type":"thinking_delta","thinking":"hm"}}

event: content_block_stop
data: {"index":0,"type":"content_block_stop"}

event: content_block_start
data: {"content_block":{"type":"text","text":""},"index":1,"type":"content_block_start"}

event: content_block_delta
data: {"type":"content_block_delta","index":1,"delta":{"type":"text_delta","text":"a\"\n\u0001"}}

event: content_block_delta
data: {"type":"content_block_delta","index":1,"delta":{"type":"text_delta","text":"é"}}

event: content_block_stop
data: {"index":1,"type":"content_block_stop"}

event: content_block_start
data: {"content_block":{"type":"tool_use","id":"t1","name":"f","input":{}},"index":2,"type":"content_block_start"}

event: content_block_delta
data: {"type":"content_block_delta","index":2,"delta":{"type":"input_json_delta","partial_json":"{\"x\":"}}

event: content_block_delta
data: {"type":"content_block_delta","index":2,"delta":{"type":"input_json_delta","partial_json":"1}"}}

event: content_block_stop
data: {"index":2,"type":"content_block_stop"}

event: content_block_start
data: {"content_block":{"type":"tool_use","id":"t2","name":"g","input":{}},"index":3,"type":"content_block_start"}

event: content_block_stop
data: {"index":3,"type":"content_block_stop"}

event: message_delta
data: {"delta":{"stop_reason":"tool_use","stop_sequence":null},"type":"message_delta","usage":{"input_tokens":3,"cache_read_input_tokens":4,"output_tokens":5}}

event: message_stop
data: {"type":"message_stop"}

`

// TestB9_Streams: the events of a chat with reasoning, text and tools, and their translation.
func TestB9_Streams(t *testing.T) {
	t.Parallel()
	delta := func(d string) string {
		return `{"id":"chatcmpl-1","model":"m","choices":[{"index":0,"delta":` + d + `}]}`
	}
	events := []string{
		delta(`{"role":"assistant","content":""}`), delta(`{"reasoning":"hm","reasoning_content":"hm"}`), delta(`{"content":"a\"\n\u0001"}`), delta(`{"content":"é"}`),
		delta(`{"tool_calls":[{"index":0,"id":"t1","type":"function","function":{"name":"f","arguments":"{\"x\":"}}]}`),
		delta(`{"tool_calls":[{"index":0,"function":{"arguments":"1}"}}]}`),
		delta(`{"tool_calls":[{"index":1,"id":"t2","type":"function","function":{"name":"g","arguments":""}}]}`),
		`{"choices":[{"index":0,"delta":{},"finish_reason":"tool_calls"}]}`,
		`{"choices":[],"usage":{"prompt_tokens":7,"completion_tokens":5,"prompt_tokens_details":{"cached_tokens":4}}}`,
		`{"choices":[],"usage":{"prompt_tokens":"7"}}`, `[DONE]`, `[DONE]`,
	}
	if diff := cmp.Diff(wantStream, translateAll(Options{Thinking: true}, events...)); diff != "" {
		t.Error(diff)
	}
	if got := translateAll(Options{}, events...); strings.Contains(got, "thinking") {
		t.Errorf("a client that has not asked for reasoning gets some: %s", got)
	}
	for reason, want := range map[string]string{`"stop"`: "end_turn", `"length"`: "max_tokens", `"content_filter"`: "refusal",
		`"stop","stop_reason":"END"`: `stop_sequence","stop_sequence":"END`} {
		got := translateAll(Options{Stops: []string{"END"}}, delta(`{"content":"x"}`), `{"choices":[{"index":0,"delta":{},"finish_reason":`+reason+`}]}`, `[DONE]`)
		if !strings.Contains(got, `{"stop_reason":"`+want+`"`) {
			t.Errorf("finish_reason %s: %s", reason, got)
		}
	}
	got := translateAll(Options{}, delta(`{"content":"x"}`), `{"error":{"message":"out of memory","type":"server_error","code":"upstream_error"}}`, `[DONE]`)
	const want = "event: error\ndata: {\"type\":\"error\",\"error\":{\"type\":\"api_error\",\"message\":\"out of memory\",\"code\":\"upstream_error\"}}\n\n"
	if !strings.HasSuffix(got, want) {
		t.Errorf("an error: %s", got)
	}
	for _, reason := range []string{"abort", "error"} {
		got = translateAll(Options{}, delta(`{"content":"x"}`), `{"choices":[{"index":0,"delta":{},"finish_reason":"`+reason+`"}]}`, `[DONE]`)
		if !strings.Contains(got, `"type":"error","error":{"type":"api_error"`) || strings.Contains(got, "message_stop") {
			t.Errorf("finish_reason %s: %s", reason, got)
		}
	}
	got = translateAll(Options{}, `{"error":{"message":"too long","code":400}}`)
	if want := `data: {"type":"error","error":{"type":"invalid_request_error","message":"too long","code":"invalid_request"}}`; !strings.Contains(got, want) {
		t.Errorf("an error with a status: %s", got)
	}
	if got := new(Stream).Append(nil, []byte(": decode\n\n")); string(got) != ": decode\n\n" {
		t.Errorf("a comment: %s", got)
	}
}

// FuzzToChat: no body breaks the translation, and what comes out is a chat that Scan accepts or
// refuses by name.
func FuzzToChat(f *testing.F) {
	f.Add([]byte(`{"max_tokens":1,"messages":[{"role":"user","content":[{"type":"tool_result","content":[{"type":"text","text":"x"}]}]}]}`))
	f.Fuzz(func(t *testing.T, body []byte) {
		if chat, _, fault := ToChat(body); fault == nil && !json.Valid(chat) {
			t.Errorf("%q gives %q", body, chat)
		}
	})
}

// FuzzStream: no stream of chunks breaks the translation, and each of its events is JSON.
func FuzzStream(f *testing.F) {
	f.Add([]byte("data: {\"choices\":[{\"delta\":{\"content\":\"x\"}}]}\n\ndata: [DONE]\n\n"))
	f.Fuzz(func(t *testing.T, raw []byte) {
		var s Stream
		for line := range strings.SplitSeq(string(s.Append(nil, raw)), "\n") {
			if data, ok := strings.CutPrefix(line, "data: "); ok && strings.HasPrefix(data, "{\"type\":\"content_block_delta\"") && !json.Valid([]byte(data)) {
				t.Errorf("%q gives %q", raw, data)
			}
		}
	})
}

// TestB9_ForcedTools: an answer that calls a tool says so, also when its engine says that it has
// just stopped. Each of its calls has an id of its own.
func TestB9_ForcedTools(t *testing.T) {
	t.Parallel()
	const calls = `"tool_calls":[{"index":0,"type":"function","function":{"name":"f","arguments":"{}"}},{"index":1,"id":"c1","function":{"name":"g","arguments":"{}"}}]`
	whole, ok := FromChat([]byte(`{"id":"chatcmpl-1","model":"m","choices":[{"index":0,"finish_reason":"stop","message":{"content":"",`+calls+`}}]}`), Options{})
	if !ok {
		t.Fatal("no answer to a chat")
	}
	var s Stream
	events := s.Append(nil, []byte(`data: {"id":"chatcmpl-1","model":"m","choices":[{"index":0,"delta":{`+calls+`}}]}`+"\n\n"+
		`data: {"id":"chatcmpl-1","choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}`+"\n\ndata: [DONE]\n\n"))
	for name, text := range map[string]string{"whole": string(whole), "stream": string(events)} {
		for _, want := range []string{`"stop_reason":"tool_use"`, `"id":"toolu_1_0"`, `"id":"c1"`} {
			if !strings.Contains(text, want) {
				t.Errorf("%s: no %s: %s", name, want, text)
			}
		}
	}
}

// A message is the first of several answers, and ends as that one does, in whatever order the
// engine tells it.
func TestB9_EndOfSeveralAnswers(t *testing.T) {
	t.Parallel()
	const first, other = `{"index":0,"delta":{},"finish_reason":"stop","stop_reason":"END"}`, `{"index":1,"delta":{},"finish_reason":"length"}`
	const unnumbered = `{"delta":{},"finish_reason":"stop","stop_reason":"END"}`
	for _, chunks := range [][]string{{first, other}, {other, first}, {first + "," + other}, {other + "," + first}, {unnumbered, other}} {
		s := Stream{Options: Options{Stops: []string{"END"}}}
		var text []byte
		for _, c := range chunks {
			text = s.Append(text, []byte(`data: {"id":"c","choices":[`+c+"]}\n\n"))
		}
		text = s.Append(text, []byte("data: [DONE]\n\n"))
		if want := `"delta":{"stop_reason":"stop_sequence","stop_sequence":"END"}`; !strings.Contains(string(text), want) {
			t.Errorf("%q: %s", chunks, text)
		}
	}
}

// A clone goes on where the stream was, and leaves the stream as it is.
func TestB9_ClonedStreams(t *testing.T) {
	t.Parallel()
	const start = `data: {"id":"c","choices":[{"index":0,"delta":`
	events := []string{start + `{"content":"a"}}]}` + "\r\r", "\n" + start + `{"content":"b"}}]}` + "\n\n",
		start + `{"tool_calls":[{"index":0,"function":{"name":"f","arguments":"{"}}]}}]}` + "\n\n",
		start + `{"tool_calls":[{"index":0,"function":{"arguments":"}"}}]}}]}` + "\n\n",
		start + `{},"finish_reason":"stop"}]}` + "\n\n", "data: [DONE]\n\n"}
	var whole, pieces Stream
	want := whole.Append(nil, []byte(strings.Join(events, "")))
	var text []byte
	for i, e := range events {
		clone := pieces.Clone()
		rest := clone.Append(nil, []byte(strings.Join(events[i:], "")))
		if got := string(text) + string(rest); got != string(want) {
			t.Errorf("cloned before event %d: %s", i, got)
		}
		text = pieces.Append(text, []byte(e))
	}
	if string(text) != string(want) {
		t.Errorf("%s", text)
	}
}

// TestB9_StopSequences: only a stop sequence of the client is reported. Engines also name their own
// stop strings, and those that have ended a tool call.
func TestB9_StopSequences(t *testing.T) {
	t.Parallel()
	const plain, list, single = `{"max_tokens":1,"messages":[{"role":"user","content":"x"}]`, `,"stop_sequences":["x","END"]}`, `,"stop":"END"}`
	const call = `"tool_calls":[{"index":0,"id":"a","function":{"name":"f","arguments":"{}"}}]`
	for name, c := range map[string]struct{ request, said, matched, want string }{
		"the client's":                  {plain + list, `"content":"x"`, `"stop_reason":"END"`, `"stop_reason":"stop_sequence","stop_sequence":"END"`},
		"the client's, as SGLang tells": {plain + list, `"content":"x"`, `"stop_reason":null,"matched_stop":"END"`, `"stop_reason":"stop_sequence","stop_sequence":"END"`},
		"the client's, as a chat's":     {plain + single, `"content":"x"`, `"stop_reason":"END"`, `"stop_reason":"stop_sequence","stop_sequence":"END"`},
		"the engine's":                  {plain + list, `"content":"x"`, `"matched_stop":"<|im_end|>"`, `"stop_reason":"end_turn","stop_sequence":null`},
		"the engine's alone":            {plain + "}", `"content":"x"`, `"stop_reason":"<|im_end|>"`, `"stop_reason":"end_turn","stop_sequence":null`},
		"of a tool call":                {plain + list, call, `"stop_reason":"END"`, `"stop_reason":"tool_use","stop_sequence":null`},
	} {
		chat, o, fault := ToChat([]byte(c.request))
		if fault != nil {
			t.Fatal(fault)
		}
		if diff := cmp.Diff(o.Stops, StopsOf(chat)); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
		whole, _ := FromChat([]byte(`{"id":"1","choices":[{"index":0,"finish_reason":"stop",`+c.matched+`,"message":{`+c.said+`}}]}`), o)
		stream := translateAll(o, chunkOf(`{`+c.said+`}`), `{"choices":[{"index":0,"delta":{},"finish_reason":"stop",`+c.matched+`}]}`, "[DONE]")
		for way, text := range map[string]string{"whole": string(whole), "stream": stream} {
			if !strings.Contains(text, c.want) {
				t.Errorf("%s, %s: no %s: %s", name, way, c.want, text)
			}
		}
	}
}
