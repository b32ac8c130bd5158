package weights

import (
	"crypto/sha1" //nolint:gosec // git names content by it
	"encoding/hex"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// TestU19_ADeadConnectionIsLeft: a router on the way forgets a connection of HTTP/2 while a file is
// fetched. The rest comes by another connection.
func TestU19_ADeadConnectionIsLeft(t *testing.T) {
	content := make([]byte, 3<<20)
	sum := sha1.New() //nolint:gosec // as above
	fmt.Fprintf(sum, "blob %d\x00", len(content))
	sum.Write(content)
	hash := hex.EncodeToString(sum.Sum(nil))
	hub := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.ProtoMajor != 2 {
			t.Errorf("the request came by %s", r.Proto)
		}
		if strings.HasPrefix(r.URL.Path, "/api/") {
			fmt.Fprintf(w, `{"sha":%q,"siblings":[{"rfilename":"a.gguf","size":%d,"blobId":%q}]}`, hash, len(content), hash)
			return
		}
		_, _ = w.Write(content)
	}))
	hub.EnableHTTP2 = true
	hub.StartTLS()
	defer hub.Close()
	address, connections := forgetful(t, hub.Listener.Addr().String(), 500_000)
	const stall = 2 * time.Second
	transport := newTransport(stall)
	defer transport.CloseIdleConnections()
	transport.TLSClientConfig = hub.Client().Transport.(*http.Transport).TLSClientConfig.Clone()
	transport.TLSClientConfig.NextProtos = nil
	f := Fetcher{Transport: transport, Stall: stall, Pause: time.Millisecond}
	if _, err := f.Fetch(t.Context(), Source{Repository: "org/model", Endpoint: "https://" + address, CacheDir: t.TempDir()}, nil); err != nil {
		t.Error(err)
	}
	if connections.Load() < 2 {
		t.Errorf("%d connections", connections.Load())
	}
}

// forgetful forwards connections to an address. It forgets the first after so many bytes of the
// answers, but closes it on no side.
func forgetful(t *testing.T, to string, after int64) (address string, connections *atomic.Int32) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listener.Close() })
	connections = new(atomic.Int32)
	go func() {
		for {
			client, err := listener.Accept()
			if err != nil {
				return
			}
			server, err := net.Dial("tcp", to)
			if err != nil {
				_ = client.Close()
				return
			}
			first := connections.Add(1) == 1
			var forgotten atomic.Bool
			go forward(server, client, forgotten.Load)
			reads := int64(0)
			go forward(client, server, func() bool {
				reads++
				if first && reads*forwardBytes > after {
					forgotten.Store(true)
				}
				return forgotten.Load()
			})
		}
	}()
	return listener.Addr().String(), connections
}

const forwardBytes = 16 << 10

// forward copies from one connection to the other, except for what is to be dropped. It closes the
// other at the end.
func forward(to io.WriteCloser, from io.Reader, drop func() bool) {
	defer to.Close()
	buffer := make([]byte, forwardBytes)
	for {
		n, err := from.Read(buffer)
		if !drop() && err == nil {
			_, err = to.Write(buffer[:n])
		}
		if err != nil {
			return
		}
	}
}
