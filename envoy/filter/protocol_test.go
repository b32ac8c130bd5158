package filter

import (
	"strings"
	"testing"

	"github.com/sluice-gateway/sluice/internal/testutil/answers"
)

func TestB6_AHeaderAndABodyGoToTheGatewayAndTheAnswerToEnvoy(t *testing.T) {
	b := up(t, options{})
	c := b.send(t, "POST", "/v1/chat", "hello", "x-a", "1", "x-b", "2", "x-c", "4")
	hello := b.next(t, frHello)
	if len(hello.payload) != 28 || hello.id != 0 {
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
		"@tenant": "acme", "@empty": "", "replica": "r1", "cluster": "model/m", "route": "decided",
	} {
		if v, ok := r.list[name]; !ok || v != value {
			t.Errorf("%s is %q, %v; want %q (%v)", name, v, ok, value, r.list)
		}
	}
}

// TestB6_X14_HeadersThatDoNotCrossTheGateway: neither the gateway nor the upstream gets the headers
// that the gateway does not read, and the client none of those of the upstream. A header that the
// gateway adds to the response replaces the engine's, and is in no record.
func TestB6_X14_HeadersThatDoNotCrossTheGateway(t *testing.T) {
	b := up(t, options{})
	c := b.send(t, "POST", "/", "x", "cookie", "a=b", "x-unread", "1", "x-unreax", "1")
	h := b.next(t, frHeaders)
	list := h.list(t, 0)
	if list["x-unreax"] != "1" || list["cookie"] != "" || list["x-unread"] != "" {
		t.Errorf("the gateway was told %v", list)
	}
	h.conn.send(frGo, 0, h.id, goFrame(toModel, nil, pairs{{"tenant", "acme"}, {"x-ratelimit-limit-requests", "7"}, {"request-id", "of Envoy"}}, ""))
	a := want(t, c, 200)
	if s := a.seen(t); s.Header.Get("x-unreax") != "1" || s.Header.Get("cookie")+s.Header.Get("x-unread") != "" {
		t.Errorf("the upstream got %v", s.Header)
	}
	if limit := a.header.Values("x-ratelimit-limit-requests"); len(limit) != 1 || limit[0] != "7" || a.header.Get("x-engine") != "" || a.header.Get("tenant") != "" {
		t.Errorf("the client got %v", a.header)
	}
	if id := a.header.Values("request-id"); len(id) != 1 || id[0] != "of Envoy" {
		t.Errorf("the client got the id %q", id)
	}
	r := b.next(t, frEnd).record(t)
	if r.list["@tenant"] != "acme" || r.list["@x-ratelimit-limit-requests"]+r.list["@request-id"] != "" {
		t.Errorf("the record has %v", r.list)
	}
	c = b.send(t, "POST", "/", "x")
	h = b.next(t, frHeaders)
	h.conn.send(frGo, 0, h.id, goFrame(toModel, nil, pairs{{"tenant", "acme"}}, ""))
	if id := want(t, c, 200).header.Values("request-id"); len(id) != 0 {
		t.Errorf("another client got the id %q", id)
	}
}

// TestB6_X14_AResponseSaysWhoHasAnswered: an engine cannot say itself who it is, and the relay can.
// What Envoy answers itself is from no engine.
func TestB6_X14_AResponseSaysWhoHasAnswered(t *testing.T) {
	b := up(t, options{})
	lies := []string{"x-says-x-sluice-source", "me", "x-says-x-sluice-replica", "mine", "x-says-cache-control", "public"}
	for _, c := range []struct {
		name                                       string
		set                                        pairs
		flags                                      byte
		status                                     int
		source, replica, cacheControl, noBuffering string
	}{
		{"engine", toModel, 0, 200, "engine", "r1", "public", ""},
		{"replica hidden", toModel, 2, 200, "engine", "", "public", ""},
		{"stream", append(pairs{{"x-sluice-route", "engine+stream+timeout"}}, toModel...), 0, 200, "engine", "r1", "no-cache, no-transform", "no"},
		{"relay", append(pairs{{"x-sluice-ticket", "t"}}, toModel...), 0, 200, "me", "mine", "public", ""},
		{"no such cluster", pairs{{"x-sluice-cluster", "model/none"}}, 0, 503, "", "", "", ""},
	} {
		answered := b.send(t, "POST", "/", "x", lies...)
		f := b.next(t, frBody)
		f.conn.send(frGo, c.flags, f.id, goFrame(c.set, nil, nil, ""))
		a := want(t, answered, c.status)
		for name, value := range map[string]string{
			"x-sluice-source": c.source, "x-sluice-replica": c.replica, "cache-control": c.cacheControl, "x-accel-buffering": c.noBuffering,
		} {
			if got := strings.Join(a.header.Values(name), "|"); got != value {
				t.Errorf("%s: %s is %q, want %q", c.name, name, got, value)
			}
		}
		if c.status == 200 && a.seen(t).Header.Get("x-sluice-framing") != "" {
			t.Errorf("%s: the upstream got %v", c.name, a.seen(t).Header)
		}
		b.next(t, frEnd)
	}
}

// TestB6_X14_AnUnaskedSwitchOfProtocolsIsRefused: the client of a decided request gets a 502 in the
// place of a 101, and nothing of what follows it. The 502 says who has answered and what the tenant
// has left, as other responses do. The record has the 502. The same holds for a redirect.
func TestB6_X14_AnUnaskedSwitchOfProtocolsIsRefused(t *testing.T) {
	b := up(t, options{})
	for header, details := range map[string]string{"x-switch": "unasked_protocol_switch", "x-redirect": "unasked_redirect"} {
		c := b.send(t, "POST", "/says", "evil", header, "1")
		f := b.next(t, frBody)
		streamed := append(pairs{{"x-sluice-route", "engine+stream+timeout"}}, toModel...)
		f.conn.send(frGo, 0, f.id, goFrame(streamed, nil, pairs{{"tenant", "acme"}, {"x-ratelimit-limit-requests", "7"}}, ""))
		a := want(t, c, 502)
		if a.body != "" || a.header.Get("location") != "" || a.header.Get("tenant") != "" {
			t.Errorf("%s: the client got %q and %v", header, a.body, a.header)
		}
		for name, value := range map[string]string{"x-sluice-replica": "r1", "x-ratelimit-limit-requests": "7", "x-accel-buffering": "no"} {
			if got := strings.Join(a.header.Values(name), "|"); got != value {
				t.Errorf("%s: %s is %q, want %q", header, name, got, value)
			}
		}
		if r := b.next(t, frEnd).record(t); r.numbers[0] != 502 || r.list["details"] != details {
			t.Errorf("%s: the record has %+v", header, r)
		}
	}
}

// TestB6_R3_AResponseIsReadInEnvoy has the filter read responses in a real Envoy. The client gets
// them as they are. The engine does not see the header that asks for it.
func TestB6_R3_AResponseIsReadInEnvoy(t *testing.T) {
	b := up(t, options{})
	const whole = `{"choices":[{"finish_reason":"length"}],"usage":{"prompt_tokens":7,"completion_tokens":11}}`
	stream := answers.Delta(`"content":"a"`, "") + answers.Delta(`"content":"b"`, "") + answers.LastChunk + answers.DoneChunk
	for _, c := range []struct {
		name, wanted, kind, body string
		more                     []string
		usage, events            string
	}{
		{"whole", "1", answers.JSON, whole, nil, "7 11 -1", ""},
		{"whole in the sample", "1+stream", answers.JSON, whole, nil, "7 11 -1", "0 0 length"},
		{"stream", "1+stream", answers.SSE, stream, nil, "7 11 -1", "2 1 -"},
		{"stream for its usage", "1", answers.SSE, stream, nil, "7 11 -1", ""},
		{"trailers", "1+stream", answers.SSE, stream, []string{"x-trailer", "1"}, "7 11 -1", "2 1 -"},
		{"cut", "1+stream", answers.SSE, stream, []string{"x-cut", "1"}, "", "2 1 -"},
		{"ended by a close", "1+stream", answers.SSE, stream, []string{"x-close", "1"}, "7 11 -1", "2 1 -"},
		{"not asked for", "", answers.JSON, whole, nil, "", ""},
	} {
		answered := b.send(t, "POST", "/says", c.body, append(c.more, "x-type", c.kind)...)
		f, set := b.next(t, frBody), toModel
		if c.wanted != "" {
			set = append(pairs{{"x-sluice-usage", c.wanted}}, toModel...)
		}
		f.conn.send(frGo, 0, f.id, goFrame(set, nil, nil, ""))
		if a := got(t, answered); a.body != c.body {
			t.Errorf("%s: the client has got %q", c.name, a.body)
		}
		list := b.next(t, frEnd).record(t).list
		if closes := list["unframed"] == "1"; closes != (c.name == "ended by a close") {
			t.Errorf("%s: ended by a close: %v", c.name, closes)
		}
		events := ""
		if list["read"] != "" {
			events = eventsIn(list)
		}
		if list["usage"] != c.usage || events != c.events {
			t.Errorf("%s: read %q and %q, want %q and %q", c.name, list["usage"], events, c.usage, c.events)
		}
	}
	f := b.send(t, "POST", "/", "x")
	asked := b.next(t, frBody)
	asked.conn.send(frGo, 0, asked.id, goFrame(append(pairs{{"x-sluice-usage", "1"}}, toModel...), nil, nil, ""))
	if s := want(t, f, 200).seen(t); s.Header.Get("x-sluice-usage") != "" {
		t.Errorf("the upstream has got %v", s.Header)
	}
}

// TestB6_TheBeginningOfAResponseIsTold has the filter tell the beginning of responses: until it is
// heard, and at most 64 KiB.
func TestB6_TheBeginningOfAResponseIsTold(t *testing.T) {
	b := up(t, options{concurrency: 1})
	observed := append(pairs{{"x-sluice-observe", "1"}}, toModel...)
	ask := func(body string, headers ...string) <-chan answer {
		answered := b.send(t, "POST", "/says", body, append(headers, "x-type", answers.JSON)...)
		f := b.next(t, frBody)
		f.conn.send(frGo, 0, f.id, goFrame(observed, nil, nil, ""))
		return answered
	}
	large := strings.Repeat("0123456789abcdef", 10_000)
	answered, told := ask(large), ""
	for len(told) < 64<<10 {
		told += string(b.next(t, frFirst).payload)
	}
	if want(t, answered, 200); !strings.HasPrefix(large, told) || len(told) != 64<<10 {
		t.Errorf("%d bytes were told", len(told))
	}
	b.next(t, frEnd)
	answered = ask("0123456789", "x-pause", "1")
	first := b.next(t, frFirst)
	first.conn.send(frHeard, 0, first.id, nil)
	other := b.send(t, "POST", "/", "x") // its Go comes after Heard on the same connection
	b.next(t, frBody).decide()
	want(t, other, 200)
	b.next(t, frEnd)
	close(b.upstream.release)
	if a := want(t, answered, 200); a.body != "0123456789" || string(first.payload) != "01234" {
		t.Errorf("the client has got %q, and the gateway %q", a.body, first.payload)
	}
	b.next(t, frEnd)
	for _, f := range b.held {
		if f.kind == frFirst && f.id == first.id {
			t.Errorf("the filter has told %q after it heard", f.payload)
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
