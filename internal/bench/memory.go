package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// memory measures the memory of managed streams: of many idle ones, and of a very long one.
func (b *testbed) memory(ctx context.Context) error {
	if err := b.startSimulated(); err != nil {
		return err
	}
	if err := b.idleStreams(ctx); err != nil {
		return err
	}
	e, err := newLongStreamEngine(b.longMiB << 20)
	if err != nil {
		return err
	}
	defer func() { _ = e.server.Close() }() // running streams are not needed any more
	c, err := b.startSluice("long", nil, []string{e.address})
	if err != nil {
		return err
	}
	for _, options := range []string{"", `"request_id":"long",`} {
		if err := e.measure(ctx, variant{proxy: c, model: "managed"}, options); err != nil {
			return err
		}
	}
	return nil
}

// idleStreams measures streams that have sent one token and wait for the next. It starts a gateway
// of its own, so that no memory of earlier measurements counts. That gateway collects garbage at 10
// % growth, so that little garbage counts.
func (b *testbed) idleStreams(ctx context.Context) error {
	c, err := b.startSluice("idle", []string{"GOGC=10"}, b.addresses)
	if err != nil {
		return err
	}
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		return err
	}
	n := min(b.idle, (int(limit.Max)-400)/2) // the gateway has two connections per stream
	heap, stacks, err := c.memoryInUse()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	var streams sync.WaitGroup
	defer streams.Wait()
	defer cancel()
	if err := (variant{proxy: c, model: "managed"}).openIdleStreams(ctx, n, &streams); err != nil {
		return err
	}
	moreHeap, moreStacks, err := c.memoryInUse()
	if err != nil {
		return err
	}
	rss, err := memoryOf(c.gatewayPID, "VmRSS")
	if err != nil {
		return err
	}
	fmt.Printf("%d idle managed streams: %.1f kB of heap and %.1f kB of stacks each; resident memory of the gateway %.0f MB\n\n", n,
		(moreHeap-heap)/float64(n)/1000, (moreStacks-stacks)/float64(n)/1000, rss/1e6)
	return nil
}

// openIdleStreams opens n streams that stall after their first token, at most 64 at a time. It
// returns when all have their first token.
func (v variant) openIdleStreams(ctx context.Context, n int, streams *sync.WaitGroup) error {
	l := workload{tokens: 10, stream: true}
	started, opening := make(chan error, n), make(chan struct{}, 64)
	for i := range n {
		opening <- struct{}{}
		streams.Go(func() {
			resp, err := v.post(ctx, l.requestBody(v.model, i, 0), "stall=2")
			if err != nil {
				<-opening
				started <- err
				return
			}
			defer resp.Body.Close()
			reportFirst := sync.OnceFunc(func() {
				<-opening
				started <- nil
			})
			err = readEvents(resp.Body, func(time.Time, int) { reportFirst() })
			if ctx.Err() == nil {
				started <- fmt.Errorf("an idle stream ended: %w", err)
			}
		})
	}
	for range n {
		if err := <-started; err != nil {
			return err
		}
	}
	return nil
}

// memoryInUse returns the gateway's heap and stacks in use, in bytes.
func (p *proxy) memoryInUse() (heap, stacks float64, err error) {
	resp, err := http.Get(p.admin + "/metrics")
	if err != nil {
		return 0, 0, err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		return 0, 0, err
	}
	heap, heapErr := metricValue(string(text), "go_memstats_heap_inuse_bytes")
	stacks, stackErr := metricValue(string(text), "go_memstats_stack_inuse_bytes")
	return heap, stacks, errors.Join(heapErr, stackErr)
}

// metricValue returns the value of a metric without labels in the text format of Prometheus.
func metricValue(text, name string) (float64, error) {
	_, rest, _ := strings.Cut(text, "\n"+name+" ")
	value, _, _ := strings.Cut(rest, "\n")
	v, err := strconv.ParseFloat(value, 64)
	if err != nil {
		return 0, fmt.Errorf("%s: %w", name, err)
	}
	return v, nil
}

// memoryOf returns a line of /proc/PID/status, in bytes: VmRSS is the resident memory, VmHWM its
// maximum so far.
func memoryOf(pid int, name string) (float64, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, err
	}
	_, rest, _ := strings.Cut(string(text), "\n"+name+":")
	var kB float64
	_, err = fmt.Sscan(rest, &kB)
	return kB * 1024, err
}

// longStreamEngine is an engine with streams of a given size. It is never more than maxBlocksAhead
// blocks ahead of its client, so that the measurement does not show a slow client.
type longStreamEngine struct {
	address string
	// size is the size of a stream in bytes.
	size int
	// block is the text of several events, which the engine writes at once.
	block  []byte
	server *http.Server
	// blockRead receives a value for each block that the client has read.
	blockRead chan struct{}
}

const (
	longEventBytes = 2 << 10 // bytes of an event, approximately
	eventsPerBlock = 32      // events in a block
	maxBlocksAhead = 2
)

// newLongStreamEngine serves streams of size bytes until its server is closed.
func newLongStreamEngine(size int) (*longStreamEngine, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	event := `data: {"id":"c","object":"chat.completion.chunk","model":"managed","choices":[{"index":0,"delta":{"content":"` +
		strings.Repeat("word ", longEventBytes/5) + `"}}]}` + "\n\n"
	e := &longStreamEngine{address: l.Addr().String(), size: size, block: []byte(strings.Repeat(event, eventsPerBlock)), blockRead: make(chan struct{}, 1<<20)}
	e.server = &http.Server{Handler: e}
	go e.server.Serve(l) //nolint:errcheck // ends with Close
	return e, nil
}

// ServeHTTP answers every completion with a long stream.
func (e *longStreamEngine) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Method == http.MethodGet {
		json.NewEncoder(w).Encode(map[string]any{"data": []any{map[string]string{"id": "managed"}}}) //nolint:errcheck // the gateway repeats the request
		return
	}
	w.Header().Set("Content-Type", "text/event-stream")
	for sent := 0; sent < e.size; sent += len(e.block) {
		if sent/len(e.block) >= maxBlocksAhead {
			select {
			case <-e.blockRead:
			case <-r.Context().Done():
				return
			}
		}
		if _, err := w.Write(e.block); err != nil {
			return
		}
		if http.NewResponseController(w).Flush() != nil {
			return
		}
	}
	fmt.Fprint(w, `data: {"id":"c","object":"chat.completion.chunk","model":"managed","choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}`+
		"\n\ndata: [DONE]\n\n")
}

// measure reads one whole stream and prints how much the gateway has grown.
func (e *longStreamEngine) measure(ctx context.Context, c variant, options string) error {
	before, err := memoryOf(c.gatewayPID, "VmRSS")
	if err != nil {
		return err
	}
	resp, err := c.post(ctx, `{"model":"managed",`+options+`"stream":true,"messages":[{"role":"user","content":"go on"}]}`, "")
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	total, acknowledged := 0, 0
	var last []byte
	buffer := make([]byte, 64<<10)
	for err == nil {
		var n int
		n, err = resp.Body.Read(buffer)
		total += n
		last = append(last, buffer[:n]...)
		last = last[max(0, len(last)-20):]
		for ; acknowledged < total/len(e.block); acknowledged++ {
			e.blockRead <- struct{}{}
		}
	}
	if !errors.Is(err, io.EOF) || total < e.size || !bytes.HasSuffix(last, []byte("[DONE]\n\n")) {
		return fmt.Errorf("the stream ended after %d bytes with %w and the text %q", total, err, last)
	}
	for len(e.blockRead) > 0 {
		<-e.blockRead
	}
	peak, err := memoryOf(c.gatewayPID, "VmHWM")
	if err != nil {
		return err
	}
	fmt.Printf("%.2f GiB through one managed stream {%s}: the gateway grew by at most %.1f MB, from %.1f MB\n", float64(total)/(1<<30),
		strings.TrimSuffix(options, ","), (peak-before)/1e6, before/1e6)
	return nil
}
