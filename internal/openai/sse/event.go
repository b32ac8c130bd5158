package sse

import (
	"bytes"
	"time"
)

// Event is what stands between two blank lines of a stream. Its slices belong to the [Scanner] and hold until the
// scanner's next call.
type Event struct {
	// Raw is all of the event, byte for byte, its blank line included. The Raw of all events of a stream, one after the
	// other, are the stream.
	Raw []byte
	// Data is the value of the data lines, joined by line feeds. Of a single line it is a part of Raw.
	Data []byte
	// Type is the value of the last event line; empty: a "message".
	Type []byte
	// ID is the value of the last id line, if HasID.
	ID    []byte
	HasID bool
	// Retry is what the last retry line asks for; 0: none. At most about 11 days.
	Retry time.Duration
	// Cut says that the stream ended inside this event. A client by the book ignores it.
	Cut bool

	dataLines int
	plain     bool
}

// IsComment says that a client makes nothing of the event: it has no data. It may have comments, an id, unknown fields, or
// be a blank line alone.
func (e *Event) IsComment() bool { return e.dataLines == 0 }

// IsDone says that the event is OpenAI's end marker.
func (e *Event) IsDone() bool {
	return len(e.Data) < 16 && string(bytes.TrimSpace(e.Data)) == "[DONE]"
}

// IsPlain says that the event is one whole data line and nothing else, so that its data may be replaced where it stands.
func (e *Event) IsPlain() bool { return e.plain }

// bom may stand at the beginning of a stream, and means nothing.
const bom = "\ufeff"

// parse reads the lines of an event. joined is room for data of several lines; it is given back, grown where needed.
func (e *Event) parse(raw, joined []byte) []byte {
	*e = Event{Raw: raw}
	b, lines, lf := raw, 0, -1
	for i := 0; i < len(b); {
		end := breakAt(b, i, &lf)
		if line := b[i:end]; len(line) > 0 {
			lines++
			joined = e.field(line, joined)
		}
		i = end + 1
	}
	e.plain = lines == 1 && e.dataLines == 1 && raw[0] == 'd'
	return joined
}

// field reads one line.
func (e *Event) field(line, joined []byte) []byte {
	name, value, _ := bytes.Cut(line, []byte(":"))
	if len(value) > 0 && value[0] == ' ' {
		value = value[1:]
	}
	switch string(name) {
	case "data":
		return e.addData(value, joined)
	case "event":
		e.Type = value
	case "id":
		if bytes.IndexByte(value, 0) < 0 {
			e.ID, e.HasID = value, true
		}
	case "retry":
		if d, ok := millis(value); ok {
			e.Retry = d
		}
	}
	return joined
}

func (e *Event) addData(value, joined []byte) []byte {
	e.dataLines++
	switch e.dataLines {
	case 1:
		e.Data = value
		return joined
	case 2:
		joined = append(joined[:0], e.Data...)
	}
	joined = append(append(joined, '\n'), value...)
	e.Data = joined
	return joined
}

// millis reads decimal digits and nothing else.
func millis(digits []byte) (time.Duration, bool) {
	const most = 1_000_000_000
	n := 0
	for _, c := range digits {
		if c < '0' || c > '9' {
			return 0, false
		}
		n = min(n*10+int(c-'0'), most)
	}
	return time.Duration(n) * time.Millisecond, len(digits) > 0
}

// breakAt is the offset of the first CR or LF at or after i; len(b) when there is none. lf is where the next LF is, kept by
// the caller from call to call so that no byte is looked at twice; -1 at first.
func breakAt(b []byte, i int, lf *int) int {
	if *lf < i {
		*lf = len(b)
		if n := bytes.IndexByte(b[i:], '\n'); n >= 0 {
			*lf = i + n
		}
	}
	if n := bytes.IndexByte(b[i:*lf], '\r'); n >= 0 {
		return i + n
	}
	return *lf
}
