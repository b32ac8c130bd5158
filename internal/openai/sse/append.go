package sse

import (
	"bytes"
	"strconv"
	"strings"
)

// AppendRaw appends an event as it came, without a byte order mark. The mark means nothing at the
// start of a stream, and it would spoil an event that does not come first any more.
func AppendRaw(dst []byte, raw []byte) []byte {
	return append(dst, bytes.TrimPrefix(raw, []byte(bom))...)
}

// AppendNumbered appends an event with an id line in front, so that a client that resumes can name
// the last event that it has seen. The engine's own id lines are left out, the rest stays as it
// came. The event must be neither a comment nor cut.
func AppendNumbered(dst []byte, raw []byte, id uint64) []byte {
	// The line feed is the late half of a line end, see boundary.
	raw = bytes.TrimPrefix(bytes.TrimPrefix(raw, []byte(bom)), []byte("\n"))
	dst = append(dst, "id: "...)
	dst = strconv.AppendUint(dst, id, 10)
	dst = append(dst, '\n')
	for i, lf := 0, -1; i < len(raw); {
		end := breakAt(raw, i, &lf)
		next := min(end+1, len(raw))
		if next < len(raw) && raw[end] == '\r' && raw[next] == '\n' {
			next++
		}
		if !isID(raw[i:end]) {
			dst = append(dst, raw[i:next]...)
		}
		i = next
	}
	return dst
}

func isID(line []byte) bool {
	return bytes.HasPrefix(line, []byte("id")) && (len(line) == 2 || line[2] == ':')
}

// AppendData appends an event with the data given, which may have several lines.
func AppendData(dst []byte, data []byte) []byte {
	for i, lf := 0, -1; ; {
		end := breakAt(data, i, &lf)
		dst = append(dst, "data: "...)
		dst = append(dst, data[i:end]...)
		dst = append(dst, '\n')
		if end == len(data) {
			return append(dst, '\n')
		}
		i = end + 1
		if data[end] == '\r' && i < len(data) && data[i] == '\n' {
			i++
		}
	}
}

// AppendComment appends a comment as a heartbeat: clients ignore it, and for proxies it is traffic.
// Line breaks become spaces.
func AppendComment(dst []byte, text string) []byte {
	dst = append(dst, ':')
	if text != "" {
		dst = append(dst, ' ')
	}
	for {
		n := strings.IndexAny(text, "\r\n")
		if n < 0 {
			dst = append(dst, text...)
			return append(dst, "\n\n"...)
		}
		dst = append(append(dst, text[:n]...), ' ')
		text = text[n+1:]
	}
}

// AppendDone appends OpenAI's end marker.
func AppendDone(dst []byte) []byte { return append(dst, "data: [DONE]\n\n"...) }
