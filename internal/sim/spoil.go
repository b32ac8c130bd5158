package sim

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"net/http"
	"time"
)

// hugePadding is what the fault "huge" adds to an event.
const hugePadding = 1 << 20

// misbehave does what the request's fault asks for before the headers.
func (c *call) misbehave() error {
	if m, ok := c.fault.find(faultHang); ok {
		if err := c.pause(m.pause); err != nil {
			return err
		}
	}
	if _, ok := c.fault.at(faultExit, -1); ok {
		c.engine.config.Exit(1)
		return errCut
	}
	if _, ok := c.fault.find(faultReset); ok {
		return c.reset()
	}
	if m, ok := c.fault.find(faultStatus); ok {
		return &apiError{status: m.status, kind: "InternalServerError", message: "simulated fault"}
	}
	return nil
}

// reset makes the kernel send RST instead of FIN.
func (c *call) reset() error {
	hijacker, ok := c.w.(http.Hijacker)
	if !ok {
		return errCut
	}
	conn, _, err := hijacker.Hijack()
	if err != nil {
		return errCut
	}
	if tcp, ok := conn.(*net.TCPConn); ok {
		_ = tcp.SetLinger(0)
	}
	conn.Close()
	return errDone
}

// pause waits so long, or until the client leaves; for 0 only the latter ends it.
func (c *call) pause(d time.Duration) error {
	var over <-chan time.Time
	if d > 0 {
		timer := time.NewTimer(d)
		defer timer.Stop()
		over = timer.C
	}
	select {
	case <-over:
		return nil
	case <-c.r.Context().Done():
		return c.r.Context().Err()
	}
}

// spoil applies the request's fault to the event that comes next.
func (c *call) spoil(event []byte) ([]byte, error) {
	f, n := c.fault, c.events
	if m, ok := f.find(faultSlow); ok {
		if err := c.pause(m.pause); err != nil {
			return nil, err
		}
	}
	if m, ok := f.at(faultStall, n); ok {
		if err := c.pause(m.pause); err != nil {
			return nil, err
		}
	}
	if _, ok := f.at(faultExit, n); ok {
		c.engine.config.Exit(1)
		return nil, errCut
	}
	if _, ok := f.at(faultCut, n); ok {
		return nil, errCut
	}
	if _, ok := f.at(faultEOF, n); ok {
		return nil, c.end()
	}
	if _, ok := f.at(faultError, n); ok {
		return nil, c.endWithError()
	}
	return spoiled(event, f, n), nil
}

// spoiled applies the faults that change what an event says.
func spoiled(event []byte, f Fault, n int) []byte {
	if _, ok := f.at(faultMalformed, n); ok {
		return append(bytes.TrimSpace(event[:len(event)/2:len(event)/2]), "\n\n"...)
	}
	if _, ok := f.at(faultHuge, n); ok {
		event = pad(event)
	}
	if m, ok := f.find(faultDuplicate); ok && (m.after == n || m.after < 0) {
		event = append(event[:len(event):len(event)], event...)
	}
	return event
}

// pad adds a member to the first JSON object of an event, which no client looks at.
func pad(event []byte) []byte {
	i := bytes.IndexByte(event, '{')
	if i < 0 { // [DONE]
		return event
	}
	padded := append([]byte{}, event[:i+1]...)
	padded = append(padded, `"sim_padding":"`...)
	padded = append(padded, bytes.Repeat([]byte{'x'}, hugePadding)...)
	padded = append(padded, `",`...)
	return append(padded, event[i+1:]...)
}

// end closes the body cleanly although the stream is not complete.
func (c *call) end() error {
	if err := c.finish(); err != nil {
		return err
	}
	return errDone
}

func (c *call) endWithError() error {
	e := &apiError{status: http.StatusInternalServerError, kind: "InternalServerError", message: "simulated fault"}
	if _, err := fmt.Fprintf(c.out, "data: %s\n\n", e.body()); err != nil {
		return err
	}
	return c.end()
}

// breaksBody says that the fault is one of those that let an answer end early, or stop in between.
func (c *call) breaksBody() bool {
	for _, m := range c.fault.parts {
		switch m.kind {
		case faultCut, faultEOF, faultError, faultMalformed, faultStall, faultExit:
			return true
		}
	}
	return false
}

// sendHalf sends the first half of the body and then does what the fault says. Without a length of its own the body is
// chunked, so that a clean end can be told from a cut.
func (c *call) sendHalf(contentType string, body []byte) error {
	half := len(body) / 2
	c.begin(contentType)
	if _, err := c.out.Write(body[:half]); err != nil {
		return err
	}
	if err := c.flush(); err != nil {
		return err
	}
	if m, ok := c.fault.find(faultStall); ok {
		if err := c.pause(m.pause); err != nil {
			return err
		}
	}
	if _, ok := c.fault.find(faultExit); ok {
		c.engine.config.Exit(1)
		return errCut
	}
	if _, ok := c.fault.find(faultCut); ok {
		return errCut
	}
	if _, ok := c.fault.find(faultStall); !ok {
		return c.end()
	}
	if _, err := io.Copy(c.out, bytes.NewReader(body[half:])); err != nil {
		return err
	}
	return c.finish()
}
