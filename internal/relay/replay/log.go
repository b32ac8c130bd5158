package replay

import (
	"bytes"
	"slices"
	"unsafe"

	"github.com/sluice-gateway/sluice/internal/memory"
)

// blockBytes is the size of the blocks that events are copied into, in bytes. A larger block would
// keep more memory alive for its last event.
const blockBytes = 4 << 10

// replayLog keeps the last events of a stream as they came. The bytes of an entry never change, so
// that subscribers may read them without a lock.
type replayLog struct {
	// maxBytes bounds bytes.
	maxBytes int

	entries [][]byte
	// first is the number of entries[0], or of the next event if there are no entries.
	first uint64
	// bytes is the sum of entryBytes over the entries.
	bytes int
	// block has room for the next events.
	block []byte
	// onDrop is called with each event that is dropped. nil: nobody wants to know.
	onDrop func(raw []byte)
	// hold is the reservation of bytes. A log that gets no more keeps fewer events.
	hold memory.Hold
}

// entryBytes is what an entry counts of maxBytes.
func entryBytes(entry []byte) int { return len(entry) + int(unsafe.Sizeof(entry)) }

// add copies an event to the end of the log and drops the oldest events that exceed maxBytes. An
// event that is larger than maxBytes is not kept.
func (l *replayLog) add(raw []byte) {
	entry := l.copy(raw)
	l.entries = append(l.entries, entry)
	l.bytes += entryBytes(entry)
	n := 0
	for ; l.bytes > l.maxBytes || !l.hold.Resize(int64(l.bytes)); n++ {
		l.bytes -= entryBytes(l.entries[n])
		if l.onDrop != nil {
			l.onDrop(l.entries[n])
		}
	}
	clear(l.entries[:n])
	l.entries = l.entries[n:]
	l.first += uint64(n)
}

// copy copies an event into the block. A large event gets memory of its own, so that at most a
// quarter of a block stays empty.
func (l *replayLog) copy(raw []byte) []byte {
	if len(raw) > blockBytes/4 {
		return bytes.Clone(raw)
	}
	if cap(l.block)-len(l.block) < len(raw) {
		l.block = make([]byte, 0, blockBytes)
	}
	start := len(l.block)
	l.block = append(l.block, raw...)
	return l.block[start:len(l.block):len(l.block)]
}

// from returns the entries from the given number on. The number must be first or greater.
func (l *replayLog) from(number uint64) [][]byte { return slices.Clone(l.entries[number-l.first:]) }

// release gives the reservation back, and reserves no more.
func (l *replayLog) release() {
	l.hold.Release()
	l.hold = memory.Hold{}
}
