package history

import (
	"encoding/binary"
	"slices"
	"time"
)

// Step is the time between two samples.
const Step = 10 * time.Second

const (
	slotsPerHour = int(time.Hour / Step)
	// kept is how many hours an archive has, the current one included.
	kept = 25
)

// moment is the number of a sample: its time in steps since 1970.
type moment int64

func momentOf(t time.Time) moment { return moment(t.Unix() / int64(Step/time.Second)) }

func (m moment) time() time.Time { return time.Unix(int64(m)*int64(Step/time.Second), 0).UTC() }

// hour and slot divide a moment: the hour since 1970, and the sample in it.
func (m moment) hour() int64 { return int64(m) / int64(slotsPerHour) }

func (m moment) slot() int { return int(int64(m) % int64(slotsPerHour)) }

// hour has the samples of one hour in memory.
type hour struct {
	number int64
	// sampled says which slots have a sample.
	sampled [slotsPerHour]bool
	// tracks are the models, in the order in which the file of the hour names them. byName finds
	// them.
	tracks []track
	byName map[string]int
	// bytes is the length of all changes.
	bytes int64
	// next is the first slot that may get a sample.
	next int
}

// track has the samples of one model.
type track struct {
	name string
	// changes is a list of entries: the slot in two bytes, then a change.
	changes []byte
	last    [seriesCount]code
	// begun: last is valid.
	begun bool
}

func newHour(number int64) *hour { return &hour{number: number, byName: map[string]int{}} }

// A change begins with the set of the series that have changed, in two bytes. It then has the code
// of each of them in two bytes, in the order of the series. All numbers are little-endian.

// diff appends the change of a track to b. It returns b as it was if nothing has changed.
func (t *track) diff(b []byte, now *[seriesCount]code) []byte {
	var set uint16
	for i := range now {
		if !t.begun || now[i] != t.last[i] {
			set |= 1 << i
		}
	}
	if set == 0 {
		return b
	}
	b = binary.LittleEndian.AppendUint16(b, set)
	for i := range now {
		if set&(1<<i) != 0 {
			b = binary.LittleEndian.AppendUint16(b, uint16(now[i]))
		}
	}
	return b
}

// readChange applies the change at the beginning of b to codes and returns its length; 0 if there
// is none.
func readChange(b []byte, codes *[seriesCount]code) int {
	if len(b) < 2 {
		return 0
	}
	set, n := binary.LittleEndian.Uint16(b), 2
	if set == 0 || set>>seriesCount != 0 {
		return 0
	}
	for i := range codes {
		if set&(1<<i) == 0 {
			continue
		}
		if len(b) < n+2 {
			return 0
		}
		codes[i] = code(binary.LittleEndian.Uint16(b[n:]))
		n += 2
	}
	return n
}

// add adds a change to a track. It returns the length of the change, 0 if it is not one.
func (h *hour) add(index, slot int, change []byte) int {
	t := &h.tracks[index]
	if !t.begun {
		for i := range t.last {
			t.last[i] = unknown
		}
	}
	n := readChange(change, &t.last)
	if n == 0 {
		return 0
	}
	t.begun = true
	t.changes = binary.LittleEndian.AppendUint16(t.changes, uint16(slot))
	t.changes = append(t.changes, change[:n]...)
	h.bytes += int64(n + 2)
	return n
}

// name returns the index of a model, and adds it if it is new.
func (h *hour) name(model string) (index int, isNew bool) {
	if i, ok := h.byName[model]; ok {
		return i, false
	}
	h.tracks = append(h.tracks, track{name: model})
	h.byName[model] = len(h.tracks) - 1
	return len(h.tracks) - 1, true
}

// samples returns how many samples the hour has.
func (h *hour) samples() (n int) {
	for _, there := range h.sampled {
		if there {
			n++
		}
	}
	return n
}

// isAfter reports whether the hour has, or is of, a later sample than one of that moment.
func (h *hour) isAfter(m moment) bool {
	return h.number > m.hour() || h.number == m.hour() && h.next > m.slot()+1
}

// close gives back the room for further samples.
func (h *hour) close() {
	for i := range h.tracks {
		h.tracks[i].changes = slices.Clone(h.tracks[i].changes)
	}
}

// each calls yield with each sample of a model in the hour.
func (h *hour) each(model string, yield func(m moment, codes *[seriesCount]code)) {
	index, ok := h.byName[model]
	if !ok {
		return
	}
	changes := h.tracks[index].changes
	var codes [seriesCount]code
	begun := false
	for slot := range slotsPerHour {
		if len(changes) >= 2 && int(binary.LittleEndian.Uint16(changes)) == slot {
			changes = changes[2:]
			changes = changes[readChange(changes, &codes):]
			begun = true
		}
		if begun && h.sampled[slot] {
			yield(moment(h.number*int64(slotsPerHour)+int64(slot)), &codes)
		}
	}
}
