package routing

import (
	"context"
	"crypto/tls"
	"encoding/pem"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/sluice-gateway/sluice/internal/testutil"
	"github.com/sluice-gateway/sluice/tests/e2e/harness"
)

// hostsFile gives the gateway a file of host names of its own in the place of /etc/hosts. It
// returns a func that replaces the addresses of engines.test. The test is skipped where nothing can
// be mounted.
func hostsFile(t *testing.T, g *harness.Gateway) (set func(addresses ...string)) {
	t.Helper()
	if out, err := exec.Command("unshare", "-m", "true").CombinedOutput(); err != nil {
		t.Skipf("no file of host names can be mounted here (run as root): %v %s", err, out)
	}
	file := filepath.Join(t.TempDir(), "hosts")
	set = func(addresses ...string) {
		t.Helper()
		text := "127.0.0.1 localhost\n"
		for _, address := range addresses {
			text += address + " engines.test\n"
		}
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil { // the mount is of this file, so no rename
			t.Fatal(err)
		}
	}
	set()
	g.Binary = "unshare"
	g.Command = append([]string{"-m", "sh", "-c", `mount --bind "$0" /etc/hosts && exec "$@"`, file, harness.Program()}, g.Command...)
	return set
}

// addressed is a server at one of several addresses. It answers a request when it is released.
type addressed struct {
	running, served atomic.Int64
	release         chan struct{}
}

// startAddressed starts a server on one port of each address. With TLS, their certificate is for
// engines.test.
func startAddressed(t *testing.T, addresses []string, secure bool, check func(*http.Request)) (servers []*addressed, port, ca string) {
	t.Helper()
	certificate := certificateFor(t, "engines.test")
	listeners, port := testutil.ListenAt(t, addresses...)
	for _, l := range listeners {
		a := &addressed{release: make(chan struct{})}
		s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			check(r)
			switch {
			case harness.AsksForEngine(r):
				http.NotFound(w, r)
			case harness.ServeModelList(w, r, "m"):
			default:
				io.Copy(io.Discard, r.Body)
				a.running.Add(1)
				defer a.running.Add(-1)
				w.Header().Set("Content-Type", "text/event-stream")
				io.WriteString(w, "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"a\"}}]}\n\n")
				w.(http.Flusher).Flush()
				select {
				case <-a.release:
				case <-r.Context().Done():
					return
				}
				io.WriteString(w, "data: {\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":\"stop\"}]}\n\ndata: [DONE]\n\n")
				a.served.Add(1)
			}
		}))
		s.Listener.Close()
		if s.Listener = l; secure {
			s.TLS = &tls.Config{Certificates: []tls.Certificate{certificate}}
			s.StartTLS()
			ca = string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw}))
		} else {
			s.Start()
		}
		t.Cleanup(s.Close)
		servers = append(servers, a)
	}
	return servers, port, ca
}

// TestE2E_U5_OneReplicaPerAddress: each address of a host name is a replica. When an address goes,
// its running stream goes on and it gets no more requests; a new one gets requests.
func TestE2E_U5_OneReplicaPerAddress(t *testing.T) {
	t.Parallel()
	servers, port, _ := startAddressed(t, []string{"127.0.0.2", "127.0.0.3", "127.0.0.4", "127.0.0.5", "127.0.0.6"}, false, func(r *http.Request) {
		if !strings.HasPrefix(r.Host, "engines.test:") {
			t.Errorf("%s was asked for as %s", r.URL.Path, r.Host)
		}
	})
	g := harness.Prepare(t, "upstreams: [{url: 'http://engines.test:"+port+"', resolve: all}]\n")
	setHosts := hostsFile(t, g)
	setHosts("127.0.0.2", "127.0.0.3", "127.0.0.4", "127.0.0.5")
	t.Cleanup(g.Stop)
	g.Launch()
	g.AwaitReady()
	replicas := func(addresses ...string) {
		harness.Eventually(t, "one replica for each address", func() error {
			all := g.Replicas()
			for _, address := range addresses {
				if r := all["engines.test:"+port+"@"+address]; r.State != "ready" || r.Address != address+":"+port {
					return fmt.Errorf("%+v", all)
				}
			}
			if len(all) != len(addresses) {
				return fmt.Errorf("%+v", all)
			}
			return nil
		})
	}
	replicas("127.0.0.2", "127.0.0.3", "127.0.0.4", "127.0.0.5")
	done := make(chan error, 10)
	send := func(n int) {
		for range n {
			go func() {
				a, err := g.TryPost(context.Background(), "/v1/chat/completions", harness.ChatBody("m", true, 1, "hello"))
				if err == nil {
					err = harness.CheckWholeStream(a.Content)
				}
				done <- err
			}()
		}
	}
	running := func(want ...int64) {
		harness.Eventually(t, "requests run at the addresses", func() error {
			for i, n := range want {
				if now := servers[i].running.Load(); now != n {
					return fmt.Errorf("%d run at server %d, want %v", now, i, want)
				}
			}
			return nil
		})
	}
	send(4)
	running(1, 1, 1, 1, 0) // An unknown server gets one at a time.
	setHosts("127.0.0.5", "127.0.0.6")
	replicas("127.0.0.5", "127.0.0.6")
	send(1)
	running(1, 1, 1, 1, 1)
	for _, s := range servers {
		close(s.release)
	}
	send(4)
	for range 9 {
		if err := harness.Receive(t, done, "a request is answered"); err != nil {
			t.Error(err)
		}
	}
	for i, want := range []int64{1, 1, 1} {
		if n := servers[i].served.Load(); n != want {
			t.Errorf("server %d, which has gone, served %d requests, want %d", i, n, want)
		}
	}
}

// TestE2E_U5_AddressesWithTLS: the servers behind the addresses of a name see the name in TLS and
// in the Host header, from checks and from Envoy.
func TestE2E_U5_AddressesWithTLS(t *testing.T) {
	t.Parallel()
	servers, port, ca := startAddressed(t, []string{"127.0.0.2", "127.0.0.3"}, true, func(r *http.Request) {
		if host, _, _ := net.SplitHostPort(r.Host); host != "engines.test" || r.TLS.ServerName != "engines.test" {
			t.Errorf("%s was asked for as %s, by TLS for %s", r.URL.Path, r.Host, r.TLS.ServerName)
		}
	})
	file := filepath.Join(t.TempDir(), "ca.pem")
	if err := os.WriteFile(file, []byte(ca), 0o600); err != nil {
		t.Fatal(err)
	}
	g := harness.Prepare(t, fmt.Sprintf(`
models:
  - name: mine
    launcher: upstream
    routing: {strategy: round_robin, slow_start: 0s}
    upstreams: [{url: "https://engines.test:%s", ca_file: %s, resolve: all, model: m}]
`, port, file))
	hostsFile(t, g)("127.0.0.2", "127.0.0.3")
	t.Cleanup(g.Stop)
	g.Launch()
	g.AwaitReady()
	for _, s := range servers {
		close(s.release)
	}
	for range 6 {
		if a := g.Post("/v1/chat/completions", harness.ChatBody("mine", true, 1, "hello")); a.StatusCode != 200 {
			t.Fatal(a)
		}
	}
	if a, b := servers[0].served.Load(), servers[1].served.Load(); a+b != 6 || a == 0 || b == 0 {
		t.Errorf("the addresses served %d and %d", a, b)
	}
}
