package sim

import (
	"strconv"
	"strings"

	"github.com/cespare/xxhash/v2"
)

// quoteWords is the number of the caller's words that an answer repeats, and quoteBytes the number
// of bytes. The latter limits words that are not prose.
const (
	quoteWords = 12
	quoteBytes = 160
)

// fillerText extends an answer that is shorter than the request demands (min_tokens, ignore_eos).
const fillerText = " I was asked for more words than I have, so I count the waves instead. One comes in, one goes out," +
	" and the next is already on its way. None of them knows anything either."

// piece is one token of an answer.
type piece struct {
	text string
	// call is the number, from 1, of the tool call that the token is part of. It is 0 for text.
	call int
	// opensCall tells that the token opens its tool call. Such a token has no text.
	opensCall bool
}

// toolCall is one call of a function that the answer requests.
type toolCall struct {
	id, name, arguments string
}

// answer is the content of one choice.
type answer struct {
	pieces []piece
	calls  []toolCall
	// filler are the tokens that follow the pieces when the answer must be longer.
	filler []string
	// limit is the number of tokens that are generated.
	limit int
	// finish is the finish_reason: stop, length or tool_calls.
	finish string
}

// token returns token i, for any i ≥ 0. Beyond the pieces it returns filler.
func (a *answer) token(i int) piece {
	if i < len(a.pieces) {
		return a.pieces[i]
	}
	return piece{text: a.filler[(i-len(a.pieces))%len(a.filler)]}
}

// text returns the text of the answer, without tool calls.
func (a *answer) text() string { return a.firstText(a.limit) }

// firstText returns the text of the first n tokens of the answer, without tool calls.
func (a *answer) firstText(n int) string {
	var b strings.Builder
	for i := range n {
		if p := a.token(i); p.call == 0 {
			b.WriteString(p.text)
		}
	}
	return b.String()
}

// nextTurnText returns the text of the first n tokens that the prompt of the next turn repeats. It
// returns "" for an answer with tool calls, whose form in the next prompt is not known.
func (a *answer) nextTurnText(n int) string {
	if len(a.calls) > 0 {
		return ""
	}
	return a.firstText(n)
}

// generatedCalls returns the tool calls as far as they were generated.
func (a *answer) generatedCalls() []toolCall {
	var calls []toolCall
	for _, p := range a.pieces[:min(a.limit, len(a.pieces))] {
		switch {
		case p.opensCall:
			c := a.calls[p.call-1]
			calls = append(calls, toolCall{id: c.id, name: c.name})
		case p.call > 0:
			calls[len(calls)-1].arguments += p.text
		}
	}
	return calls
}

// question is what an answer is made from.
type question struct {
	// engineName is the name of the engine in the answer.
	engineName string
	// lastMessage is the last message of the user, or the last result of a tool.
	lastMessage string
	// isToolResult tells that lastMessage is the result of a tool.
	isToolResult bool
	// turn is the number of messages of the user.
	turn int
	// seed is the seed of the request.
	seed int64
	// choice is the index of the choice that the answer is for.
	choice int
	format *format
	tools  toolUse
}

// format is a request's demand for a JSON document as its answer.
type format struct {
	Type       string `json:"type"`
	JSONSchema *struct {
		Schema any `json:"schema"`
	} `json:"json_schema"`
	// Schema is used by the Responses API, which puts it beside Type.
	Schema any `json:"schema"`
}

// jsonSchema tells whether a JSON document is demanded, and returns its schema; nil if any document
// will do.
func (f *format) jsonSchema() (schema any, ok bool) {
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

// compose returns the answer to a question, without limits.
func (e *Engine) compose(q question) answer {
	a := answer{filler: e.filler, finish: "stop"}
	if calls := q.tools.toolCalls(q); len(calls) > 0 {
		a.calls, a.finish = calls, "tool_calls"
		for i, c := range calls {
			a.pieces = append(a.pieces, piece{call: i + 1, opensCall: true})
			for _, t := range tokenize(c.arguments) {
				a.pieces = append(a.pieces, piece{text: t, call: i + 1})
			}
		}
		return a
	}
	text := e.sentences(q)
	if schema, ok := q.format.jsonSchema(); ok {
		text = document(schema, q)
	}
	for _, t := range tokenize(text) {
		a.pieces = append(a.pieces, piece{text: t})
	}
	return a
}

// document returns the answer to a request for JSON.
func document(schema any, q question) string {
	if schema == nil {
		schema = map[string]any{"type": "object", "required": []any{"simulated", "you_said"}, "properties": map[string]any{
			"simulated": map[string]any{"const": true},
			"you_said":  map[string]any{"const": quote(q.lastMessage)},
		}}
	}
	return string(sampleJSON(schema, topic(q.lastMessage)))
}

// sentences returns the answer in prose.
func (e *Engine) sentences(q question) string {
	var b strings.Builder
	b.WriteString("Hello from " + q.engineName + ". ")
	if q.turn > 1 {
		b.WriteString("This is turn " + strconv.Itoa(q.turn) + " of our conversation. ")
	}
	if said := quote(q.lastMessage); said != "" && q.isToolResult {
		b.WriteString("Your tool answered: “" + said + "”. ")
	} else if said != "" {
		b.WriteString("You said: “" + said + "”. ")
	}
	about := topic(q.lastMessage)
	remarks := [...]string{
		"A real model would have a lot to say about “" + about + "”; I only know how to count tokens.",
		"I have never met a model, but I am told they like to think about “" + about + "”.",
		"No model was asked, so please take nothing I say about “" + about + "” as advice.",
		"If this were a real answer, “" + about + "” would be explained by now, with examples.",
		"I would gladly tell you more about “" + about + "”, but these words are made up by a small program.",
	}
	b.WriteString(remarks[e.hash(q)%uint64(len(remarks))])
	return b.String()
}

// hash returns a number that depends on the question and on the seeds alone.
func (e *Engine) hash(q question) uint64 {
	d := xxhash.NewWithSeed(e.config.Seed)
	_, _ = d.WriteString(q.lastMessage + "\x00" + strconv.FormatInt(q.seed, 10) + "\x00" + strconv.Itoa(q.choice))
	return d.Sum64() >> 8
}

// quote returns the beginning of a text, on one line.
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

// topic returns the longest word of the beginning of a text; of several the first.
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

// limits are the request's limits on the length of an answer.
type limits struct {
	// max is the largest number of tokens. 0: no limit.
	max int
	// min is the smallest number of tokens. A shorter answer is extended.
	min int
	// ignoreEOS extends the answer to max.
	ignoreEOS bool
}

// apply sets the length and the finish reason of an answer.
func (l limits) apply(a *answer) {
	a.limit = len(a.pieces)
	if len(a.calls) == 0 { // nothing may follow tool calls
		a.limit = max(a.limit, l.min)
		if l.ignoreEOS {
			a.limit = max(a.limit, l.max)
		}
	}
	if l.max > 0 && (a.limit > l.max || l.ignoreEOS && len(a.calls) == 0) {
		a.limit, a.finish = l.max, "length"
	}
}
