package http1

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"
)

// startNetHTTP serves the handler with net/http's server on a Unix socket.
func startNetHTTP(b *testing.B, handler http.HandlerFunc) (path string) {
	path = filepath.Join(b.TempDir(), "s")
	l, err := net.Listen("unix", path)
	if err != nil {
		b.Fatal(err)
	}
	server := &http.Server{Handler: handler}
	served := make(chan error, 1)
	go func() { served <- server.Serve(l) }()
	b.Cleanup(func() { server.Close(); within(b, served) })
	return path
}

// benchmarkBoth runs a benchmark on the servers of this package and of net/http.
func benchmarkBoth(b *testing.B, handler http.HandlerFunc, run func(b *testing.B, path string)) {
	b.Run("http1", func(b *testing.B) { run(b, startServer(b, handler, nil).path) })
	b.Run("net/http", func(b *testing.B) { run(b, startNetHTTP(b, handler)) })
}

// BenchmarkServerEvent measures an event of 200 bytes, from the handler to a peer that reads all
// the time.
func BenchmarkServerEvent(b *testing.B) {
	event := []byte("data: " + strings.Repeat("x", 192) + "\n\n")
	events := make(chan int)
	stream := func(w http.ResponseWriter, write func() error) {
		w.WriteHeader(200)
		w.(http.Flusher).Flush()
		n := <-events
		for range n {
			if err := write(); err != nil {
				b.Error(err)
				break
			}
		}
		events <- n
	}
	b.Run("TryWrite", func(b *testing.B) {
		benchmarkEvents(b, events, startServer(b, func(w http.ResponseWriter, r *http.Request) {
			stream(w, func() error {
				for {
					if _, err := w.(*ResponseWriter).TryWrite(event); err != ErrFull {
						return err
					}
					w.(*ResponseWriter).Flush()
				}
			})
		}, nil).path)
	})
	handler := func(w http.ResponseWriter, r *http.Request) {
		flow := http.NewResponseController(w)
		stream(w, func() error {
			w.Write(event)
			return flow.Flush()
		})
	}
	b.Run("Write", func(b *testing.B) { benchmarkEvents(b, events, startServer(b, handler, nil).path) })
	b.Run("net/http", func(b *testing.B) { benchmarkEvents(b, events, startNetHTTP(b, handler)) })
}

// benchmarkEvents opens a stream at path and has the handler write b.N events.
func benchmarkEvents(b *testing.B, events chan int, path string) {
	c, err := net.Dial("unix", path)
	if err != nil {
		b.Fatal(err)
	}
	defer c.Close()
	io.WriteString(c, get)
	buffer := make([]byte, 256<<10)
	if _, err := c.Read(buffer); err != nil {
		b.Fatal(err)
	}
	go func() {
		for {
			if _, err := c.Read(buffer); err != nil {
				return
			}
		}
	}()
	b.ReportAllocs()
	b.ResetTimer()
	events <- b.N
	<-events
	b.StopTimer()
}

// BenchmarkServerRequest measures a small request with a small answer, on a kept-alive connection.
func BenchmarkServerRequest(b *testing.B) {
	benchmarkBoth(b, echo, func(b *testing.B, path string) {
		c, err := net.Dial("unix", path)
		if err != nil {
			b.Fatal(err)
		}
		defer c.Close()
		buffer := make([]byte, 4<<10)
		b.ReportAllocs()
		for b.Loop() {
			io.WriteString(c, "POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 3\r\na: b\r\nc: d\r\n\r\nabc")
			if _, err := c.Read(buffer); err != nil {
				b.Fatal(err)
			}
		}
	})
}

// BenchmarkIdleStream measures the memory of an open stream that writes nothing. It includes the
// peer's end, which is a connection without a goroutine.
func BenchmarkIdleStream(b *testing.B) {
	const streams = 1000
	benchmarkBoth(b, func(w http.ResponseWriter, r *http.Request) {
		io.Copy(io.Discard, r.Body)
		io.WriteString(w, "data: begun\n\n")
		w.(http.Flusher).Flush()
		<-r.Context().Done()
	}, func(b *testing.B, path string) {
		for b.Loop() {
			before := serverHeap()
			conns := make([]net.Conn, streams)
			for i := range conns {
				conns[i] = openStream(b, path, i)
			}
			after := serverHeap()
			b.ReportMetric(float64(after.HeapInuse-before.HeapInuse)/streams, "heap-B/stream")
			b.ReportMetric((float64(after.StackInuse)-float64(before.StackInuse))/streams, "stack-B/stream")
			for _, c := range conns {
				c.Close()
			}
			eventually(b, "the handlers end", func() bool { return runtime.NumGoroutine() < 100 })
		}
	})
}

// openStream opens a stream with a request that is as long as Envoy's requests.
func openStream(b *testing.B, path string, i int) net.Conn {
	c, err := net.Dial("unix", path)
	if err != nil {
		b.Fatal(err)
	}
	var head strings.Builder
	for n := range 15 {
		fmt.Fprintf(&head, "x-header-%d: the value of a header %d\r\n", n, i)
	}
	fmt.Fprintf(c, "POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\n%scontent-length: 1000\r\n\r\n%s", head.String(), strings.Repeat("x", 1000))
	in := bufio.NewReaderSize(c, 512)
	for line := ""; line != "data: begun\n"; {
		if line, err = in.ReadString('\n'); err != nil {
			b.Fatal(err)
		}
	}
	return c
}

// serverHeap returns the memory in use after garbage collections. Stacks need several collections
// to shrink.
func serverHeap() (m runtime.MemStats) {
	for range 5 {
		runtime.GC()
		time.Sleep(10 * time.Millisecond)
	}
	runtime.ReadMemStats(&m)
	return m
}
