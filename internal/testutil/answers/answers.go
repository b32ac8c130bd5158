// Package answers has answers of engines, and what a reader must find in them. Tests of package xds
// use it for Envoy's own filters, and tests of package envoy/filter for Sluice's filter.
package answers

import (
	"bytes"
	"compress/gzip"
	"fmt"
	"io"
	"strings"
	"testing"
)

// Answer is a response of an engine.
type Answer struct {
	ContentType, Encoding string
	// Status is the status; 0 means 200.
	Status int
	// Pieces are sent one by one. A single piece is sent with its length.
	Pieces []string
	// Cut means that the connection ends in the middle of the response. Trailed means that the
	// response has trailers.
	Cut, Trailed bool
	// Want is what a reader finds. Empty means nothing reliable.
	Want string
	// Unlimited is what a reader without limits of size finds, if it is not Want.
	Unlimited string
}

// Content types and pieces that many answers have.
const (
	JSON      = "application/json"
	SSE       = "text/event-stream"
	someChunk = `data: {"id":"c","object":"chat.completion.chunk","model":"m","choices":[{"index":0,"delta":{"content":"ü"}},{"index":1}]%s}` + "\n\n"
	LastChunk = `data: {"id":"c","object":"chat.completion.chunk","choices":[],"usage":{"prompt_tokens":7,"completion_tokens":11,"total_tokens":18}}` + "\n\n"
	DoneChunk = "data: [DONE]\n\n"
	wholeChat = `{"id":"c","object":"chat.completion","model":"m","choices":[{"index":0,"message":{"role":"assistant","content":"hi"}},{"index":1}],` +
		`"usage":{"prompt_tokens":7,"completion_tokens":11,"total_tokens":18,"prompt_tokens_details":null}}`
)

// chunks returns a stream of five chunks and a last one. The first chunks have the members more.
func chunks(last string, more ...string) []string {
	more = append(more, make([]string, 5)...)
	var pieces []string
	for _, m := range more[:5] {
		pieces = append(pieces, fmt.Sprintf(someChunk, m))
	}
	return append(pieces, last, DoneChunk)
}

func zipped(t testing.TB, text string) string {
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	if _, err := io.WriteString(w, text); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

// Whole returns answers that are no streams. Want is their usage: tokens of the prompt and of the
// answer, or the total and -1 if the engine tells nothing else.
func Whole(t testing.TB) map[string]Answer {
	one := func(body, want string) Answer {
		return Answer{ContentType: JSON, Pieces: []string{body}, Want: want}
	}
	numbers := func(n int) string {
		return `{"object":"list","data":[{"embedding":[` + strings.Repeat("0.012345,", n) + `1]}],"usage":{"prompt_tokens":7,"total_tokens":7}}`
	}
	words := func(size int) string {
		return `{"choices":[{"message":{"content":"` + strings.Repeat("x", size) + `"}}],"usage":{"prompt_tokens":7,"completion_tokens":11}}`
	}
	return map[string]Answer{
		"chat":             one(wholeChat, "7 11"),
		"charset":          {ContentType: JSON + "; charset=utf-8", Pieces: []string{wholeChat}, Want: "7 11"},
		"in pieces":        {ContentType: JSON, Pieces: strings.SplitAfter(wholeChat, ","), Want: "7 11"},
		"trailers":         {ContentType: JSON, Pieces: []string{wholeChat, "\n"}, Trailed: true, Want: "7 11"},
		"completion":       one(`{"object":"text_completion","choices":[{"text":"a"}],"usage":{"prompt_tokens":3,"completion_tokens":4}}`, "3 4"),
		"embeddings":       one(`{"object":"list","data":[{"embedding":[0.1]}],"usage":{"prompt_tokens":7,"total_tokens":7}}`, "7 0"),
		"score":            one(`{"data":[{"score":0.1}],"usage":{"prompt_tokens":7,"total_tokens":7,"completion_tokens":0}}`, "7 0"),
		"rerank":           one(`{"results":[],"usage":{"total_tokens":7}}`, "7 -1"),
		"rerank, 0 made":   one(`{"results":[],"usage":{"completion_tokens":0,"total_tokens":7}}`, "7 -1"),
		"responses":        one(`{"object":"response","output":[],"usage":{"input_tokens":5,"output_tokens":6,"total_tokens":11}}`, "5 6"),
		"no usage":         one(`{"object":"chat.completion","choices":[]}`, ""),
		"null":             one(`{"object":"chat.completion","choices":[],"usage":null}`, ""),
		"error":            {ContentType: JSON, Status: 400, Pieces: []string{`{"error":{"message":"no"}}`}},
		"error with usage": {ContentType: JSON, Status: 500, Pieces: []string{wholeChat}},
		"half":             one(wholeChat[:len(wholeChat)-40], ""),
		"nonsense":         one(`{"usage":{"prompt_tokens":"many","completion_tokens":-1}}`, ""),
		"words":            one(`{"usage":{"prompt_tokens":7,"completion_tokens":"11"}}`, ""),
		"both names":       one(`{"usage":{"prompt_tokens":7,"completion_tokens":11,"input_tokens":0,"output_tokens":0}}`, "7 11"),
		"array":            one(`[`+wholeChat+`]`, "7 11"),
		"deep":             one(strings.Repeat("[", 200_000), ""),
		"empty":            one("", ""),
		"text":             {ContentType: "text/plain", Pieces: []string{wholeChat}},
		"gzip":             {ContentType: JSON, Encoding: "gzip", Pieces: []string{zipped(t, wholeChat)}},
		"5 MB":             one(words(5<<20), "7 11"),
		"20 MB":            {ContentType: JSON, Pieces: []string{words(20 << 20)}, Unlimited: "7 11"},
		"20 MB in pieces":  {ContentType: JSON, Pieces: []string{words(20 << 20), "\n"}, Unlimited: "7 11"},
		"200,000 numbers":  one(numbers(200_000), "7 0"),
		// Envoy stops reading beyond 2^18 values.
		"300,000 numbers": {ContentType: JSON, Pieces: []string{numbers(300_000)}, Unlimited: "7 0"},
	}
}

// Streams returns streams. Want is their usage.
func Streams(t testing.TB) map[string]Answer {
	some := func(want string, pieces ...string) Answer {
		return Answer{ContentType: SSE, Pieces: pieces, Want: want}
	}
	all := strings.Join(chunks(LastChunk), "")
	first := fmt.Sprintf(someChunk, "")
	first1, second2 := `,"usage":{"prompt_tokens":7,"completion_tokens":1}`, `,"usage":{"prompt_tokens":7,"completion_tokens":2}`
	return map[string]Answer{
		"plain":          some("7 11", chunks(LastChunk)...),
		"charset":        {ContentType: SSE + "; charset=utf-8", Pieces: chunks(LastChunk), Want: "7 11"},
		"in one":         some("7 11", all),
		"split":          some("7 11", strings.SplitAfter(all, "t")...),
		"trailers":       {ContentType: SSE, Pieces: chunks(LastChunk), Trailed: true, Want: "7 11"},
		"CRLF":           some("7 11", strings.SplitAfter(strings.ReplaceAll(all, "\n", "\r\n"), "\r")...),
		"CR":             some("7 11", strings.ReplaceAll(all, "\n", "\r")),
		"no usage":       some("", chunks("")...),
		"null":           some("", chunks("", `,"usage":null`)...),
		"null at first":  some("7 11", chunks(LastChunk, `,"usage":null`, `,"usage":null`)...),
		"in each":        some("7 11", chunks(LastChunk, first1, second2)...),
		"in each but":    some("7 2", chunks("", first1, second2)...),
		"no DONE":        some("7 11", first, LastChunk),
		"no last LF":     some("", first, strings.TrimSuffix(LastChunk, "\n")),
		"comments":       some("7 11", ": ping\n\n", "\n", first, ": ping\n\n", LastChunk, DoneChunk),
		"a broken event": some("", chunks(LastChunk, `,"x":`)...),
		"an error":       some("", first, `data: {"error":{"message":"no","code":500}}`+"\n\n", DoneChunk),
		"ends within":    some("", chunks("", first1)[0], `data: {"choices":[`),
		"empty data":     some("7 11", "data:\n\n", first, "data: \n\n", LastChunk, DoneChunk),
		"after the end":  some("7 11", first, LastChunk, DoneChunk, fmt.Sprintf(someChunk, first1)),
		"a big event": {ContentType: SSE, Unlimited: "7 11", Pieces: []string{
			`data: {"x":"` + strings.Repeat("y", 2<<20) + "\"}\n\n", LastChunk, DoneChunk}},
		"empty": some("", ""),
		"cut":   {ContentType: SSE, Cut: true, Pieces: []string{fmt.Sprintf(someChunk, first1), LastChunk}},
		"gzip":  {ContentType: SSE, Encoding: "gzip", Pieces: []string{zipped(t, all)}},
		"completions": some("1 2", `data: {"object":"text_completion","choices":[{"text":"a"}]}`+"\n\n",
			`data: {"object":"text_completion","choices":[],"usage":{"prompt_tokens":1,"completion_tokens":2}}`+"\n\n", DoneChunk),
		"responses": some("5 6", `event: response.created`+"\n"+`data: {"type":"response.created","response":{"usage":null}}`+"\n\n",
			`event: response.output_text.delta`+"\n"+`data: {"type":"response.output_text.delta","delta":"x"}`+"\n\n",
			`event: response.completed`+"\n"+`data: {"type":"response.completed","response":{"usage":{"input_tokens":5,"output_tokens":6}}}`+"\n\n"),
	}
}

// Messages returns answers of the Messages API. Want is their usage.
func Messages() map[string]Answer {
	const started = "event: message_start\n" + `data: {"type":"message_start","message":{"content":[],"usage":{"input_tokens":5,` +
		`"cache_read_input_tokens":3,"cache_creation_input_tokens":2,"output_tokens":1}}}` + "\n\n"
	const word = "event: content_block_delta\n" + `data: {"type":"content_block_delta","delta":{"type":"text_delta","text":"a"}}` + "\n\n"
	const last = "event: message_delta\n" + `data: {"type":"message_delta","delta":{"stop_reason":"end_turn"},"usage":{"output_tokens":9}}` + "\n\n"
	const stop = "event: message_stop\n" + `data: {"type":"message_stop"}` + "\n\n"
	return map[string]Answer{
		"whole":  {ContentType: JSON, Pieces: []string{`{"type":"message","content":[],"usage":{"input_tokens":5,"output_tokens":6}}`}, Want: "5 6"},
		"cached": {ContentType: JSON, Pieces: []string{`{"usage":{"input_tokens":5,"cache_read_input_tokens":4,"output_tokens":6}}`}, Want: "9 6"},
		"stream": {ContentType: SSE, Pieces: []string{started, word, last, stop}, Want: "10 9"},
		"cut":    {ContentType: SSE, Pieces: []string{started, word}, Cut: true},
	}
}

// Delta returns a chunk of a chat whose only choice has this delta, and these further members.
func Delta(text, more string) string {
	return `data: {"id":"c","object":"chat.completion.chunk","choices":[{"index":0,"delta":{` + text + `}` + more + `}]}` + "\n\n"
}

// Events returns streams. Want is what a reader of events finds: the number of those with a part of
// the answer, whether there was an end marker, and the finish reason.
func Events() map[string]Answer {
	const finish = `,"finish_reason":"stop"`
	role, word, last := Delta(`"role":"assistant","content":""`, ""), Delta(`"content":"a"`, `,"finish_reason":null`), Delta("", finish)
	whole := []string{role, word, word, word, last, LastChunk, DoneChunk}
	some := func(want string, pieces ...string) Answer {
		return Answer{ContentType: SSE, Pieces: pieces, Want: want}
	}
	event := func(kind, rest string) string {
		return "event: " + kind + "\ndata: " + `{"type":"` + kind + `",` + rest + "}\n\n"
	}
	return map[string]Answer{
		"plain":        some("3 1 stop", whole...),
		"in one":       some("3 1 stop", strings.Join(whole, ""), ""),
		"split":        some("3 1 stop", strings.SplitAfter(strings.Join(whole, ""), "t")...),
		"byte by byte": some("3 1 stop", strings.Split(strings.Join(whole, ""), "")...),
		"CRLF":         some("3 1 stop", strings.SplitAfter(strings.ReplaceAll(strings.Join(whole, ""), "\n", "\r\n"), "\r")...),
		"spaces":       some("1 0 length", `data: {"choices": [{"index": 0, "delta": {"content": "a"}, "finish_reason": "length"}]}`+"\n\n", ""),
		"no end":       some("1 0 -", word, ""),
		"comments":     some("1 1 -", ": ping\n\n", word, ": \"content\":\"a\"\n\n", DoneChunk),
		"quoted":       some("1 1 -", Delta(`"content":"\"finish_reason\":\"stop\",\"content\":\"b\""`, ""), DoneChunk),
		"tool calls": some("2 1 tool_calls",
			Delta(`"tool_calls":[{"index":0,"function":{"name":"f","arguments":""}}]`, ""),
			Delta(`"tool_calls":[{"index":0,"function":{"arguments":"{"}}]`, ""),
			Delta("", `,"finish_reason":"tool_calls"`),
			DoneChunk),
		"reasoning": some("2 1 stop", Delta(`"reasoning_content":"a","content":null`, ""), word, last, DoneChunk),
		"completions": some("2 1 stop",
			`data: {"choices":[{"text":"a"}]}`+"\n\n",
			`data: {"choices":[{"text":"b","finish_reason":"stop"}]}`+"\n\n",
			DoneChunk),
		"a long event": some("2 1 -", word, Delta(`"logprobs":"`+strings.Repeat("x", 200_000)+`"`, ""), word, DoneChunk),
		"two choices": some("2 1 length",
			Delta(`"content":"a"`, ""),
			`data: {"choices":[{"index":1,"delta":{"content":"b"}}]}`+"\n\n",
			Delta("", `,"finish_reason":"length"`),
			DoneChunk),
		"responses": some("2 1 stop",
			event("response.created", `"response":{"status":"in_progress"}`),
			event("response.output_text.delta", `"delta":"a"`),
			event("response.output_text.delta", `"delta":"b"`),
			event("response.output_text.done", `"text":"ab"`),
			event("response.completed", `"response":{}`)),
		"responses with the type last": some("2 1 length",
			`data: {"response":{"status":"in_progress"},"type":"response.created"}`+"\n\n",
			`data: {"delta":"a","type":"response.output_text.delta"}`+"\n\n",
			`data: {"delta":"b","type":"response.output_text.delta"}`+"\n\n",
			`data: {"part":{"text":"ab","type":"output_text"},"type":"response.content_part.done"}`+"\n\n",
			`data: {"response":{"output":[{"content":[{"text":"ab","type":"output_text"}],"type":"message"}]},"type":"response.incomplete"}`+"\n\n"),
		"a long response": some("1 1 stop",
			"event: response.output_text.delta\n"+`data: {"delta":"a","type":"response.output_text.delta"}`+"\n\n",
			"event: response.completed\n"+`data: {"response":{"output":[{"content":[{"text":"`+strings.Repeat("x", 200_000)+
				`","type":"output_text"}],"type":"message"}]},"type":"response.completed"}`+"\n\n"),
		"messages": some("1 1 end_turn",
			event("message_start", `"message":{"content":[],"stop_reason":null}`),
			event("content_block_start", `"content_block":{"type":"text","text":""}`),
			event("content_block_delta", `"delta":{"type":"text_delta","text":"a"}`),
			event("message_delta", `"delta":{"stop_reason":"end_turn"}`),
			event("message_stop", `"x":1`)),
		"nothing":       some("0 0 -", ""),
		"half an event": some("1 0 -", word, `data: {"choices":[{"delta":{"content":"b"`),
	}
}

// Reasons returns answers that are no streams. Want is as in Events.
func Reasons() map[string]Answer {
	one := func(body, want string) Answer {
		return Answer{ContentType: JSON, Pieces: []string{body}, Want: want}
	}
	const chat = `{"choices":[{"message":{"content":"a"},"finish_reason":"length"}],"usage":{"prompt_tokens":1,"completion_tokens":2}}`
	return map[string]Answer{
		"chat":     one(chat, "0 0 length"),
		"in parts": {ContentType: JSON, Pieces: strings.SplitAfter(chat, "i"), Want: "0 0 length"},
		"no JSON":  one("nothing", "0 0 -"),
	}
}
