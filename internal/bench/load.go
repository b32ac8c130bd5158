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
	"time"
)

// workload is what the clients of one measurement do.
type workload struct {
	// workers is the number of clients, tokens the number of tokens of each response.
	workers, tokens int
	// stream tells that responses are streamed.
	stream bool
	// eventPause is the pause of the engine before each event; 0: none.
	eventPause time.Duration
}

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
	// url is the base URL for clients, and address its host:port. admin is the base URL of Sluice's
	// API for operators.
	url, address, admin string
	// envoyPID and gatewayPID are the processes whose CPU time counts. gatewayPID is 0 for plain
	// Envoy.
	envoyPID, gatewayPID int
	client               *http.Client
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
