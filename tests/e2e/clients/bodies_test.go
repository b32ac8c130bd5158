package clients

import (
	"bufio"
	"encoding/json"
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

// TestE2E_X14_NumbersOfClients: numbers that engines accept reach the engine as they are.
func TestE2E_X14_NumbersOfClients(t *testing.T) {
	t.Parallel()
	g := harness.Start(t, harness.OneSim)
	ask := func(fields string) (tokens int) {
		t.Helper()
		a := g.Post(harness.ChatPath, `{"model":"chat","messages":[{"role":"user","content":"hello"}],`+fields+`}`)
		if a.StatusCode != 200 {
			t.Fatalf("%s: %s", fields, a)
		}
		var body struct {
			Usage struct {
				Tokens int `json:"completion_tokens"`
			}
		}
		if err := json.Unmarshal(a.Content, &body); err != nil {
			t.Fatal(err)
		}
		return body.Usage.Tokens
	}
	free := ask(`"seed":1`)
	for fields, want := range map[string]int{
		`"seed":1,"max_tokens":-1`: free, `"seed":1,"max_tokens":-1,"request_id":"a"`: free, `"max_tokens":1.0`: 1, `"max_tokens":1.0,"timeout_ms":60000.0`: 1,
		`"max_completion_tokens":2e0,"request_id":"b"`: 2,
	} {
		if n := ask(fields); n != want {
			t.Errorf("%s: %d tokens, want %d", fields, n, want)
		}
	}
	for _, fields := range []string{`"max_tokens":-2`, `"max_tokens":1.5`, `"n":-1`, `"timeout_ms":0.5`} {
		if a := g.Post(harness.ChatPath, `{"model":"chat","messages":[],`+fields+`}`); a.StatusCode != 400 || a.Code() != "invalid_request" {
			t.Errorf("%s: %s", fields, a)
		}
	}
}

// TestE2E_P2_TrailersAreNoBody: a request with trailers and no body gets the error of an empty
// body. Trailers after a body change nothing, whatever way the request takes.
func TestE2E_P2_TrailersAreNoBody(t *testing.T) {
	t.Parallel()
	g := harness.Start(t, harness.OneSim)
	plain := new(http.Protocols)
	plain.SetUnencryptedHTTP2(true) // trailers of HTTP/1.1 do not cross Envoy
	client := &http.Client{Transport: &http.Transport{Protocols: plain}}
	defer client.CloseIdleConnections()
	for body, want := range map[string]int{
		"": 400, harness.ChatBody("chat", false, 1, "hello"): 200, harness.ChatBody("chat", true, 1, "hello"): 200,
		`{"request_id":"a",` + harness.ChatBody("chat", true, 1, "hello")[1:]: 200,
	} {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, g.URL+harness.ChatPath, struct{ io.Reader }{strings.NewReader(body)})
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Content-Type", "application/json")
		r.Trailer = http.Header{"X-Checksum": {"1"}}
		a, err := client.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(a.Body)
		a.Body.Close()
		if err != nil || a.StatusCode != want || want == 400 && !strings.Contains(string(text), "The request body is empty.") {
			t.Errorf("%q: %d %s %v", body, a.StatusCode, text, err)
		}
	}
}

// TestE2E_X14_TextIsUTF8: a text in another charset is refused in OpenAI's shape, before the body
// is read, on each route that reads a body.
func TestE2E_X14_TextIsUTF8(t *testing.T) {
	t.Parallel()
	g := harness.Start(t, harness.OneSim)
	body := harness.ChatBody("chat", false, 1, "hello")
	for contentType, want := range map[string]int{
		"application/json; charset=utf-8": 200, "application/json;charset=\"UTF-8\"": 200, "application/json; charset=utf-7": 415,
		"application/json; charset=utf-16": 415, "application/json; charset=utf-8; charset=utf-7": 415, "multipart/form-data; boundary=x; charset=utf-7": 415,
	} {
		if a := g.Post(harness.ChatPath, body, "Content-Type: "+contentType); a.StatusCode != want || want != 200 && a.Code() != "invalid_request" {
			t.Errorf("%s: %s", contentType, a)
		}
	}
	if a := g.Post("/schedule", `{"estimated_tokens":1}`, "Content-Type: application/json; charset=utf-7"); a.StatusCode != 415 {
		t.Errorf("/schedule: %s", a)
	}
	// The refusal comes while the client still sends.
	if status := refusal(t, g, "application/json; charset=utf-7"); !strings.Contains(status, " 415 ") {
		t.Errorf("a body that never ends: %q", status)
	}
	if n := g.Generations("chat-0"); n != 2 {
		t.Errorf("the engine has got %d requests, want 2", n)
	}
}

// refusal sends a request whose body never ends, and returns the first line of the answer.
func refusal(t *testing.T, g *harness.Gateway, contentType string) string {
	t.Helper()
	address := strings.TrimPrefix(g.URL, "http://")
	conn, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	fmt.Fprintf(conn, "POST %s HTTP/1.1\r\nHost: %s\r\nContent-Type: %s\r\nContent-Length: 1000\r\n\r\n{", harness.ChatPath, address, contentType)
	conn.SetReadDeadline(time.Now().Add(testutil.Patience))
	line, err := bufio.NewReader(conn).ReadString('\n')
	if err != nil {
		t.Error(err)
	}
	return line
}
