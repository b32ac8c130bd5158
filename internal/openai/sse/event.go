package sse

import "bytes"

// Event is what stands between two blank lines of a stream. Its slices belong to the [Scanner] and
// are valid until the next call of the scanner.
type Event struct {
	// Raw is the whole event, byte for byte, with its blank line. All bytes of a stream are in the
	// Raw of one of its events.
	Raw []byte
	// Data is the value of the data lines, joined by line feeds. The data of a single line is a
	// part of Raw.
	Data []byte
	// Type is the value of the last event line; empty: a "message".
	Type []byte
	// ID is the value of the last id line. HasID reports whether there is one.
	ID    []byte
	HasID bool
	// Error is the value of the last error line. Older servers of llama.cpp tell of an error by
	// such a line, without data.
	Error []byte
	// Cut reports whether the stream has ended inside this event. Clients that follow the standard
	// ignore such an event.
	Cut bool

	dataLines int
	plain     bool
}

// IsComment reports whether the event has no data, so that clients ignore it. It may have comments,
// an id or unknown fields, or be a blank line alone.
func (e *Event) IsComment() bool { return e.dataLines == 0 }

// IsDone reports whether the event is OpenAI's end marker, [DONE].
func (e *Event) IsDone() bool {
	return len(e.Data) < 16 && string(bytes.TrimSpace(e.Data)) == "[DONE]"
}

// IsPlain reports whether the event is one whole data line and nothing else, so that its data may
// be replaced in place.
func (e *Event) IsPlain() bool { return e.plain }

// RemoveMember removes a member from the data, which is a JSON object. from and to are where the
// value of the member stands. A first member becomes null. Data of several lines stays as it is.
func (e *Event) RemoveMember(from, to int) {
	// The last comma before the value is the one before the member, whose name has none.
	if comma := bytes.LastIndexByte(e.Data[:from], ','); comma >= 0 {
		e.replaceData(comma, to, "")
		return
	}
	e.replaceData(from, to, "null")
}

// replaceData replaces the bytes from offset from to offset to of the data by a text that is not
// longer. It does so in place, in the bytes of the scanner. Data of several lines stays as it is.
func (e *Event) replaceData(from, to int, with string) {
	if e.dataLines != 1 || len(with) > to-from {
		return
	}
	start, size := cap(e.Raw)-cap(e.Data), len(e.Data)-(to-from)+len(with)
	copy(e.Data[from:], with)
	e.Raw = append(e.Raw[:start+from+len(with)], e.Raw[start+to:]...)
	e.Data = e.Raw[start : start+size]
}

// bom is the byte order mark. It may stand at the start of a stream, and means nothing.
const bom = "\ufeff"

// parse reads the lines of an event. joined is a buffer for data of several lines. parse returns
// the buffer, which may have grown.
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
	case "error":
		e.Error = value
	case "id":
		if bytes.IndexByte(value, 0) < 0 {
			e.ID, e.HasID = value, true
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

// breakAt returns the offset of the first CR or LF at or after i, and len(b) when there is none. lf
// is the offset of the next LF, -1 at first. The caller keeps lf from call to call, so that no byte
// is searched twice.
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
