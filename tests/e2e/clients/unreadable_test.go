package clients

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/sluice-gateway/sluice/internal/testutil"
	"github.com/sluice-gateway/sluice/tests/e2e/harness"
)

// sendRaw sends bytes to the listener for clients and returns the answer.
func sendRaw(t *testing.T, g *harness.Gateway, text string) *http.Response {
	t.Helper()
	conn, err := net.Dial("tcp", strings.TrimPrefix(g.URL, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	if err := conn.SetDeadline(time.Now().Add(testutil.Patience)); err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(conn, text); err != nil {
		t.Fatal(err)
	}
	response, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		t.Fatal(err)
	}
	return response
}

// listedRequests has the requests of the list, by id.
func listedRequests(g *harness.Gateway) (map[string]int, error) {
	var list struct {
		Requests []struct {
			ID     string `json:"request_id"`
			Status int
		}
	}
	err := g.TryGet("/api/v1/requests?limit=100", &list)
	all := map[string]int{}
	for _, r := range list.Requests {
		all[r.ID] = r.Status
	}
	return all, err
}

// A request that Envoy cannot read has an id, by which the list of requests finds it.
func TestE2E_P2_RequestsThatEnvoyCannotReadHaveAnID(t *testing.T) {
	t.Parallel()
	g := harness.Start(t, harness.OneSim)
	for text, status := range map[string]int{
		"GARBAGE\r\n\r\n":                 400,
		"GET /v1/models HTTP/1.1\r\n\r\n": 400,
		"GET /v1/models HTTP/1.0\r\n\r\n": 426,
		"POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\nZZ\r\n": 400,
	} {
		id := sendRaw(t, g, text).Header.Get("X-Request-Id")
		harness.Eventually(t, fmt.Sprintf("%q is in the list", text), func() error {
			all, err := listedRequests(g)
			if err == nil && (id == "" || all[id] != status) {
				err = fmt.Errorf("id %q, listed are %v", id, all)
			}
			return err
		})
	}
}

// A request without a host keeps the x-request-id of its client in Envoy. That id ends no other
// request, and names none.
func TestE2E_B6_AClientCannotEndARequestByItsID(t *testing.T) {
	t.Parallel()
	g := harness.Start(t, strings.Replace(harness.OneSim, "token_interval: 0s", "token_interval: 200ms", 1))
	body := harness.ChatBody("chat", true, 30, "hello")
	response := sendRaw(t, g, fmt.Sprintf("POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", len(body), body))
	id := response.Header.Get("X-Request-Id")
	sendRaw(t, g, "GET /v1/models HTTP/1.1\r\nx-request-id: "+id+"\r\n\r\n")
	sendRaw(t, g, "GARBAGE\r\n\r\n") // its record comes after the other one
	harness.Eventually(t, "both are in the list", func() error {
		all, err := listedRequests(g)
		if err == nil && len(all) < 3 {
			err = fmt.Errorf("listed are %v", all)
		}
		if all[id] == 400 {
			t.Fatalf("the client has ended its stream: %v", all)
		}
		return err
	})
}
