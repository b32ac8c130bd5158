package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// load is what the clients do.
type load struct {
	name, per       string
	workers, tokens int
	stream          bool
}

func (l load) body(worker, n int) string {
	return fmt.Sprintf(`{"model":"sim","stream":%t,"max_tokens":%d,"ignore_eos":true,"messages":[{"role":"user","content":"request %d of client %d"}]}`,
		l.stream, l.tokens, n, worker)
}

// chain is one way to the engines.
type chain struct {
	url string
	// envoy and gateway are the processes whose CPU counts; gateway is 0 for plain Envoy.
	envoy, gateway int
	client         *http.Client
}

// cost is CPU time per unit of load in microseconds.
type cost struct{ envoy, gateway float64 }

// measure runs the load for a while, after a short warm-up.
func (c *chain) measure(ctx context.Context, l load, d time.Duration) (cost, error) {
	if _, err := c.drive(ctx, l, d/4); err != nil {
		return cost{}, err
	}
	before, err := c.cpu()
	if err != nil {
		return cost{}, err
	}
	units, err := c.drive(ctx, l, d)
	if err != nil {
		return cost{}, err
	}
	// Envoy sends its access log a moment later; it belongs to these requests.
	time.Sleep(300 * time.Millisecond)
	after, err := c.cpu()
	if err != nil {
		return cost{}, err
	}
	perUnit := func(ns int64) float64 { return float64(ns) / 1000 / float64(units) }
	return cost{perUnit(after.envoy - before.envoy), perUnit(after.gateway - before.gateway)}, nil
}

// drive sends requests from all workers, one after the other each, and returns how many units came back.
func (c *chain) drive(ctx context.Context, l load, d time.Duration) (int64, error) {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	var units atomic.Int64
	var workers sync.WaitGroup
	faults := make(chan error, l.workers)
	until := time.Now().Add(d)
	for w := range l.workers {
		workers.Go(func() {
			for n := 0; time.Now().Before(until); n++ {
				got, err := c.send(ctx, l, l.body(w, n))
				if err != nil {
					faults <- err
					return
				}
				units.Add(got)
			}
		})
	}
	workers.Wait()
	close(faults)
	return units.Load(), <-faults
}

// send makes one request and returns how many units it brought: 1, or the events of a stream.
func (c *chain) send(ctx context.Context, l load, body string) (int64, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, c.url+"/v1/chat/completions", strings.NewReader(body))
	if err != nil {
		return 0, err
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := c.client.Do(req)
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	switch {
	case err != nil:
		return 0, err
	case resp.StatusCode != http.StatusOK:
		return 0, fmt.Errorf("%s: %s", resp.Status, b)
	case !l.stream:
		return 1, nil
	case !bytes.HasSuffix(b, []byte("[DONE]\n\n")):
		return 0, errors.New("a stream was cut")
	}
	return int64(bytes.Count(b, []byte("\n\n"))), nil
}

// pace sends small requests at a fixed rate and returns how long each took, in milliseconds.
func (c *chain) pace(ctx context.Context, rate int, d time.Duration) ([]float64, error) {
	l := load{tokens: 1}
	tick := time.NewTicker(time.Second / time.Duration(rate))
	defer tick.Stop()
	var took []float64
	for n := range int(d.Seconds() * float64(rate)) {
		<-tick.C
		began := time.Now()
		if _, err := c.send(ctx, l, l.body(0, n)); err != nil {
			return nil, err
		}
		took = append(took, float64(time.Since(began).Microseconds())/1000)
	}
	return took, nil
}

// used is CPU time so far, in nanoseconds.
type used struct{ envoy, gateway int64 }

func (c *chain) cpu() (used, error) {
	var u used
	var err error
	if u.envoy, err = cpuOf(c.envoy); err == nil && c.gateway != 0 {
		u.gateway, err = cpuOf(c.gateway)
	}
	return u, err
}

// cpuOf sums the time that the threads of a process have run (/proc/PID/task/TID/schedstat, field 1, nanoseconds).
func cpuOf(pid int) (int64, error) {
	dir := fmt.Sprintf("/proc/%d/task", pid)
	threads, err := os.ReadDir(dir)
	if err != nil {
		return 0, err
	}
	var sum int64
	for _, thread := range threads {
		b, err := os.ReadFile(dir + "/" + thread.Name() + "/schedstat")
		if err != nil {
			continue // the thread has just ended
		}
		n, err := strconv.ParseInt(strings.Fields(string(b))[0], 10, 64)
		if err != nil {
			return 0, err
		}
		sum += n
	}
	return sum, nil
}
