package edge

import (
	"errors"
	"net"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/http2"

	"github.com/sluice-gateway/sluice/internal/testutil"
	"github.com/sluice-gateway/sluice/tests/e2e/harness"
)

// TestE2E_X1_RequestsThatAreResetAtOnceEndTheirConnection: a client that begins requests over
// HTTP/2 and resets them at once loses its connection soon, because each costs Envoy memory. Others
// are served.
func TestE2E_X1_RequestsThatAreResetAtOnceEndTheirConnection(t *testing.T) {
	t.Parallel()
	g := limited(t, small)
	c, err := net.Dial("tcp", strings.TrimPrefix(g.URL, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	const requests = 150
	// One write has all, so that Envoy reads a reset before it has answered: a request with an
	// answer is none that was reset at once.
	sent := unread(t, requests)
	framer := http2.NewFramer(sent, nil)
	for i := range requests {
		if err := framer.WriteRSTStream(uint32(2*i+1), http2.ErrCodeCancel); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := sent.WriteTo(c); err != nil {
		t.Fatal(err)
	}
	if !ends(c) {
		t.Error("the connection is still open")
	}
	a, err := newClient(t).Do(chat(t, g, harness.ChatBody("chat", false, 2, "x")))
	if err != nil {
		t.Fatal(err)
	}
	a.Body.Close()
	if a.StatusCode != http.StatusOK {
		t.Error(a.Status)
	}
}

// ends reports whether Envoy ends the connection within 200 pings.
func ends(c net.Conn) bool {
	framer := http2.NewFramer(c, c)
	for range 200 {
		if framer.WritePing(false, [8]byte{}) != nil {
			return true
		}
		for answered := false; !answered; {
			_ = c.SetReadDeadline(time.Now().Add(testutil.Patience)) // an error shows at the read
			f, err := framer.ReadFrame()
			if err != nil {
				return !errors.Is(err, os.ErrDeadlineExceeded)
			}
			ping, ok := f.(*http2.PingFrame)
			answered = ok && ping.IsAck()
		}
		time.Sleep(10 * time.Millisecond)
	}
	return false
}
