package filter

import (
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
)

// observed is a request whose response the filter observes. The upstream has it, and waits for
// release before each half of the response.
type observed struct {
	*testbed
	t    *testing.T
	id   uint64
	body chan io.ReadCloser
	rest io.ReadCloser
}

// observes asks something that is observed, for a response with the body 0123456789.
func (b *testbed) observes(t *testing.T) *observed {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, b.url+"/says", strings.NewReader("0123456789"))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("x-hold", "1")
	r.Header.Set("x-pause", "1")
	o := &observed{testbed: b, t: t, body: make(chan io.ReadCloser, 1)}
	go func() {
		res, err := b.client.Do(r)
		if err != nil {
			t.Error(err)
			close(o.body)
			return
		}
		o.body <- res.Body
	}()
	b.next(t, frHeaders)
	f := b.next(t, frBody)
	o.id = f.id
	f.conn.send(frGo, 0, f.id, goFrame(append(pairs{{"x-sluice-observe", "1"}}, toModel...), nil, nil, ""))
	eventually(t, "the upstream has it", func() bool { return b.counter("cluster.model/m.upstream_rq_active") == "1" })
	return o
}

// half has the upstream send the next half of the response, and waits until the client has it.
func (o *observed) half(want string) {
	o.t.Helper()
	o.upstream.release <- struct{}{}
	if o.rest == nil {
		if o.rest = <-o.body; o.rest == nil {
			o.t.Fatal("no response came")
		}
		o.t.Cleanup(func() { o.rest.Close() })
	}
	got := make([]byte, len(want))
	if _, err := io.ReadFull(o.rest, got); err != nil || string(got) != want {
		o.t.Fatalf("the client has got %q, %v", got, err)
	}
}

// begun checks that the next frame is a First without bytes, and that the End follows.
func (o *observed) begun(id uint64) {
	o.t.Helper()
	f := o.next(o.t, frFirst, frEnd)
	if f.kind != frFirst || f.id != id || len(f.payload) > 0 {
		o.t.Fatalf("a frame of kind %d with %q of %d, want a First without bytes of %d", f.kind, f.payload, f.id, id)
	}
	o.next(o.t, frEnd)
}

// TestB6_TheFirstTokenIsToldOverTheNextConnection: a response begins while there is no connection.
// The next one is told that it has begun, and no bytes from its middle.
func TestB6_TheFirstTokenIsToldOverTheNextConnection(t *testing.T) {
	b := up(t, options{concurrency: 1})
	o := b.observes(t)
	b.kill()
	eventually(t, "the connection is lost", func() bool { return b.counter("sluice_connections_lost") == "1" })
	o.half("01234")
	b.listen(t)
	live := b.next(t, frLive)
	o.half("56789")
	o.begun(live.id)
}

// TestB6_TheMiddleOfAResponseIsNotItsBeginning: what was told over a connection that breaks may be
// lost, so the next one is told no bytes.
func TestB6_TheMiddleOfAResponseIsNotItsBeginning(t *testing.T) {
	b := up(t, options{concurrency: 1})
	o := b.observes(t)
	o.half("01234")
	b.next(t, frFirst)
	b.kill()
	b.listen(t)
	live := b.next(t, frLive)
	o.half("56789")
	o.begun(live.id)
}

// TestB6_TheFirstTokenIsToldWhenTheQueueHasRoom: a response begins while the gateway does not read
// and much waits for it. The gateway is told later that the response has begun.
func TestB6_TheFirstTokenIsToldWhenTheQueueHasRoom(t *testing.T) {
	b := up(t, options{concurrency: 1})
	o := b.observes(t)
	b.reading.Lock()
	read := sync.OnceFunc(b.reading.Unlock)
	defer read()
	c := b.http2(t)
	const n = 240 // 12 MB
	c.flood(n)
	o.half("01234")
	read()
	for range n {
		f := b.next(t, frHeaders)
		f.conn.send(frReply, 0, f.id, replyFrame(429, nil, "", ""))
	}
	for range n {
		b.next(t, frEnd)
	}
	o.half("56789")
	o.begun(o.id)
}
