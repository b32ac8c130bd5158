package sim

import (
	"compress/gzip"
	"net/http"
	"strconv"

	"github.com/sluice-gateway/sluice/internal/openai"
	"github.com/sluice-gateway/sluice/internal/openai/messages"
)

// writeHeaders sends the headers of a successful response.
func (h *handler) writeHeaders(contentType string) {
	header := h.w.Header()
	if m, ok := h.fault.find(faultType); ok {
		contentType = m.text
	}
	header.Set("Content-Type", contentType)
	h.body = h.w
	if h.fault.has(faultGzip) {
		header.Set("Content-Encoding", "gzip")
		header.Del("Content-Length")
		h.compressor = gzip.NewWriter(h.w)
		h.body = h.compressor
	}
	h.w.WriteHeader(http.StatusOK)
}

// startEvents sends the headers of an event stream at once.
func (h *handler) startEvents() error {
	h.w.Header().Set("Cache-Control", "no-cache")
	h.writeHeaders("text/event-stream; charset=utf-8")
	return h.flush()
}

// flush sends what is buffered.
func (h *handler) flush() error {
	if h.compressor != nil {
		if err := h.compressor.Flush(); err != nil {
			return err
		}
	}
	return http.NewResponseController(h.w).Flush()
}

// sendEvent sends one complete event. Each event is one chunk on the wire.
func (h *handler) sendEvent(event []byte) error {
	if h.translation != nil {
		event = h.translation.Append(nil, event)
	}
	if len(h.fault.parts) > 0 {
		var err error
		if event, err = h.injectIntoEvent(event); err != nil {
			return err
		}
	}
	if _, err := h.body.Write(event); err != nil {
		return err
	}
	h.eventCount++
	return h.flush()
}

// sendJSON sends a value as JSON.
func (h *handler) sendJSON(v any) error {
	return h.sendBody("application/json", append(openai.Encode(v), '\n'))
}

// sendBody sends a response that is not streamed.
func (h *handler) sendBody(contentType string, body []byte) error {
	if h.translation != nil {
		body, _ = messages.FromChat(body, h.translation.Options) // it is an answer to a chat
	}
	if err := h.pauseFor(faultSlow); err != nil {
		return err
	}
	if h.fault.has(faultHuge) {
		body = padEvent(body)
	}
	if h.breaksBody() {
		return h.sendBrokenBody(contentType, body)
	}
	h.w.Header().Set("Content-Length", strconv.Itoa(len(body)))
	h.writeHeaders(contentType)
	if _, err := h.body.Write(body); err != nil {
		return err
	}
	return h.closeBody()
}

func (h *handler) closeBody() error {
	if h.compressor != nil {
		return h.compressor.Close()
	}
	return nil
}
