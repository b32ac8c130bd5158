package filter

import (
	"strings"
	"testing"
)

func TestB6_AHeaderAndABodyGoToTheGatewayAndTheAnswerToEnvoy(t *testing.T) {
	b := up(t, options{})
	c := b.send(t, "POST", "/v1/chat", "hello", "x-a", "1", "x-b", "2", "x-c", "4")
	hello := b.next(t, frHello)
	if len(hello.payload) != 16 || hello.id != 0 {
		t.Errorf("Hello has %d bytes and the id %d", len(hello.payload), hello.id)
	}
	h := b.next(t, frHeaders)
	list := h.list(t, 0)
	if list[":path"] != "/v1/chat" || list[":method"] != "POST" || list["x-a"] != "1" || h.flags != 0 || h.id == 0 {
		t.Errorf("Headers: %v, flags %d, id %d", list, h.flags, h.id)
	}
	body := b.next(t, frBody)
	if string(body.payload) != "hello" || body.id != h.id {
		t.Errorf("Body: %q with id %d, not %d", body.payload, body.id, h.id)
	}
	h.conn.send(frGo, 0, h.id, goFrame(pairs{{"x-sluice-cluster", "model/m"}, {"x-a", "3"}, {"x-c", ""}}, []string{"x-b"}, nil, ""))
	s := want(t, c, 200).seen(t)
	if s.Body != "hello" || s.Header.Get("x-a") != "3" || s.Header.Get("x-b") != "" || s.Length != 5 {
		t.Errorf("the upstream got %+v", s)
	}
	if v, ok := s.Header["X-C"]; ok {
		t.Errorf("the header with an empty value is there: %q", v)
	}
	if end := b.next(t, frEnd); end.id != h.id {
		t.Errorf("End has the id %d, not %d", end.id, h.id)
	}
}

func TestB6_ARequestWithoutABodyIsDecidedByItsHeaders(t *testing.T) {
	b := up(t, options{})
	c := b.send(t, "GET", "/v1/models", "")
	h := b.next(t, frHeaders)
	if h.flags != 1 {
		t.Errorf("flags are %d", h.flags)
	}
	h.decide()
	want(t, c, 200)
	b.next(t, frEnd)
	if len(b.held) != 1 || b.held[0].kind != frHello {
		t.Errorf("other frames came: %v", b.held)
	}
}

func TestB6_AReplyAnswersTheRequest(t *testing.T) {
	b := up(t, options{})
	c := b.send(t, "POST", "/", "x")
	h := b.next(t, frHeaders)
	h.conn.send(frReply, 0, h.id, replyFrame(429, pairs{{"retry-after", "7"}, {"content-type", "application/json"}}, "too_many", `{"a":1}`))
	a := want(t, c, 429)
	if a.body != `{"a":1}` || a.header.Get("retry-after") != "7" || a.header.Get("content-type") != "application/json" {
		t.Errorf("got %+v", a)
	}
	if r := b.next(t, frEnd).record(t); r.numbers[0] != 429 || r.list["details"] != "too_many" {
		t.Errorf("record %+v", r)
	}
}

func TestB6_AReplyToHeadersNeedsNoBody(t *testing.T) {
	b := up(t, options{})
	reader := newStuckBody(t, "the beginning")
	c := b.sendReader(t, "POST", "/", reader)
	h := b.next(t, frHeaders)
	h.conn.send(frReply, 0, h.id, replyFrame(401, nil, "", "no"))
	want(t, c, 401)
	b.next(t, frEnd)
}

func TestB6_GoReplacesTheBody(t *testing.T) {
	for _, size := range []int{0, 5, 300_000} {
		b := up(t, options{})
		c := b.send(t, "POST", "/", strings.Repeat("y", 100_000))
		b.next(t, frHeaders)
		body := b.next(t, frBody)
		body.conn.send(frGo, 1, body.id, goFrame(toModel, nil, nil, strings.Repeat("x", size)))
		s := want(t, c, 200).seen(t)
		if s.Length != int64(size) {
			t.Errorf("the upstream got %d bytes, not %d", s.Length, size)
		}
		if size == 5 && s.Body != "xxxxx" {
			t.Errorf("the upstream got %q", s.Body)
		}
	}
}

func TestB6_ALargeBodyComesWhole(t *testing.T) {
	b := up(t, options{limit: 8 << 20})
	body := strings.Repeat("0123456789abcdef", 1<<18)
	c := b.send(t, "POST", "/", body)
	f := b.next(t, frBody)
	if string(f.payload) != body {
		t.Errorf("the body has %d bytes, or others", len(f.payload))
	}
	f.decide()
	if s := want(t, c, 200).seen(t); s.Body != "4194304" {
		t.Errorf("the upstream got %s bytes", s.Body)
	}
	b.next(t, frEnd)
}

func TestB6_ABodyOverTheLimitOfTheRouteIsRefusedByEnvoy(t *testing.T) {
	b := up(t, options{limit: 2 << 20})
	c := b.send(t, "POST", "/", strings.Repeat("x", 4<<20))
	h := b.next(t, frHeaders)
	want(t, c, 413)
	r := b.next(t, frEnd)
	if r.id != h.id || r.record(t).numbers[0] != 413 {
		t.Errorf("record %+v", r.record(t))
	}
}

func TestB6_MetadataIsSetAndRead(t *testing.T) {
	b := up(t, options{})
	c := b.send(t, "POST", "/", "x")
	f := b.next(t, frBody)
	f.conn.send(frGo, 0, f.id, goFrame(toModel, nil, pairs{{"tenant", "acme"}, {"empty", ""}}, ""))
	want(t, c, 200)
	r := b.next(t, frEnd).record(t)
	for name, value := range map[string]string{
		"@tenant": "acme", "@empty": "", "read": "1 2 3", "usage": "\x08\x2a", "replica": "r1",
		"cluster": "model/m", "route": "decided",
	} {
		if v, ok := r.list[name]; !ok || v != value {
			t.Errorf("%s is %q, %v; want %q (%v)", name, v, ok, value, r.list)
		}
	}
}

func TestB6_TheFilterIsOffWhereTheRouteSaysSo(t *testing.T) {
	b := up(t, options{})
	want(t, b.send(t, "GET", "/off", ""), 200)
	want(t, b.send(t, "POST", "/off", "x"), 200)
	c := b.send(t, "GET", "/", "")
	h := b.next(t, frHeaders)
	if path := h.list(t, 0)[":path"]; path != "/" {
		t.Errorf("the gateway was asked about %s", path)
	}
	h.decide()
	want(t, c, 200)
}

func TestB6_AReplyAfterTheResponseHasBegunResetsTheRequest(t *testing.T) {
	b := up(t, options{})
	c := b.send(t, "POST", "/slow", "x")
	f := b.next(t, frBody)
	f.decide()
	b.upstreamHasBegun(t)
	f.conn.send(frReply, 0, f.id, replyFrame(499, nil, "cancelled", ""))
	if a := got(t, c); a.err == nil {
		t.Errorf("the response ended well: %+v", a)
	}
	if r := b.next(t, frEnd).record(t); r.numbers[0] != 200 {
		t.Errorf("record %+v", r)
	}
}

func TestB6_AReplyBeforeTheResponseEndsADecidedRequest(t *testing.T) {
	b := up(t, options{})
	c := b.send(t, "POST", "/hold", "x")
	f := b.next(t, frBody)
	f.decide()
	eventually(t, "the upstream has it", func() bool { return b.counter("cluster.model/m.upstream_rq_active") == "1" })
	f.conn.send(frReply, 0, f.id, replyFrame(409, nil, "cancelled", "gone"))
	want(t, c, 409)
	b.next(t, frEnd)
}

func TestB6_AResetClientEndsTheRequest(t *testing.T) {
	b := up(t, options{})
	cancel := b.sendAborted(t, "/", "x")
	f := b.next(t, frBody)
	cancel()
	end := b.next(t, frEnd)
	if end.id != f.id || end.record(t).list["flags"] != "DC" {
		t.Errorf("record %+v", end.record(t))
	}
	f.decide() // for a request that has ended
	c := b.send(t, "POST", "/", "x")
	b.next(t, frBody).decide()
	want(t, c, 200)
}
