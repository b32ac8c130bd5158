package http1

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"net"
	"net/http/httputil"
	"strings"
	"testing"
)

// chunkedBodies are bodies in chunks, well-formed and malformed, from the first line on.
var chunkedBodies = []string{
	"5\r\nhello\r\n0\r\n\r\n",
	"5\r\nhello\r\n1\r\n \r\nA\r\nbeautiful \r\n00005\r\nworld\r\n000\r\n\r\n",
	"5;name=value;x=\"y\"\r\nhello\r\n0;last\r\n\r\n",
	"5 \t\r\nhello\r\n0\t\r\n\r\n",
	"5 ;x\r\nhello\r\n0\r\n\r\n",
	"5 5\r\nhello\r\n0\r\n\r\n",
	" 5\r\nhello\r\n0\r\n\r\n",
	"5\nhello\r\n0\r\n\r\n",
	"5;\n\r\nhello\r\n0\r\n\r\n",
	"5\r\r\nhello\r\n0\r\n\r\n",
	"5;\rx\r\nhello\r\n0\r\n\r\n",
	"5\r\nhello!\r\n0\r\n\r\n",
	"5\r\nhello\n0\r\n\r\n",
	"5\r\nhello\r0\r\n\r\n",
	"5\r\nhello\rx0\r\n\r\n",
	"\r\nhello\r\n0\r\n\r\n",
	";x\r\nhello\r\n0\r\n\r\n",
	"-5\r\nhello\r\n0\r\n\r\n",
	"g\r\nhello\r\n0\r\n\r\n",
	"ffffffffffffffff\r\nhello",
	"0000000000000005\r\nhello\r\n0\r\n\r\n",
	"00000000000000005\r\nhello\r\n0\r\n\r\n",
	"5\r\nhel",
	"5\r\nhello",
	"5\r\nhello\r\n",
	"5;" + strings.Repeat("x", maxChunkLine-4) + "\r\nhello\r\n0\r\n\r\n",
	"5;" + strings.Repeat("x", maxChunkLine-3) + "\r\nhello\r\n0\r\n\r\n",
	strings.Repeat("1;"+strings.Repeat("x", 500)+"\r\nx\r\n", 40) + "0\r\n\r\n",
	strings.Repeat("1\r\nx\r\n", 5000) + "0\r\n\r\n",
}

// FuzzChunks decodes a body in chunks as net/http does, wherever its bytes are split.
func FuzzChunks(f *testing.F) {
	for _, body := range chunkedBodies {
		for _, step := range []uint16{1, 2, 7, 1 << 15} {
			f.Add([]byte(body), step)
		}
	}
	f.Fuzz(func(t *testing.T, body []byte, step uint16) {
		want, err := io.ReadAll(httputil.NewChunkedReader(bufio.NewReaderSize(bytes.NewReader(body), clientBuffer)))
		got, whole := decodeChunks(body, int(max(step, 1)))
		if !bytes.Equal(got, want) || whole != (err == nil) {
			t.Errorf("%q in steps of %d:\n got %q, whole %t\nwant %q, %v", body, step, got, whole, want, err)
		}
	})
}

// decodeChunks decodes a body that comes in pieces, and says whether its last chunk has come.
func decodeChunks(body []byte, step int) (data []byte, whole bool) {
	var d chunkDecoder
	for len(body) > 0 {
		piece := bytes.Clone(body[:min(step, len(body))])
		body = body[len(piece):]
		n, _, err := d.decode(piece)
		data = append(data, piece[:n]...)
		if err != nil {
			return data, errors.Is(err, io.EOF)
		}
	}
	return data, false
}

// A body in chunks is the same whatever the pieces are that it comes in, and the connection serves
// the next request.
func TestChunksInPieces(t *testing.T) {
	for end, trailer := range map[string]string{"0\r\n\r\n": "", "0\r\nX-T: 1\r\nX-U: 2\r\n\r\n": "1"} {
		for _, size := range []int{1, 3, 40, 1 << 12} {
			e := startInPieces(t, chunkedHello+end, size)
			client := transport(t)
			for range 2 {
				response, body, err := fetch(client, post(t, e.url, ""))
				if err != nil || body != "hello world" || response.Trailer.Get("X-T") != trailer {
					t.Fatalf("%q in pieces of %d: %q, %v", end, size, body, err)
				}
			}
			if e.taken.Load() != 1 {
				t.Errorf("%q in pieces of %d: %d connections were opened", end, size, e.taken.Load())
			}
		}
	}
}

// chunkedHello is the beginning of an answer in chunks that announces a trailer.
const chunkedHello = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTrailer: X-T\r\n\r\n5\r\nhello\r\n6\r\n world\r\n"

// startInPieces is startAnswering for an answer that comes in pieces of a size.
func startInPieces(t *testing.T, answer string, size int) *engine {
	return startEngine(t, func(c *net.TCPConn, in *bufio.Reader) {
		for readBody(in) != "" {
			for rest := answer; rest != ""; rest = rest[min(size, len(rest)):] {
				io.WriteString(c, rest[:min(size, len(rest))])
			}
		}
	})
}

// Bytes behind the last chunk or its trailer end the connection, however much a reader takes at a
// time.
func TestSurplusBehindChunks(t *testing.T) {
	for _, end := range []string{"0\r\n\r\nHTTP", "0\r\nX-T: 1\r\n\r\nHTTP", "0\r\n\r\n" + strings.Repeat("x", 3*clientBuffer)} {
		e := startAnswering(t, chunkedHello+end, false)
		for _, size := range []int{1, 9, 1 << 14} {
			client := transport(t)
			response, err := client.RoundTrip(post(t, e.url, ""))
			if err != nil {
				t.Fatal(err)
			}
			var body []byte
			for buffer := make([]byte, size); err == nil; {
				var n int
				n, err = response.Body.Read(buffer)
				body = append(body, buffer[:n]...)
			}
			if string(body) != "hello world" || !errors.Is(err, io.EOF) || client.pool.size() != 0 {
				t.Errorf("%.20q by %d: %q, %v, %d idle connections", end, size, body, err, client.pool.size())
			}
		}
	}
}

// A malformed trailer is an error, and so is one that is cut off or longer than the buffer.
func TestMalformedTrailers(t *testing.T) {
	for _, trailer := range []string{"no colon\r\n\r\n", "X-T: 1\r\n", "X-T", "\r", "", "X-T: " + strings.Repeat("x", clientBuffer) + "\r\n\r\n"} {
		e := startAnswering(t, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n"+trailer, true)
		if _, body, err := fetch(transport(t), post(t, e.url, "")); body != "hello" || err == nil {
			t.Errorf("%.20q: %q, %v", trailer, body, err)
		}
	}
}
