package http1

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"net/http"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// clients returns a Transport of this package, and one of net/http with the same settings.
func clients(b *testing.B) map[string]http.RoundTripper {
	std := &http.Transport{DisableCompression: true, IdleConnTimeout: DefaultClientIdleTimeout, MaxIdleConnsPerHost: DefaultMaxIdlePerHost,
		ReadBufferSize: 2 << 10, WriteBufferSize: 2 << 10}
	b.Cleanup(std.CloseIdleConnections)
	return map[string]http.RoundTripper{"http1": transport(b), "nethttp": std}
}

// startFrugal starts an engine that allocates nothing for a request, and returns its URL. A request
// ends with the bytes "{}". The engine then calls answer.
func startFrugal(b *testing.B, answer func(c net.Conn)) string {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { listener.Close() })
	go func() {
		for {
			c, err := listener.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				var buffer [4096]byte
				n := 0
				for {
					m, err := c.Read(buffer[n:])
					if err != nil {
						return
					}
					if n += m; bytes.HasSuffix(buffer[:n], []byte("{}")) {
						n = 0
						answer(c)
					}
				}
			}()
		}
	}()
	return "http://" + listener.Addr().String() + "/v1/chat/completions"
}

// BenchmarkClientRequest measures a request with a short answer on an idle connection.
func BenchmarkClientRequest(b *testing.B) {
	short := []byte("HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\nok")
	url := startFrugal(b, func(c net.Conn) { c.Write(short) })
	for name, client := range clients(b) {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				r, err := client.RoundTrip(post(b, url, "{}"))
				if err != nil {
					b.Fatal(err)
				}
				io.Copy(io.Discard, r.Body)
				r.Body.Close()
			}
		})
	}
}

// BenchmarkClientEvent measures the read of one event of a stream, together with the engine's write
// of the event.
func BenchmarkClientEvent(b *testing.B) {
	event := "data: " + strings.Repeat("x", 220) + "\n\n"
	chunk := []byte(fmt.Sprintf("%x\r\n%s\r\n", len(event), event))
	next := make(chan bool)
	url := startFrugal(b, func(c net.Conn) {
		io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")
		for <-next {
			c.Write(chunk)
		}
		io.WriteString(c, "0\r\n\r\n")
	})
	for name, client := range clients(b) {
		b.Run(name, func(b *testing.B) {
			r, err := client.RoundTrip(post(b, url, "{}"))
			if err != nil {
				b.Fatal(err)
			}
			defer r.Body.Close()
			buffer := make([]byte, 2<<10)
			b.ReportAllocs()
			before := cpuTime()
			for b.Loop() {
				next <- true
				if n, err := r.Body.Read(buffer); n != len(event) || err != nil {
					b.Fatal(n, err)
				}
			}
			b.ReportMetric(float64(cpuTime()-before)/float64(b.N), "cpu-ns/op")
			next <- false
			io.Copy(io.Discard, r.Body)
		})
	}
}

// cpuTime returns the processor time that this process has used.
func cpuTime() time.Duration {
	var u syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &u)
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// BenchmarkOpen measures the heap and the stacks of an open response, including those of the
// goroutine that waits for its next bytes. The engine holds only sockets.
func BenchmarkOpen(b *testing.B) {
	const responses = 1000
	for _, name := range []string{"http1", "nethttp"} {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				client := clients(b)[name]
				listener, err := net.Listen("tcp", "127.0.0.1:0")
				if err != nil {
					b.Fatal(err)
				}
				before := clientHeap()
				conns := make([]net.Conn, responses)
				request := make([]byte, 4<<10)
				var all sync.WaitGroup
				for i := range conns {
					all.Go(func() {
						r, err := client.RoundTrip(post(b, "http://"+listener.Addr().String(), "{}"))
						if err != nil {
							b.Error(err)
							return
						}
						defer r.Body.Close()
						for few := make([]byte, 16); err == nil; {
							_, err = r.Body.Read(few)
						}
					})
					if conns[i], err = listener.Accept(); err != nil {
						b.Fatal(err)
					}
					for n := 0; !bytes.HasSuffix(request[:n], []byte("{}")); {
						m, err := conns[i].Read(request[n:])
						if n += m; err != nil {
							b.Fatal(err)
						}
					}
					io.WriteString(conns[i], "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n")
				}
				after := clientHeap()
				b.ReportMetric(float64(after.HeapAlloc-before.HeapAlloc)/responses, "heap-B/response")
				b.ReportMetric(float64(after.StackInuse-before.StackInuse)/responses, "stack-B/response")
				for _, c := range conns {
					c.Close()
				}
				all.Wait()
				listener.Close()
			}
		})
	}
}

// clientHeap returns the memory in use after garbage collections.
func clientHeap() (m runtime.MemStats) {
	for range 4 { // each collection halves a stack at most
		runtime.GC()
	}
	runtime.ReadMemStats(&m)
	return m
}
