package sim

import (
	"encoding/json"
	"strconv"
	"strings"

	"github.com/cespare/xxhash/v2"
)

// quoteWords is how many of the caller's words an answer repeats, and quoteBytes bounds words that are not words.
const (
	quoteWords = 12
	quoteBytes = 160
)

// fillerText is what an answer goes on with when it has to be longer than it is (min_tokens, ignore_eos).
const fillerText = " I was asked for more words than I have, so I count the waves instead. One comes in, one goes out," +
	" and the next is already on its way. None of them knows anything either."

// piece is one token of an answer.
type piece struct {
	text string
	call int  // 0: text for the reader; n: belongs to the n-th tool call
	head bool // opens its tool call: no text of its own
}

// toolCall is one function that the answer asks the caller to run.
type toolCall struct {
	id, name, arguments string
}

// answer is what one choice will say.
type answer struct {
	pieces []piece
	calls  []toolCall
	filler []string
	limit  int    // tokens that will be generated
	finish string // stop, length or tool_calls
}

// at is the i-th token, for any i ≥ 0.
func (a *answer) at(i int) piece {
	if i < len(a.pieces) {
		return a.pieces[i]
	}
	return piece{text: a.filler[(i-len(a.pieces))%len(a.filler)]}
}

// text is all that the reader gets.
func (a *answer) text() string {
	var b strings.Builder
	for i := range a.limit {
		if p := a.at(i); p.call == 0 {
			b.WriteString(p.text)
		}
	}
	return b.String()
}

// ownText is what the prompt of the next turn repeats of this answer; with tool calls that is not known.
func (a *answer) ownText() string {
	if len(a.calls) > 0 {
		return ""
	}
	return a.text()
}

// made are the tool calls as far as they were generated.
func (a *answer) made() []toolCall {
	var calls []toolCall
	for _, p := range a.pieces[:min(a.limit, len(a.pieces))] {
		switch {
		case p.head:
			c := a.calls[p.call-1]
			calls = append(calls, toolCall{id: c.id, name: c.name})
		case p.call > 0:
			calls[len(calls)-1].arguments += p.text
		}
	}
	return calls
}

// question is what answers are made from.
type question struct {
	from   string // how the engine calls itself
	last   string // what the caller said last
	tool   bool   // last is the result of a tool
	turn   int    // how many times the caller has spoken
	seed   int64  // the request's
	choice int
	format *format
	tools  toolUse
}

// format is the request's wish for a JSON document as its answer.
type format struct {
	Type       string `json:"type"`
	JSONSchema *struct {
		Schema any `json:"schema"`
	} `json:"json_schema"`
	// Schema stands beside Type in the Responses API.
	Schema any `json:"schema"`
}

// wanted says whether a JSON document is asked for, and with which schema.
func (f *format) wanted() (schema any, ok bool) {
	switch {
	case f == nil:
		return nil, false
	case f.Type == "json_object":
		return nil, true
	case f.Type == "json_schema" && f.JSONSchema != nil:
		return f.JSONSchema.Schema, true
	case f.Type == "json_schema":
		return f.Schema, true
	}
	return nil, false
}

// answerTo writes the answer to a question, without limits yet.
func (e *Engine) answerTo(q question) answer {
	a := answer{filler: e.filler, finish: "stop"}
	if calls := q.tools.calls(q); len(calls) > 0 {
		a.calls, a.finish = calls, "tool_calls"
		for i, c := range calls {
			a.pieces = append(a.pieces, piece{call: i + 1, head: true})
			for _, t := range tokenize(c.arguments) {
				a.pieces = append(a.pieces, piece{text: t, call: i + 1})
			}
		}
		return a
	}
	text := e.sentences(q)
	if schema, ok := q.format.wanted(); ok {
		text = document(schema, q)
	}
	for _, t := range tokenize(text) {
		a.pieces = append(a.pieces, piece{text: t})
	}
	return a
}

// document is the answer to a caller who wants JSON.
func document(schema any, q question) string {
	if schema == nil {
		schema = map[string]any{"type": "object", "required": []any{"simulated", "you_said"}, "properties": map[string]any{
			"simulated": map[string]any{"const": true},
			"you_said":  map[string]any{"const": quote(q.last)},
		}}
	}
	return string(sampleJSON(schema, topic(q.last)))
}

// sentences is the answer in prose.
func (e *Engine) sentences(q question) string {
	var b strings.Builder
	b.WriteString("Hello from " + q.from + ". ")
	if q.turn > 1 {
		b.WriteString("This is turn " + strconv.Itoa(q.turn) + " of our conversation. ")
	}
	if said := quote(q.last); said != "" && q.tool {
		b.WriteString("Your tool answered: “" + said + "”. ")
	} else if said != "" {
		b.WriteString("You said: “" + said + "”. ")
	}
	about := topic(q.last)
	remarks := [...]string{
		"A real model would have a lot to say about “" + about + "”; I only know how to count tokens.",
		"I have never met a model, but I am told they like to think about “" + about + "”.",
		"No model was asked, so please take nothing I say about “" + about + "” as advice.",
		"If this were a real answer, “" + about + "” would be explained by now, with examples.",
		"I would gladly tell you more about “" + about + "”, but these words are made up by a small program.",
	}
	b.WriteString(remarks[e.draw(q)%uint64(len(remarks))])
	return b.String()
}

// draw is a number that depends on the question and on the seeds alone.
func (e *Engine) draw(q question) uint64 {
	d := xxhash.NewWithSeed(e.config.Seed)
	_, _ = d.WriteString(q.last + "\x00" + strconv.FormatInt(q.seed, 10) + "\x00" + strconv.Itoa(q.choice))
	return d.Sum64() >> 8
}

// quote is the beginning of what was said, on one line.
func quote(said string) string {
	var b strings.Builder
	n := 0
	for word := range strings.FieldsSeq(said) {
		if n == quoteWords || b.Len()+len(word) > quoteBytes {
			b.WriteString(" …")
			break
		}
		if n > 0 {
			b.WriteByte(' ')
		}
		b.WriteString(word)
		n++
	}
	return strings.TrimRight(strings.TrimSpace(b.String()), ".")
}

// topic is the longest word of the beginning, the first of several.
func topic(said string) string {
	longest := ""
	for word := range strings.FieldsSeq(quote(said)) {
		word = strings.Trim(word, ".,;:!?…\"'`()[]{}<>“”„«»*#/\\|-_=+")
		if len(word) > len(longest) {
			longest = word
		}
	}
	if longest == "" {
		return "it"
	}
	return longest
}

// limits are the request's bounds on the length of an answer.
type limits struct {
	most      int // 0: none
	least     int
	ignoreEOS bool // go on to most whatever there is to say
}

// bound applies the limits to an answer.
func (l limits) bound(a *answer) {
	a.limit = len(a.pieces)
	if len(a.calls) == 0 { // nothing sensible can follow tool calls
		a.limit = max(a.limit, l.least)
		if l.ignoreEOS {
			a.limit = max(a.limit, l.most)
		}
	}
	if l.most > 0 && (a.limit > l.most || l.ignoreEOS && len(a.calls) == 0) {
		a.limit, a.finish = l.most, "length"
	}
}

// fragment is a request's string, or anything else as its raw JSON.
func fragment(raw json.RawMessage) string {
	var s string
	if json.Unmarshal(raw, &s) == nil {
		return s
	}
	return string(raw)
}
