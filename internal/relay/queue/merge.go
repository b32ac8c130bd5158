package queue

import (
	"bytes"
	"slices"
	"strings"
)

// maxMerged is the size at which a merged chunk is large enough, in bytes. Merging reads both
// chunks, so this bounds what an event costs; and a client should not get more than a page at once.
const maxMerged = 8 << 10

// merger merges two chunks by a few insertions into the first, whose bytes stay as they are
// otherwise.
type merger struct {
	into, from shape
	edits      []edit
	out        []byte
}

// edit replaces a span of the first chunk, mostly an empty one, by a prefix and some of the second.
type edit struct {
	span
	prefix string
	text   []byte
}

// merge merges the second event into the first, which gives m.out. It says whether it could:
// nothing may be lost.
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

// sameStream says whether what should be the same in both chunks is.
func (m *merger) sameStream() bool {
	for i, v := range m.into.top {
		w := m.from.top[i]
		if v.there() != w.there() || !bytes.Equal(m.into.bytes(v), m.from.bytes(w)) {
			return false
		}
	}
	return true
}

// insert adds text at a place of the first chunk.
func (m *merger) insert(at int, prefix string, text []byte) {
	m.edits = append(m.edits, edit{span: span{at, at}, prefix: prefix, text: text})
}

// member adds a value to an object, under a name, or to a list, under none.
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

// put adds a value that the first chunk lacks, or has a null for. It says whether that was so.
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

// absent says that the second chunk has nothing there.
func (m *merger) absent(v span) bool { return !v.there() || m.from.isNull(v) }

// join joins a string with the one of the second chunk.
func (m *merger) join(to *container, name string, old, more span) bool {
	if m.absent(more) || m.put(to, name, old, more) {
		return true
	}
	before, after := m.into.bytes(old), m.from.bytes(more)
	before, after = before[1:len(before)-1], after[1:len(after)-1]
	if splitsPair(before, after) {
		return false
	}
	if len(after) > 0 {
		m.insert(old.to-1, "", after)
	}
	return true
}

// splitsPair says whether the two strings, as they stand in JSON, each hold half of a surrogate
// pair. Apart they are two broken characters and joined a whole one, and most readers would not
// have seen that.
func splitsPair(before, after []byte) bool {
	if len(before) < 6 || len(after) < 6 {
		return false
	}
	before = before[len(before)-6:]
	return isSurrogate(before, "89ab") && isSurrogate(after, "cdef")
}

// isSurrogate says whether b begins with the escape of a surrogate whose second digit is one of the
// given.
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
	// One that goes over from reasoning to text, or to calls, stays apart: within a chunk there is
	// no before and after.
	if c.chat != more.chat || c.kinds != 0 && more.kinds != 0 && c.kinds != more.kinds {
		return false
	}
	to := &c.delta
	if !c.chat {
		to = &c.container
	}
	for k, v := range more.fields {
		if !m.join(to, fieldNames[k], c.fields[k], v) {
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

// logprobs appends the second chunk's entries.
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

// usage lets the newest usage stand.
func (m *merger) usage() {
	v := m.from.usage
	if m.absent(v) || m.put(&m.into.object, "usage", m.into.usage, v) {
		return
	}
	m.edits = append(m.edits, edit{span: m.into.usage, text: m.from.bytes(v)})
}

// apply writes the first chunk with the edits.
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
