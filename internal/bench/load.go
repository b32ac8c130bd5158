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

// workload is what the clients of one measurement do.
type workload struct {
	// name describes the workload in the output, and unit is what its cost is counted in.
	name, unit string
	// workers is the number of clients, tokens the number of tokens of each response.
	workers, tokens int
	// stream tells that responses are streamed.
	stream bool
	// eventPause is the pause of the engine before each event; 0: none.
	eventPause time.Duration
}

// requestBody returns the body of the n-th request of a worker.
func (l workload) requestBody(model string, worker, n int) string {
	options := ""
	if l.stream && model == "sim" {
		options = `"stream_options":{"include_usage":true},`
	}
	return fmt.Sprintf(`{"model":%q,"stream":%t,"max_tokens":%d,"ignore_eos":true,%s"messages":[{"role":"user","content":"request %d of client %d"}]}`,
		model, l.stream, l.tokens, options, n, worker)
}

// proxy is one way from clients to the engines: a plain Envoy, or Sluice with its Envoy.
type proxy struct {
	// url is the base URL for clients, admin that of Sluice's API for operators.
	url, admin string
	// envoyPID and gatewayPID are the processes whose CPU time counts. gatewayPID is 0 for plain
	// Envoy.
	envoyPID, gatewayPID int
	client               *http.Client
	// scraped says that the gateway's metrics are read while it is measured.
	scraped bool
}

// variant is a proxy and the model that selects how a stream passes through it.
type variant struct {
	*proxy
	// name is the name in the output, and model the model that clients request.
	name, model string
}

// cpuCost is CPU time per unit of a workload, in microseconds.
type cpuCost struct{ envoy, gateway float64 }

func (c cpuCost) ofEnvoy() float64   { return c.envoy }
func (c cpuCost) ofGateway() float64 { return c.gateway }
func (c cpuCost) total() float64     { return c.envoy + c.gateway }

// measure runs the workload for d, after a short warm-up, and returns its CPU cost.
func (v variant) measure(ctx context.Context, l workload, d time.Duration) (cpuCost, error) {
	if _, err := v.run(ctx, l, d/4); err != nil {
		return cpuCost{}, err
	}
	before, err := v.cpuTime()
	if err != nil {
		return cpuCost{}, err
	}
	units, err := v.run(ctx, l, d)
	if err != nil {
		return cpuCost{}, err
	}
	// Envoy sends its access log a moment later. That work belongs to these requests.
	time.Sleep(300 * time.Millisecond)
	after, err := v.cpuTime()
	if err != nil {
		return cpuCost{}, err
	}
	perUnit := func(ns int64) float64 { return float64(ns) / 1000 / float64(units) }
	return cpuCost{perUnit(after.envoy - before.envoy), perUnit(after.gateway - before.gateway)}, nil
}

// run sends requests from all workers for d, one after the other from each. It returns the number
// of units in the responses.
func (v variant) run(ctx context.Context, l workload, d time.Duration) (int64, error) {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	var units atomic.Int64
	var workers sync.WaitGroup
	faults := make(chan error, l.workers)
	until := time.Now().Add(d)
	for w := range l.workers {
		workers.Go(func() {
			for n := 0; time.Now().Before(until); n++ {
				got, err := v.send(ctx, l, l.requestBody(v.model, w, n))
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

// send makes one request and returns the number of its units: 1, or the tokens of a stream. It does
// not count events, because managed streams have fewer events where a client reads slowly.
func (v variant) send(ctx context.Context, l workload, body string) (int64, error) {
	resp, err := v.open(ctx, body, l.eventPause)
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
		return 0, fmt.Errorf("the stream ended without [DONE]: …%s", b[max(0, len(b)-300):])
	}
	return int64(l.tokens), nil
}

// open makes a request and returns the response after its headers.
func (v variant) open(ctx context.Context, body string, pause time.Duration) (*http.Response, error) {
	fault := ""
	if pause > 0 {
		fault = "slow=" + pause.String()
	}
	return v.post(ctx, body, fault)
}

// post makes a request with a fault of the simulated engine and returns the response after its
// headers.
func (v variant) post(ctx context.Context, body, fault string) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, v.url+"/v1/chat/completions", strings.NewReader(body))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Content-Type", "application/json")
	if fault != "" {
		req.Header.Set("X-Sim-Fault", fault)
	}
	resp, err := v.client.Do(req)
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

// paced sends requests one after the other at a fixed rate. It returns the time of each in
// milliseconds: to the end of the response, or to the first token of a stream.
func (v variant) paced(ctx context.Context, l workload, rate int, d time.Duration) ([]float64, error) {
	tick := time.NewTicker(time.Second / time.Duration(rate))
	defer tick.Stop()
	var took []float64
	for n := range int(d.Seconds() * float64(rate)) {
		<-tick.C
		ms, err := v.requestTime(ctx, l, l.requestBody(v.model, 0, n))
		if err != nil {
			return nil, err
		}
		took = append(took, ms)
	}
	return took, nil
}

// requestTime makes one request and returns its time in milliseconds, as for paced.
func (v variant) requestTime(ctx context.Context, l workload, body string) (float64, error) {
	start := time.Now()
	if !l.stream {
		_, err := v.send(ctx, l, body)
		return milliseconds(time.Since(start)), err
	}
	resp, err := v.open(ctx, body, l.eventPause)
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	events, first := 0, 0.0
	err = readEvents(resp.Body, func(at time.Time, n int) {
		if events += n; events > 1 && first == 0 { // the first event contains only the role
			first = milliseconds(at.Sub(start))
		}
	})
	return first, err
}

// milliseconds returns d in milliseconds.
func milliseconds(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

// processTimes is the CPU time of the processes so far, in nanoseconds.
type processTimes struct{ envoy, gateway int64 }

// cpuTime returns the CPU time of the processes of the proxy so far.
func (p *proxy) cpuTime() (processTimes, error) {
	var u processTimes
	var err error
	if u.envoy, err = cpuTimeOf(p.envoyPID); err == nil && p.gatewayPID != 0 {
		u.gateway, err = cpuTimeOf(p.gatewayPID)
	}
	return u, err
}

// cpuTimeOf returns the CPU time of all threads of a process in nanoseconds
// (/proc/PID/task/TID/schedstat, field 1).
func cpuTimeOf(pid int) (int64, error) {
	dir := fmt.Sprintf("/proc/%d/task", pid)
	threads, err := os.ReadDir(dir)
	if err != nil {
		return 0, err
	}
	var sum int64
	for _, thread := range threads {
		b, err := os.ReadFile(dir + "/" + thread.Name() + "/schedstat")
		if err != nil {
			continue // the thread has ended meanwhile
		}
		n, err := strconv.ParseInt(strings.Fields(string(b))[0], 10, 64)
		if err != nil {
			return 0, err
		}
		sum += n
	}
	return sum, nil
}
