package queue

import (
	"bytes"
	"slices"
	"strings"
)

// maxMerged bounds a merged chunk, in bytes. Merging reads both chunks, so maxMerged bounds the
// cost of an event.
const maxMerged = 8 << 10

// merger merges two chunks by a few insertions into the first one. The other bytes of the first
// chunk stay as they are.
type merger struct {
	into, from shape
	edits      []edit
	out        []byte
}

// edit replaces a span of the first chunk, mostly an empty one, by a prefix and bytes of the second
// chunk.
type edit struct {
	span
	prefix string
	text   []byte
}

// merge merges the second event into the first one; the result is m.out. It returns false if the
// two cannot be merged without a loss.
func (m *merger) merge(into, from []byte) bool {
	if len(into)+len(from) > maxMerged || !bytes.HasPrefix(into, []byte("data:")) {
		return false
	}
	m.edits = m.edits[:0]
	if !m.from.read(from) || !m.into.read(into) || !m.sameStream() {
		return false
	}
	for i := range m.from.choices {
		if !m.choice(i) {
			return false
		}
	}
	m.usage()
	m.apply()
	return true
}

// sameStream reports whether the members that all chunks of a stream share are equal.
func (m *merger) sameStream() bool {
	for i, v := range m.into.top {
		if !bytes.Equal(m.into.bytes(v), m.from.bytes(m.from.top[i])) { // one that is absent has no bytes
			return false
		}
	}
	return true
}

// insert adds text at an offset of the first chunk.
func (m *merger) insert(at int, prefix string, text []byte) {
	m.edits = append(m.edits, edit{span: span{at, at}, prefix: prefix, text: text})
}

// member adds a named value to an object, or an unnamed one to a list.
func (m *merger) member(to *container, name string, value []byte) {
	comma := ","
	if to.members == 0 {
		comma = ""
	}
	if name != "" {
		name = `"` + name + `":`
	}
	m.insert(to.end, comma+name, value)
	to.members++
}

// put adds a value that the first chunk lacks or has as null. It returns false if the first chunk
// has another value.
func (m *merger) put(to *container, name string, old, value span) bool {
	text := m.from.bytes(value)
	switch {
	case !old.there():
		m.member(to, name, text)
	case m.into.isNull(old):
		m.edits = append(m.edits, edit{span: old, text: text})
	default:
		return false
	}
	return true
}

// absent reports whether a value of the second chunk is missing or null.
func (m *merger) absent(v span) bool { return !v.there() || m.from.isNull(v) }

// join appends a string of the second chunk to the one of the first chunk. It returns false if that
// would change the text.
func (m *merger) join(to *container, name string, old, more span) bool {
	if m.absent(more) || m.put(to, name, old, more) {
		return true
	}
	before, after := m.into.bytes(old), m.from.bytes(more)
	before, after = before[1:len(before)-1], after[1:len(after)-1]
	if splitsPair(before, after) {
		return false
	}
	m.insert(old.to-1, "", after)
	return true
}

// splitsPair reports whether each of two strings in JSON has one half of a surrogate pair. Joined
// they would become one character, apart most readers see two broken ones.
func splitsPair(before, after []byte) bool {
	if len(before) < 6 || len(after) < 6 {
		return false
	}
	before = before[len(before)-6:]
	return isSurrogate(before, "89ab") && isSurrogate(after, "cdef")
}

// isSurrogate reports whether b begins with the escape of a surrogate whose second digit is one of
// digits.
func isSurrogate(b []byte, digits string) bool {
	return b[0] == '\\' && b[1] == 'u' && b[2]|0x20 == 'd' && strings.IndexByte(digits, b[3]|0x20) >= 0
}

// choice merges a choice of the second chunk.
func (m *merger) choice(i int) bool {
	more := &m.from.choices[i]
	place := m.into.find(more.index)
	if place < 0 {
		m.member(&m.into.list, "", m.from.bytes(more.span))
		return true
	}
	c := &m.into.choices[place]
	// A chunk has no order between reasoning, text and calls, so choices with different kinds are
	// not merged.
	if c.chat != more.chat || c.kinds != 0 && more.kinds != 0 && c.kinds != more.kinds {
		return false
	}
	for k, v := range more.fields {
		if !m.join(&c.delta, fieldNames[k], c.fields[k], v) { // a choice without a delta has its text
			return false
		}
	}
	m.logprobs(c, more)
	return m.role(c, more) && m.calls(place, i)
}

func (m *merger) role(c, more *choice) bool {
	return m.absent(more.role) || m.put(&c.delta, "role", c.role, more.role) ||
		bytes.Equal(m.into.bytes(c.role), m.from.bytes(more.role))
}

// calls merges the tool calls of two choices.
func (m *merger) calls(place, from int) bool {
	c, more := &m.into.choices[place], &m.from.choices[from]
	if m.absent(more.calls) || m.put(&c.delta, "tool_calls", c.calls, more.calls) {
		return true
	}
	old := m.into.callsOf(place)
	for _, fragment := range m.from.callsOf(from) {
		k := findCall(old, fragment.index)
		if k < 0 {
			m.member(&c.callList, "", m.from.bytes(fragment.span))
			continue
		}
		if !m.call(&old[k], &fragment) {
			return false
		}
	}
	return true
}

func (m *merger) call(old, more *call) bool {
	if more.head || !m.absent(more.typ) && !bytes.Equal(m.into.bytes(old.typ), m.from.bytes(more.typ)) {
		return false
	}
	return m.absent(more.args) || old.function.end > 0 && m.join(&old.function, "arguments", old.args, more.args)
}

// logprobs appends the entries of the second chunk.
func (m *merger) logprobs(c, more *choice) {
	if m.absent(more.logprobs) || m.put(&c.container, "logprobs", c.logprobs, more.logprobs) {
		return
	}
	for i, v := range more.lists {
		if m.absent(v) || m.put(&c.logs, listNames[i], c.lists[i], v) || more.listed[i].members == 0 {
			continue
		}
		entries := m.from.bytes(v)
		m.member(&c.listed[i], "", entries[1:len(entries)-1])
	}
}

// usage keeps the newest usage.
func (m *merger) usage() {
	v := m.from.usage
	if m.absent(v) || m.put(&m.into.object, "usage", m.into.usage, v) {
		return
	}
	m.edits = append(m.edits, edit{span: m.into.usage, text: m.from.bytes(v)})
}

// apply writes the first chunk with the edits to m.out.
func (m *merger) apply() {
	slices.SortStableFunc(m.edits, func(a, b edit) int { return a.from - b.from })
	out, at := m.out[:0], 0
	for i := range m.edits {
		e := &m.edits[i]
		out = append(out, m.into.raw[at:e.from]...)
		out = append(out, e.prefix...)
		out = append(out, e.text...)
		at = e.to
	}
	out = append(out, m.into.raw[at:]...)
	m.out = out
}
