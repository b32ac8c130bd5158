package filter

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/sluice-gateway/sluice/internal/headers"
	"github.com/sluice-gateway/sluice/internal/telemetry"
	"github.com/sluice-gateway/sluice/internal/testutil/answers"
)

// ask writes an answer for the program harness/read.c.
func ask(to *bytes.Buffer, wanted string, a answers.Answer, pieces []string) {
	ended, status, encoding := 1, a.Status, a.Encoding
	if a.Cut {
		ended = 0
	}
	status = cmp.Or(status, 200)
	encoding = cmp.Or(encoding, "-")
	fmt.Fprintf(to, "%s %d %d %d %s %s\n", wanted, ended, status, len(pieces), strings.ReplaceAll(a.ContentType, " ", ""), encoding)
	for _, p := range pieces {
		fmt.Fprintf(to, "%d\n%s", len(p), p)
	}
}

// TestB6_R3_WhatIsReadOfResponses compares what the filter reads of each answer with what Envoy's
// own filters read of it. It does not matter how an answer is divided.
func TestB6_R3_WhatIsReadOfResponses(t *testing.T) {
	usage := map[string]map[string]answers.Answer{headers.UsageOfOpenAI: answers.Whole(t), headers.UsageOfMessages: answers.Messages()}
	for name, a := range answers.Streams(t) {
		usage[headers.UsageOfOpenAI]["stream of "+name] = a
	}
	events := answers.Events()
	maps.Copy(events, answers.Reasons())
	type read struct {
		name, want string
		of         func(fields map[string]string) string
	}
	var reads []read
	var in bytes.Buffer
	add := func(name, wanted, want string, a answers.Answer, of func(map[string]string) string) {
		body := strings.Join(a.Pieces, "")
		ways := [][]string{a.Pieces, {body}}
		if len(body) < 10_000 {
			ways = append(ways, strings.Split(body, ""), slices.Collect(chunks(body, 7)))
		}
		for i, pieces := range ways {
			ask(&in, wanted, a, pieces)
			reads = append(reads, read{fmt.Sprint(name, ", ", i), want, of})
		}
	}
	for wanted, all := range usage {
		for name, a := range all {
			add("usage of "+name, wanted, a.Want+a.Unlimited, a, usageIn)
		}
	}
	for name, a := range events {
		add("events of "+name, headers.UsageOfOpenAI+headers.UsageAndStream, a.Want, a, func(fields map[string]string) string {
			r := telemetry.ReadingOf(fields["read"])
			if want := len(strings.Join(a.Pieces, "")); r == nil || r.Bytes != int64(want) {
				return fmt.Sprintf("%+v, and the answer has %d bytes", r, want)
			}
			return eventsIn(fields)
		})
	}
	underSanitizers(t, "read", func(t *testing.T, program, _ string) {
		lines := linesOf(t, program, in.Bytes(), len(reads))
		for i, r := range reads {
			if got := r.of(fieldsOf(lines[i])); got != r.want {
				t.Errorf("%s: read %q, want %q: %s", r.name, got, r.want, lines[i])
			}
		}
	})
}

// TestB6_R3_EventsThatBeginAlike compares what the filter reads of the same streams in three forms.
// In whole streams, and where each event comes alone, it reads no event that differs from an
// earlier one in its text alone. The third form is pieces that are too short for that.
func TestB6_R3_EventsThatBeginAlike(t *testing.T) {
	random := rand.New(rand.NewPCG(17, 3))
	const streams = 400
	var in bytes.Buffer
	for range streams {
		a := answers.Answer{ContentType: "text/event-stream", Cut: random.IntN(8) == 0}
		events := alike(random)
		body := strings.Join(events, "")
		wanted := []string{headers.UsageOfOpenAI, headers.UsageOfMessages}[random.IntN(2)] + headers.UsageAndStream
		ask(&in, wanted, a, []string{body})
		ask(&in, wanted, a, events)
		ask(&in, wanted, a, slices.Collect(chunks(body, 1+random.IntN(7))))
	}
	underSanitizers(t, "read", func(t *testing.T, program, _ string) {
		lines := linesOf(t, program, in.Bytes(), 3*streams)
		known := 0
		for i := 0; i < len(lines); i += 3 {
			whole, alone, parts := fieldsOf(lines[i]), fieldsOf(lines[i+1]), fieldsOf(lines[i+2])
			if whole["usage"] != "" {
				known++
			}
			for _, other := range []map[string]string{alone, parts} {
				if whole["usage"] != other["usage"] || eventsIn(whole) != eventsIn(other) {
					t.Errorf("stream %d: as a whole %v, in pieces %v", i/3, whole, other)
				}
			}
		}
		if known < streams/10 || known > streams*9/10 {
			t.Errorf("%d of %d streams tell their usage", known, streams)
		}
	})
}

// alike returns a stream of events that have long beginnings in common. A few events are malformed.
func alike(random *rand.Rand) (events []string) {
	one := func(of ...string) string { return of[random.IntN(len(of))] }
	kinds := [][]string{
		{
			`{"id":"chatcmpl-1","object":"chat.completion.chunk","choices":[{"index":0,"delta":{`, `"content":"a"}}]}`,
			`"content":""},"finish_reason":"stop"}]}`, `"content":"b\"c"}}],"usage":null}`, `"content":"d"}}],"usage":{"prompt_tokens":5,"completion_tokens":7}}`,
			`"content":"d"}}],"usage":{"prompt_tokens":5,"completion_tokens":70}}`, `"a":[1,2,{}]}}]}`,
		},
		{
			`{"id":"chatcmpl-1","choices":[{"index":0,"delta":{"role":"assistant","content":"`, `a"}}],"usage":null}`, `bc d"}}],"usage":null}`,
			`ü, 漢字"}}],"usage":null}`, `b\"c"}}],"usage":null}`, `\n"}}],"usage":null}`, `"}}],"usage":null}`, "\t" + `"}}],"usage":null}`,
			`e"},"finish_reason":"length"}],"usage":null}`, `e"},"finish_reason":"stop"}],"usage":null}`, "e\n" + `e"}}],"usage":null}`,
			`f"}}],"usage":{"prompt_tokens":5,"completion_tokens":7}}`, `f"}}],"usage":{"prompt_tokens":5,"completion_tokens":70}}`,
		},
		{`{"type":"response.`, `a.delta","delta":"x"}`, `a.delta","delta":"yz"}`, `b","delta":"x"}`, `incomplete"}`, `completed","type":"a.delta","delta":"x"}`},
		{`{"choices":[{"delta":{"content":"`, `a"}}],"usage":{"prompt_tokens":5,"completion_tokens":7}}`, `a"}}],"usage":{"prompt_tokens":5,"completion_tokens":70}}`},
		{`{"choices":[{"delta":{"content":"`, `a"},"finish_reason":"length"}]}`, `"},"finish_reason":"stop"}]}`},
		{`{"content":"\n","`, `a":"stop"}`, `stop_reason":"stop"}`},
		{`{"choices":[{"content":"\n"`, `}],"a":1}`, `],"a":1}`},
		{
			`{"type":"response.output_text.delta","item_id":"m",`, `"delta":"x"}`, `"delta":"xy","n":1}`,
			`"response":{"usage":{"input_tokens":3,"output_tokens":4}}}`, `"response":{"usage":{"input_tokens":3,"output_tokens":44}}}`,
		},
		{`{"usage":{"prompt_tokens":5,"completion_tokens":`, `7}}`, `70}}`, "\n" + `data: 1}}`},
		{`{"type":"message_delta","delta":{"stop_reason":"end_turn"},"usage":{"input_tokens":2,"output_tokens":`, `7}}`, `70,"cache_read_input_tokens":3}}`},
	}
	kind := kinds[random.IntN(len(kinds))]
	ends, blanks := []string{"\n", "\n", "\r\n", "\r"}, []string{"", " ", " "}
	line, blank := one(ends...), one(blanks...)
	for range 2 + random.IntN(16) {
		if random.IntN(8) == 0 {
			line, blank = one(ends...), one(blanks...)
		}
		text := kind[0] + one(kind[1:]...)
		switch random.IntN(24) {
		case 0:
			text = text[:random.IntN(len(text))]
		case 1:
			text = strings.Replace(text, `"`, one(`\"`, `'`, ``), 1+random.IntN(4))
		case 2, 3, 4:
			text = one("[DONE]", `{"usage":{"prompt_tokens":9,"completion_tokens":2,"input_tokens":9,"output_tokens":2}}`, "", " ")
		case 5, 6:
			events = append(events, one(": comment", "event: x", "data")+line)
		}
		events = append(events, "data:"+blank+text+line+line)
	}
	return events
}

// linesOf runs the program harness/read.c, which must write a line for each of n responses.
func linesOf(t *testing.T, program string, in []byte, n int) []string {
	t.Helper()
	ctx, stop := context.WithTimeout(t.Context(), testTimeout)
	defer stop()
	c := exec.CommandContext(ctx, program)
	c.Stdin = bytes.NewReader(in)
	out, err := c.CombinedOutput()
	lines := strings.Split(strings.TrimSuffix(string(out), "\n"), "\n")
	if err != nil || len(lines) != n {
		t.Fatalf("%v, %d lines instead of %d\n%s", err, len(lines), n, out)
	}
	return lines
}

// fieldsOf returns what a line of the program harness/read.c says.
func fieldsOf(line string) map[string]string {
	fields := map[string]string{}
	for f := range strings.SplitSeq(line, ";") {
		key, value, _ := strings.Cut(f, "=")
		fields[key] = value
	}
	return fields
}

// chunks divides a text.
func chunks(text string, size int) func(yield func(string) bool) {
	return func(yield func(string) bool) {
		for ; len(text) > size; text = text[size:] {
			if !yield(text[:size]) {
				return
			}
		}
		yield(text)
	}
}

// usageIn returns the tokens of the prompt and of the answer in what was read.
func usageIn(fields map[string]string) string {
	all := strings.Fields(fields["usage"])
	return strings.Join(all[:min(2, len(all))], " ")
}

// eventsIn returns what package answers wants of events, if the gaps are as many as they must be.
func eventsIn(fields map[string]string) string {
	r := telemetry.ReadingOf(fields["read"])
	gaps, ended, finish := int64(0), 0, r.Finish
	for _, n := range r.Gaps {
		gaps += n
	}
	if r.Ended {
		ended = 1
	}
	finish = cmp.Or(finish, "-")
	if gaps != max(0, r.Tokens-1) {
		return fmt.Sprintf("%d gaps between %d tokens", gaps, r.Tokens)
	}
	return fmt.Sprint(r.Tokens, " ", ended, " ", finish)
}
