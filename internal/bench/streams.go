package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync"
	"sync/atomic"
	"time"
)

// streams compares what a token of a stream costs, and when it comes.
func (s *stage) streams(ctx context.Context) error {
	for _, l := range []load{
		{name: "streams of 400 tokens, one each 5 ms, 32 at a time, whole", per: "token", workers: 32, tokens: 400, stream: true,
			pause: 5 * time.Millisecond},
		{name: "streams of 4,000 tokens, as fast as the engine can, 4 at a time, whole", per: "token", workers: 4, tokens: 4000, stream: true},
	} {
		if err := s.compare(l, func(c lane) (cost, error) { return c.measure(ctx, l, s.seconds) }, s.lanes()); err != nil {
			return err
		}
	}
	lanes := s.lanes()
	p50, p99 := make([][]float64, len(lanes)), make([][]float64, len(lanes))
	turn := 0
	l := load{name: "200 streams at 40 tokens a second, in their midst", per: "event", workers: 200, tokens: 4000, stream: true,
		pause: 25 * time.Millisecond}
	err := s.compare(l, func(c lane) (cost, error) {
		r, err := c.midst(ctx, l, s.seconds)
		if err == nil {
			i := turn % len(lanes)
			p50[i], p99[i] = append(p50[i], quantile(r.gaps, 0.5)), append(p99[i], quantile(r.gaps, 0.99))
			turn++
		}
		return r.cost, err
	}, lanes)
	if err != nil {
		return err
	}
	fmt.Println("between tokens of the same")
	printTimes(lanes, p50, p99)
	return nil
}

// reading is what was seen of streams for a while.
type reading struct {
	cost
	// gaps between events, in milliseconds
	gaps []float64
}

// crowd are streams that run at the same time.
type crowd struct {
	running atomic.Bool // the time in which things count
	events  atomic.Int64

	mu    sync.Mutex
	gaps  []float64
	fault error
}

func (c *crowd) fail(err error) {
	c.mu.Lock()
	c.fault = errors.Join(c.fault, err)
	c.mu.Unlock()
}

// midst measures streams that have begun and do not end, for a while.
func (c lane) midst(ctx context.Context, l load, d time.Duration) (reading, error) {
	ctx, cancel := context.WithCancel(ctx)
	var streams, begun sync.WaitGroup
	end := func() {
		cancel()
		streams.Wait()
	}
	defer end()
	var all crowd
	begun.Add(l.workers)
	for w := range l.workers {
		streams.Go(func() {
			ask := func() (*http.Response, error) { return c.open(ctx, l.body(c.model, w, 0), l.pause) }
			if err := follow(&all, ask, sync.OnceFunc(begun.Done)); err != nil && ctx.Err() == nil {
				all.fail(err)
			}
		})
	}
	begun.Wait()
	time.Sleep(d / 4)
	before, err := c.cpu()
	if err != nil {
		return reading{}, err
	}
	all.running.Store(true)
	time.Sleep(d)
	all.running.Store(false)
	after, err := c.cpu()
	if err != nil {
		return reading{}, err
	}
	end()
	n := float64(max(all.events.Load(), 1)) * 1000
	return reading{cost{float64(after.envoy-before.envoy) / n, float64(after.gateway-before.gateway) / n}, all.gaps}, all.fault
}

// follow reads one stream of a crowd. begun is called in any case, also more than once.
func follow(all *crowd, ask func() (*http.Response, error), begun func()) error {
	defer begun()
	resp, err := ask()
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	var gaps []float64
	var latest time.Time
	err = listen(resp.Body, func(at time.Time, n int) {
		begun()
		if all.running.Load() {
			all.events.Add(int64(n))
			gaps = append(append(gaps, milliseconds(at.Sub(latest))), make([]float64, n-1)...)
		}
		latest = at
	})
	all.mu.Lock()
	all.gaps = append(all.gaps, gaps...)
	all.mu.Unlock()
	if err == nil {
		err = errors.New("a stream ended while it was measured")
	}
	return err
}

// listen reads a stream to its end and tells when how many events came.
func listen(body io.Reader, heard func(at time.Time, events int)) error {
	buffer := make([]byte, 16<<10)
	half := false // the last byte was the first of two line feeds
	for {
		n, err := body.Read(buffer)
		b := buffer[:n]
		events := 0
		if half && bytes.HasPrefix(b, []byte("\n")) {
			events, b = 1, b[1:]
		}
		events += bytes.Count(b, []byte("\n\n"))
		half = bytes.HasSuffix(b, []byte("\n")) && !bytes.HasSuffix(b, []byte("\n\n"))
		if events > 0 {
			heard(time.Now(), events)
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
	}
}
