package main

import (
	"bytes"
	"context"
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
	// pause of the engine before each event; 0: as fast as it can
	pause time.Duration
}

func (l load) body(model string, worker, n int) string {
	options := ""
	if l.stream && model == "sim" {
		options = `"stream_options":{"include_usage":true},`
	}
	return fmt.Sprintf(`{"model":%q,"stream":%t,"max_tokens":%d,"ignore_eos":true,%s"messages":[{"role":"user","content":"request %d of client %d"}]}`,
		model, l.stream, l.tokens, options, n, worker)
}

// chain is one way to the engines.
type chain struct {
	url, admin string
	// envoy and gateway are the processes whose CPU counts; gateway is 0 for plain Envoy.
	envoy, gateway int
	client         *http.Client
}

// lane is a chain and how a stream goes through it.
type lane struct {
	*chain
	name, model string
}

// cost is CPU time per unit of load in microseconds.
type cost struct{ envoy, gateway float64 }

// measure runs the load for a while, after a short warm-up.
func (c lane) measure(ctx context.Context, l load, d time.Duration) (cost, error) {
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
func (c lane) drive(ctx context.Context, l load, d time.Duration) (int64, error) {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	var units atomic.Int64
	var workers sync.WaitGroup
	faults := make(chan error, l.workers)
	until := time.Now().Add(d)
	for w := range l.workers {
		workers.Go(func() {
			for n := 0; time.Now().Before(until); n++ {
				got, err := c.send(ctx, l, l.body(c.model, w, n))
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

// send makes one request and returns how many units it brought: 1, or the tokens of a stream. Events would not do: where a client reads
// slowly, managed streams have fewer.
func (c lane) send(ctx context.Context, l load, body string) (int64, error) {
	resp, err := c.open(ctx, body, l.pause)
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	switch {
	case err != nil:
		return 0, err
	case !l.stream:
		return 1, nil
	case !bytes.HasSuffix(b, []byte("[DONE]\n\n")):
		return 0, fmt.Errorf("a stream was cut: …%s", b[max(0, len(b)-300):])
	}
	return int64(l.tokens), nil
}

// open makes a request and returns the response when its headers are there.
func (c lane) open(ctx context.Context, body string, pause time.Duration) (*http.Response, error) {
	fault := ""
	if pause > 0 {
		fault = "slow=" + pause.String()
	}
	return c.post(ctx, body, fault)
}

// post is open, with what the simulated engine is to do to the answer.
func (c lane) post(ctx context.Context, body, fault string) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, c.url+"/v1/chat/completions", strings.NewReader(body))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Content-Type", "application/json")
	if fault != "" {
		req.Header.Set("X-Sim-Fault", fault)
	}
	resp, err := c.client.Do(req)
	if err != nil {
		return nil, err
	}
	if resp.StatusCode != http.StatusOK {
		defer resp.Body.Close()
		b, err := io.ReadAll(resp.Body)
		return nil, fmt.Errorf("%s: %s (%w)", resp.Status, b, err)
	}
	return resp, nil
}

// pace sends requests one after the other at a fixed rate, and returns how long each took, in milliseconds: to its end, or to the first token
// of a stream.
func (c lane) pace(ctx context.Context, l load, rate int, d time.Duration) ([]float64, error) {
	tick := time.NewTicker(time.Second / time.Duration(rate))
	defer tick.Stop()
	var took []float64
	for n := range int(d.Seconds() * float64(rate)) {
		<-tick.C
		ms, err := c.timed(ctx, l, l.body(c.model, 0, n))
		if err != nil {
			return nil, err
		}
		took = append(took, ms)
	}
	return took, nil
}

func (c lane) timed(ctx context.Context, l load, body string) (float64, error) {
	began := time.Now()
	if !l.stream {
		_, err := c.send(ctx, l, body)
		return milliseconds(time.Since(began)), err
	}
	resp, err := c.open(ctx, body, l.pause)
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	events, first := 0, 0.0
	err = listen(resp.Body, func(at time.Time, n int) {
		if events += n; events > 1 && first == 0 { // the first event has the role and nothing else
			first = milliseconds(at.Sub(began))
		}
	})
	return first, err
}

func milliseconds(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

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
