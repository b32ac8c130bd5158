package http1

import (
	"bufio"
	"bytes"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"
	"time"
)

// TestLeftOverUnderTLS: bytes that an engine sends after its answer, in the same TLS record, must
// not be taken for the answer to the next request.
func TestLeftOverUnderTLS(t *testing.T) {
	plain := httptest.NewUnstartedServer(nil)
	plain.StartTLS()
	certificates, roots := plain.TLS.Certificates, plain.Client().Transport.(*http.Transport).TLSClientConfig
	plain.Close()
	e := startEngine(t, func(c *net.TCPConn, _ *bufio.Reader) {
		secure := tls.Server(c, &tls.Config{Certificates: certificates, MinVersion: tls.VersionTLS12})
		in := bufio.NewReader(secure)
		for body := readBody(in); body != ""; body = readBody(in) {
			answer := "right"
			if size, err := strconv.Atoi(body[1:]); err == nil {
				answer = strings.Repeat("a", size) + "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nstale"
				fmt.Fprintf(secure, "HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s", size, answer)
				continue
			}
			fmt.Fprintf(secure, "HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s", len(answer), answer)
		}
	})
	url := strings.Replace(e.url, "http:", "https:", 1)
	for size := 1000; size < 16000; size += 1000 {
		c := &Transport{TLS: roots}
		r, err := c.RoundTrip(post(t, url, strconv.Itoa(size)))
		if err != nil {
			t.Fatal(err)
		}
		var whole bytes.Buffer
		if _, err := whole.ReadFrom(r.Body); err != nil || whole.Len() != size {
			t.Fatalf("%d bytes of %d: %v", whole.Len(), size, err)
		}
		r.Body.Close()
		if _, body, err := fetch(c, post(t, url, "second")); err != nil || body != "right" {
			t.Errorf("after %d bytes the second request was answered %q, %v", size, body, err)
		}
		c.CloseIdleConnections()
	}
}

// TestWorkIsNotDoneTwice: a request is not sent again if the engine closed the connection after a
// while, because the engine may have processed the request.
func TestWorkIsNotDoneTwice(t *testing.T) {
	worked := make(chan struct{}, 8)
	e := startEngine(t, func(c *net.TCPConn, in *bufio.Reader) {
		for n := 0; readBody(in) != ""; n++ {
			if n > 0 {
				worked <- struct{}{}
				time.Sleep(staleWindow + 100*time.Millisecond) // the work
				return
			}
			io.WriteString(c, okAnswer)
		}
	})
	c := transport(t)
	if _, _, err := fetch(c, post(t, e.url, "a")); err != nil {
		t.Fatal(err)
	}
	if _, _, err := fetch(c, post(t, e.url, "b")); err == nil || len(worked) != 1 {
		t.Errorf("the engine received the request %d times, want 1; error %v, want one", len(worked), err)
	}
}
