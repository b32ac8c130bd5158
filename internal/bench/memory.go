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

// memory measures what managed streams take: many that wait, and one that says very much.
func (s *stage) memory(ctx context.Context) error {
	if err := s.idle(ctx); err != nil {
		return err
	}
	e, err := newGush(s.mebibytes << 20)
	if err != nil {
		return err
	}
	defer func() { _ = e.server.Close() }() // a stream that still runs is of no use
	c, err := s.startSluice("gush", nil, []string{e.address})
	if err != nil {
		return err
	}
	for _, options := range []string{"", `"request_id":"gush",`} {
		if err := e.flow(ctx, lane{chain: c, model: "managed"}, options); err != nil {
			return err
		}
	}
	return nil
}

// idle measures streams that have had one token and wait for the next. The gateway is one of its own, so that nothing is left of before,
// and collects garbage at a tenth above what lives, so that little of it is counted.
func (s *stage) idle(ctx context.Context) error {
	c, err := s.startSluice("idle", []string{"GOGC=10"}, s.addresses)
	if err != nil {
		return err
	}
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		return err
	}
	n := min(s.waiting, (int(limit.Max)-400)/2) // a stream has two connections at the gateway
	heap, stacks, err := c.inUse()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	var streams sync.WaitGroup
	defer streams.Wait()
	defer cancel()
	if err := (lane{chain: c, model: "managed"}).wait(ctx, n, &streams); err != nil {
		return err
	}
	moreHeap, moreStacks, err := c.inUse()
	if err != nil {
		return err
	}
	rss, err := memoryOf(c.gateway, "VmRSS")
	if err != nil {
		return err
	}
	fmt.Printf("%d idle managed streams: %.1f kB of heap and %.1f of stacks each; the gateway has %.0f MB resident\n\n", n,
		(moreHeap-heap)/float64(n)/1000, (moreStacks-stacks)/float64(n)/1000, rss/1e6)
	return nil
}

// wait opens streams that stall after their first token, some at a time, and returns when all have it.
func (c lane) wait(ctx context.Context, n int, streams *sync.WaitGroup) error {
	l := load{tokens: 10, stream: true}
	begun, opening := make(chan error, n), make(chan struct{}, 64)
	for i := range n {
		opening <- struct{}{}
		streams.Go(func() {
			resp, err := c.post(ctx, l.body(c.model, i, 0), "stall=2")
			if err != nil {
				<-opening
				begun <- err
				return
			}
			defer resp.Body.Close()
			told := sync.OnceFunc(func() {
				<-opening
				begun <- nil
			})
			err = listen(resp.Body, func(time.Time, int) { told() })
			if ctx.Err() == nil {
				begun <- fmt.Errorf("a stream that should wait ended: %w", err)
			}
		})
	}
	for range n {
		if err := <-begun; err != nil {
			return err
		}
	}
	return nil
}

// inUse is the gateway's heap and stacks in use, in bytes.
func (c *chain) inUse() (heap, stacks float64, err error) {
	resp, err := http.Get(c.admin + "/metrics")
	if err != nil {
		return 0, 0, err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		return 0, 0, err
	}
	heap, heapErr := metric(string(text), "go_memstats_heap_inuse_bytes")
	stacks, stackErr := metric(string(text), "go_memstats_stack_inuse_bytes")
	return heap, stacks, errors.Join(heapErr, stackErr)
}

func metric(text, name string) (float64, error) {
	_, rest, _ := strings.Cut(text, "\n"+name+" ")
	value, _, _ := strings.Cut(rest, "\n")
	v, err := strconv.ParseFloat(value, 64)
	if err != nil {
		return 0, fmt.Errorf("%s: %w", name, err)
	}
	return v, nil
}

// memoryOf reads a line of /proc/PID/status, in bytes: VmRSS is what is resident, VmHWM the most that was.
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

// gush is an engine whose streams are as long as one likes. It is never further ahead of its client than ahead, so that what is measured is not
// a slow client.
type gush struct {
	address string
	size    int // of a stream, in bytes
	step    []byte
	server  *http.Server
	read    chan struct{} // a step was read
}

const (
	gushEvent  = 2 << 10 // bytes of an event, about
	gushEvents = 32      // events of a step
	gushAhead  = 2
)

func newGush(size int) (*gush, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	event := `data: {"id":"c","object":"chat.completion.chunk","model":"managed","choices":[{"index":0,"delta":{"content":"` +
		strings.Repeat("word ", gushEvent/5) + `"}}]}` + "\n\n"
	e := &gush{address: l.Addr().String(), size: size, step: []byte(strings.Repeat(event, gushEvents)), read: make(chan struct{}, 1<<20)}
	e.server = &http.Server{Handler: e}
	go e.server.Serve(l) //nolint:errcheck // ends with Close
	return e, nil
}

// ServeHTTP answers every request for a completion with a long stream.
func (e *gush) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Method == http.MethodGet {
		json.NewEncoder(w).Encode(map[string]any{"data": []any{map[string]string{"id": "managed"}}}) //nolint:errcheck // the gateway asks again
		return
	}
	w.Header().Set("Content-Type", "text/event-stream")
	for sent := 0; sent < e.size; sent += len(e.step) {
		if sent/len(e.step) >= gushAhead {
			select {
			case <-e.read:
			case <-r.Context().Done():
				return
			}
		}
		if _, err := w.Write(e.step); err != nil {
			return
		}
		if http.NewResponseController(w).Flush() != nil {
			return
		}
	}
	fmt.Fprint(w, `data: {"id":"c","object":"chat.completion.chunk","model":"managed","choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}`+
		"\n\ndata: [DONE]\n\n")
}

// flow reads one whole stream and prints by how much the gateway has grown.
func (e *gush) flow(ctx context.Context, c lane, options string) error {
	before, err := memoryOf(c.gateway, "VmRSS")
	if err != nil {
		return err
	}
	resp, err := c.post(ctx, `{"model":"managed",`+options+`"stream":true,"messages":[{"role":"user","content":"go on"}]}`, "")
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	total, told := 0, 0
	var last []byte
	buffer := make([]byte, 64<<10)
	for err == nil {
		var n int
		n, err = resp.Body.Read(buffer)
		total += n
		last = append(last, buffer[:n]...)
		last = last[max(0, len(last)-20):]
		for ; told < total/len(e.step); told++ {
			e.read <- struct{}{}
		}
	}
	if !errors.Is(err, io.EOF) || total < e.size || !bytes.HasSuffix(last, []byte("[DONE]\n\n")) {
		return fmt.Errorf("%d bytes, then %w after %q", total, err, last)
	}
	for len(e.read) > 0 {
		<-e.read
	}
	most, err := memoryOf(c.gateway, "VmHWM")
	if err != nil {
		return err
	}
	fmt.Printf("%.2f GiB through one managed stream {%s}: the gateway grew by %.1f MB at most, from %.1f\n", float64(total)/(1<<30),
		strings.TrimSuffix(options, ","), (most-before)/1e6, before/1e6)
	return nil
}
