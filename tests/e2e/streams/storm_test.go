package streams

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/coder/websocket"
	"github.com/coder/websocket/wsjson"

	llmv1 "github.com/sluice-gateway/sluice/api/llm/v1"
	"github.com/sluice-gateway/sluice/internal/testutil"
	"github.com/sluice-gateway/sluice/tests/e2e/harness"
)

// stormy has a model of each kind: carried by Envoy alone, by Envoy until it has to wait, always by
// the relay, and by llm.v1.
const stormy = `
models:
  - {name: native, engine: sim, launcher: local, replicas: {min: 2, max: 2}, variables: {prefill_rate: 0, token_interval: 1ms},
     stream: {mode: native}, admission: {max_concurrent_requests: 20, max_queue: 40, queue_timeout: 1s}}
  - {name: tight, engine: sim, launcher: local, variables: {prefill_rate: 2000, token_interval: 1ms},
     stream: {heartbeat: 100ms}, admission: {max_concurrent_requests: 2, max_queue: 12, queue_timeout: 1s}}
  - {name: managed, engine: sim, launcher: local, replicas: {min: 2, max: 2}, variables: {prefill_rate: 2000, token_interval: 1ms},
     stream: {mode: managed, heartbeat: 100ms, resume: 1s, ttft_timeout: 2s, stall_timeout: 500ms},
     admission: {max_concurrent_requests: 6, max_queue: 40, queue_timeout: 2s}}
  - {name: worker, engine: sim, launcher: local, protocol: grpc, variables: {prefill_rate: 0, token_interval: 1ms},
     admission: {max_concurrent_requests: 20, max_queue: 40, queue_timeout: 1s}}
`

// stormIDs is the number of request ids that the clients of the storm share.
const stormIDs = 12

// canary is in every prompt, and the simulated engine answers with its caller's words.
const canary = "quetzalcoatlus"

// storm runs many clients that behave in all ways at engines that fail in all ways.
type storm struct {
	*harness.Gateway
	grpc   llmv1.InferenceClient
	http2  *http.Client
	seed   uint64
	whole  atomic.Int64 // answers and streams that ended well
	broken atomic.Int64 // those that ended with an error that the client was told of

	mu   sync.Mutex
	ends map[string]int // what was seen, for the log; guarded by mu
}

// Whatever clients and engines do, nothing of it is left in the end, and no broken stream looks
// whole.
func TestE2E_S4_S8_S13_NothingIsLeftOfAStorm(t *testing.T) {
	t.Parallel()
	g := harness.Start(t, stormy)
	h2c := new(http.Protocols)
	h2c.SetUnencryptedHTTP2(true)
	s := &storm{Gateway: g, grpc: dialGRPC(g), http2: &http.Client{Transport: &http.Transport{Protocols: h2c}}, ends: map[string]int{}}
	s.seed = rand.Uint64()
	if text := os.Getenv("SLUICE_STREAM_SEED"); text != "" {
		s.seed, _ = strconv.ParseUint(text, 10, 64)
	}
	runs := 2000
	if n, err := strconv.Atoi(os.Getenv("SLUICE_STREAM_RUNS")); err == nil {
		runs = n
	}
	t.Logf("SLUICE_STREAM_SEED=%d", s.seed)
	s.run(0, runs/4)
	s.awaitQuiet(t)
	before := s.Metric("go_goroutines")
	s.run(uint64(runs), runs-runs/4)
	s.awaitQuiet(t)
	t.Logf("%d whole, %d with an error; %v", s.whole.Load(), s.broken.Load(), s.ends)
	if s.whole.Load() < int64(runs/5) || s.broken.Load() < int64(runs/20) {
		t.Error("hardly anything happened")
	}
	// Connections that Envoy keeps to the relay cost one each, and it keeps as many as there were
	// clients at most.
	harness.Eventually(t, "no goroutine is left", func() error {
		if n := s.Metric("go_goroutines"); n > before+20 {
			return fmt.Errorf("%v, and %v after a quarter of the storm", n, before)
		}
		return nil
	})
	s.checkRecords(t)
	for _, model := range []string{"native", "tight", "managed", "worker"} {
		if a := s.Post(harness.ChatPath, harness.ChatBody(model, true, 3, "after all")); a.StatusCode != 200 || harness.CheckWholeStream(a.Content) != nil {
			t.Errorf("%s: %s", model, a)
		}
	}
}

// run runs n random actions on 24 clients. Storms with other values of from run other actions.
func (s *storm) run(from uint64, n int) {
	const clients = 24
	var next atomic.Int64
	var all sync.WaitGroup
	for range clients {
		all.Go(func() {
			for i := next.Add(1); i <= int64(n); i = next.Add(1) {
				s.runOne(rand.New(rand.NewPCG(s.seed, from+uint64(i))))
			}
		})
	}
	all.Wait()
}

// runOne runs one action of a client.
func (s *storm) runOne(r *rand.Rand) {
	ctx, cancel := context.WithTimeout(context.Background(), testutil.Patience)
	defer cancel()
	id := fmt.Sprint("s-", r.IntN(stormIDs))
	switch n := r.IntN(100); {
	case n < 5:
		s.resume(ctx, r, id)
	case n < 10:
		a, err := s.TryPost(ctx, "/v1/streams/"+id+"/cancel", "")
		if err != nil || a.StatusCode != 200 && a.StatusCode != 404 {
			s.T.Errorf("cancel: %v %v", err, a)
		}
	case n < 18:
		s.useRealtime(ctx, r)
	case n < 26:
		s.callGRPC(ctx, r)
	default:
		s.sendRequest(ctx, r, id)
	}
}

// count counts one outcome.
func (s *storm) count(what string) {
	s.mu.Lock()
	s.ends[what]++
	s.mu.Unlock()
}

var stormFaults = []string{"", "", "", "", "", "cut=N", "eof=N", "error=N", "malformed=N", "stall=N:50ms", "stall=N", "duplicate", "huge=N", "status=500",
	"status=503", "status=422", "status=429", "status=429:0", "early-close", "length=7", "hang=60ms", "reset-before-headers", "slow=2ms", "gzip"}

type stormRequest struct {
	model, fault, body string
	stream, managed    bool
	hangs              bool // nothing but its client's leaving ends it
}

func newStormRequest(r *rand.Rand, id string) stormRequest {
	a := stormRequest{model: []string{"native", "tight", "managed", "managed", "worker"}[r.IntN(5)], stream: r.IntN(5) > 0}
	a.fault = strings.Replace(stormFaults[r.IntN(len(stormFaults))], "N", strconv.Itoa(r.IntN(7)), 1)
	if a.model == "worker" && (strings.HasPrefix(a.fault, "huge") || a.fault == "gzip") { // it has none by llm.v1
		a.fault = ""
	}
	a.body = harness.ChatBody(a.model, a.stream, 1+r.IntN(30), strings.Repeat(canary+" ", 1+r.IntN(20)))
	// A model without stall_timeout, and an answer that is no stream, hang as long as their engine;
	// so does who joins them.
	a.hangs = strings.HasPrefix(a.fault, "stall") && !strings.Contains(a.fault, ":") && (a.model != "managed" || !a.stream)
	named := r.IntN(8) == 0 && !a.hangs
	if named { // few bodies, so that some join and some are refused
		a.body = withFields(harness.ChatBody(a.model, a.stream, 20+r.IntN(2), canary), fmt.Sprintf(`"request_id":%q`, id))
	}
	limited := r.IntN(8) == 0
	if limited {
		a.body = withFields(a.body, fmt.Sprintf(`%q:%d`, []string{"timeout_ms", "max_duration_ms"}[r.IntN(2)], 5+r.IntN(60)))
	}
	a.managed = a.model == "worker" || a.model == "managed" && (a.stream || named) || a.model == "tight" && (named || limited && a.stream)
	return a
}

// sendRequest sends a request. It reads the answer to its end, slowly, or in part.
func (s *storm) sendRequest(ctx context.Context, r *rand.Rand, id string) {
	a := newStormRequest(r, id)
	how := r.IntN(16)
	outer := ctx
	defer func() {
		if outer.Err() != nil {
			s.T.Errorf("%+v, done as %d, took %v", a, how, testutil.Patience)
		}
	}()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	c := harness.Client
	switch {
	case how == 0:
		s.halfClose(r, a)
		return
	case a.hangs:
		time.AfterFunc(rand.N(time.Second), cancel)
	case how <= 2: // before the headers, in the queue, in prefill, in decode
		time.AfterFunc(rand.N(40*time.Millisecond), cancel)
	}
	if r.IntN(3) == 0 {
		c = s.http2
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, s.URL+harness.ChatPath, strings.NewReader(a.body))
	if err != nil {
		s.T.Error(err)
		return
	}
	req.Header.Set("Content-Type", "application/json")
	if a.fault != "" {
		req.Header.Set("X-Sim-Fault", a.fault)
	}
	response, err := c.Do(req)
	if err != nil {
		if ctx.Err() == nil {
			s.T.Errorf("%+v: %v", a, err)
		}
		return
	}
	defer response.Body.Close()
	switch how {
	case 3: // leaves in the middle
		io.ReadFull(response.Body, make([]byte, r.IntN(2000)))
		cancel()
		return
	case 4: // reads slowly
		for buffer := make([]byte, 100); err == nil && r.IntN(40) > 0; time.Sleep(time.Millisecond) {
			_, err = response.Body.Read(buffer)
		}
		io.Copy(io.Discard, response.Body)
		return
	}
	body, err := io.ReadAll(response.Body)
	if ctx.Err() == nil {
		s.checkResponse(a, response, body, err)
	}
}

// checkResponse checks an answer that was read to its end.
func (s *storm) checkResponse(a stormRequest, r *http.Response, body []byte, err error) {
	stream := strings.HasPrefix(r.Header.Get("Content-Type"), "text/event-stream")
	last := body[bytes.LastIndex(bytes.TrimSpace(body), []byte("\n"))+1:]
	switch {
	case err != nil:
		s.broken.Add(1)
		s.count("cut")
		if a.managed || a.fault == "" && !strings.Contains(a.body, "_ms") {
			s.T.Errorf("%+v: %v after\n%s", a, err, body)
		}
	case r.StatusCode != 200:
		s.broken.Add(1)
		s.count(r.Status[:3])
		if known := []int{408, 409, 422, 429, 500, 502, 503, 504, 499}; !slices.Contains(known, r.StatusCode) || !bytes.Contains(body, []byte(`"error"`)) {
			s.T.Errorf("%+v: %s: %s", a, r.Status, body)
		}
	case stream && harness.CheckWholeStream(body) == nil:
		s.whole.Add(1)
	case stream && bytes.HasPrefix(last, []byte(`data: {"error":`)):
		s.broken.Add(1)
		s.count("error event")
	case stream && (a.managed || a.fault == "" || strings.HasPrefix(a.fault, "cut")):
		s.T.Errorf("%+v: looks whole:\n%s", a, body)
	case !stream && a.stream && a.fault != "gzip":
		s.T.Errorf("%+v: no stream: %v %s", a, r.Header, body)
	default:
		s.whole.Add(1)
	}
}

// halfClose sends a request and closes its side of the connection at once. Then it resets the
// connection or waits for the end of the answer.
func (s *storm) halfClose(r *rand.Rand, a stormRequest) {
	conn, err := net.Dial("tcp", strings.TrimPrefix(s.URL, "http://"))
	if err != nil {
		s.T.Error(err)
		return
	}
	defer conn.Close()
	fmt.Fprintf(conn, "POST %s HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\nx-sim-fault: %s\r\ncontent-length: %d\r\n\r\n%s",
		harness.ChatPath, cmp.Or(a.fault, "none"), len(a.body), a.body[:len(a.body)-r.IntN(2)])
	time.Sleep(time.Duration(r.IntN(20)) * time.Millisecond)
	tcp := conn.(*net.TCPConn)
	if r.IntN(2) == 0 {
		tcp.SetLinger(0)
		return
	}
	tcp.CloseWrite()
	conn.SetReadDeadline(time.Now().Add(testutil.Patience))
	if _, err := io.Copy(io.Discard, conn); err != nil && !strings.Contains(err.Error(), "reset") {
		s.T.Errorf("%+v, half closed: %v", a, err)
	}
	s.count("half closed")
}

// resume resumes a stream that may be running.
func (s *storm) resume(ctx context.Context, r *rand.Rand, id string) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, fmt.Sprint(s.URL, "/v1/streams/", id, "?after=", r.IntN(12)-1), nil)
	if err != nil {
		s.T.Error(err)
		return
	}
	response, err := harness.Client.Do(req)
	if err != nil {
		s.T.Error(err)
		return
	}
	defer response.Body.Close()
	if r.IntN(3) == 0 {
		return
	}
	body, err := io.ReadAll(response.Body)
	s.count("resumed " + response.Status[:3])
	if err != nil || response.StatusCode == 200 && len(body) > 0 && !bytes.Contains(body, []byte("[DONE]")) && !bytes.Contains(body, []byte(`"error"`)) &&
		!bytes.Contains(body, []byte(`"choices"`)) {
		s.T.Errorf("resumed: %v %s: %s", err, response.Status, body)
	}
}

// useRealtime opens a WebSocket and asks for some responses.
func (s *storm) useRealtime(ctx context.Context, r *rand.Rand) {
	ws, _, err := websocket.Dial(ctx, s.URL+"/v1/realtime", nil)
	if err != nil {
		s.T.Errorf("WebSocket: %v", err)
		return
	}
	defer ws.CloseNow()
	for turn := range 1 + r.IntN(3) {
		start := harness.Message{"type": "start", "model": []string{"native", "tight", "managed", "worker"}[r.IntN(4)],
			"messages": []harness.Message{{"role": "user", "content": canary}}, "params": harness.Message{"max_tokens": 1 + r.IntN(30)}}
		if r.IntN(4) == 0 {
			start["request_id"] = fmt.Sprint("s-", r.IntN(stormIDs))
		}
		if wsjson.Write(ctx, ws, start) != nil || s.useSession(ctx, r, ws) {
			return
		}
		s.count(fmt.Sprint("turn ", turn))
	}
	ws.Close(websocket.StatusNormalClosure, "")
}

// useSession reads one response to its end, unless the client disconnects before. left reports
// whether it did.
func (s *storm) useSession(ctx context.Context, r *rand.Rand, ws *websocket.Conn) (left bool) {
	after, does := r.IntN(20), r.IntN(4)
	for n := 0; ; n++ {
		var m harness.Message
		if err := wsjson.Read(ctx, ws, &m); err != nil {
			s.T.Errorf("WebSocket: %v", err)
			return true
		}
		switch {
		case m["type"] == "final" || m["type"] == "error":
			return false
		case n != after:
		case does == 0:
			return true
		case does == 1:
			wsjson.Write(ctx, ws, harness.Message{"type": "cancel"})
		case does == 2:
			wsjson.Write(ctx, ws, harness.Message{"type": "pause"})
			wsjson.Write(ctx, ws, harness.Message{"type": "resume"})
		}
	}
}

// callGRPC sends a request by gRPC.
func (s *storm) callGRPC(ctx context.Context, r *rand.Rand) {
	how := r.IntN(3)
	if how == 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, time.Duration(1+r.IntN(40))*time.Millisecond)
		defer cancel()
	}
	start := &llmv1.StartRequest{Model: []string{"native", "tight", "managed", "worker"}[r.IntN(4)], Messages: []string{canary}, MaxTokens: int32(1 + r.IntN(30))}
	if r.IntN(4) == 0 {
		start.RequestId = fmt.Sprint("s-", r.IntN(stormIDs))
	}
	if how == 1 { // leaves in the middle
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		if stream, err := s.grpc.Stream(ctx, start); err == nil {
			stream.Recv()
		}
		return
	}
	_, final, err := generate(ctx, s.grpc, start)
	if err == nil && final == nil {
		s.T.Error("gRPC: a clean end without a final")
	}
	s.count(fmt.Sprint("gRPC ", err == nil))
}

// awaitQuiet waits until no request runs and the gateways keep no streams for resumption.
func (s *storm) awaitQuiet(t *testing.T) {
	t.Helper()
	for _, model := range []string{"native", "tight", "managed", "worker"} {
		s.AwaitIdle(model)
	}
	for id, r := range s.Replicas() {
		harness.Eventually(t, id+" is free", func() error {
			if n := s.Replicas()[id].InFlight; n != 0 {
				return fmt.Errorf("it still has %d", n)
			}
			return checkIdle(r.Address)
		})
	}
	for i := range stormIDs {
		harness.Eventually(t, "no stream is kept", func() error {
			if a := s.Fetch(fmt.Sprint("/v1/streams/s-", i)); a.StatusCode != 404 {
				return fmt.Errorf("s-%d: %s", i, a)
			}
			return nil
		})
	}
	harness.Eventually(t, "no request is listed as running", func() error {
		var list struct {
			Running  int
			Requests []json.RawMessage
		}
		if s.Get("/api/v1/requests?limit=100", &list); list.Running > 0 {
			return fmt.Errorf("%d: %s", list.Running, list.Requests[:min(len(list.Requests), list.Running)])
		}
		return nil
	})
	for _, name := range []string{"running", "queued"} {
		harness.Eventually(t, "the tenant has none "+name, func() error {
			if n := s.Metric(`sluice_tenant_` + name + `{tenant="anyone"}`); n != 0 {
				return fmt.Errorf("it has %v", n)
			}
			return nil
		})
	}
}

// checkRecords checks that log and metrics agree, and that neither has text of prompts.
func (s *storm) checkRecords(t *testing.T) {
	t.Helper()
	harness.Eventually(t, "every request is counted and logged once", func() error {
		counted := 0.0
		metrics := s.AdminText("/metrics")
		for line := range strings.Lines(metrics) {
			if strings.HasPrefix(line, "sluice_requests_total{") {
				n, _ := strconv.ParseFloat(strings.TrimSpace(line[strings.LastIndex(line, " "):]), 64)
				counted += n
			}
		}
		if lines := len(requestLines(s.Gateway)); float64(lines) != counted {
			return fmt.Errorf("%d lines, %v counted", lines, counted)
		}
		return nil
	})
	logs, _ := filepath.Glob(filepath.Join(s.Dir, "logs", "*.log"))
	texts := map[string]string{"log": s.LogText(), "metrics": s.AdminText("/metrics")}
	for _, name := range logs {
		b, err := os.ReadFile(name)
		if err != nil {
			t.Error(err)
		}
		texts[name] = string(b)
	}
	for name, text := range texts {
		for _, never := range []string{canary, "panic", "DATA RACE"} {
			if at := strings.Index(text, never); at >= 0 {
				t.Errorf("%q in %s: %s", never, name, text[max(0, at-300):min(len(text), at+300)])
			}
		}
	}
}

// startCompletion asks the model m for the completion of a name. The channel is closed if the
// request fails.
func startCompletion(ctx context.Context, g *harness.Gateway, name string, stream bool) <-chan *http.Response {
	answered := make(chan *http.Response, 1)
	go func() {
		defer close(answered)
		if r, err := g.Open(ctx, "/v1/completions", fmt.Sprintf(`{"model":"m","prompt":%q,"stream":%t}`, name, stream)); err == nil {
			answered <- r
		}
	}()
	return answered
}

// A request that is handed to the relay while it waits keeps its place: who came before goes
// before, whichever way they are carried. One that leaves frees its place, and one that asked for
// no stream hears nothing before its answer.
func TestE2E_S2_S11_HandedOverInOrder(t *testing.T) {
	t.Parallel()
	engine := harness.StartSerialUpstream(t)
	g := harness.Start(t, `
models:
  - {name: m, launcher: upstream, upstreams: ["`+engine.URL+`"], stream: {heartbeat: 300ms}, admission: {max_concurrent_requests: 1}}
`)
	all, cancel := context.WithCancel(t.Context())
	defer cancel()
	ctx, leave := context.WithCancel(all)
	defer leave()
	names := []string{"a", "b", "whole", "leaves", "c", "d"}
	answers := map[string]<-chan *http.Response{}
	for i, name := range names {
		of := all
		if name == "leaves" {
			of = ctx
		}
		answers[name] = startCompletion(of, g, name, name != "whole")
		g.AwaitModel("m", name+" is at the engine, or waits", func(m harness.Model) bool { return m.InFlight == 1 && m.Queued == i })
	}
	for _, name := range names[1:] { // all who wait hear of it
		if name == "whole" {
			continue
		}
		r := harness.Receive(t, answers[name], name+" is answered")
		if r == nil {
			t.Fatalf("%s had no answer", name)
		}
		defer r.Body.Close()
		heard, comments := "", bufio.NewReader(r.Body)
		for !strings.Contains(heard, ": queued position=") {
			line, err := comments.ReadString('\n')
			if heard += line; err != nil || len(heard) > 500 {
				t.Fatalf("%s heard %q, %v", name, heard, err)
			}
		}
	}
	select {
	case r := <-answers["whole"]:
		t.Errorf("an early answer to who asked for no stream: %v", r)
	default:
	}
	leave()
	g.AwaitQueued("m", 4)
	answers["late"] = startCompletion(all, g, "late", true)
	g.AwaitQueued("m", 5)
	for range 6 {
		engine.Next <- struct{}{}
	}
	g.AwaitIdle("m")
	if order, want := engine.Served(), []string{"a", "b", "whole", "c", "d", "late"}; !slices.Equal(order, want) {
		t.Errorf("served %v, want %v", order, want)
	}
	if r := harness.Receive(t, answers["whole"], "the whole answer comes"); r == nil || r.StatusCode != 200 {
		t.Errorf("%v", r)
	}
}
