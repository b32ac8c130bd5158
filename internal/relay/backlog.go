package relay

import "github.com/sluice-gateway/sluice/internal/openai/sse"

// backlog holds events, oldest first. The zero value is empty.
type backlog struct {
	bytes []byte
	sizes []int
}

func (b *backlog) len() int { return len(b.sizes) }

// add copies an event.
func (b *backlog) add(raw []byte) {
	before := len(b.bytes)
	b.bytes = sse.AppendRaw(b.bytes, raw)
	b.sizes = append(b.sizes, len(b.bytes)-before)
}

// take gives the first n events, one after the other. They hold until the next add.
func (b *backlog) take(n int) []byte {
	size := 0
	for _, s := range b.sizes[:n] {
		size += s
	}
	taken := b.bytes[:size]
	b.bytes, b.sizes = b.bytes[size:], b.sizes[n:]
	if len(b.sizes) == 0 {
		b.bytes, b.sizes = nil, nil
	}
	return taken
}

// all gives them without taking them.
func (b *backlog) all() []byte { return b.bytes }

// each reads events that stand one after the other, until do says no.
func each(raw []byte, do func(*sse.Event) (more bool)) {
	var s sse.Scanner
	s.Feed(raw)
	for s.Next() && do(s.Event()) {
	}
}
