package edge

import (
	"bytes"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"github.com/sluice-gateway/sluice/authz"
	"github.com/sluice-gateway/sluice/internal/testutil"
	"github.com/sluice-gateway/sluice/tests/e2e/harness"
)

// TestE2E_X7_UnreadRefusalsTakeNoPlace: a client without a key that reads none of its answers does
// not fill the places of others, although Envoy carries its requests until it reads.
func TestE2E_X7_UnreadRefusalsTakeNoPlace(t *testing.T) {
	t.Parallel()
	g := limited(t, "\nauth: {mode: keys}\ntenants: [{name: acme, keys: [\""+authz.HashKey("key-of-acme")+"\"]}]\n"+small)
	c, err := net.Dial("tcp", strings.TrimPrefix(g.URL, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	const requests = 460 // more than a gateway with 1,500 files carries
	if _, err := unread(t, requests).WriteTo(c); err != nil {
		t.Fatal(err)
	}
	awaitHeads(t, c, requests)
	for range 5 {
		q := chat(t, g, harness.ChatBody("chat", false, 2, "x"))
		q.Header.Set("Authorization", "Bearer key-of-acme")
		a, err := newClient(t).Do(q)
		if err != nil {
			t.Fatal(err)
		}
		if text, _ := io.ReadAll(a.Body); a.StatusCode != http.StatusOK {
			t.Errorf("%s: %s", a.Status, text)
		}
		a.Body.Close()
	}
}

// unread gives requests without a key by HTTP/2, of which Envoy may send no byte of a body back.
func unread(t *testing.T, requests int) *bytes.Buffer {
	t.Helper()
	var out, block bytes.Buffer
	framer, encoder := http2.NewFramer(&out, nil), hpack.NewEncoder(&block)
	out.WriteString(http2.ClientPreface)
	if err := framer.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 0}); err != nil {
		t.Fatal(err)
	}
	for i := range requests {
		block.Reset()
		for _, h := range [][2]string{{":method", "POST"}, {":scheme", "http"}, {":path", "/v1/chat/completions"}, {":authority", "a"}} {
			if err := encoder.WriteField(hpack.HeaderField{Name: h[0], Value: h[1]}); err != nil {
				t.Fatal(err)
			}
		}
		err := framer.WriteHeaders(http2.HeadersFrameParam{StreamID: uint32(2*i + 1), BlockFragment: block.Bytes(), EndStream: true, EndHeaders: true})
		if err != nil {
			t.Fatal(err)
		}
	}
	return &out
}

// awaitHeads reads until the heads of so many responses have come. Their bodies wait in Envoy.
func awaitHeads(t *testing.T, c net.Conn, n int) {
	t.Helper()
	_ = c.SetReadDeadline(time.Now().Add(testutil.Patience)) // an error shows at the read
	for in := http2.NewFramer(nil, c); n > 0; {
		f, err := in.ReadFrame()
		if err != nil {
			t.Fatalf("%d heads are missing: %v", n, err)
		}
		if _, ok := f.(*http2.HeadersFrame); ok {
			n--
		}
	}
}
