package main

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// evilEngine answers health checks well and each other request in another bad way.
type evilEngine struct {
	listener net.Listener
	// bomb is 1 GiB of zeros, compressed.
	bomb []byte
	next atomic.Int64

	mu sync.Mutex
	// open are the connections, for close.
	open map[net.Conn]bool
}

func newEvilEngine() (*evilEngine, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	e := &evilEngine{listener: l, open: map[net.Conn]bool{}}
	go e.accept()
	return e, nil
}

func (e *evilEngine) url() string { return "http://" + e.listener.Addr().String() }

func (e *evilEngine) close() {
	_ = e.listener.Close()
	e.mu.Lock()
	defer e.mu.Unlock()
	for c := range e.open {
		_ = c.Close()
	}
}

func (e *evilEngine) accept() {
	for {
		c, err := e.listener.Accept()
		if err != nil {
			return
		}
		e.mu.Lock()
		e.open[c] = true
		e.mu.Unlock()
		go func() {
			e.serve(c)
			_ = c.Close()
			e.mu.Lock()
			delete(e.open, c)
			e.mu.Unlock()
		}()
	}
}

// serve answers the requests of one connection until one of them ends it.
func (e *evilEngine) serve(c net.Conn) {
	in := bufio.NewReader(c)
	for {
		r, err := http.ReadRequest(in)
		if err != nil || discard(r.Body) != nil {
			return
		}
		if r.Method == http.MethodGet {
			if !write(c, answerHead+fmt.Sprintf("Content-Length: %d\r\n\r\n%s", len(listOfModels), listOfModels)) {
				return
			}
			continue
		}
		ways := evilWays()
		ways[int(e.next.Add(1))%len(ways)](e, c)
		return
	}
}

// answerHead is the beginning of an answer in JSON.
const answerHead = "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"

const listOfModels = `{"object":"list","data":[{"id":"evil","object":"model"}]}`

// evilWays are the ways in which the engine answers, each until the connection ends.
func evilWays() []func(*evilEngine, net.Conn) {
	return []func(*evilEngine, net.Conn){
		func(_ *evilEngine, c net.Conn) { // interim responses without end
			for write(c, "HTTP/1.1 102 Processing\r\n\r\n") {
				time.Sleep(10 * time.Millisecond)
			}
		},
		func(_ *evilEngine, c net.Conn) { // a header line without end
			write(c, "HTTP/1.1 200 OK\r\nX-Long: ")
			forever(c, strings.Repeat("x", 4096))
		},
		func(*evilEngine, net.Conn) {}, // an early close
		func(_ *evilEngine, c net.Conn) { // a length that is wrong
			write(c, answerHead+"Content-Length: 5000\r\n\r\n{\"choices\":[")
		},
		func(_ *evilEngine, c net.Conn) { // a body without a length that breaks off
			write(c, answerHead+"Connection: close\r\n\r\n{\"choices\":[{\"index\":0,")
		},
		func(_ *evilEngine, c net.Conn) { // an event without end
			write(c, "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\ndata: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"")
			forever(c, strings.Repeat("waves ", 1000))
		},
		func(_ *evilEngine, c net.Conn) { // a JSON document without end
			write(c, answerHead+"Transfer-Encoding: chunked\r\n\r\n")
			forever(c, "1000\r\n"+strings.Repeat("[", 4096)+"\r\n")
		},
		func(e *evilEngine, c net.Conn) { // a small body that becomes large
			bomb := e.makeBomb()
			write(c, answerHead+fmt.Sprintf("Content-Encoding: gzip\r\nContent-Length: %d\r\n\r\n%s", len(bomb), bomb))
		},
	}
}

// makeBomb makes the compressed zeros once.
func (e *evilEngine) makeBomb() []byte {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.bomb == nil {
		var b bytes.Buffer
		z := gzip.NewWriter(&b)
		_, _ = io.CopyN(z, zeros{}, 1<<30) // a buffer in memory cannot fail
		_ = z.Close()
		e.bomb = b.Bytes()
	}
	return e.bomb
}

// zeros is a reader of zeros without end.
type zeros struct{}

func (zeros) Read(p []byte) (int, error) {
	clear(p)
	return len(p), nil
}

func write(c net.Conn, text string) bool {
	_ = c.SetWriteDeadline(time.Now().Add(time.Minute))
	_, err := io.WriteString(c, text)
	return err == nil
}

func forever(c net.Conn, text string) {
	for write(c, text) {
		time.Sleep(time.Millisecond)
	}
}

// askEvil sends requests of all forms to the engine that misbehaves, 20 per second, until ctx ends.
func askEvil(ctx context.Context, w *world) {
	client := &http.Client{Transport: &http.Transport{DisableCompression: true}, Timeout: 30 * time.Second}
	var asked sync.WaitGroup
	defer asked.Wait()
	for n := 0; sleep(ctx, 50*time.Millisecond); n++ {
		asked.Go(func() {
			id := ""
			if n%3 == 0 {
				id = fmt.Sprintf(`"request_id":"evil-%d-%d",`, n, time.Now().UnixNano())
			}
			text := fmt.Sprintf(`{"model":"evil",%s"stream":%v,"messages":[{"role":"user","content":"Hello"}]}`, id, n%2 == 0)
			req, err := http.NewRequestWithContext(ctx, http.MethodPost, w.url+"/v1/chat/completions", strings.NewReader(text))
			if err != nil {
				return
			}
			req.Header.Set("Content-Type", "application/json")
			if resp, err := client.Do(req); err == nil {
				_ = discard(resp.Body) // what it answers does not matter, only what it does to others
			}
		})
	}
}
