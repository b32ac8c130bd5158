package filter

import (
	"bytes"
	"encoding/binary"
	"net"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// client2 is a client that writes HTTP/2 frames as it likes. Of what comes it only notices the
// answers to its pings.
type client2 struct {
	net.Conn
	t      testing.TB
	pongs  chan struct{}
	out    bytes.Buffer
	framer *http2.Framer
	// block is where a block of headers is encoded.
	block  bytes.Buffer
	fields *hpack.Encoder
	stream uint32
}

func (b *testbed) http2(t testing.TB) *client2 {
	t.Helper()
	conn, err := net.Dial("tcp", strings.TrimPrefix(b.url, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	c := &client2{Conn: conn, t: t, pongs: make(chan struct{}, 1)}
	read := make(chan struct{})
	go func() {
		defer close(read)
		c.read()
	}()
	t.Cleanup(func() {
		conn.Close()
		<-read
	})
	c.framer, c.fields = http2.NewFramer(&c.out, nil), hpack.NewEncoder(&c.block)
	c.out.WriteString(http2.ClientPreface)
	c.check(c.framer.WriteSettings())
	return c
}

func (c *client2) check(err error) {
	c.t.Helper()
	if err != nil {
		c.t.Fatal(err)
	}
}

// read reads frames until the connection ends.
func (c *client2) read() {
	in := http2.NewFramer(nil, c)
	for {
		f, err := in.ReadFrame()
		if err != nil {
			return
		}
		if ping, ok := f.(*http2.PingFrame); ok && ping.IsAck() {
			c.pongs <- struct{}{}
		}
	}
}

// ping waits until Envoy has handled all that was sent before.
func (c *client2) ping() {
	c.t.Helper()
	c.check(c.framer.WritePing(false, [8]byte{}))
	c.flush()
	select {
	case <-c.pongs:
	case <-time.After(testTimeout):
		c.t.Fatal("the ping was not answered")
	}
}

// flood sends n requests with headers of 50 kB, and waits until the worker has handled them.
func (c *client2) flood(n int) {
	c.t.Helper()
	large := hpack.HeaderField{Name: "x-a", Value: strings.Repeat("z", 50_000), Sensitive: true}
	for range n / 20 {
		for range 20 {
			c.open("/", false, large)
		}
		c.flush()
	}
	c.ping()
	c.ping() // what the worker has put off until the end of the loop's iteration is done
}

// open adds a request. The table of HPACK has the fields that an earlier one has had.
func (c *client2) open(path string, hasBody bool, more ...hpack.HeaderField) (stream uint32) {
	c.t.Helper()
	c.block.Reset()
	for _, f := range append([]hpack.HeaderField{{Name: ":method", Value: "POST"}, {Name: ":scheme", Value: "http"}, {Name: ":path", Value: path},
		{Name: ":authority", Value: "a"}}, more...) {
		c.check(c.fields.WriteField(f))
	}
	c.stream += 2
	stream = c.stream - 1
	const most = 16 << 10 // bytes of a frame
	part := c.block.Next(most)
	c.check(c.framer.WriteHeaders(http2.HeadersFrameParam{StreamID: stream, BlockFragment: part, EndStream: !hasBody, EndHeaders: c.block.Len() == 0}))
	for c.block.Len() > 0 {
		part = c.block.Next(most)
		c.check(c.framer.WriteContinuation(stream, c.block.Len() == 0, part))
	}
	return stream
}

// flush sends all that was added in one write. It returns how many bytes that was.
func (c *client2) flush() int64 {
	c.t.Helper()
	n, err := c.out.WriteTo(c)
	c.check(err)
	return n
}

// waits asks something that waits for a slot. The returned function decides it, and checks that
// nothing has happened to it meanwhile.
func (b *testbed) waits(t *testing.T) (goesOn func()) {
	t.Helper()
	c := b.send(t, "GET", "/waits", "")
	f := b.next(t, frHeaders)
	f.conn.send(frWait, 0, f.id, binary.LittleEndian.AppendUint32(nil, 600_000)) // milliseconds
	return func() {
		t.Helper()
		if lost := b.counter("sluice_connections_lost"); lost != "" && lost != "0" {
			t.Errorf("%s connections were lost", lost)
		}
		f.decide()
		want(t, c, 200)
	}
}

// TestB6_ABurstOfHeadersCostsNobodyElseA503 has a client without a key make Envoy hold 22 MiB of
// headers out of a few kilobytes, in one iteration of the worker's loop.
func TestB6_ABurstOfHeadersCostsNobodyElseA503(t *testing.T) {
	b := up(t, options{})
	goesOn := b.waits(t)
	c := b.http2(t)
	large := hpack.HeaderField{Name: "x-a", Value: strings.Repeat("z", 3900)}
	c.open("/", false, large)
	c.flush()
	b.next(t, frHeaders).decide()
	b.next(t, frEnd)
	const n = 400
	same := make([]hpack.HeaderField, 14)
	for i := range same {
		same[i] = large
	}
	for range n {
		c.open("/", false, same...)
	}
	if sent := c.flush(); sent > 40_000 {
		t.Fatalf("the client sends %d bytes", sent)
	}
	eventually(t, "all have come", func() bool { return b.counter("http.a.downstream_rq_total") == strconv.Itoa(n+2) })
	goesOn()
	b.servesAgain(t)
}

// TestB6_ABurstOfSmallBodiesCostsNobodyA503 has bodies of 18 MiB end in one iteration of the
// worker's loop.
func TestB6_ABurstOfSmallBodiesCostsNobodyA503(t *testing.T) {
	b := up(t, options{})
	goesOn := b.waits(t)
	c := b.http2(t)
	const n, size = 1100, 16 << 10
	body := strings.Repeat("z", size)
	for range n {
		stream := c.open("/", true)
		c.check(c.framer.WriteData(stream, false, []byte(body[1:])))
		c.flush()
		b.next(t, frHeaders)
	}
	eventually(t, "the bodies are there", func() bool {
		received, _ := strconv.Atoi(b.counter("downstream_cx_rx_bytes_total"))
		return received > n*(size-1)
	})
	for i := range n {
		c.check(c.framer.WriteData(uint32(2*i+1), true, []byte(body[:1])))
	}
	c.flush()
	for range n {
		f := b.next(t, frBody)
		if string(f.payload) != body {
			t.Fatalf("a body has %d bytes, or others", len(f.payload))
		}
		f.conn.send(frReply, 0, f.id, replyFrame(429, nil, "", "")) // the upstream need not serve as many
	}
	for range n {
		if r := b.next(t, frEnd).record(t); r.numbers[0] != 429 {
			t.Fatalf("record %+v", r)
		}
	}
	goesOn()
}

// TestB6_ABurstOfEndsCostsNobodyA503 ends requests with long paths in one iteration of the worker's
// loop. Each End is told, with the beginning of the path.
func TestB6_ABurstOfEndsCostsNobodyA503(t *testing.T) {
	b := up(t, options{})
	goesOn := b.waits(t)
	c := b.http2(t)
	const n = 400
	path := "/" + strings.Repeat("p", 50_000)
	for range n {
		c.open(path, true)
		c.flush()
		b.next(t, frHeaders)
	}
	c.Close()
	for range n {
		if r := b.next(t, frEnd).record(t); r.list["path"] != path[:1024] || r.list["method"] != "POST" {
			t.Fatalf("the record has a path of %d bytes", len(r.list["path"]))
		}
	}
	goesOn()
}

// TestB6_AGatewayThatReadsNothingIsToldNoMoreThanTheQueueHolds fills the queue while the gateway
// reads nothing. Further requests go on undecided, and those before are decided later.
func TestB6_AGatewayThatReadsNothingIsToldNoMoreThanTheQueueHolds(t *testing.T) {
	b := up(t, options{})
	goesOn := b.waits(t)
	b.reading.Lock()
	read := sync.OnceFunc(b.reading.Unlock)
	defer read()
	undecided := func() int {
		n, _ := strconv.Atoi(b.counter("sluice_undecided"))
		return n
	}
	c := b.http2(t)
	const n = 600 // 30 MB
	c.flood(n)
	decided := n - undecided()
	read()
	for range decided {
		b.next(t, frHeaders).decide()
	}
	goesOn()
	if decided < 300 || decided == n {
		t.Errorf("the queue took %d of %d requests of 50 kB", decided, n)
	}
}
