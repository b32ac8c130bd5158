package main

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"sync"
	"sync/atomic"
	"time"
)

// measurement is what was measured on running streams.
type measurement struct {
	cpuCost
	// gaps are the times between events, in milliseconds.
	gaps []float64
}

// streamGroup is a group of streams that run at the same time.
type streamGroup struct {
	// counting tells whether events and gaps are counted now.
	counting atomic.Bool
	// events is the number of counted events.
	events atomic.Int64

	// mu guards the fields below.
	mu sync.Mutex
	// gaps are the counted times between events, in milliseconds.
	gaps []float64
	// fault is what went wrong on the streams; nil if nothing did.
	fault error
}

func (g *streamGroup) fail(err error) {
	g.mu.Lock()
	g.fault = errors.Join(g.fault, err)
	g.mu.Unlock()
}

// measureRunning measures streams that have started and do not end, for d.
func (v variant) measureRunning(ctx context.Context, l workload, d time.Duration) (measurement, error) {
	ctx, cancel := context.WithCancel(ctx)
	var streams, started sync.WaitGroup
	end := func() {
		cancel()
		streams.Wait()
	}
	defer end()
	var all streamGroup
	started.Add(l.workers)
	for w := range l.workers {
		streams.Go(func() {
			send := func() (*http.Response, error) { return v.open(ctx, l.requestBody(v.model, w, 0), l.eventPause) }
			if err := readStream(&all, send, sync.OnceFunc(started.Done)); err != nil && ctx.Err() == nil {
				all.fail(err)
			}
		})
	}
	started.Wait()
	time.Sleep(d / 4)
	before, err := v.cpuTime()
	if err != nil {
		return measurement{}, err
	}
	all.counting.Store(true)
	time.Sleep(d)
	all.counting.Store(false)
	after, err := v.cpuTime()
	if err != nil {
		return measurement{}, err
	}
	end()
	n := float64(max(all.events.Load(), 1)) * 1000
	return measurement{cpuCost{float64(after.envoy-before.envoy) / n, float64(after.gateway-before.gateway) / n}, all.gaps}, all.fault
}

// readStream reads one stream of a group. It calls started at least once, even if the stream fails.
func readStream(all *streamGroup, send func() (*http.Response, error), started func()) error {
	defer started()
	resp, err := send()
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	var gaps []float64
	var latest time.Time
	err = readEvents(resp.Body, func(at time.Time, n int) {
		started()
		if all.counting.Load() {
			all.events.Add(int64(n))
			gaps = append(append(gaps, milliseconds(at.Sub(latest))), make([]float64, n-1)...)
		}
		latest = at
	})
	all.mu.Lock()
	all.gaps = append(all.gaps, gaps...)
	all.mu.Unlock()
	if err == nil {
		err = errors.New("a stream ended during the measurement")
	}
	return err
}

// readEvents reads a stream to its end. It calls onEvents with the time and the number of events of
// each read.
func readEvents(body io.Reader, onEvents func(at time.Time, events int)) error {
	buffer := make([]byte, 16<<10)
	halfEnd := false // whether the last byte was the first of two line feeds
	for {
		n, err := body.Read(buffer)
		b := buffer[:n]
		events := 0
		if halfEnd && bytes.HasPrefix(b, []byte("\n")) {
			events, b = 1, b[1:]
		}
		events += bytes.Count(b, []byte("\n\n"))
		halfEnd = bytes.HasSuffix(b, []byte("\n")) && !bytes.HasSuffix(b, []byte("\n\n"))
		if events > 0 {
			onEvents(time.Now(), events)
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
	}
}
