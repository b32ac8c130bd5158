package filter

import (
	"bufio"
	"context"
	"crypto/tls"
	"encoding/binary"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

func TestB6_AConnectionThatBreaksEndsItsWaitsAndDecidedRequestsRunOn(t *testing.T) {
	b := up(t, options{})
	running := b.send(t, "POST", "/slow", "x", "x-request-id", "11111111-2222-4333-8444-555555555555")
	f := b.next(t, frBody)
	f.conn.send(frGo, 0, f.id, goFrame(toModel, nil, pairs{{"tenant", "acme"}}, ""))
	b.upstreamHasBegun(t)
	waiting := b.send(t, "POST", "/", "x")
	w := b.next(t, frBody)
	w.conn.send(frWait, 0, w.id, binary.LittleEndian.AppendUint32(nil, 600_000))
	b.kill()
	want(t, waiting, 503)
	want(t, b.send(t, "GET", "/", ""), 503)
	b.listen(t)
	live := b.next(t, frLive)
	list := live.list(t, 8)
	for name, value := range map[string]string{
		"id": "11111111-2222-4333-8444-555555555555", "route": "decided", "cluster": "model/m", "@tenant": "acme",
	} {
		if list[name] != value {
			t.Errorf("%s is %q; want %q", name, list[name], value)
		}
	}
	if age := binary.LittleEndian.Uint64(live.payload); age == 0 || age > uint64(time.Hour.Microseconds()) {
		t.Errorf("the request is %d µs old", age)
	}
	b.upstream.release <- struct{}{}
	want(t, running, 200)
	if end := b.next(t, frEnd); end.id != live.id || end.record(t).list["@tenant"] != "acme" {
		t.Errorf("End has the id %d, Live %d", end.id, live.id)
	}
	if made := b.counter("sluice_connections_made"); made != "2" {
		t.Errorf("%s connections were made", made)
	}
	if lost := b.counter("sluice_connections_lost"); lost != "1" {
		t.Errorf("%s connections were lost", lost)
	}
	if n := b.counter("sluice_undecided"); n != "2" {
		t.Errorf("%s requests were undecided", n)
	}
}

// A gateway that comes back after a second has the next request, although the filter tries by
// itself ever more rarely.
func TestB6_AGatewayThatIsBackHasTheNextRequest(t *testing.T) {
	b := up(t, options{})
	b.kill()
	for began := time.Now(); time.Since(began) < time.Second; {
		want(t, b.send(t, "GET", "/", ""), 503)
	}
	b.decideAll.Store(true)
	b.listen(t)
	refused := 0
	for got(t, b.send(t, "POST", "/", "x")).status != 200 {
		refused++
	}
	if refused > 20 {
		t.Errorf("%d requests were refused", refused)
	}
}

func TestB6_AnEndWithoutAConnectionIsToldToTheNextOne(t *testing.T) {
	b := up(t, options{})
	running := b.send(t, "POST", "/slow", "x")
	f := b.next(t, frBody)
	f.conn.send(frGo, 0, f.id, goFrame(toModel, nil, pairs{{"tenant", "acme"}}, ""))
	b.upstreamHasBegun(t)
	b.kill()
	eventually(t, "the connection is lost", func() bool { return b.counter("sluice_connections_lost") == "1" })
	b.upstream.release <- struct{}{}
	want(t, running, 200)
	b.listen(t)
	live, end := b.next(t, frLive), b.next(t, frEnd)
	if live.id != end.id || end.record(t).list["@tenant"] != "acme" || live.list(t, 8)["@tenant"] != "acme" {
		t.Errorf("Live %d, End %d", live.id, end.id)
	}
}

// An End that is still in the queue when a gateway dies, because the socket took no more, is told
// to the next one.
func TestB6_AnEndInTheQueueOfAConnectionThatBreaksIsToldToTheNextOne(t *testing.T) {
	b := up(t, options{})
	running := b.send(t, "POST", "/slow", "x", "x-request-id", "11111111-2222-4333-8444-555555555555")
	f := b.next(t, frBody)
	f.conn.send(frGo, 0, f.id, goFrame(toModel, nil, pairs{{"tenant", "acme"}}, ""))
	b.upstreamHasBegun(t)
	const n = 20 // more than the socket takes
	body := strings.Repeat("a", 900_000)
	b.reading.Lock()
	var large []<-chan answer
	for range n {
		large = append(large, b.send(t, "POST", "/", body))
	}
	eventually(t, "the bodies are there", func() bool {
		received, _ := strconv.Atoi(b.counter("downstream_cx_rx_bytes_total"))
		return received > n*len(body) && b.counter("downstream_rq_active") == strconv.Itoa(n+1)
	})
	b.upstream.release <- struct{}{}
	want(t, running, 200)
	eventually(t, "it has ended", func() bool { return b.counter("downstream_rq_active") == strconv.Itoa(n) })
	b.kill()
	b.reading.Unlock()
	for _, c := range large {
		want(t, c, 503)
	}
	b.listen(t)
	end := b.next(t, frEnd).record(t)
	if end.list["id"] != "11111111-2222-4333-8444-555555555555" || end.list["@tenant"] != "acme" || end.numbers[0] != 200 {
		t.Errorf("record %+v", end)
	}
	b.servesAgain(t)
}

func TestB6_AGatewayThatIsSilentCosts503AfterTheTimeOfWelcome(t *testing.T) {
	b := up(t, options{})
	b.silence = 1000 // the second request has this time for its decision
	c := b.send(t, "POST", "/", "x")
	f := b.next(t, frBody)
	want(t, c, 503)
	if end := b.next(t, frEnd); end.id != f.id || end.record(t).list["route"] != "undecided" {
		t.Errorf("record %+v", end.record(t))
	}
	f.decide() // too late
	c = b.send(t, "POST", "/", "x")
	b.next(t, frBody).decide()
	want(t, c, 200)
}

// An Envoy stood still for longer than the time of Welcome, as on a machine that had no processor
// for it. It reads what the gateway has said meanwhile before it gives a request up.
func TestB6_AnEnvoyThatStoodStillReadsBeforeItGivesUp(t *testing.T) {
	const silence = 5 * time.Second
	b := up(t, options{})
	b.silence = uint32(silence.Milliseconds())
	c := b.send(t, "POST", "/", "x")
	f := b.next(t, frBody)
	if err := b.process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	eventually(t, "it stands still", func() bool {
		status, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", b.process.Pid))
		return strings.Contains(string(status), "State:\tT")
	})
	f.decide()
	time.Sleep(silence)
	var answered atomic.Bool
	var busy sync.WaitGroup
	busy.Go(func() { // the thread of the filter, so that it looks at the time again and again
		for !answered.Load() {
			_, _ = f.conn.Conn.Write(encode(frHeard, 0, f.id+1, nil))
		}
	})
	defer busy.Wait()
	defer answered.Store(true)
	if err := b.process.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	want(t, c, 200)
}

func TestB6_WaitKeepsARequestUntilItsOwnTime(t *testing.T) {
	b := up(t, options{})
	b.silence = 1000 // both requests have this time for their Wait
	c, d := b.send(t, "POST", "/", "x"), b.send(t, "POST", "/", "y")
	for range 2 {
		f := b.next(t, frBody)
		ms := uint32(600_000)
		if string(f.payload) == "y" {
			ms = 1500
		}
		f.conn.send(frWait, 0, f.id, binary.LittleEndian.AppendUint32(nil, ms))
		if string(f.payload) == "x" {
			defer func() {
				f.decide()
				want(t, c, 200)
			}()
		}
	}
	want(t, d, 503)
}

func TestB6_AgainSendsTheRequestOverANewConnection(t *testing.T) {
	b := up(t, options{})
	for _, body := range []string{"hello", strings.Repeat("z", 100_000)} {
		c := b.send(t, "POST", "/", body, "x-a", "1")
		old := b.next(t, frBody)
		first := b.next(t, frHeaders)
		old.conn.send(frAgain, 0, old.id, nil)
		second, whole := b.next(t, frHeaders), b.next(t, frBody)
		if second.conn == first.conn || second.id == first.id || second.list(t, 0)["x-a"] != "1" || string(whole.payload) != body || whole.id != second.id {
			t.Errorf("Headers came with id %d, first %d, over the same connection: %v", second.id, first.id, second.conn == first.conn)
		}
		old.decide() // of an id that is free
		whole.decide()
		want(t, c, 200)
		if end := b.next(t, frEnd); end.id != second.id || end.conn != second.conn {
			t.Errorf("End has the id %d", end.id)
		}
		if !closedSoon(old.conn) {
			t.Error("the old connection is open")
		}
	}
}

func TestB6_ByeMovesFurtherRequestsToANewConnection(t *testing.T) {
	b := up(t, options{})
	c := b.send(t, "POST", "/slow", "x")
	f := b.next(t, frBody)
	f.decide()
	b.upstreamHasBegun(t)
	w := b.send(t, "POST", "/", "waits")
	waits := b.next(t, frBody)
	f.conn.send(frBye, 0, 0, nil)
	b.next(t, frHello)
	b.next(t, frHello)
	d := b.send(t, "POST", "/", "y")
	g := b.next(t, frBody)
	if g.conn == f.conn {
		t.Error("the request came over the connection of Bye")
	}
	g.decide()
	want(t, d, 200)
	waits.decide()
	want(t, w, 200)
	b.upstream.release <- struct{}{}
	want(t, c, 200)
	ends := map[uint64]*peerConn{}
	for range 3 {
		end := b.next(t, frEnd)
		ends[end.id] = end.conn
	}
	if ends[f.id] != f.conn || ends[waits.id] != f.conn || ends[g.id] != g.conn {
		t.Errorf("ends came over %v", ends)
	}
	if !closedSoon(f.conn) {
		t.Error("the connection of Bye is open")
	}
}

// A process that ends after its Bye leaves its streams to its successor, which is told of them at
// once.
func TestB6_X20_StreamsOfAProcessThatEndsAreToldToItsSuccessorAtOnce(t *testing.T) {
	b := up(t, options{})
	c := b.send(t, "POST", "/slow", "x", "x-request-id", "11111111-2222-4333-8444-555555555555")
	f := b.next(t, frBody)
	f.decide()
	b.upstreamHasBegun(t)
	b.next(t, frHello)
	f.conn.send(frBye, 0, 0, nil)
	successor := b.next(t, frHello).conn
	f.conn.Close()
	live := b.next(t, frLive) // the stream runs
	if id := live.list(t, 8)["id"]; live.conn != successor || id != "11111111-2222-4333-8444-555555555555" {
		t.Errorf("Live tells %q, to the successor: %v", id, live.conn == successor)
	}
	b.upstream.release <- struct{}{}
	want(t, c, 200)
	if end := b.next(t, frEnd); end.id != live.id || end.conn != successor {
		t.Errorf("End has the id %d, Live %d", end.id, live.id)
	}
}

// closedSoon reports whether the filter closes a connection. The peer reads from it.
func closedSoon(c *peerConn) bool {
	for end := time.Now().Add(testTimeout); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		if _, err := c.Write(nil); err != nil {
			return true
		}
		if err := c.SetDeadline(time.Time{}); err != nil {
			return true
		}
	}
	return false
}

func TestB6_AMalformedFrameEndsTheConnection(t *testing.T) {
	b := up(t, options{})
	le := binary.LittleEndian
	reserved := encode(frGo, 0, 1, goFrame(toModel, nil, nil, ""))
	reserved[7] = 1
	for i, bad := range [][]byte{
		reserved,
		encode(99, 0, 0, nil),
		encode(frWelcome, 0, 0, []byte{9, 0, 0, 0, 1, 0, 0, 0}),
		encode(frWelcome, 0, 0, []byte{2, 0, 0, 0, 0, 0, 0, 0}),
		encode(frBye, 0, 0, []byte{1}),
		encode(frGo, 4, 1, goFrame(nil, nil, nil, "")),
		encode(frGo, 0, 1, goFrame(nil, nil, nil, "x")),
		encode(frGo, 0, 1, goFrame(pairs{{"", "x"}}, nil, nil, "")),
		encode(frGo, 0, 1, goFrame(pairs{{"X", "x"}}, nil, nil, "")),
		encode(frGo, 0, 1, goFrame(pairs{{"x", "a\r\nb: c"}}, nil, nil, "")),
		encode(frGo, 0, 1, goFrame(nil, []string{":path"}, nil, "")),
		encode(frGo, 0, 1, []byte{255, 255, 0, 0, 0, 0, 0, 0}),
		encode(frReply, 0, 1, replyFrame(99, nil, "", "")),
		encode(frReply, 0, 1, []byte{200, 0, 0, 0, 9, 0, 0, 0}),
		encode(frWait, 0, 1, []byte{1}),
		encode(frAgain, 0, 1, []byte{1}),
		le.AppendUint32(nil, 1<<31),
		append(le.AppendUint32(nil, 1<<30+5<<20), make([]byte, 12)...),
		{0, 0, 0, 0, frBye, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0},
		{0, 0, 16, 0, frGo, 0, 1, 0, 1, 0, 0, 0, 0, 0, 0, 0}, // the beginning of a large one
		{0, 0, 16, 0, frGo, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0},
		{0, 0, 16, 0, frWait, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0},
	} {
		c := b.send(t, "GET", "/", "")
		h := b.next(t, frHeaders)
		if len(bad) < 16 {
			bad = append(bad, make([]byte, 12)...)
		}
		_, _ = h.conn.Write(bad)
		if a := want(t, c, 503); a.err != nil {
			t.Errorf("%d: %v", i, a.err)
		}
		b.next(t, frHello)
		eventually(t, "there is a further connection", func() bool { return b.counter("sluice_connections_made") == strconv.Itoa(i+2) })
	}
	b.servesAgain(t) // until the filter has read Welcome, a request waits for 2 s only
}

func TestB6_ASlowGatewayHoldsNoWorkerAndBodiesComeWhole(t *testing.T) {
	b := up(t, options{})
	want(t, b.decided(t, "", frHeaders), 200)
	const n = 40
	body := strings.Repeat("0123456789", 40_000)
	b.reading.Lock()
	var all []<-chan answer
	for range n {
		all = append(all, b.send(t, "POST", "/", body))
	}
	eventually(t, "all requests are there", func() bool { return b.counter("downstream_rq_active") == strconv.Itoa(n) })
	want(t, b.send(t, "GET", "/off", ""), 200)
	b.reading.Unlock()
	for range n {
		f := b.next(t, frBody)
		if string(f.payload) != body {
			t.Fatalf("a body of %d bytes is not what was sent", len(f.payload))
		}
		f.decide()
	}
	for _, c := range all {
		want(t, c, 200)
	}
}

func TestB6_ABodyOfAClientThatLeftIsCompletedByZeros(t *testing.T) {
	b := up(t, options{})
	want(t, b.decided(t, "", frHeaders), 200)
	const n = 20 // more than the socket takes
	body := strings.Repeat("a", 900_000)
	b.reading.Lock()
	var aborts []func()
	for range n {
		aborts = append(aborts, b.sendAborted(t, "/", body))
	}
	eventually(t, "the bodies are there", func() bool {
		received, _ := strconv.Atoi(b.counter("downstream_cx_rx_bytes_total"))
		return received > n*len(body) && b.counter("downstream_rq_active") == strconv.Itoa(n)
	})
	for _, abort := range aborts {
		abort()
	}
	eventually(t, "the requests have ended", func() bool { return b.counter("downstream_rq_active") == "0" })
	b.reading.Unlock()
	for range n {
		b.next(t, frEnd)
	}
	completed := 0
	for _, f := range b.held {
		if f.kind != frBody {
			continue
		}
		rest := strings.TrimLeft(string(f.payload), "a")
		if len(f.payload) != len(body) || !zeros([]byte(rest)) {
			t.Errorf("%d bytes, of which %d follow the body", len(f.payload), len(rest))
		}
		if rest != "" {
			completed++
		}
	}
	if completed != 1 {
		t.Errorf("zeros completed %d bodies; want 1", completed)
	}
	b.servesAgain(t)
}

func TestB6_AGatewayThatStopsReadingCostsOnly503(t *testing.T) {
	b := up(t, options{})
	b.silence = 300
	want(t, b.decided(t, "", frHeaders), 200)
	b.reading.Lock()
	var all []<-chan answer
	for range 30 { // more than the socket takes
		all = append(all, b.send(t, "POST", "/", strings.Repeat("x", 500_000)))
	}
	for _, c := range all {
		want(t, c, 503)
	}
	b.reading.Unlock()
	b.servesAgain(t)
}

func TestB6_TrailersAndExpectAndUpgradesAndHTTP2(t *testing.T) {
	b := up(t, options{})
	host := strings.TrimPrefix(b.url, "http://")
	raw := func(request string) *bufio.Reader {
		c, err := net.Dial("tcp", host)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		_ = c.SetDeadline(time.Now().Add(testTimeout))
		fmt.Fprint(c, request)
		return bufio.NewReader(c)
	}
	r := raw("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\nTrailer: x-t\r\n\r\n3\r\nabc\r\n0\r\nx-t: 1\r\n\r\n")
	f := b.next(t, frBody)
	if string(f.payload) != "abc" {
		t.Errorf("got %q", f.payload)
	}
	f.decide()
	if line, _ := r.ReadString('\n'); !strings.Contains(line, " 200 ") {
		t.Errorf("with trailers: %q", line)
	}
	r = raw("POST / HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 3\r\n\r\nabc")
	b.next(t, frBody).decide()
	if line, _ := r.ReadString('\n'); !strings.Contains(line, " 100 ") && !strings.Contains(line, " 200 ") {
		t.Errorf("with Expect: %q", line)
	}
	r = raw("GET /off HTTP/1.1\r\nHost: a\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n")
	if line, _ := r.ReadString('\n'); !strings.HasPrefix(line, "HTTP/1.1 ") {
		t.Errorf("an upgrade: %q", line)
	}
	b.overHTTP2(t)
}

func (b *testbed) overHTTP2(t *testing.T) {
	t.Helper()
	var protocols http.Protocols
	protocols.SetUnencryptedHTTP2(true)
	old := b.client
	b.client = &http.Client{Transport: &http.Transport{Protocols: &protocols, TLSClientConfig: &tls.Config{}}}
	defer func() {
		b.client.CloseIdleConnections()
		b.client = old
	}()
	var all []<-chan answer
	for range 20 {
		all = append(all, b.send(t, "POST", "/", strings.Repeat("h", 30_000)), b.send(t, "GET", "/", ""))
	}
	for range 20 {
		b.next(t, frBody).decide()
	}
	for range 42 {
		if f := b.next(t, frHeaders); f.flags == 1 {
			f.decide()
		}
	}
	for _, c := range all {
		want(t, c, 200)
	}
	for range 42 {
		b.next(t, frEnd)
	}
}

// TestB6_NothingIsLeftOfAStorm sends requests of all kinds that clients abort at any moment, to a
// gateway that answers in all ways. SLUICE_STORM is how many (default 2,000).
func TestB6_NothingIsLeftOfAStorm(t *testing.T) {
	n := 2000
	if v, err := strconv.Atoi(os.Getenv("SLUICE_STORM")); err == nil {
		n = v
	}
	b := up(t, options{concurrency: 2})
	b.silence = 2000
	stop := make(chan struct{})
	var answering, clients sync.WaitGroup
	answering.Go(func() { b.answerStorm(stop) })
	next := make(chan int)
	for range 32 {
		clients.Go(func() {
			for i := range next {
				b.stormOne(i)
			}
		})
	}
	for i := range n {
		if i%(n/4) == n/8 {
			b.kill()
			b.listen(t)
		}
		next <- i
	}
	close(next)
	clients.Wait()
	eventually(t, "nothing is in flight", func() bool { return b.counter("downstream_rq_active") == "0" })
	close(stop)
	answering.Wait()
	b.servesAgain(t)
}

// servesAgain waits until a request is decided and served.
func (b *testbed) servesAgain(t *testing.T) {
	t.Helper()
	eventually(t, "requests are decided again", func() bool {
		c := b.send(t, "GET", "/", "")
		for {
			select {
			case f := <-b.frames:
				if f.kind == frHeaders {
					f.decide()
				}
			case a := <-c:
				return a.status == 200
			}
		}
	})
}

func (b *testbed) answerStorm(stop chan struct{}) {
	for {
		select {
		case <-stop:
			return
		case f := <-b.frames:
			if f.kind == frHeaders && f.flags == 1 || f.kind == frBody || f.kind == frHeaders && rand.N(10) == 0 {
				b.answerOne(f)
			}
		}
	}
}

func (b *testbed) answerOne(f frame) {
	switch rand.N(10) {
	case 0:
		f.conn.send(frReply, 0, f.id, replyFrame(429, pairs{{"a", "b"}}, "d", "no"))
	case 1:
		f.conn.send(frAgain, 0, f.id, nil)
	case 2:
		f.conn.send(frWait, 0, f.id, binary.LittleEndian.AppendUint32(nil, 50))
		go f.decide()
	case 3:
		f.conn.send(frGo, 1, f.id, goFrame(toModel, nil, nil, "other"))
	case 4:
		f.decide()
		f.conn.send(frReply, 0, f.id, replyFrame(499, nil, "cancelled", ""))
	case 5:
		f.conn.send(frBye, 0, 0, nil)
		f.decide()
	default:
		f.decide()
	}
}

func (b *testbed) stormOne(i int) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	if i%3 > 0 {
		ctx, cancel = context.WithTimeout(ctx, time.Duration(rand.N(5_000_000)))
		defer cancel()
	}
	method, body := "POST", strings.Repeat("s", []int{1, 1000, 40_000, 400_000}[i%4])
	if i%5 == 0 {
		method, body = "GET", ""
	}
	r, _ := http.NewRequestWithContext(ctx, method, b.url+"/", strings.NewReader(body))
	if res, err := b.client.Do(r); err == nil {
		_, _ = io.Copy(io.Discard, res.Body)
		res.Body.Close()
	}
}
