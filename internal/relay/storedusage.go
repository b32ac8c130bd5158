package relay

import (
	"io"
	"net/http"

	"github.com/sluice-gateway/sluice/internal/memory"
	"github.com/sluice-gateway/sluice/internal/openai/sse"
	"github.com/sluice-gateway/sluice/internal/request"
)

// usageReader is the body of an answer with a stored response. It tells what the response has used
// if the answer shows a response that has ended. The answer is a JSON document or a stream of
// events.
type usageReader struct {
	io.Reader
	told    func(request.Usage)
	stream  bool
	scanner sse.Scanner
	chunk   sse.Chunk
	// document is what was read of a JSON document, hold its memory. most bounds it; a longer
	// document tells nothing.
	document []byte
	hold     memory.Hold
	most     int64
}

// readUsage returns the body of an answer, which calls told with the usage of the response. A nil
// told is never called. release is called when the body was read.
func (r *Relay) readUsage(response *http.Response, told func(request.Usage)) (body io.Reader, release func()) {
	if told == nil || response.StatusCode != http.StatusOK {
		return response.Body, func() {}
	}
	u := &usageReader{Reader: response.Body, told: told, stream: mediaType(response.Header) == "text/event-stream",
		hold: r.config.Memory.Hold(memory.Answers), most: r.config.MaxAnswer}
	return u, u.hold.Release
}

func (u *usageReader) Read(p []byte) (n int, err error) {
	n, err = u.Reader.Read(p)
	switch {
	case u.told == nil:
	case u.stream:
		u.scanner.Feed(p[:n])
		for u.scanner.Next() {
			u.see(u.scanner.Event().Data)
		}
	case !u.keep(p[:n]):
		u.told, u.document = nil, nil
		u.hold.Release()
	case err == io.EOF: //nolint:errorlint // a body ends with io.EOF itself
		u.see(u.document)
	}
	return n, err
}

// keep adds a piece of the document. It reports whether there is room for it.
func (u *usageReader) keep(piece []byte) bool {
	size := len(u.document) + len(piece)
	if int64(size) > u.most {
		return false
	}
	if size > cap(u.document) {
		grown := max(size, 2*cap(u.document))
		if !u.hold.Resize(int64(cap(u.document) + grown)) { // both buffers exist for a moment
			return false
		}
		u.document = append(make([]byte, 0, grown), u.document...)
		u.hold.Resize(int64(grown))
	}
	u.document = append(u.document, piece...)
	return true
}

// see reads a document, or the data of an event.
func (u *usageReader) see(data []byte) {
	if u.told == nil || !u.chunk.Read(data) || !u.chunk.EndsResponse() || !u.chunk.Told {
		return
	}
	used := u.chunk.Usage
	u.told(request.UsageOf(used.Prompt, used.Completion, used.Cached))
	u.told = nil
}
