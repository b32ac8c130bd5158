package sim

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"net/http"
	"time"
)

// hugePadding is the number of bytes that the fault huge adds to an event.
const hugePadding = 1 << 20

// injectBeforeHeaders injects the faults that come before the headers.
func (h *handler) injectBeforeHeaders() error {
	if err := h.pauseFor(faultHang); err != nil {
		return err
	}
	if h.fault.at(faultExit, -1) {
		h.engine.config.Exit(1)
		return errCutConnection
	}
	if h.fault.has(faultReset) {
		return h.resetConnection()
	}
	if err := h.injectEndlessHead(); err != nil {
		return err
	}
	if m, ok := h.fault.find(faultStatus); ok {
		return &apiError{status: m.status, kind: "InternalServerError", message: "simulated fault", retryAfter: m.retryAfter}
	}
	if h.fault.has(faultGzipBomb) {
		return h.sendGzipBomb()
	}
	return h.injectRawResponse()
}

// resetConnection closes the connection so that the kernel sends RST instead of FIN.
func (h *handler) resetConnection() error {
	hijacker, ok := h.w.(http.Hijacker)
	if !ok {
		return errCutConnection
	}
	conn, _, err := hijacker.Hijack()
	if err != nil {
		return errCutConnection
	}
	if tcp, ok := conn.(*net.TCPConn); ok {
		_ = tcp.SetLinger(0)
	}
	conn.Close()
	return errResponseEnded
}

// pause waits for d, or until the client disconnects. For 0 it waits until the client disconnects.
// It returns an error if the client disconnected.
func (h *handler) pause(d time.Duration) error {
	var expired <-chan time.Time
	if d > 0 {
		timer := time.NewTimer(d)
		defer timer.Stop()
		expired = timer.C
	}
	select {
	case <-expired:
		return nil
	case <-h.r.Context().Done():
		return h.r.Context().Err()
	}
}

// pauseFor is pause for the time of a fault, if the request has that fault.
func (h *handler) pauseFor(k faultKind) error {
	if m, ok := h.fault.find(k); ok {
		return h.pause(m.pause)
	}
	return nil
}

// injectIntoEvent injects the faults that concern the next event. It returns the event to send, or
// an error if the response has ended.
func (h *handler) injectIntoEvent(event []byte) ([]byte, error) {
	f, n := h.fault, h.eventCount
	if err := h.pauseFor(faultSlow); err != nil {
		return nil, err
	}
	if f.at(faultStall, n) {
		if err := h.pauseFor(faultStall); err != nil {
			return nil, err
		}
	}
	if f.at(faultExit, n) {
		h.engine.config.Exit(1)
		return nil, errCutConnection
	}
	if f.at(faultCut, n) {
		return nil, errCutConnection
	}
	if f.at(faultEOF, n) {
		return nil, h.endEarly()
	}
	if f.at(faultError, n) {
		return nil, h.endWithErrorEvent()
	}
	return corruptEvent(event, f, n), nil
}

// corruptEvent applies the faults that change the bytes of an event.
func corruptEvent(event []byte, f Fault, n int) []byte {
	if f.at(faultMalformed, n) {
		return append(bytes.TrimSpace(event[:len(event)/2:len(event)/2]), "\n\n"...)
	}
	if f.at(faultHuge, n) {
		event = padEvent(event)
	}
	if m, ok := f.find(faultDuplicate); ok && (m.afterEvents == n || m.afterEvents < 0) {
		event = append(event[:len(event):len(event)], event...)
	}
	return event
}

// padEvent adds a long member to the first JSON object of an event. Clients ignore the member.
func padEvent(event []byte) []byte {
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

// endEarly ends the body cleanly although the stream is not complete.
func (h *handler) endEarly() error {
	if err := h.closeBody(); err != nil {
		return err
	}
	return errResponseEnded
}

// endWithErrorEvent sends an event with an error and ends the body cleanly.
func (h *handler) endWithErrorEvent() error {
	e := &apiError{status: http.StatusInternalServerError, kind: "InternalServerError", message: "simulated fault"}
	if _, err := fmt.Fprintf(h.body, "data: %s\n\n", e.body()); err != nil {
		return err
	}
	return h.endEarly()
}

// breaksBody tells whether a fault ends or stalls the body before its end.
func (h *handler) breaksBody() bool {
	for _, m := range h.fault.parts {
		switch m.kind {
		case faultCut, faultEOF, faultError, faultMalformed, faultStall, faultExit:
			return true
		}
	}
	return false
}

// sendBrokenBody sends the first half of the body and then injects the fault. It sets no
// Content-Length, so that the body is chunked and a client can tell a clean end from a cut.
func (h *handler) sendBrokenBody(contentType string, body []byte) error {
	half := len(body) / 2
	h.writeHeaders(contentType)
	if _, err := h.body.Write(body[:half]); err != nil {
		return err
	}
	if err := h.flush(); err != nil {
		return err
	}
	if err := h.pauseFor(faultStall); err != nil {
		return err
	}
	if h.fault.has(faultExit) {
		h.engine.config.Exit(1)
		return errCutConnection
	}
	if h.fault.has(faultCut) {
		return errCutConnection
	}
	if !h.fault.has(faultStall) {
		return h.endEarly()
	}
	if _, err := io.Copy(h.body, bytes.NewReader(body[half:])); err != nil {
		return err
	}
	return h.closeBody()
}
