package frames

import (
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/sluice-gateway/sluice/internal/decide"
	"github.com/sluice-gateway/sluice/internal/decide/decidetest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// filter is the filter's end of a connection.
type filter struct {
	t testing.TB
	net.Conn
}

// connect opens a connection and says Hello.
func connect(t testing.TB, path string) *filter {
	t.Helper()
	c, err := net.Dial("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	f := &filter{t, c}
	if _, err := c.Write(helloFrame()); err != nil {
		t.Fatal(err)
	}
	if h, _ := f.next(); h.kind != kindWelcome {
		t.Fatalf("the answer to Hello is of type %d", h.kind)
	}
	return f
}

// connectDecided is connect with a chat, request 1, that may go.
func connectDecided(t testing.TB, path string) *filter {
	t.Helper()
	f := connect(t, path)
	f.send(kindHeaders, 0, 1, chatHeaders("key"))
	f.send(kindBody, 0, 1, []byte(chat))
	if h, _ := f.next(); h.kind != kindGo {
		t.Fatalf("a frame of type %d", h.kind)
	}
	return f
}

func frame(k kind, flags uint8, id uint64, payload []byte) []byte {
	return end(append(begin(nil, k, flags, id), payload...), 0)
}

func (f *filter) send(k kind, flags uint8, id uint64, payload []byte) {
	f.t.Helper()
	if _, err := f.Write(frame(k, flags, id, payload)); err != nil {
		f.t.Error(err)
	}
}

// next reads a frame.
func (f *filter) next() (head, []byte) {
	f.t.Helper()
	f.SetReadDeadline(time.Now().Add(time.Minute)) //nolint:errcheck // the read fails then
	h, payload, err := f.read()
	if err != nil {
		f.t.Fatal(err)
	}
	f.SetReadDeadline(time.Time{}) //nolint:errcheck // as above
	return h, payload
}

func (f *filter) read() (head, []byte, error) {
	b := make([]byte, headSize)
	if _, err := io.ReadFull(f, b); err != nil {
		return head{}, nil, err
	}
	h := readHead(b)
	payload := make([]byte, h.length)
	_, err := io.ReadFull(f, payload)
	return h, payload, err
}

// list returns a list of pairs: name, value, name, value.
func list(pairs ...string) []byte {
	b := binary.LittleEndian.AppendUint16(nil, uint16(len(pairs)/2))
	b = append(b, 0, 0)
	for i := 0; i < len(pairs); i += 2 {
		b = appendPair(b, pairs[i], pairs[i+1])
	}
	return b
}

func chatHeaders(key string) []byte {
	return list(":authority", "127.0.0.1:8080", ":path", "/v1/chat/completions", ":method", "POST", ":scheme", "http",
		"user-agent", "OpenAI/Python 3.52.0", "content-length", "140", "content-type", "application/json", "accept", "application/json",
		"authorization", "Bearer "+key, "x-stainless-lang", "python", "x-stainless-os", "Linux", "x-stainless-arch", "x64",
		"x-stainless-runtime", "CPython", "x-request-id", "2f0c5f0e-8f0f-4d9d-9d5c-0a4c1b5e7f11", "x-forwarded-for", "127.0.0.1")
}

const chat = `{"model":"m","stream":true,"max_tokens":64,"messages":[{"role":"system","content":"You help."},{"role":"user","content":"Hello"}]}`

// BenchmarkExchange measures one request over a Unix socket, with the work of both ends.
func BenchmarkExchange(b *testing.B) {
	for _, size := range []int{0, 64 << 10, 400 << 10} {
		b.Run(fmt.Sprint(size), func(b *testing.B) {
			d := decidetest.New(b, 1000, decide.UploadLimits{})
			d.MaxBody = 1 << 20
			_, path := serve(b, d)
			f := connect(b, path)
			body := strings.Replace(chat, "Hello", "Hello"+strings.Repeat("x", size), 1)
			ask := append(frame(kindHeaders, 0, 1, chatHeaders("key")), frame(kindBody, 0, 1, []byte(body))...)
			atBody := len(ask) - len(body) - headSize
			tell := frame(kindEnd, 0, 1, record("2f0c5f0e-8f0f-4d9d-9d5c-0a4c1b5e7f11"))
			in := make([]byte, 64<<10)
			id := uint64(0)
			b.ReportAllocs()
			for b.Loop() {
				id++
				for _, at := range [][]byte{ask, ask[atBody:], tell} {
					binary.LittleEndian.PutUint64(at[8:], id)
				}
				f.Write(ask)
				if n, err := f.Read(in); err != nil || kind(in[4]) != kindGo {
					b.Fatalf("%d bytes, type %d, %v", n, in[4], err)
				}
				f.Write(tell)
			}
		})
	}
}
