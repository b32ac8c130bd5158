package api_test

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluice-gateway/sluice/internal/api"
	"github.com/sluice-gateway/sluice/internal/openai"
)

// pipeListener accepts the connections that are sent to it.
type pipeListener chan net.Conn

func (l pipeListener) Accept() (net.Conn, error) {
	if c, ok := <-l; ok {
		return c, nil
	}
	return nil, net.ErrClosed
}
func (l pipeListener) Close() error   { return nil }
func (l pipeListener) Addr() net.Addr { return &net.UnixAddr{} }

// exchange sends a request on a connection of its own and returns the status of the response, and
// after which time it came.
func exchange(t *testing.T, h http.Handler, request string) (status int, after time.Duration) {
	t.Helper()
	client, server := net.Pipe()
	l := make(pipeListener, 1)
	l <- server
	s := &http.Server{Handler: h}
	go func() { _ = s.Serve(l) }()
	defer func() {
		_ = client.Close()
		close(l)
		_ = s.Close()
		synctest.Wait()
	}()
	start := time.Now()
	go func() { _, _ = client.Write([]byte(request)) }()
	r, err := http.ReadResponse(bufio.NewReader(client), nil)
	if err != nil {
		t.Fatal(err)
	}
	return r.StatusCode, time.Since(start)
}

// A body that does not end keeps a connection for ten seconds, on every path. A call whose body is
// complete may wait.
func TestX7_SlowBodies(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &fakeTasks{schedule: func(ctx context.Context) (api.ScheduleAnswer, *openai.Error) {
			select {
			case <-time.After(5 * time.Minute):
				return api.ScheduleAnswer{Model: "m", TaskID: "t"}, nil
			case <-ctx.Done():
				return api.ScheduleAnswer{}, openai.Errorf(openai.CodeInvalidRequest, "The caller has left.")
			}
		}}
		h := api.New(api.Config{Tasks: d})
		const endless = "host: x\r\ntransfer-encoding: chunked\r\n\r\n1\r\n \r\n"
		for _, c := range []struct {
			request string
			status  int
			after   time.Duration
		}{
			{"POST /schedule HTTP/1.1\r\n" + endless, 408, 10 * time.Second},
			{"POST /schedule HTTP/1.1\r\nhost: x\r\ncontent-length: 9\r\n\r\n{", 408, 10 * time.Second},
			{"GET /health HTTP/1.1\r\n" + endless, 200, 10 * time.Second},
			{"POST /schedule HTTP/1.1\r\nhost: x\r\ncontent-length: 21\r\n\r\n" + `{"estimated_tokens":5}`[:21], 400, 0},
			{fmt.Sprintf("POST /schedule HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n%x\r\n%s\r\n0\r\n\r\n", 22, `{"estimated_tokens":5}`),
				200, 5 * time.Minute},
			{"POST /schedule HTTP/1.1\r\nhost: x\r\ncontent-length: 22\r\n\r\n" + `{"estimated_tokens":5}`, 200, 5 * time.Minute},
		} {
			if status, after := exchange(t, h, c.request); status != c.status || after != c.after {
				t.Errorf("%.60q: %d after %s, want %d after %s", c.request, status, after, c.status, c.after)
			}
		}
	})
}
