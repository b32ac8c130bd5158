package main

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/sluice-gateway/sluice/internal/bench/wire"
)

// row is a workload that all columns are measured with.
type row struct {
	// name selects the row by -only, and title describes it in tables.
	name, title string
	// clients is the number of connections, each with one request at a time.
	clients int
	// rate is the number of requests a second of all clients. 0: each client sends its next
	// request at once.
	rate int
	// prompt is the length of the prompt's text in bytes.
	prompt int
	// events is the number of tokens of a stream. 0: answers are not streamed.
	events int
	// pause is the time between two events of a stream.
	pause time.Duration
	// random makes the pauses of clients random, with the rate as their mean, or up to the pause of
	// events before each stream. So the loads of several proxies do not keep step with each other.
	random bool
}

// The clients of rows without streams.
const clients = 16

// eventPause is the pause of rows with many live streams: 40 tokens a second of each.
const eventPause = 25 * time.Millisecond

// allRows returns the rows in the order of the tables.
func allRows() []row {
	rows := []row{
		{name: "saturated", title: "small request, saturated", clients: clients, prompt: 40},
		{name: "paced", title: "small request, 400 a second", clients: clients, prompt: 40, rate: 400},
	}
	for _, kB := range []int{1, 16, 64, 400} {
		rows = append(rows, row{name: fmt.Sprint("prompt-", kB), title: fmt.Sprintf("prompt of %d KB, saturated", kB), clients: clients, prompt: kB << 10})
	}
	for _, events := range []int{32, 400} {
		for _, live := range []int{1, 50, 200} {
			r := row{name: fmt.Sprintf("stream-%d-%d", events, live), clients: live, prompt: 40, events: events, pause: eventPause}
			r.title = fmt.Sprintf("%d events, %d live, one each %v", events, live, eventPause)
			if live == 1 {
				r.pause, r.title = 0, fmt.Sprintf("%d events, 1 live, no pause", events)
			}
			rows = append(rows, r)
		}
	}
	return rows
}

func (r row) stream() bool { return r.events > 0 }

// unit is what the cost of a row is counted in.
func (r row) unit() string {
	if r.stream() {
		return "event"
	}
	return "request"
}

// pacedLeast is how long streams with pauses are measured at least. How often Envoy wakes up for
// their events depends on how the events of all streams fall together, and that changes slowly.
// With 0.7 s, single measurements differed by a third.
const pacedLeast = 3 * time.Second

// duration is how long the row is measured, if d was asked for.
func (r row) duration(d time.Duration) time.Duration {
	if r.stream() && r.pause > 0 {
		return max(d, pacedLeast)
	}
	return d
}

// selectRows returns the rows that only names: names, or their beginnings, with commas. Empty: all.
// others are the names that mean no row.
func selectRows(only string) (rows []row, others []string) {
	if only == "" {
		return allRows(), nil
	}
	names := strings.Split(only, ",")
	for _, r := range allRows() {
		if slices.ContainsFunc(names, func(n string) bool { return n != "" && strings.HasPrefix(r.name, n) }) {
			rows = append(rows, r)
		}
	}
	for _, n := range names {
		if n == "" || !slices.ContainsFunc(rows, func(r row) bool { return strings.HasPrefix(r.name, n) }) {
			others = append(others, n)
		}
	}
	return rows, others
}

func (r row) plan() wire.Plan {
	p := wire.Plan{Events: r.events, Pause: r.pause}
	if r.clients > 1 {
		p.Stagger = r.clients
	}
	return p
}

// messageBytes is the greatest length of a message in a long prompt.
const messageBytes = 4 << 10

func (r row) request(model string) *wire.Request {
	return wire.NewRequest("/v1/chat/completions", benchKey, r.body(model))
}

// body returns the body of the row's requests. Only streams of model limited ask for their usage,
// because a gateway has Envoy read each stream that does. A long prompt is a chat of many messages.
// The number that differs from request to request is in the middle of the prompt. So the gateway
// has seen the first half of each prompt before.
func (r row) body(model string) string {
	type message struct {
		Role    string `json:"role"`
		Content string `json:"content"`
	}
	text := text(r.prompt)
	half := len(text) / 2
	text = text[:half] + " " + wire.Number + " " + text[half:]
	var messages []message
	for part := range slices.Chunk([]byte(text), messageBytes) {
		role := "user"
		if len(messages)%2 == 1 {
			role = "assistant"
		}
		messages = append(messages, message{role, string(part)})
	}
	body := map[string]any{"model": model, "max_tokens": max(r.events, 32), "messages": messages}
	if r.stream() {
		body["stream"] = true
	}
	if r.stream() && model == "limited" {
		body["stream_options"] = map[string]bool{"include_usage": true}
	}
	b, err := json.Marshal(body)
	if err != nil {
		panic(err) // strings and numbers
	}
	return string(b)
}

// text returns a made-up text of about n bytes, always the same: words in lines, and some quotes,
// as programs have them.
func text(n int) string {
	source := rand.New(rand.NewPCG(1, 2)) //nolint:gosec // a made-up text
	words := strings.Fields("the of and to in that it was for on are as with his they at be this from have or by one had not but what all " +
		"func return request stream gateway replica token value error context buffer length header")
	var b strings.Builder
	for line := 0; b.Len() < n; {
		word := words[source.IntN(len(words))]
		if source.IntN(40) == 0 {
			word = `"` + word + `"`
		}
		b.WriteString(word)
		if line += len(word) + 1; line > 70 {
			b.WriteString("\n")
			line = 0
		} else {
			b.WriteString(" ")
		}
	}
	return b.String()[:n]
}
