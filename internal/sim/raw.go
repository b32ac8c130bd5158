package sim

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"sync"
)

// gzipBombUnit is how many bytes one part of the answer of the fault gzip-bomb unpacks to.
// gzipBombUnits is the number of its parts. They make 1 GiB that take about 1 MiB on the wire.
const (
	gzipBombUnit  = 64 << 20
	gzipBombUnits = 16
)

// rawWriter is the http.ResponseWriter of a response that net/http would not write: one with a
// wrong length or without any.
type rawWriter struct {
	conn   net.Conn
	out    *bufio.Writer
	header http.Header
	// lengthError is added to the Content-Length. keepLength is false for a response without a
	// length, which the end of the connection ends.
	lengthError int
	keepLength  bool
	// garbage is written after the body.
	garbage string
}

func (w *rawWriter) Header() http.Header { return w.header }

func (w *rawWriter) WriteHeader(status int) {
	length, err := strconv.Atoi(w.header.Get("Content-Length"))
	if w.header.Del("Content-Length"); err == nil && w.keepLength {
		w.header.Set("Content-Length", strconv.Itoa(max(length+w.lengthError, 0)))
	}
	fmt.Fprintf(w.out, "HTTP/1.1 %d %s\r\nConnection: close\r\n", status, http.StatusText(status))
	_ = w.header.Write(w.out) // the next write or flush reports the error
	_, _ = w.out.WriteString("\r\n")
}

func (w *rawWriter) Write(b []byte) (int, error) { return w.out.Write(b) }

// FlushError is for http.ResponseController.
func (w *rawWriter) FlushError() error { return w.out.Flush() }

// close ends the response.
func (w *rawWriter) close(whole bool) {
	if whole {
		_, _ = w.out.WriteString(w.garbage)
	}
	_ = w.out.Flush() // the client may have left
	w.conn.Close()
}

// hijack takes the connection over, for a response that net/http would not write. The context of
// the request then ends when the client closes the connection.
func (h *handler) hijack() (net.Conn, error) {
	hijacker, ok := h.w.(http.Hijacker)
	if !ok {
		return nil, errCutConnection // HTTP/2 has no such responses
	}
	conn, _, err := hijacker.Hijack()
	if err != nil {
		return nil, errCutConnection
	}
	ctx, cancel := context.WithCancel(h.r.Context())
	go func() {
		defer cancel()
		_, _ = io.Copy(io.Discard, conn) // it ends with the connection
	}()
	h.r = h.r.WithContext(ctx)
	return conn, nil
}

// injectRawResponse replaces the writer of the response for the faults that need a rawWriter.
func (h *handler) injectRawResponse() error {
	_, closes := h.fault.find(faultClose)
	length, wrong := h.fault.find(faultLength)
	_, garbage := h.fault.find(faultGarbage)
	if !closes && !wrong && !garbage {
		return nil
	}
	conn, err := h.hijack()
	if err != nil {
		return err
	}
	h.raw = &rawWriter{conn: conn, out: bufio.NewWriter(conn), header: h.w.Header().Clone(), keepLength: !closes, lengthError: length.number}
	if garbage {
		h.raw.garbage = "}trailing garbage"
	}
	h.w = h.raw
	return nil
}

// injectEndlessHead injects the faults that never come to the end of the headers, or that end the
// connection before them.
func (h *handler) injectEndlessHead() error {
	var begin, again string
	switch {
	case h.fault.has(faultInformational):
		again = "HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n"
	case h.fault.has(faultEndlessHeader):
		begin, again = "HTTP/1.1 200 OK\r\nX-Endless: ", "0123456789abcdef"
	case h.fault.has(faultEarlyClose):
	default:
		return nil
	}
	conn, err := h.hijack()
	if err != nil {
		return err
	}
	defer conn.Close()
	_, err = io.WriteString(conn, begin)
	for block := bytes.Repeat([]byte(again), 64); err == nil && again != ""; {
		_, err = conn.Write(block)
	}
	return errResponseEnded
}

// bombPart is a gzip member that unpacks to gzipBombUnit blanks, which JSON permits before a value.
var bombPart = sync.OnceValue(func() []byte {
	var b bytes.Buffer
	packer, _ := gzip.NewWriterLevel(&b, gzip.BestSpeed) // the level is valid
	block := bytes.Repeat([]byte{' '}, 1<<20)
	for range gzipBombUnit / len(block) {
		_, _ = packer.Write(block) // a buffer takes everything
	}
	_ = packer.Close()
	return b.Bytes()
})

// sendGzipBomb answers with a small body that unpacks to a huge one.
func (h *handler) sendGzipBomb() error {
	h.w.Header().Set("Content-Type", "application/json")
	h.w.Header().Set("Content-Encoding", "gzip")
	h.w.WriteHeader(http.StatusOK)
	for range gzipBombUnits {
		if _, err := h.w.Write(bombPart()); err != nil {
			return err
		}
	}
	return errResponseEnded
}
