package edge

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sluice-gateway/sluice/internal/condition"
	"github.com/sluice-gateway/sluice/internal/testutil"
	"github.com/sluice-gateway/sluice/tests/e2e/harness"
)

// status is what the tests read of the gateway's status.
type status struct {
	Envoy struct {
		PID, Restarts int
	}
}

// TestE2E_X1_RequestsTakeNoMoreSockets sends more requests over a few HTTP/2 connections than Envoy
// has files for. Envoy would end itself if it could not open a socket. Requests above the budget
// are refused, and the others are whole.
func TestE2E_X1_RequestsTakeNoMoreSockets(t *testing.T) {
	t.Parallel()
	g := limited(t, small+"    stream: {mode: auto}\n")
	harness.Eventually(t, "a request", func() error { return ask(newClient(t), g) })
	var before status
	g.Get("/api/v1/status", &before)
	for name, request := range map[string]func() *http.Request{
		"native": func() *http.Request { return chat(t, g, harness.ChatBody("chat", true, 100, "x")) },
		"managed": func() *http.Request {
			return chat(t, g, strings.Replace(harness.ChatBody("chat", true, 100, "x"), "{", `{"timeout_ms":600000,`, 1))
		},
		"api": func() *http.Request { return get(t, g, "/v1/models") },
	} {
		served, refused := manyStreams(t, request)
		if served < 300 || served+refused != 2000 {
			t.Errorf("%s: %d requests were served and %d refused, of 2000", name, served, refused)
		}
		t.Logf("%s: %d served, %d refused", name, served, refused)
	}
	var after status
	g.Get("/api/v1/status", &after)
	if after.Envoy.PID != before.Envoy.PID || after.Envoy.Restarts != 0 {
		t.Errorf("Envoy has ended: %+v, was %+v", after, before)
	}
	harness.Eventually(t, "a request afterwards", func() error { return ask(newClient(t), g) })
}

// manyStreams sends 2000 requests at the same time over four HTTP/2 connections.
func manyStreams(t *testing.T, request func() *http.Request) (served, refused int) {
	var mu sync.Mutex
	var all sync.WaitGroup
	for range 4 {
		client := &http.Client{Transport: &http.Transport{Protocols: new(http.Protocols), MaxConnsPerHost: 1}}
		client.Transport.(*http.Transport).Protocols.SetUnencryptedHTTP2(true)
		t.Cleanup(client.CloseIdleConnections)
		// The client learns how many streams a connection may have before it sends many.
		if answer, err := client.Do(request()); err != nil {
			t.Error(err)
		} else {
			_, _ = io.Copy(io.Discard, answer.Body)
			_ = answer.Body.Close()
		}
		for range 500 {
			all.Go(func() {
				answer, body, err := fetch(client, request())
				// A connection to the engine has two seconds to open, which are too few now and
				// then on a busy machine. Clients repeat such a request.
				for n := 0; n < 5 && err == nil && answer.StatusCode == http.StatusBadGateway; n++ {
					answer, body, err = fetch(client, request())
				}
				mu.Lock()
				defer mu.Unlock()
				switch {
				case err != nil:
					t.Error(err)
				case answer.StatusCode == http.StatusOK && (bytes.Contains(body, []byte("[DONE]")) || bytes.Contains(body, []byte(`"list"`))):
					served++
				case answer.StatusCode == http.StatusServiceUnavailable && bytes.Contains(body, []byte("gateway_unavailable")):
					refused++
				default:
					t.Errorf("%s: %.300s", answer.Status, body)
				}
			})
		}
	}
	all.Wait()
	return served, refused
}

// fetch sends a request and reads the whole answer.
func fetch(client *http.Client, r *http.Request) (answer *http.Response, body []byte, err error) {
	if answer, err = client.Do(r); err != nil {
		return nil, nil, err
	}
	defer answer.Body.Close()
	body, err = io.ReadAll(answer.Body)
	return answer, body, err
}

// TestE2E_X1_CapOfASource: a source with as many connections as it may have gets no more, and
// another source does.
func TestE2E_X1_CapOfASource(t *testing.T) {
	t.Parallel()
	g := harness.Start(t, "connections: {per_source: 5}\n"+small)
	address := strings.TrimPrefix(g.URL, "http://")
	connect := func(source string) error {
		dialer := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(source)}}
		c, err := dialer.Dial("tcp", address)
		if err != nil {
			return err
		}
		t.Cleanup(func() { c.Close() })
		_ = c.SetDeadline(time.Now().Add(testutil.Patience))
		if _, err := io.WriteString(c, "GET /v1/models HTTP/1.1\r\nHost: x\r\n\r\n"); err != nil {
			return err
		}
		_, err = c.Read(make([]byte, 1))
		return err
	}
	harness.Eventually(t, "the connections are counted", func() error {
		var counted error
		if text := g.AdminText("/metrics"); !strings.Contains(text, `sluice_budget_limit{budget="connections"}`) ||
			strings.Contains(text, `sluice_budget_limit{budget="connections"} 0`) {
			counted = fmt.Errorf("not yet")
		}
		return counted
	})
	for i := range 5 { // one that the kernel's list has before Envoy asks is counted twice until the next count
		harness.Eventually(t, fmt.Sprintf("connection %d of 5", i), func() error { return connect("127.0.0.2") })
	}
	harness.Eventually(t, "a sixth connection is refused", func() error {
		if err := connect("127.0.0.2"); err == nil {
			return fmt.Errorf("it was let in")
		}
		return nil
	})
	if err := connect("127.0.0.3"); err != nil {
		t.Errorf("another source: %v", err)
	}
}

// TestE2E_X7_MemoryOfEnvoy: bodies that Envoy has no memory for are refused, and Envoy serves when
// it has memory again.
func TestE2E_X7_MemoryOfEnvoy(t *testing.T) {
	t.Parallel()
	g := harness.Start(t, "max_body: 4MiB\nenvoy: {memory: 72MiB}\nupload: {max_bytes: 1GiB}\n"+small)
	harness.Eventually(t, "a request", func() error { return ask(newClient(t), g) })
	var before status
	g.Get("/api/v1/status", &before)
	release := make(chan struct{})
	var all sync.WaitGroup
	for range 40 {
		all.Go(func() {
			// Envoy may reset a body as well as refuse it.
			_, _ = upload(t.Context(), harness.Client, g, "", newSlowBody(sized(3<<20), release), true)
		})
	}
	if c := g.AwaitCondition(condition.MemoryNearLimit, "envoy"); !strings.Contains(c.Message, "of 72 MiB of memory") {
		t.Errorf("%+v", c)
	}
	close(release)
	all.Wait()
	harness.Eventually(t, "a request afterwards", func() error { return ask(newClient(t), g) })
	var after status
	g.Get("/api/v1/status", &after)
	if after.Envoy.PID != before.Envoy.PID {
		t.Errorf("Envoy has ended: %+v, was %+v", after, before)
	}
}
