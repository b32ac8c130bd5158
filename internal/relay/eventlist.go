package relay

import (
	"iter"

	"github.com/sluice-gateway/sluice/internal/openai/sse"
)

// eventList holds copies of events, the oldest first. The zero value is empty.
type eventList struct {
	bytes []byte
	sizes []int // of the events in bytes
}

func (l *eventList) len() int { return len(l.sizes) }

// add appends a copy of an event.
func (l *eventList) add(raw []byte) {
	before := len(l.bytes)
	l.bytes = sse.AppendRaw(l.bytes, raw)
	l.sizes = append(l.sizes, len(l.bytes)-before)
}

// removeFirst removes the first n events and returns them, one after the other. They are valid
// until the next add.
func (l *eventList) removeFirst(n int) []byte {
	size := 0
	for _, s := range l.sizes[:n] {
		size += s
	}
	removed := l.bytes[:size]
	l.bytes, l.sizes = l.bytes[size:], l.sizes[n:]
	if len(l.sizes) == 0 {
		l.bytes, l.sizes = nil, nil
	}
	return removed
}

// raw returns the events, one after the other.
func (l *eventList) raw() []byte { return l.bytes }

// eventsOf returns the events of raw. Each is valid until the next one.
func eventsOf(raw []byte) iter.Seq[*sse.Event] {
	return func(yield func(*sse.Event) bool) {
		var s sse.Scanner
		s.Feed(raw)
		for s.Next() && yield(s.Event()) {
		}
	}
}
