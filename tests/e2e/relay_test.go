package e2e

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/coder/websocket"
	collector "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	tracev1 "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/protobuf/proto"

	llmv1 "github.com/sluice-gateway/sluice/api/llm/v1"
	"github.com/sluice-gateway/sluice/internal/redistest"
)

// A request that is more urgent takes the place of one that has no token yet, whose client notices nothing but time. One that has begun to
// answer is left alone.
func TestE2E_S11_UrgentRequestPushesOutPrefill(t *testing.T) {
	t.Parallel()
	tenants, key := tenantsOf(map[string]string{"people": ", priority: interactive", "night": ", priority: batch"})
	g := start(t, tenants+`
models:
  - name: m
    engine: sim
    launcher: local
    variables: {prefill_rate: 100, token_interval: 10ms, max_num_seqs: 1}
    admission: {max_concurrent_requests: 1}
    stream: {mode: managed, heartbeat: 500ms}
`)
	as := func(name string) string { return key[name] }
	var order []string
	var mu sync.Mutex
	first := func(name string) {
		mu.Lock()
		order = append(order, name)
		mu.Unlock()
	}
	var both sync.WaitGroup
	both.Go(func() { // some three seconds of prefill
		_, all := g.stream(chats, chat("m", true, 10, strings.Repeat("night ", 300)), as("night"))
		if text, finish := said(t, all); finish != "length" || text == "" {
			t.Errorf("pushed out, and then: %v", all)
		}
		first("night")
	})
	eventually(t, "the night's request is at the engine", func() error {
		if n := g.generations("m-0"); n != 1 {
			return fmt.Errorf("%d", n)
		}
		return nil
	})
	_, all := g.stream(chats, chat("m", true, 10, "quick"), as("people"))
	if _, finish := said(t, all); finish != "length" {
		t.Errorf("%v", all)
	}
	first("people")
	both.Wait()
	if !slices.Equal(order, []string{"people", "night"}) || g.generations("m-0") != 3 {
		t.Errorf("ended in the order %v, with %d requests at the engine", order, g.generations("m-0"))
	}
	if !strings.Contains(g.adminText("/metrics"), `stream_retries_total{reason="preempted"} 1`) {
		t.Error("the preemption is not in the metrics")
	}
	// In decode it stays.
	r, err := g.open(context.Background(), chats, chat("m", true, 200, "decode"), as("night"))
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	io.ReadFull(r.Body, make([]byte, 1000))
	if _, all := g.stream(chats, chat("m", true, 5, "waits"), as("people")); len(all) == 0 {
		t.Error("nothing")
	}
	rest, err := events(r.Body)
	if err != nil || rest[len(rest)-1].data != "[DONE]" || g.generations("m-0") != 5 {
		t.Errorf("%v: %v; %d requests", err, rest[len(rest)-1:], g.generations("m-0"))
	}
	g.awaitIdle("m")
}

// otlp is a collector that keeps what it is sent.
type otlp struct {
	mu    sync.Mutex
	spans []*tracev1.Span
}

func newOTLP(t *testing.T) (*otlp, string) {
	c := new(otlp)
	return c, backend(t, func(w http.ResponseWriter, r *http.Request) {
		body := io.Reader(r.Body)
		if r.Header.Get("Content-Encoding") == "gzip" {
			body, _ = gzip.NewReader(r.Body)
		}
		b, err := io.ReadAll(body)
		var in collector.ExportTraceServiceRequest
		if err != nil || proto.Unmarshal(b, &in) != nil {
			w.WriteHeader(400)
			return
		}
		c.mu.Lock()
		defer c.mu.Unlock()
		for _, r := range in.GetResourceSpans() {
			for _, s := range r.GetScopeSpans() {
				c.spans = append(c.spans, s.GetSpans()...)
			}
		}
	})
}

// of lists the names of the spans of a trace, once there is the root among them.
func (c *otlp) of(t *testing.T, trace string) (names []string) {
	t.Helper()
	eventually(t, "the spans of "+trace, func() error {
		c.mu.Lock()
		defer c.mu.Unlock()
		names = nil
		for _, s := range c.spans {
			if fmt.Sprintf("%x", s.GetTraceId()) == trace {
				names = append(names, s.GetName())
			}
		}
		if !slices.ContainsFunc(names, func(n string) bool { return strings.HasPrefix(n, "chat ") }) {
			return fmt.Errorf("only %v", names)
		}
		return nil
	})
	return names
}

// A client's trace goes on through queue, prefill and decode to the engine, for native and managed streams.
func TestE2E_S13_SpansFromClientToEngine(t *testing.T) {
	t.Parallel()
	sink, url := newOTLP(t)
	var mu sync.Mutex
	seen := map[string]string{} // what the engine was told, by model
	engine := backend(t, func(w http.ResponseWriter, r *http.Request) {
		if lists(w, r, "native", "managed") {
			return
		}
		var asked struct{ Model string }
		json.NewDecoder(r.Body).Decode(&asked)
		mu.Lock()
		seen[asked.Model] = r.Header.Get("traceparent")
		mu.Unlock()
		w.Header().Set("content-type", "text/event-stream")
		for i := range 10 {
			fmt.Fprintf(w, "data: {\"id\":\"x\",\"choices\":[{\"index\":0,\"delta\":{\"content\":\"t%d\"},\"finish_reason\":null}]}\n\n", i)
			w.(http.Flusher).Flush()
		}
		io.WriteString(w, "data: {\"id\":\"x\",\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":\"stop\"}]}\n\ndata: [DONE]\n\n")
	})
	g := start(t, `
tracing: {endpoint: "`+url+`", sample: 0}
models:
  - {name: native, launcher: upstream, upstreams: ["`+engine+`"], stream: {mode: native}}
  - {name: managed, launcher: upstream, upstreams: ["`+engine+`"], stream: {mode: managed}}
`)
	for i, model := range []string{"native", "managed"} {
		trace := fmt.Sprintf("%032x", 0xabc0+i)
		g.stream(chats, chat(model, true, 10, "secret words"), "traceparent: 00-"+trace+"-00000000000000aa-01")
		names := sink.of(t, trace)
		for _, want := range []string{"chat " + model, "queue", "prefill", "decode"} {
			if !slices.Contains(names, want) {
				t.Errorf("%s: no span %s among %v", model, want, names)
			}
		}
		if model == "managed" && (!slices.Contains(names, "decode_step[1]") || !slices.ContainsFunc(names, func(n string) bool { return strings.HasPrefix(n, "emit_chunk[") })) {
			t.Errorf("no steps among %v", names)
		}
		mu.Lock()
		if told := seen[model]; !strings.HasPrefix(told, "00-"+trace+"-") || strings.Contains(told, "00000000000000aa") {
			t.Errorf("%s: the engine was told %q", model, told)
		}
		mu.Unlock()
	}
	g.stream(chats, chat("managed", true, 10, "x"), "traceparent: 00-"+strings.Repeat("d", 32)+"-00000000000000aa-00")
	mu.Lock()
	if told := seen["managed"]; told != "00-"+strings.Repeat("d", 32)+"-00000000000000aa-00" {
		t.Errorf("a trace that is not sampled became %q", told)
	}
	mu.Unlock()
	sink.mu.Lock()
	defer sink.mu.Unlock()
	for _, s := range sink.spans {
		if strings.Contains(s.String(), "secret") {
			t.Errorf("a prompt is in %v", s)
		}
	}
}

// twoGateways share a Redis and the engine of a third gateway, its replica m-0.
func twoGateways(t *testing.T) (third *gateway, two [2]*gateway) {
	t.Helper()
	redis := redistest.Start(t)
	third = start(t, `
models:
  - {name: m, engine: sim, launcher: local, variables: {prefill_rate: 0, token_interval: 10ms}}
`)
	for i := range two {
		two[i] = start(t, fmt.Sprintf(`
redis: %s
peers: 127.0.0.1:%d
models:
  - {name: m, launcher: upstream, upstreams: ["http://%s"], admission: {max_per_replica: 100}, stream: {resume: 2s, heartbeat: 1s}}
`, redistest.URL(redis), freePort(t), third.replicas()["m-0"].Address))
	}
	for _, g := range two {
		g.shared(true, 2)
	}
	return third, two
}

// A client that comes back to another gateway gets its stream from the one that has it.
func TestE2E_S6_S7_AcrossGateways(t *testing.T) {
	t.Parallel()
	one, gateways := twoGateways(t)
	engine, a, b := one.replicas()["m-0"].Address, gateways[0], gateways[1]
	body := with(chat("m", true, 150, "across"), `"request_id":"x"`)
	r, err := a.open(context.Background(), chats, body)
	if err != nil {
		t.Fatal(err)
	}
	head := make([]byte, 1500) // more than the events up to the one that is resumed after
	io.ReadFull(r.Body, head)
	joined, err := b.open(context.Background(), chats, body) // a start that is repeated elsewhere
	if err != nil {
		t.Fatal(err)
	}
	resumed := b.resume("x", "2")
	whole, err := io.ReadAll(r.Body)
	if err != nil {
		t.Fatal(err)
	}
	whole = append(head, whole...)
	other, err := io.ReadAll(joined.Body)
	if err != nil || !bytes.Equal(plainStream(other), plainStream(whole)) || wholeStream(whole) != nil {
		t.Errorf("joined (%v):\n%s\nthe first:\n%s", err, other, whole)
	}
	if at := bytes.Index(whole, []byte("id: 3\n")); at < 0 || !bytes.Equal(plainStream(resumed.body), plainStream(whole[at:])) {
		t.Errorf("resumed:\n%s", resumed.body)
	}
	if n := one.generations("m-0"); n != 1 {
		t.Errorf("%d generations", n)
	}
	// A cancel at the other gateway.
	r, err = a.open(context.Background(), chats, with(chat("m", true, 100000, "long"), `"request_id":"y"`))
	if err != nil {
		t.Fatal(err)
	}
	io.ReadFull(r.Body, head)
	if c := b.post("/v1/streams/y/cancel", ""); c.StatusCode != 200 {
		t.Errorf("cancel: %s", c)
	}
	eventually(t, "the engine is free", func() error { return running(engine) })
	r.Body.Close()
	if c := b.fetch("/v1/streams/nobody"); c.StatusCode != 404 {
		t.Errorf("an unknown id: %s", c)
	}
	// The owner is gone, and with it what it ran: the other one begins anew.
	r, err = a.open(context.Background(), chats, with(chat("m", true, 100000, "lost"), `"request_id":"z"`))
	if err != nil {
		t.Fatal(err)
	}
	io.ReadFull(r.Body, head)
	a.signal(syscall.SIGKILL)
	<-a.exited
	eventually(t, "another gateway takes over", func() error {
		again, err := b.tryPost(context.Background(), chats, with(chat("m", true, 5, "lost"), `"request_id":"z"`))
		if err != nil || again.StatusCode != 200 || wholeStream(again.body) != nil {
			return fmt.Errorf("%v %v", err, again)
		}
		return nil
	})
	r.Body.Close()
	a.launch()
	a.awaitReady()
}

// What has a name is found from a WebSocket or a gRPC call at another gateway too, and cancelled from there.
func TestE2E_S7_S9_S10_AcrossGateways(t *testing.T) {
	t.Parallel()
	one, gateways := twoGateways(t)
	engine := one.replicas()["m-0"].Address
	turn := func(id string, tokens int) message {
		return message{"type": "start", "request_id": id, "model": "m", "messages": []message{{"role": "user", "content": id}},
			"params": message{"max_tokens": tokens, "ignore_eos": true}}
	}
	sockets := []*websocket.Conn{gateways[0].realtime(""), gateways[1].realtime("")}
	begin := func(id string, tokens int) (begun [2][]message) {
		for i, ws := range sockets {
			say(t, ws, turn(id, tokens))
			begun[i] = hear(t, ws, "token")
		}
		return begun
	}
	begun := begin("w", 150)
	var finals [2]message
	var texts [2]string
	for i, ws := range sockets {
		all := slices.Concat(begun[i], hear(t, ws, "final"))
		finals[i], texts[i] = all[len(all)-1], spoken(all)
	}
	if texts[0] == "" || texts[0] != texts[1] || fmt.Sprint(finals[0]) != fmt.Sprint(finals[1]) {
		t.Errorf("two sockets heard %q %v and %q %v", texts[0], finals[0], texts[1], finals[1])
	}
	if n := one.generations("m-0"); n != 1 {
		t.Errorf("%d generations of one turn", n)
	}
	begin("long", 100_000)
	say(t, sockets[1], message{"type": "cancel"})
	for _, ws := range sockets {
		if all := hear(t, ws, "final"); all[len(all)-1]["finish_reason"] != "cancelled" {
			t.Errorf("%v", all[len(all)-1])
		}
	}
	eventually(t, "the engine is free", func() error { return running(engine) })

	var calls sync.WaitGroup
	var heard [2]string
	for i, g := range gateways {
		client := g.dial()
		calls.Go(func() {
			text, final, err := generate(t.Context(), client, &llmv1.StartRequest{Model: "m", RequestId: "g", Messages: []string{"tell me"}, MaxTokens: 50})
			if err != nil || final == nil {
				t.Errorf("gateway %d: %v %v", i, final, err)
			}
			heard[i] = text
		})
	}
	calls.Wait()
	if heard[0] == "" || heard[0] != heard[1] {
		t.Errorf("two calls heard %q and %q", heard[0], heard[1])
	}
	if n := one.generations("m-0"); n != 3 {
		t.Errorf("%d generations in all, want 3", n)
	}
}

// A model of text-embeddings-inference reranks by the same API as all others.
func TestE2E_N1_T6_RerankOnTEI(t *testing.T) {
	t.Parallel()
	tei := backend(t, func(w http.ResponseWriter, r *http.Request) {
		if lists(w, r, "r") {
			return
		}
		var asked struct {
			Query string
			Texts []string
		}
		if json.NewDecoder(r.Body).Decode(&asked) != nil || r.URL.Path != "/rerank" || asked.Query != "q" || len(asked.Texts) != 3 {
			w.WriteHeader(422)
			return
		}
		io.WriteString(w, `[{"index":2,"score":0.75},{"index":0,"score":0.5},{"index":1,"score":0.25}]`)
	})
	g := start(t, `
models:
  - {name: r, launcher: upstream, task: rerank, rerank_api: tei, upstreams: ["`+tei+`"]}
`)
	a := g.post("/v1/rerank", `{"model":"r","query":"q","documents":["a","b",{"text":"c"}],"top_n":2}`)
	var got struct {
		Model   string
		Results []struct {
			Index    int
			Score    float64 `json:"relevance_score"`
			Document struct{ Text string }
		}
	}
	if err := json.Unmarshal(a.body, &got); err != nil || a.StatusCode != 200 || len(got.Results) != 2 || got.Results[0].Index != 2 ||
		got.Results[0].Score != 0.75 || got.Results[0].Document.Text != "c" || got.Results[1].Index != 0 || a.Header.Get("X-Sluice-Source") != "engine" {
		t.Errorf("%v: %s", err, a)
	}
	if a := g.post("/v1/rerank", `{"model":"r","query":"q","documents":[]}`); a.StatusCode != 400 || a.code() != "invalid_request" {
		t.Errorf("%s", a)
	}
	g.awaitIdle("r")
}

// A gateway that hands over tells the clients of managed streams; native ones notice nothing.
func TestE2E_S8_HandOverTellsManagedStreams(t *testing.T) {
	t.Parallel()
	g := start(t, `
models:
  - {name: native, engine: sim, launcher: local, variables: {prefill_rate: 0, token_interval: 20ms}, stream: {mode: native}}
  - {name: managed, engine: sim, launcher: local, variables: {prefill_rate: 0, token_interval: 20ms}, stream: {mode: managed}}
`)
	open := func(model string) *http.Response {
		r, err := g.open(context.Background(), chats, chat(model, true, 300, "hand over"))
		if err != nil {
			t.Fatal(err)
		}
		io.ReadFull(r.Body, make([]byte, 300))
		return r
	}
	native, managed := open("native"), open("managed")
	defer native.Body.Close()
	defer managed.Body.Close()
	if out, err := g.sluice("restart", "-c", g.Config); err != nil {
		t.Fatalf("%v %s", err, out)
	}
	told, err := events(managed.Body)
	if err != nil || told[len(told)-1].chunk(t).Error == nil || told[len(told)-1].chunk(t).Error.Code != "gateway_unavailable" {
		t.Errorf("%v %v", err, told[max(0, len(told)-1):])
	}
	whole, err := events(native.Body)
	if err != nil || whole[len(whole)-1].data != "[DONE]" {
		t.Errorf("the native stream: %v %v", err, whole[max(0, len(whole)-1):])
	}
	for _, name := range []string{"native", "managed"} {
		g.awaitIdle(name)
	}
	if _, all := g.stream(chats, chat("managed", true, 5, "again")); all[len(all)-1].data != "[DONE]" {
		t.Errorf("%v", all)
	}
}

// The engine is asked for its count of tokens, of which clients that did not ask hear nothing.
func TestE2E_S12_T5_InjectedUsageIsHidden(t *testing.T) {
	t.Parallel()
	g := start(t, `
models:
  - {name: m, engine: sim, launcher: local, variables: {prefill_rate: 0, token_interval: 1ms}, stream: {inject_usage: true}}
`)
	_, all := g.stream(chats, chat("m", true, 17, "count"))
	for _, e := range all {
		if strings.Contains(e.data, `"usage":{`) {
			t.Errorf("told without being asked: %s", e.data)
		}
	}
	if _, all = g.stream(chats, with(chat("m", true, 17, "count"), `"stream_options":{"include_usage":true}`)); !strings.Contains(all[len(all)-2].data, `"completion_tokens":17`) {
		t.Errorf("who asked was told %s", all[len(all)-2].data)
	}
	eventually(t, "the log has the tokens of both", func() error {
		if n := strings.Count(g.logText(), `"tokens_out": 17`); n != 2 {
			return fmt.Errorf("%d", n)
		}
		return nil
	})
}

// A client that leaves a managed stream frees the engine, whatever the stream is at.
func TestE2E_S4_ClientLeavesAManagedStream(t *testing.T) {
	t.Parallel()
	g := start(t, `
models:
  - name: m
    engine: sim
    launcher: local
    variables: {prefill_rate: 100, token_interval: 10ms}
    admission: {max_concurrent_requests: 1}
    stream: {mode: managed, heartbeat: 300ms}
`)
	leave := func(what, body, until string) {
		t.Helper()
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		r, err := g.open(ctx, chats, body)
		if err != nil {
			t.Fatal(err)
		}
		var got []byte
		for buffer := make([]byte, 512); !bytes.Contains(got, []byte(until)); {
			n, err := r.Body.Read(buffer)
			if got = append(got, buffer[:n]...); err != nil {
				t.Fatalf("%s: %v after %s", what, err, got)
			}
		}
		left := time.Now()
		cancel()
		r.Body.Close()
		if what != "queue" {
			eventually(t, "the engine is free after "+what, func() error { return running(g.replicas()["m-0"].Address) })
			t.Logf("%s: free after %v", what, time.Since(left))
		}
	}
	leave("prefill", chat("m", true, 10, strings.Repeat("word ", 2000)), ": prefill")
	leave("decode", chat("m", true, 100000, "x"), `"content"`)
	busy, err := g.open(context.Background(), chats, chat("m", true, 100000, "busy"))
	if err != nil {
		t.Fatal(err)
	}
	leave("queue", chat("m", true, 10, "waits"), ": queued")
	eventually(t, "the queue is empty", func() error {
		if m := g.model("m"); m.Queued != 0 {
			return fmt.Errorf("%+v", m)
		}
		return nil
	})
	busy.Body.Close()
	g.awaitIdle("m")
}

// A gateway that stops lets streams end; who is left when the time is up is told, as long as there is an Envoy to tell them by.
func TestE2E_S8_S9_DrainTellsWhoIsLeft(t *testing.T) {
	t.Parallel()
	g := start(t, `
drain_timeout: 4s
models:
  - {name: m, engine: sim, launcher: local, variables: {prefill_rate: 0, token_interval: 20ms}, stream: {mode: managed}}
`)
	open := func(tokens int) *http.Response {
		r, err := g.open(context.Background(), chats, chat("m", true, tokens, fmt.Sprint("drain ", tokens)))
		if err != nil {
			t.Fatal(err)
		}
		io.ReadFull(r.Body, make([]byte, 300))
		return r
	}
	short, long, idle := open(60), open(100000), g.realtime("")
	defer short.Body.Close()
	defer long.Body.Close()
	closed := make(chan websocket.StatusCode, 1)
	go func() {
		_, _, err := idle.Read(context.Background())
		closed <- websocket.CloseStatus(err)
	}()
	g.signal(syscall.SIGTERM)
	whole, err := events(short.Body)
	if err != nil || whole[len(whole)-1].data != "[DONE]" {
		t.Errorf("a stream with time enough: %v %v", err, whole[max(0, len(whole)-1):])
	}
	told, err := events(long.Body)
	if err != nil || told[len(told)-1].chunk(t).Error == nil || told[len(told)-1].chunk(t).Error.Code != "gateway_unavailable" {
		t.Errorf("a stream without: %v %v", err, told[max(0, len(told)-1):])
	}
	if code := <-closed; code != websocket.StatusGoingAway {
		t.Errorf("an idle WebSocket: %v", code)
	}
	<-g.exited
	g.launch() // for the clean-up
	g.awaitReady()
}
