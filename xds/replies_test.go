package xds

import (
	"bufio"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/sluice-gateway/sluice/internal/headers"
)

// ownReplies checks what Envoy answers by itself, and that it does not change Sluice's answers.
func ownReplies(t *testing.T, g *gateway) {
	dead, silent, dropping := deadAddress(t), silentEngine(t), droppingEngine(t, 10)
	g.settle(t, "r-empty")
	g.settle(t, "r-dead", replica("r-dead-0", dead))
	g.settle(t, "r-silent", replica("r-silent-0", silent))
	g.settle(t, "r-dropping", replica("r-dropping-0", dropping))
	g.settle(t, "r-switching", replica("r-switching-0", switchingEngine(t)))
	g.settle(t, "r-redirecting", replica("r-redirecting-0", rawEngine(t, "HTTP/1.1 307 Moved\r\nLocation: http://evil/\r\nContent-Length: 4\r\n\r\nevil")))
	g.settle(t, "r-interim", replica("r-interim-0", rawEngine(t, "HTTP/1.1 102 Processing\r\n\r\n")))
	decided := func(model string, more ...string) []string {
		return append([]string{"x-test-cluster", "model/" + model, "x-test-list", "192.0.2.1:1"}, more...)
	}
	const webSocket = "Host: x\r\nConnection: upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
	post := func(pairs ...string) answer { return g.do(t, http.MethodPost, chatPath, []byte("{}"), pairs...) }
	for _, test := range []struct {
		name   string
		got    answer
		status int
		code   string
	}{
		{"undecided", post(), 503, "gateway_unavailable"},
		{"unknown cluster", post(decided("r-nowhere")...), 503, "gateway_unavailable"},
		{"processor fails", post("x-test-fail", "1"), 503, "gateway_unavailable"},
		{"processor's answer is nonsense", post("x-test-answer", "500", "x-test-details", "foreign"), 503, "gateway_unavailable"},
		{"authorization fails", g.do(t, "GET", "/v1/models", nil, "x-test-fail", "1"), 503, "gateway_unavailable"},
		{"no replica", post(decided("r-empty")...), 503, "no_replica"},
		{"refused", post(decided("r-dead")...), 502, "upstream_error"},
		{"dropped", post(decided("r-dropping")...), 502, "upstream_error"},
		{"dropped after 1xx", post(decided("r-interim")...), 502, "upstream_error"},
		{"unasked 101", post(decided("r-switching")...), 502, "upstream_error"},
		{"unasked 101, streamed", post(decided("r-switching", "x-test-stream", "1")...), 502, "upstream_error"},
		{"redirect", post(decided("r-redirecting")...), 502, "upstream_error"},
		{"redirect, streamed", post(decided("r-redirecting", "x-test-stream", "1")...), 502, "upstream_error"},
		{"timeout", post(decided("r-silent", "x-test-timeout", "50")...), 504, "upstream_timeout"},
		{"client's timeout", post(decided("r-silent", "x-test-timeout", "50", "x-test-own-timeout", "1")...), 408, "request_timeout"},
		{"client's timeout, streamed", post(decided("r-silent", "x-test-timeout", "50", "x-test-own-timeout", "1", "x-test-stream", "1")...), 408, "request_timeout"},
		{"try timeout", post(decided("r-silent", "x-test-try-timeout", "50", "x-test-retries", "0")...), 504, "upstream_timeout"},
		{"no host", g.raw(t, "GET / HTTP/1.1\r\n\r\n"), 400, "invalid_request"},
		{"HTTP/1.0", g.raw(t, "GET / HTTP/1.0\r\n\r\n"), 426, "invalid_request"},
		{"not HTTP", g.raw(t, "HELO\r\n\r\n"), 400, "invalid_request"},
		{"bad path", g.raw(t, "GET /%00 HTTP/1.1\r\nHost: x\r\n\r\n"), 400, "invalid_request"},
		{"CONNECT", g.raw(t, "CONNECT x:443 HTTP/1.1\r\nHost: x:443\r\n\r\n"), 403, "invalid_request"},
		{"upgrade", g.raw(t, "GET / HTTP/1.1\r\nHost: x\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n"), 403, "invalid_request"},
		{"WebSocket of responses", g.raw(t, "GET /v1/responses?x=1 HTTP/1.1\r\n"+webSocket), 426, "invalid_request"},
		{"WebSocket of responses, without /v1", g.raw(t, "GET /responses HTTP/1.1\r\n"+webSocket), 426, "invalid_request"},
		{"WebSocket of chats", g.raw(t, "GET "+chatPath+" HTTP/1.1\r\n"+webSocket), 403, "invalid_request"},
		{"transfer encoding", g.raw(t, "POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: x\r\n\r\n"), 400, "invalid_request"},
		{"smuggling", g.raw(t, "POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\n0\r\n\r\n"), 400, "invalid_request"},
		{"headers too large", g.raw(t, "GET / HTTP/1.1\r\nHost: x\r\nx: "+strings.Repeat("x", 200_000)+"\r\n\r\n"), 431, "headers_too_large"},
	} {
		if test.got.StatusCode != test.status || test.got.code(t) != test.code {
			t.Errorf("%s: %d %s", test.name, test.got.StatusCode, test.got.body)
		}
		want := map[string]string{headers.Source: "gateway", "retry-after": ""}
		if test.status == 408 || test.status == 502 || test.status == 503 || test.status == 504 {
			want["retry-after"] = "1"
		}
		says := map[int]string{426: "use HTTP/1.1", 403: "a WebSocket is at /v1/realtime"}[test.status]
		if strings.Contains(test.name, "of responses") {
			says = "send the request by POST"
		}
		if !strings.Contains(string(test.got.body), says) {
			t.Errorf("%s: %s", test.name, test.got.body)
		}
		checkHeaders(t, test.got.Header, want)
	}
	for text, got := range map[string]answer{
		"cannot decide about requests":            post(),
		"has not taken over the model's replicas": post(decided("r-nowhere")...),
	} {
		if !strings.Contains(string(got.body), text) {
			t.Errorf("want %q: %s", text, got.body)
		}
	}
	// Sluice's own answers keep status, body and type, with and without details.
	for _, said := range []string{"401", "404", "413", "429", "502", "503", "504"} {
		for _, details := range []string{"", "sluice_something"} {
			got := post("x-test-answer", said, "x-test-details", details)
			if got.Status[:3] != said || string(got.body) != "sluice says "+said {
				t.Errorf("Sluice's %s (%s) became %d %s", said, details, got.StatusCode, got.body)
			}
			checkHeaders(t, got.Header, map[string]string{headers.Source: "gateway", "retry-after": "", "content-type": "application/json"})
		}
	}
}

// keptConnections checks after which errors a connection of HTTP/1.1 stays: after those about a
// whole request. What is no valid message, or is not read to its end, ends the connection.
func keptConnections(t *testing.T, g *gateway) {
	const head = "POST " + chatPath + " HTTP/1.1\r\nHost: x\r\nX-Test-Details: sluice_x\r\n"
	for _, test := range []struct {
		name, request string
		status        int
		kept          bool
	}{
		{"400 of Sluice", head + "X-Test-Answer: 400\r\nContent-Length: 2\r\n\r\n{}", 400, true},
		{"400 of Sluice, in chunks", head + "X-Test-Answer: 400\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n", 400, true},
		{"404 of Sluice", head + "X-Test-Answer: 404\r\nContent-Length: 2\r\n\r\n{}", 404, true},
		{"a body that nobody reads", "POST /schedule HTTP/1.1\r\nHost: x\r\nContent-Length: 99999\r\n\r\n{", 401, false},
		{"smuggling", "POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\n0\r\n\r\n", 400, false},
		{"two lengths", "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\nContent-Length: 2\r\n\r\n{} ", 400, false},
		{"transfer encoding", "POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: x\r\n\r\n", 400, false},
		{"an odd header", "GET / HTTP/1.1\r\nHost: x\r\na b: c\r\n\r\n", 400, false},
		{"not HTTP", "HELO\r\n\r\n", 400, false},
	} {
		first, second := g.twice(t, test.request)
		if first != test.status || second == test.status && !test.kept || second != test.status && test.kept {
			t.Errorf("%s: the answers are %d and %d, want %d; kept: %v", test.name, first, second, test.status, test.kept)
		}
	}
}

// twice sends a request twice over one connection. It returns the status of each answer; 0: there
// is none.
func (g *gateway) twice(t *testing.T, request string) (first, second int) {
	t.Helper()
	c, err := net.Dial("tcp", g.addr)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if err := c.SetDeadline(time.Now().Add(testTimeout)); err != nil {
		t.Fatal(err)
	}
	reader := bufio.NewReader(c)
	ask := func() int {
		if _, err := io.WriteString(c, request); err != nil {
			return 0
		}
		response, err := http.ReadResponse(reader, nil)
		if err != nil {
			return 0
		}
		defer response.Body.Close()
		if _, err := io.Copy(io.Discard, response.Body); err != nil {
			return 0
		}
		return response.StatusCode
	}
	return ask(), ask()
}

// Clients see the messages beside those of Sluice itself, which are sentences.
func TestRepliesAreSentences(t *testing.T) {
	all := replies()
	if len(all) < 15 {
		t.Fatalf("%d replies", len(all))
	}
	for _, r := range all {
		if first := r.message[:1]; first != strings.ToUpper(first) || !strings.HasSuffix(r.message, ".") {
			t.Errorf("%q is no sentence", r.message)
		}
	}
}
