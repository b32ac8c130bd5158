package sim

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"net/http"
	"strconv"
)

// begin sends the headers.
func (c *call) begin(contentType string) {
	h := c.w.Header()
	h.Set("Content-Type", contentType)
	c.out = c.w
	if _, ok := c.fault.find(faultGzip); ok {
		h.Set("Content-Encoding", "gzip")
		h.Del("Content-Length")
		c.packed = gzip.NewWriter(c.w)
		c.out = c.packed
	}
	c.w.WriteHeader(http.StatusOK)
}

// stream sends the headers of an event stream at once.
func (c *call) stream() error {
	c.w.Header().Set("Cache-Control", "no-cache")
	c.begin("text/event-stream; charset=utf-8")
	return c.flush()
}

func (c *call) flush() error {
	if c.packed != nil {
		if err := c.packed.Flush(); err != nil {
			return err
		}
	}
	return http.NewResponseController(c.w).Flush()
}

// event sends one event, complete with its empty line. Each is a chunk of its own on the wire.
func (c *call) event(event []byte) error {
	if len(c.fault.parts) > 0 {
		var err error
		if event, err = c.spoil(event); err != nil {
			return err
		}
	}
	if _, err := c.out.Write(event); err != nil {
		return err
	}
	c.events++
	return c.flush()
}

// answer sends a value as JSON.
func (c *call) answer(v any) error { return c.send("application/json", append(marshal(v), '\n')) }

// send sends an answer that is not streamed.
func (c *call) send(contentType string, body []byte) error {
	f := c.fault
	if m, ok := f.find(faultSlow); ok {
		if err := c.pause(m.pause); err != nil {
			return err
		}
	}
	if _, ok := f.find(faultHuge); ok {
		body = pad(body)
	}
	if c.breaksBody() {
		return c.sendHalf(contentType, body)
	}
	c.w.Header().Set("Content-Length", strconv.Itoa(len(body)))
	c.begin(contentType)
	if _, err := c.out.Write(body); err != nil {
		return err
	}
	return c.finish()
}

// finish ends the body.
func (c *call) finish() error {
	if c.packed != nil {
		return c.packed.Close()
	}
	return nil
}

// marshal is json.Marshal for values that always marshal, without the escapes that are meant for HTML.
func marshal(v any) []byte {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		panic(err) // a programming error: all values are our own structs, maps and strings
	}
	return bytes.TrimSuffix(b.Bytes(), []byte{'\n'})
}
