package streams

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"testing"

	"github.com/sluice-gateway/sluice/tests/e2e/harness"
)

// mostPerStream is what a managed stream that waits may take of the gateway's heap and stacks, in
// bytes. It is a little above what one takes, so that nobody adds a buffer unseen; make bench
// measures ten thousand.
const mostPerStream = 100_000

// Streams that wait for a token are cheap. The gateway collects garbage at a tenth above what
// lives, so that little of it is counted.
func TestE2E_S1_IdleStreamsAreSmall(t *testing.T) {
	t.Parallel()
	const streams = 1000
	url := harness.StartUpstream(t, func(w http.ResponseWriter, r *http.Request) {
		if harness.ServeModelList(w, r, "m") {
			return
		}
		w.Header().Set("Content-Type", "text/event-stream")
		fmt.Fprint(w, `data: {"choices":[{"index":0,"delta":{"content":"one"}}]}`+"\n\n")
		http.NewResponseController(w).Flush()
		<-r.Context().Done()
	})
	g := harness.Start(t, fmt.Sprintf(`
models:
  - name: m
    launcher: upstream
    upstreams: [%q]
    admission: {max_concurrent_requests: 10000, max_per_replica: 10000}
    stream: {mode: managed}
`, url), "GOGC=10")
	ctx, leave := context.WithCancel(context.Background())
	defer leave()
	first := make([]byte, 20)
	open := func() {
		r, err := g.Open(ctx, harness.ChatPath, harness.ChatBody("m", true, 5, "wait"))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { r.Body.Close() })
		if _, err := io.ReadFull(r.Body, first); err != nil || r.StatusCode != 200 {
			t.Fatalf("%s %q: %v", r.Status, first, err)
		}
	}
	for range 50 { // what is made once is made
		open()
	}
	before := bytesInUse(g)
	for range streams {
		open()
	}
	harness.Eventually(t, "what is no longer needed is collected", func() error {
		each := (bytesInUse(g) - before) / streams
		t.Logf("%.1f kB each", each/1000)
		if each > mostPerStream {
			return fmt.Errorf("%.1f kB for each stream, want %.1f at most", each/1000, mostPerStream/1000.0)
		}
		return nil
	})
	if n := g.Model("m").InFlight; n != streams+50 {
		t.Errorf("%d are in flight", n)
	}
	leave()
	g.AwaitIdle("m")
}

// bytesInUse returns the gateway's heap and stacks in use, in bytes.
func bytesInUse(g *harness.Gateway) float64 {
	g.T.Helper()
	return g.Metric("go_memstats_heap_inuse_bytes") + g.Metric("go_memstats_stack_inuse_bytes")
}

// residentBytes returns a line of the gateway's /proc/PID/status in bytes. VmRSS is the resident
// memory, VmHWM its peak.
func residentBytes(g *harness.Gateway, name string) float64 {
	g.T.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", g.Process.Process.Pid))
	if err != nil {
		g.T.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(text), "\n"+name+":")
	var kB float64
	if _, err := fmt.Sscan(rest, &kB); err != nil {
		g.T.Fatal(err)
	}
	return kB * 1024
}

// A long stream leaves nothing behind in the gateway, whether it can be resumed or not.
func TestE2E_S1_LongStreamsLeaveNothing(t *testing.T) {
	t.Parallel()
	const (
		size  = 160 << 20
		event = 2 << 10
		step  = 32 // events
	)
	text := strings.Repeat("word ", event/5)
	events := strings.Repeat(`data: {"choices":[{"index":0,"delta":{"content":"`+text+`"}}]}`+"\n\n", step)
	taken := make(chan struct{}, size) // the engine is at most two steps ahead of its client, which thereby is never a slow one
	url := harness.StartUpstream(t, func(w http.ResponseWriter, r *http.Request) {
		if harness.ServeModelList(w, r, "m") {
			return
		}
		w.Header().Set("Content-Type", "text/event-stream")
		for n := 0; n*len(events) < size; n++ {
			if n >= 2 {
				select {
				case <-taken:
				case <-r.Context().Done():
					return
				}
			}
			io.WriteString(w, events)
			http.NewResponseController(w).Flush()
		}
		fmt.Fprint(w, `data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}`+"\n\ndata: [DONE]\n\n")
	})
	g := harness.Start(t, fmt.Sprintf(`
models:
  - name: m
    launcher: upstream
    upstreams: [%q]
    stream: {mode: managed, resume: 100ms}
`, url))
	for name, body := range map[string]string{"plain": harness.ChatBody("m", true, 5, "go on"), "named": withFields(harness.ChatBody("m", true, 5, "go on"), `"request_id":"long"`)} {
		for len(taken) > 0 {
			<-taken
		}
		before := residentBytes(g, "VmRSS")
		r, err := g.Open(context.Background(), harness.ChatPath, body)
		if err != nil {
			t.Fatal(err)
		}
		total, last := drain(t, r.Body, len(events), taken)
		if total < size || !bytes.HasSuffix(last, []byte("data: [DONE]\n\n")) {
			t.Errorf("%s: %d bytes, the last %q", name, total, last)
		}
		grown := (residentBytes(g, "VmHWM") - before) / 1e6
		t.Logf("%s: %.1f MB", name, grown)
		if grown > 100 {
			t.Errorf("%s: the gateway grew by %.1f MB for %d MB of a stream", name, grown, size>>20)
		}
	}
	g.AwaitIdle("m")
}

// drain reads a body to its end. It sends on taken after every step bytes.
func drain(t *testing.T, body io.ReadCloser, step int, taken chan<- struct{}) (total int, last []byte) {
	t.Helper()
	defer body.Close()
	buffer := make([]byte, 64<<10)
	for told := 0; ; {
		n, err := body.Read(buffer)
		total += n
		last = append(last, buffer[:n]...)
		last = last[max(0, len(last)-30):]
		for ; told < total/step; told++ {
			taken <- struct{}{}
		}
		if errors.Is(err, io.EOF) {
			return total, last
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}
