package queue

import (
	"slices"

	"github.com/sluice-gateway/sluice/internal/openai/jsonscan"
)

// span is where a value stands in an event's bytes. The zero span is no value: that place is never
// one.
type span struct{ from, to int }

func (s span) there() bool { return s.to > 0 }

// container is an object or a list that things may be added to: where its bracket closes, and how
// many members it has.
type container struct {
	end     int
	members int
}

// Members that must be the same in both chunks of a merge.
const (
	topID = iota
	topObject
	topCreated
	topModel
	topFingerprint
	topTier
	topCount
)

// Members of a delta, and the text of a completion: strings that a merge joins.
const (
	fieldContent = iota
	fieldReasoningContent
	fieldReasoning
	fieldRefusal
	fieldText
	fieldCount
)

var fieldNames = [fieldCount]string{"content", "reasoning_content", "reasoning", "refusal", "text"}

// Members of logprobs: lists with an entry for each token, two of a chat and four of a completion.
const listCount = 6

var listNames = [listCount]string{"content", "refusal", "tokens", "token_logprobs", "top_logprobs", "text_offset"}

// shape is where everything stands in a chunk that may be merged. Reading one is strict: each
// member must be known, there once, and such that joining it with another loses nothing.
type shape struct {
	raw     []byte
	top     [topCount]span
	usage   span
	object  container
	list    container // the choices
	choices []choice
	calls   []call // of all choices

	r jsonscan.Reader
}

type choice struct {
	span
	container
	index    int64
	hasIndex bool
	chat     bool // it has a delta
	delta    container
	role     span
	fields   [fieldCount]span
	calls    span
	callList container
	logprobs span
	logs     container
	lists    [listCount]span
	listed   [listCount]container
	kinds    uint // bits of what it carries some of
}

// call is a fragment of a tool call, of the choice at that index in shape.choices.
type call struct {
	span
	choice   int // in shape.choices
	index    int64
	hasIndex bool
	head     bool // it names the call: such a fragment is never joined to another
	typ      span
	function container
	args     span
}

// kindCalls is the bit of tool calls in choice.kinds; the lower bits are those of the fields.
const kindCalls = 1 << fieldCount

// lead is the length of what stands before the data of a plain event.
const lead = len("data:")

// read reports whether a plain event has the shape of a chunk that may be merged. Its strings must
// be UTF-8: a character that an engine has split over two events must not end up in the middle of
// one.
func (s *shape) read(raw []byte) bool {
	*s = shape{raw: raw, choices: s.choices[:0], calls: s.calls[:0]}
	s.r.RequireUTF8 = true
	s.r.Reset(raw[lead:])
	return s.r.Kind() == '{' && s.members() && s.r.Valid() && len(s.choices) > 0 && s.known()
}

// known reports whether the object member says that this is a chunk of a chat or of a completion.
func (s *shape) known() bool {
	switch string(s.bytes(s.top[topObject])) {
	case `"chat.completion.chunk"`, `"text_completion"`:
		return true
	}
	return false
}

func (s *shape) bytes(v span) []byte { return s.raw[v.from:v.to] }

func (s *shape) isNull(v span) bool { return s.raw[v.from] == 'n' }

func (s *shape) pos() int { return lead + s.r.Pos() }

// value reads a value of a member that may be there once.
func (s *shape) value(to *span) bool {
	if to.there() {
		return false
	}
	at := s.r.Value()
	*to = span{lead + at.From, lead + at.To}
	return at.To > at.From
}

// text reads a string or a null of a member that may be there once.
func (s *shape) text(to *span) bool {
	k := s.r.Kind()
	return (k == '"' || k == 'n') && s.value(to)
}

// each reads the members of an object and records where the object ends. Of another value it reads
// nothing, and what follows finds a fault.
func (s *shape) each(c *container, member func(name []byte) bool) bool {
	for more := s.r.Open('{'); more; more = s.r.More('{') {
		if !member(s.r.Name()) {
			return false
		}
		c.members++
	}
	c.end = s.pos() - 1
	return true
}

func (s *shape) members() bool {
	var obfuscation span
	return s.each(&s.object, func(name []byte) bool {
		switch string(name) {
		case "id":
			return s.value(&s.top[topID])
		case "object":
			return s.value(&s.top[topObject])
		case "created":
			return s.value(&s.top[topCreated])
		case "model":
			return s.value(&s.top[topModel])
		case "system_fingerprint":
			return s.value(&s.top[topFingerprint])
		case "service_tier":
			return s.value(&s.top[topTier])
		case "obfuscation": // padding without a meaning
			return s.value(&obfuscation)
		case "usage":
			k := s.r.Kind()
			return (k == '{' || k == 'n') && s.value(&s.usage)
		case "choices":
			return s.list.end == 0 && s.readChoices()
		case "error", "prompt_token_ids", "prompt_logprobs", "kv_transfer_params":
			return s.r.Null()
		}
		return false
	})
}

func (s *shape) readChoices() bool {
	for more := s.r.Open('['); more; more = s.r.More('[') {
		c := choice{span: span{from: s.pos()}}
		if !s.choice(&c) || !c.hasIndex || s.find(c.index) >= 0 {
			return false
		}
		c.to = s.pos()
		s.choices = append(s.choices, c)
		s.list.members++
	}
	s.list.end = s.pos() - 1
	return true
}

// find returns the position in s.choices of the choice with that index, and -1 when there is none.
func (s *shape) find(index int64) int {
	return slices.IndexFunc(s.choices, func(c choice) bool { return c.index == index })
}

func (s *shape) choice(c *choice) bool {
	ok := s.each(&c.container, func(name []byte) bool {
		switch string(name) {
		case "index":
			again := c.hasIndex
			c.index, c.hasIndex = s.r.Int()
			return !again
		case "delta":
			if c.chat {
				return false
			}
			c.chat = true
			return s.readDelta(c)
		case "text":
			return s.text(&c.fields[fieldText])
		case "logprobs":
			return !c.logprobs.there() && s.readLogprobs(c)
		case "finish_reason", "stop_reason", "token_ids", "prompt_token_ids", "prompt_logprobs":
			return s.r.Null()
		}
		return false
	})
	c.carries(s)
	return ok && c.chat != c.fields[fieldText].there()
}

// carries sets the bits of kinds: what the choice has some of.
func (c *choice) carries(s *shape) {
	for i, v := range c.fields {
		if v.there() && !s.isNull(v) && v.to-v.from > len(`""`) {
			c.kinds |= 1 << i
		}
	}
	if c.callList.members > 0 {
		c.kinds |= kindCalls
	}
}

// indexOf is slices.Index without an allocation for the name.
func indexOf(names []string, name []byte) int {
	return slices.IndexFunc(names, func(n string) bool { return n == string(name) })
}

func (s *shape) readDelta(c *choice) bool {
	return s.each(&c.delta, func(name []byte) bool {
		switch string(name) {
		case "role":
			return s.text(&c.role)
		case "tool_calls":
			return !c.calls.there() && s.readCalls(c)
		case "function_call", "audio":
			return s.r.Null()
		}
		i := indexOf(fieldNames[:fieldText], name)
		return i >= 0 && s.text(&c.fields[i])
	})
}
