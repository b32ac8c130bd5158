package http1

import (
	"io"
	"net"
	"net/http"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"
)

// BenchmarkServerSpacedEvent measures events of 200 bytes that come one at a time, at most 2,000 a
// second on 10 streams. Another process reads them. Besides the time, which is that of the pauses,
// the benchmark reports the CPU and the context switches of this process for an event.
func BenchmarkServerSpacedEvent(b *testing.B) {
	const streams, pause = 10, 500 * time.Microsecond
	event := []byte("data: " + strings.Repeat("x", 192) + "\n\n")
	next := make(chan *ResponseWriter, streams)
	path := startServer(b, func(w http.ResponseWriter, r *http.Request) {
		w.(http.Flusher).Flush()
		next <- w.(*ResponseWriter)
		<-r.Context().Done()
	}, nil).path
	for range streams {
		readApart(b, path)
	}
	var before, after syscall.Rusage
	syscall.Getrusage(syscall.RUSAGE_SELF, &before)
	for b.Loop() {
		w := <-next
		if whole, err := w.TryWrite(event); !whole {
			b.Fatal(err)
		}
		next <- w
		time.Sleep(pause)
	}
	syscall.Getrusage(syscall.RUSAGE_SELF, &after)
	cpu := after.Utime.Nano() + after.Stime.Nano() - before.Utime.Nano() - before.Stime.Nano()
	b.ReportMetric(float64(cpu)/float64(b.N), "cpu-ns/op")
	b.ReportMetric(float64(after.Nvcsw-before.Nvcsw)/float64(b.N), "switches/op")
}

// readApart opens a stream that another process reads to its end.
func readApart(b *testing.B, path string) {
	c, err := net.Dial("unix", path)
	if err != nil {
		b.Fatal(err)
	}
	defer c.Close()
	io.WriteString(c, get)
	f, err := c.(*net.UnixConn).File()
	if err != nil {
		b.Fatal(err)
	}
	defer f.Close()
	f.Fd() // puts the descriptor into blocking mode
	reader := exec.Command("cat")
	reader.Stdin = f
	if err := reader.Start(); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		reader.Process.Kill()
		reader.Wait()
	})
}
