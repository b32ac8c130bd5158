package xds

import (
	"fmt"
	"maps"
	"math"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/sluice-gateway/sluice/internal/headers"
	"github.com/sluice-gateway/sluice/internal/openai/sse"
)

// delta returns a chunk of a chat whose only choice has this delta, and these further members.
func delta(text, more string) string {
	return `data: {"id":"c","object":"chat.completion.chunk","choices":[{"index":0,"delta":{` + text + `}` + more + `}]}` + "\n\n"
}

// readStreams are streams with what a reader must find: the events with a part of the answer,
// whether there was an end marker, and the finish reason.
func readStreams() map[string]costly {
	const finish = `,"finish_reason":"stop"`
	role, word, last := delta(`"role":"assistant","content":""`, ""), delta(`"content":"a"`, `,"finish_reason":null`), delta("", finish)
	whole := []string{role, word, word, word, last, lastChunk, doneChunk}
	some := func(want string, pieces ...string) costly {
		return costly{contentType: typeSSE, pieces: pieces, want: want}
	}
	event := func(kind, rest string) string {
		return "event: " + kind + "\ndata: " + `{"type":"` + kind + `",` + rest + "}\n\n"
	}
	return map[string]costly{
		"plain":         some("3 1 stop", whole...),
		"in one":        some("3 1 stop", strings.Join(whole, ""), ""),
		"split":         some("3 1 stop", strings.SplitAfter(strings.Join(whole, ""), "t")...),
		"byte by byte":  some("3 1 stop", strings.Split(strings.Join(whole, ""), "")...),
		"CRLF":          some("3 1 stop", strings.SplitAfter(strings.ReplaceAll(strings.Join(whole, ""), "\n", "\r\n"), "\r")...),
		"spaces":        some("1 0 length", `data: {"choices": [{"index": 0, "delta": {"content": "a"}, "finish_reason": "length"}]}`+"\n\n", ""),
		"no end":        some("1 0 -", word, ""),
		"comments":      some("1 1 -", ": ping\n\n", word, ": \"content\":\"a\"\n\n", doneChunk),
		"quoted":        some("1 1 -", delta(`"content":"\"finish_reason\":\"stop\",\"content\":\"b\""`, ""), doneChunk),
		"tool calls":    some("2 1 tool_calls", delta(`"tool_calls":[{"index":0,"function":{"name":"f","arguments":""}}]`, ""), delta(`"tool_calls":[{"index":0,"function":{"arguments":"{"}}]`, ""), delta("", `,"finish_reason":"tool_calls"`), doneChunk),
		"reasoning":     some("2 1 stop", delta(`"reasoning_content":"a","content":null`, ""), word, last, doneChunk),
		"completions":   some("2 1 stop", `data: {"choices":[{"text":"a"}]}`+"\n\n", `data: {"choices":[{"text":"b","finish_reason":"stop"}]}`+"\n\n", doneChunk),
		"a long event":  some("2 1 -", word, delta(`"logprobs":"`+strings.Repeat("x", 200_000)+`"`, ""), word, doneChunk),
		"two choices":   some("2 1 length", delta(`"content":"a"`, ""), `data: {"choices":[{"index":1,"delta":{"content":"b"}}]}`+"\n\n", delta("", `,"finish_reason":"length"`), doneChunk),
		"responses":     some("2 1 stop", event("response.created", `"response":{"status":"in_progress"}`), event("response.output_text.delta", `"delta":"a"`), event("response.output_text.delta", `"delta":"b"`), event("response.output_text.done", `"text":"ab"`), event("response.completed", `"response":{}`)),
		"messages":      some("1 1 end_turn", event("message_start", `"message":{"content":[],"stop_reason":null}`), event("content_block_start", `"content_block":{"type":"text","text":""}`), event("content_block_delta", `"delta":{"type":"text_delta","text":"a"}`), event("message_delta", `"delta":{"stop_reason":"end_turn"}`), event("message_stop", `"x":1`)),
		"nothing":       some("0 0 -", ""),
		"half an event": some("1 0 -", word, `data: {"choices":[{"delta":{"content":"b"`),
	}
}

// wholeReads are responses that are no streams.
func wholeReads() map[string]costly {
	one := func(body, want string) costly {
		return costly{contentType: typeJSON, pieces: []string{body}, want: want}
	}
	const chat = `{"choices":[{"message":{"content":"a"},"finish_reason":"length"}],"usage":{"prompt_tokens":1,"completion_tokens":2}}`
	return map[string]costly{
		"chat":     one(chat, "0 0 length"),
		"in parts": {contentType: typeJSON, pieces: strings.SplitAfter(chat, "i"), want: "0 0 length"},
		"no JSON":  one("nothing", "0 0 -"),
	}
}

// The reader inside Envoy finds what the relay finds in the same stream, and changes nothing.
func TestR3_ReaderOfStreams(t *testing.T) {
	t.Parallel()
	g := newGateway(t, Config{Listen: "127.0.0.1:0"}, nil)
	all := readStreams()
	maps.Copy(all, wholeReads())
	g.settle(t, "m", replica("m-0", costlyEngine(t, all)))
	for name, c := range all {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got := g.readOf(t, c, name)
			if found := fmt.Sprintf("%d %d %s", got.tokens, got.ended, got.finish); found != c.want {
				t.Errorf("read %q, want %q", found, c.want)
			}
			body := strings.Join(c.pieces, "")
			if got.bytes != len(body) {
				t.Errorf("%d bytes of %d", got.bytes, len(body))
			}
			if gaps := max(0, got.tokens-1); got.gaps() != gaps {
				t.Errorf("%v: %d gaps, want %d", got.classes, got.gaps(), gaps)
			}
			if tracked := tracked(body); c.contentType == typeSSE && name != "messages" && tracked != int64(got.tokens) {
				t.Errorf("the relay finds %d tokens, Envoy %d", tracked, got.tokens)
			}
		})
	}
}

// tracked returns how many tokens the relay finds in a stream.
func tracked(body string) int64 {
	var tracker sse.Tracker
	var scanner sse.Scanner
	scanner.Feed([]byte(body))
	scanner.End()
	for scanner.Next() {
		tracker.See(scanner.Event())
	}
	return tracker.Tokens()
}

// reading is what Envoy has read of a response.
type reading struct {
	tokens, bytes, ended int
	finish               string
	classes              map[int]int
}

func (r reading) gaps() (all int) {
	for _, n := range r.classes {
		all += n
	}
	return all
}

// readOf gets a response and returns what Envoy has read of it.
func (g *gateway) readOf(t *testing.T, c costly, name string) (r reading) {
	t.Helper()
	a := g.reads(t, c, "x-test-cluster", "model/m", "x-test-response", name, "x-test-stream", "1", "x-test-tenant", "acme",
		"x-test-usage", headers.UsageOfOpenAI+headers.UsageAndStream)
	m := g.log.wait(t, a.Header.Get(headers.RequestID)).GetCommonProperties().GetMetadata()
	text := m.GetFilterMetadata()[headers.MetadataStream].GetFields()[headers.MetadataRead].GetStringValue()
	var first, last float64
	gaps := ""
	if n, err := fmt.Sscanf(text+" ", "%d %d %f %f %d %s %s", &r.tokens, &r.bytes, &first, &last, &r.ended, &r.finish, &gaps); n < 6 {
		t.Fatalf("%q: %v", text, err)
	}
	if first > last || r.tokens > 0 && time.Since(time.UnixMicro(int64(first))) > time.Minute {
		t.Errorf("first token at %f, last at %f", first, last)
	}
	r.classes = map[int]int{}
	for pair := range strings.SplitSeq(gaps, ",") {
		class, n, _ := strings.Cut(pair, ":")
		if class != "" {
			at, _ := strconv.Atoi(class)
			r.classes[at], _ = strconv.Atoi(n)
		}
	}
	return r
}

// A stall between two events is one gap. Envoy may have read the event before it late.
func TestR3_ReaderSeesAStall(t *testing.T) {
	t.Parallel()
	const stall = 300 * time.Millisecond
	word := delta(`"content":"a"`, "")
	g := newGateway(t, Config{Listen: "127.0.0.1:0"}, nil)
	g.settle(t, "m", replica("m-0", serve(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", typeSSE)
		for n := range 10 {
			if n == 5 {
				time.Sleep(stall)
			}
			fmt.Fprint(w, word)
			w.(http.Flusher).Flush()
		}
	})))
	got := g.readOf(t, costly{pieces: []string{strings.Repeat(word, 10)}}, "")
	long := 0
	for class, n := range got.classes {
		if 10*math.Pow(1.02, float64(class)) >= float64(stall.Microseconds())/2 {
			long += n
		}
	}
	if got.tokens != 10 || got.gaps() != 9 || long != 1 {
		t.Errorf("%d tokens, %d gaps, %d of them like the stall: %v", got.tokens, got.gaps(), long, got.classes)
	}
}
