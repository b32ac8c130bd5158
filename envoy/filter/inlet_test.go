package filter

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"
)

// The environment variable FILTER_ANSWERS is "thread" for tests whose gateway answers the filter's
// threads. Otherwise it answers the workers.
const answersVariable, throughThread = "FILTER_ANSWERS", "thread"

// TestB6_B12_AnswersToTheThreads runs the other tests once more, with a gateway that answers the
// filter's threads, as one does that cannot connect to the workers.
func TestB6_B12_AnswersToTheThreads(t *testing.T) {
	if os.Getenv(answersVariable) != "" {
		return // this is that run
	}
	t.Parallel()
	again := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestB6|^TestB12", "-test.skip=Sanitizers|Fuzzing|Inlet|Release|AnswersToTheThreads")
	again.Env = append(os.Environ(), answersVariable+"="+throughThread)
	if out, err := again.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
}

// onlyOnce skips what the run of TestB6_B12_AnswersToTheThreads would repeat: what runs no Envoy.
func onlyOnce(t testing.TB) {
	t.Helper()
	if os.Getenv(answersVariable) != "" {
		t.Skip("no Envoy runs here, so the way of answers makes no difference")
	}
}

// awaitInlet waits until a connection has its inlet.
func (p *peer) awaitInlet(t testing.TB, c *peerConn) {
	t.Helper()
	eventually(t, "the connection has its inlet", func() bool {
		p.mu.Lock()
		defer p.mu.Unlock()
		return c.inlet != nil
	})
}

// TestB6_B12_InletWakesNoThread has many requests answered by inlets, of two workers. The filter's
// threads then have nothing to do.
func TestB6_B12_InletWakesNoThread(t *testing.T) {
	const requests = 800
	b := up(t, options{concurrency: 2})
	b.decideAll.Store(true)
	b.load(t, "/", []byte("{}"), 4*benchClients) // each worker has connections then
	before := b.sleeps(t)
	b.load(t, "/", []byte("{}"), requests)
	// The threads look for silence several times a second, and connections may be slow to join.
	if n := b.sleeps(t) - before; n > requests/10 {
		t.Errorf("the threads were woken %d times for %d requests", n, requests)
	}
}

// sleeps returns how often the filter's threads have gone to sleep.
func (b *testbed) sleeps(t testing.TB) (total int) {
	t.Helper()
	for _, thread := range b.threads(t, "sluice") {
		status, _ := os.ReadFile(thread + "/status")
		_, after, _ := strings.Cut(string(status), "\nvoluntary_ctxt_switches:")
		var n int
		if _, err := fmt.Sscan(after, &n); err != nil {
			t.Fatal(err)
		}
		total += n
	}
	return total
}

// TestB6_B12_InletThatEnds ends an inlet alone. Its connection ends too: the request that waits
// goes on undecided, and the gateway is told again of the one that runs.
func TestB6_B12_InletThatEnds(t *testing.T) {
	b := up(t, options{})
	running := b.send(t, "GET", "/slow", "")
	b.next(t, frHeaders).decide()
	eventually(t, "the request has gone on", func() bool {
		return b.counter("downstream_rq_active") != "" && b.counter("cluster.model/m.upstream_rq_active") == "1"
	})
	waiting := b.send(t, "GET", "/", "")
	c := b.next(t, frHeaders).conn
	b.awaitInlet(t, c)
	c.inlet.Close()
	want(t, waiting, 503)
	live := b.next(t, frLive)
	if live.conn == c {
		t.Error("the request that runs was told over the same connection")
	}
	close(b.upstream.release)
	want(t, running, 200)
	if end := b.next(t, frEnd); end.id != live.id || end.conn != live.conn {
		t.Errorf("the end is of %d, and Live of %d", end.id, live.id)
	}
	want(t, b.decided(t, "", frHeaders), 200)
}

// TestB6_B12_InletIsReadBeforeItsEnd has a gateway answer many requests at once and end. What it
// has said in time holds.
func TestB6_B12_InletIsReadBeforeItsEnd(t *testing.T) {
	b := up(t, options{})
	want(t, b.decided(t, "", frHeaders), 200)
	c := b.next(t, frHello).conn
	b.awaitInlet(t, c)
	const n = 200
	var requests []<-chan answer
	var said []byte
	for range n {
		requests = append(requests, b.send(t, "GET", "/", ""))
		said = append(said, encode(frGo, 0, b.next(t, frHeaders).id, goFrame(toModel, nil, nil, ""))...)
	}
	if _, err := c.Write(said); err != nil {
		t.Fatal(err)
	}
	c.Close()
	for _, r := range requests {
		want(t, r, 200)
	}
}

// TestB6_B12_InletsThatSayNonsense has a gateway say what no gateway says. Only the inlet ends, or,
// after it was joined, its connection.
func TestB6_B12_InletsThatSayNonsense(t *testing.T) {
	b := up(t, options{})
	want(t, b.decided(t, "", frHeaders), 200)
	hello := b.next(t, frHello)
	b.awaitInlet(t, hello.conn)
	number := hello.payload[20:28]
	unknown := binary.LittleEndian.AppendUint64(nil, 12345)
	for name, frames := range map[string][]byte{
		"a connection that is not":   encode(frJoin, 0, 0, unknown),
		"a connection that has one":  encode(frJoin, 0, 0, number),
		"a frame before Join":        encode(frBye, 0, 0, unknown),
		"a Join with a flag":         encode(frJoin, 1, 0, unknown),
		"a Join of another length":   encode(frJoin, 0, 0, append(unknown, 0)),
		"a Join for a request":       encode(frJoin, 0, 7, unknown),
		"no frame but as many bytes": bytes.Repeat([]byte{0xff}, 24),
	} {
		t.Run(name, func(t *testing.T) {
			c := b.dialInlet(t)
			for i := range frames { // a byte at a time
				if _, err := c.Write(frames[i : i+1]); err != nil {
					break // it has ended before its last byte
				}
			}
			ends(t, c)
		})
	}
	for name, frames := range map[string][]byte{
		"a malformed Go":    encode(frGo, 0, 1, []byte{1}),
		"an unknown type":   encode(99, 0, 1<<20, nil),
		"a frame too large": {0xff, 0xff, 0xff, 0xff, frGo, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0},
	} {
		t.Run("joined, "+name, func(t *testing.T) {
			request := b.send(t, "GET", "/", "")
			f := b.next(t, frHeaders)
			b.awaitInlet(t, f.conn)
			if _, err := f.conn.inlet.Write(frames); err != nil {
				t.Fatal(err)
			}
			want(t, request, 503)
			ends(t, f.conn.inlet)
			b.next(t, frHello) // the filter has connected again, which it does at most every 2 ms
		})
	}
	want(t, b.decided(t, "", frHeaders), 200)
}

// dialInlet makes a connection to the one worker.
func (b *testbed) dialInlet(t *testing.T) net.Conn {
	t.Helper()
	c, err := net.Dial("unix", b.inlets)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	if _, err := io.ReadFull(c, make([]byte, 28)); err != nil {
		t.Fatal(err)
	}
	return c
}

// ends waits until the other end has closed a connection.
func ends(t *testing.T, c net.Conn) {
	t.Helper()
	err := c.SetReadDeadline(time.Now().Add(testTimeout))
	if errors.Is(err, net.ErrClosed) {
		return // its connection has ended, and so has the peer's part
	}
	n, err := c.Read(make([]byte, 100))
	if timeout, ok := err.(net.Error); n > 0 || err == nil || ok && timeout.Timeout() {
		t.Errorf("the connection has not ended: %d bytes, %v", n, err)
	}
}
