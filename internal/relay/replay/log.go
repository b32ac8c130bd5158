package replay

import (
	"bytes"
	"slices"
	"time"
	"unsafe"
)

// blockSize is how much room for events is made at once, in bytes. A larger block holds more memory for its last event.
const blockSize = 4 << 10

// log is the last events of a stream, as they came. The bytes of an entry never change, so that listeners may read them without a lock.
type log struct {
	keep  time.Duration
	most  int // bytes
	epoch time.Time

	entries []entry
	first   uint64 // number of entries[0], or of the next one
	held    int    // bytes, see size
	block   []byte // room for the next ones
}

type entry struct {
	raw []byte
	at  time.Duration // since the epoch
}

// size is what the entry counts of KeepBytes.
func (e entry) size() int { return len(e.raw) + int(unsafe.Sizeof(e)) }

func newLog(l Limits) *log {
	if l.KeepBytes == 0 {
		l.KeepBytes = DefaultKeepBytes
	}
	return &log{keep: l.Keep, most: l.KeepBytes, epoch: time.Now()}
}

// add copies an event to the end, and lets go of those that are too old or too many. Each is added once and let go once.
func (g *log) add(raw []byte) {
	now := time.Since(g.epoch)
	added := entry{raw: g.copied(raw), at: now}
	g.entries = append(g.entries, added)
	g.held += added.size()
	n := 0
	for ; n < len(g.entries) && (g.held > g.most || now-g.entries[n].at > g.keep); n++ {
		g.held -= g.entries[n].size()
	}
	clear(g.entries[:n])
	g.entries = g.entries[n:]
	g.first += uint64(n)
}

// copied copies an event into the block. A large one gets memory of its own, so that at most a quarter of a block stays empty.
func (g *log) copied(raw []byte) []byte {
	if len(raw) > blockSize/4 {
		return bytes.Clone(raw)
	}
	if cap(g.block)-len(g.block) < len(raw) {
		g.block = make([]byte, 0, blockSize)
	}
	from := len(g.block)
	g.block = append(g.block, raw...)
	return g.block[from:len(g.block):len(g.block)]
}

// after are the entries from a number on, which must be first or later.
func (g *log) after(from uint64) []entry { return slices.Clone(g.entries[from-g.first:]) }

// clear lets go of everything. A log that is not there has nothing.
func (g *log) clear() {
	if g == nil {
		return
	}
	g.first += uint64(len(g.entries))
	g.entries, g.block, g.held = nil, nil, 0
}
