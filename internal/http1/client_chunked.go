package http1

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"maps"
	"net/http"
	"strings"
)

// chunkedBody is the body of a response in chunks. It reads into the buffer of its reader and
// decodes there, so an open stream holds no buffer of its own. As much comes by one read as the
// reader has room for.
type chunkedBody struct {
	conn     *clientConn
	response *http.Response
	chunks   chunkDecoder
	// ended says that the last chunk has come. trailer is what has come behind its line.
	ended   bool
	trailer []byte
}

func (b *chunkedBody) Read(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	for !b.ended {
		raw, readErr := bodyReader{b.conn}.Read(p)
		n, rest, err := b.chunks.decode(p[:raw])
		switch {
		case errors.Is(err, io.EOF):
			b.ended, b.trailer = true, bytes.Clone(rest)
		case err != nil:
			return n, err
		case errors.Is(readErr, io.EOF):
			return n, io.ErrUnexpectedEOF
		case readErr != nil:
			return n, readErr
		}
		if n > 0 {
			return n, nil
		}
	}
	return 0, b.end()
}

// end reads the trailer. It returns io.EOF if that is well-formed.
func (b *chunkedBody) end() error {
	if rest, ok := bytes.CutPrefix(b.trailer, []byte("\r\n")); ok {
		b.conn.surplus = len(rest) > 0
		return io.EOF
	}
	// net/http parses the trailer, behind the last chunk of a body that has no other.
	const before = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n"
	reader, rest := clientReaders.Get().(*bufio.Reader), bytes.NewReader(b.trailer)
	reader.Reset(io.MultiReader(strings.NewReader(before), rest, bodyReader{b.conn}))
	defer func() {
		reader.Reset(nil)
		clientReaders.Put(reader)
	}()
	response, err := http.ReadResponse(reader, nil)
	if err == nil {
		_, err = io.Copy(io.Discard, response.Body)
	}
	if err != nil {
		return err
	}
	if b.response.Trailer == nil {
		b.response.Trailer = response.Trailer
	} else {
		maps.Copy(b.response.Trailer, response.Trailer)
	}
	b.conn.surplus = rest.Len() > 0 || reader.Buffered() > 0
	return io.EOF
}

// bodyReader reads what follows a head: first what was read together with the head. After that the
// connection needs no buffer.
type bodyReader struct{ *clientConn }

func (r bodyReader) Read(p []byte) (int, error) {
	if r.reader != nil && r.reader.Buffered() > 0 {
		return r.reader.Read(p)
	}
	r.releaseReader()
	return r.clientConn.Read(p)
}
