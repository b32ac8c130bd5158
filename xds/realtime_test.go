package xds

import (
	"bytes"
	"context"
	"net"
	"net/http"
	"testing"
	"time"

	"github.com/coder/websocket"
	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"github.com/sluice-gateway/sluice/internal/headers"
	"github.com/sluice-gateway/sluice/internal/routes"
)

// Messages of both sides arrive unchanged, of any size.
func realtime(t *testing.T, m *managed) {
	ctx, cancel := context.WithTimeout(t.Context(), testTimeout)
	defer cancel()
	c, response, err := websocket.Dial(ctx, "ws://"+m.addr+"/v1/realtime?model=x", &websocket.DialOptions{
		HTTPClient: m.client, HTTPHeader: http.Header{"Authorization": {"Bearer k"}, headers.Tenant: {"root"}}, Subprotocols: []string{"realtime"},
	})
	if err != nil {
		t.Fatal(err)
	}
	defer c.CloseNow()
	c.SetReadLimit(1 << 20)
	for _, said := range [][]byte{[]byte("hello"), bytes.Repeat([]byte("x"), 512<<10), []byte("bye")} {
		if err := c.Write(ctx, websocket.MessageText, said); err != nil {
			t.Fatal(err)
		}
		_, heard, err := c.Read(ctx)
		if err != nil || string(heard) != string(said)+" acme" {
			t.Fatalf("said %.20q, heard %.20q, %v", said, heard, err)
		}
	}
	if c.Subprotocol() != "realtime" {
		t.Errorf("subprotocol %q", c.Subprotocol())
	}
	if err := c.Close(websocket.StatusNormalClosure, ""); err != nil {
		t.Error(err)
	}
	if e := m.log.wait(t, response.Header.Get(headers.RequestID)); e.GetCommonProperties().GetRouteName() != routes.Realtime {
		t.Errorf("route %q", e.GetCommonProperties().GetRouteName())
	}
}

func noWebSocket(t *testing.T, m *managed) {
	const (
		key     = "Authorization: k\r\n"
		upgrade = "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: MDEyMzQ1Njc4OWFiY2RlZg==\r\n"
	)
	for name, test := range map[string]struct {
		path, lines string
		status      int
	}{
		"no upgrade":    {"/v1/realtime", key, 426},
		"no key":        {"/v1/realtime", upgrade, 401},
		"other upgrade": {"/v1/realtime", key + "Connection: Upgrade\r\nUpgrade: other\r\n", 403},
		"other path":    {"/v1/models", key + upgrade, 403},
		"dropped":       {"/v1/realtime", key + upgrade + "x-test-drop: 1\r\n", 503},
	} {
		got := m.raw(t, "GET "+test.path+" HTTP/1.1\r\nHost: x\r\n"+test.lines+"\r\n")
		if got.StatusCode != test.status {
			t.Errorf("%s: %d %s", name, got.StatusCode, got.body)
		}
		checkHeaders(t, got.Header, map[string]string{headers.Source: "gateway"})
	}
}

// The key of a browser is one of the subprotocols. Only the part that checks it gets it.
func browsersKey(t *testing.T, m *managed) {
	ctx, cancel := context.WithTimeout(t.Context(), testTimeout)
	defer cancel()
	dial := func(protocols ...string) (*websocket.Conn, *http.Response, error) {
		return websocket.Dial(ctx, "ws://"+m.addr+"/v1/realtime?model=x", &websocket.DialOptions{
			HTTPClient: m.client, HTTPHeader: http.Header{"X-Test-Real": {"1"}}, Subprotocols: protocols,
		})
	}
	c, response, err := dial("realtime", "openai-insecure-api-key.k", "other")
	if err != nil {
		t.Fatal(err)
	}
	defer c.CloseNow()
	if got := response.Header.Get("x-test-protocols"); got != "realtime, other" || c.Subprotocol() != "realtime" {
		t.Errorf("the handler saw %q and chose %q", got, c.Subprotocol())
	}
	if _, response, err := dial("realtime", "openai-insecure-api-key.w"); err == nil || response.StatusCode != 401 {
		t.Errorf("a wrong key: %v", err)
	}
}

// webSocketOverHTTP2 writes the first frames itself, because no client library at hand supports RFC
// 8441.
func webSocketOverHTTP2(t *testing.T, m *managed) {
	for _, test := range []struct{ path, protocol, status string }{
		{"/v1/realtime", "other", "403"}, {"/v1/models", "websocket", "403"}, {chatPath, "websocket", "403"}, {"", "", "403"},
	} {
		if _, status := m.connect(t, test.path, test.protocol); status != test.status {
			t.Errorf("%s of %s: status %s, want %s", test.protocol, test.path, status, test.status)
		}
	}
	f, status := m.connect(t, "/v1/realtime", "websocket")
	if status != "200" {
		t.Fatalf("status %s", status)
	}
	// The frame is "hi", masked with zeros, as RFC 6455 requires of clients.
	if err := f.WriteData(1, false, []byte{0x81, 0x82, 0, 0, 0, 0, 'h', 'i'}); err != nil {
		t.Fatal(err)
	}
	var heard []byte
	for len(heard) < len("\x81\x07hi acme") {
		frame, err := f.ReadFrame()
		if err != nil {
			t.Fatal(err)
		}
		if d, ok := frame.(*http2.DataFrame); ok {
			heard = append(heard, d.Data()...)
		}
	}
	if string(heard) != "\x81\x07hi acme" {
		t.Errorf("heard %q", heard)
	}
}

// connect opens an HTTP/2 connection and sends a CONNECT with a key. With a protocol, it is an
// extended CONNECT.
func (m *managed) connect(t *testing.T, path, protocol string) (f *http2.Framer, status string) {
	t.Helper()
	c, err := net.Dial("tcp", m.addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	if err := c.SetDeadline(time.Now().Add(testTimeout)); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Write([]byte(http2.ClientPreface)); err != nil {
		t.Fatal(err)
	}
	f = http2.NewFramer(c, c)
	f.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
	if err := f.WriteSettings(); err != nil {
		t.Fatal(err)
	}
	head := [][2]string{{":method", "CONNECT"}, {":authority", "x"}}
	if protocol != "" {
		head = append(head, [2]string{":protocol", protocol}, [2]string{":scheme", "http"}, [2]string{":path", path})
	}
	var block bytes.Buffer
	fields := hpack.NewEncoder(&block)
	for _, h := range append(head, [2]string{"sec-websocket-version", "13"}, [2]string{"authorization", "Bearer k"}) {
		if err := fields.WriteField(hpack.HeaderField{Name: h[0], Value: h[1]}); err != nil {
			t.Fatal(err)
		}
	}
	if err := f.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: block.Bytes(), EndHeaders: true}); err != nil {
		t.Fatal(err)
	}
	return f, statusOf(t, f)
}

// statusOf reads the status of the next response.
func statusOf(t *testing.T, f *http2.Framer) string {
	t.Helper()
	for {
		frame, err := f.ReadFrame()
		if err != nil {
			t.Fatal(err)
		}
		switch h := frame.(type) {
		case *http2.MetaHeadersFrame:
			return h.PseudoValue("status")
		case *http2.RSTStreamFrame:
			t.Fatal(h.ErrCode)
		}
	}
}
