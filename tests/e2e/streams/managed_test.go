package streams

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"strings"
	"testing"

	"github.com/sluice-gateway/sluice/internal/testutil"
	"github.com/sluice-gateway/sluice/tests/e2e/harness"
)

// withFields adds fields to a JSON body.
func withFields(body, fields string) string {
	return strings.TrimSuffix(body, "}") + "," + fields + "}"
}

// varying are the parts of a response that differ from one request to the next.
var varying = regexp.MustCompile(`"id":"[^"]*"|"created":\d+`)

// A managed stream is what the engine sent, byte for byte, with the headers that keep proxies from
// holding it back.
func TestE2E_S1_ManagedStreamIsTheEnginesOwn(t *testing.T) {
	t.Parallel()
	g := harness.Start(t, `
models:
  - name: m
    engine: sim
    launcher: local
    variables: {prefill_rate: 0, token_interval: 1ms}
    stream: {mode: managed}
`)
	body := withFields(harness.ChatBody("m", true, 40, "tell me"), `"stream_options":{"include_usage":true}`)
	r, err := g.Open(context.Background(), harness.ChatPath, body)
	if err != nil {
		t.Fatal(err)
	}
	got, err := io.ReadAll(r.Body)
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{"Content-Type": "text/event-stream", "Cache-Control": "no-cache, no-transform", "X-Accel-Buffering": "no",
		"X-Sluice-Source": "engine", "X-Sluice-Replica": "m-0", "Content-Encoding": ""} {
		if r.Header.Get(name) != want {
			t.Errorf("%s: %q, want %q", name, r.Header.Get(name), want)
		}
	}
	if r.Header.Get("X-Request-Id") == "" {
		t.Error("no request id")
	}
	direct, err := http.Post("http://"+g.Replicas()["m-0"].Address+harness.ChatPath, "application/json", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	defer direct.Body.Close()
	want, err := io.ReadAll(direct.Body)
	if err != nil {
		t.Fatal(err)
	}
	if plain := func(b []byte) string { return varying.ReplaceAllString(string(b), "") }; plain(got) != plain(want) {
		t.Errorf("managed:\n%s\ndirect:\n%s", got, want)
	}
	if err := harness.CheckWholeStream(got); err != nil {
		t.Error(err)
	}
	g.AwaitIdle("m")
	harness.Eventually(t, "the operator sees the request", func() error {
		var list struct {
			Requests []struct{ Route, Source, Replica string }
		}
		g.Get("/api/v1/requests?limit=1", &list)
		if len(list.Requests) != 1 || list.Requests[0].Replica != "m-0" || list.Requests[0].Source != "engine" {
			return fmt.Errorf("%+v", list)
		}
		return nil
	})
}

// A client hears something in every kind of silence: in the queue, while a replica starts, before
// the first token, between tokens.
func TestE2E_S2_P4_NoSilenceInAManagedStream(t *testing.T) {
	t.Parallel()
	g := harness.Start(t, `
models:
  - name: queued
    engine: sim
    launcher: local
    variables: {prefill_rate: 0, token_interval: 50ms}
    admission: {max_concurrent_requests: 1}
    stream: {heartbeat: 300ms}
  - name: cold
    engine: sim
    launcher: local
    replicas: {min: 0, max: 1}
    variables: {load_time: 1500ms, prefill_rate: 0, token_interval: 1ms}
    stream: {heartbeat: 300ms}
  - name: slow
    engine: sim
    launcher: local
    variables: {prefill_rate: 200, token_interval: 1ms}
    stream: {heartbeat: 300ms, mode: managed}
`)
	check := func(name string, all []harness.Event, words string) {
		t.Helper()
		if _, finish := harness.StreamedText(t, all); finish != "length" || all[len(all)-1].Data != "[DONE]" {
			t.Errorf("%s: finished with %q, last %q", name, finish, all[len(all)-1].Data)
		}
		if !strings.Contains(strings.Join(harness.Comments(all), "|"), words) {
			t.Errorf("%s: no %q among %q", name, words, harness.Comments(all))
		}
	}
	t.Run("queue", func(t *testing.T) {
		t.Parallel()
		ctx, cancel := context.WithTimeout(t.Context(), testutil.Patience)
		defer cancel()
		first, err := g.Open(ctx, harness.ChatPath, harness.ChatBody("queued", true, 100_000, "one"))
		if err != nil {
			t.Fatal(err)
		}
		defer first.Body.Close()
		r, err := g.Open(ctx, harness.ChatPath, harness.ChatBody("queued", true, 5, "two"))
		if err != nil {
			t.Fatal(err)
		}
		defer r.Body.Close()
		stream := bufio.NewReader(r.Body)
		heard, err := stream.ReadString('\n') // while the first one runs
		if first.Body.Close(); err != nil {
			t.Fatal(err)
		}
		all, err := harness.ReadEvents(io.MultiReader(strings.NewReader(heard), stream))
		if err != nil {
			t.Fatal(err)
		}
		check("queue", all, "queued position=1")
		if r.Header.Get("X-Sluice-Source") != "gateway" {
			t.Errorf("the one who spoke first is %q", r.Header.Get("X-Sluice-Source"))
		}
	})
	t.Run("cold start", func(t *testing.T) {
		t.Parallel()
		_, all := g.Stream(harness.ChatPath, harness.ChatBody("cold", true, 5, "one"))
		check("cold start", all, "starting")
	})
	t.Run("prefill", func(t *testing.T) {
		t.Parallel()
		_, all := g.Stream(harness.ChatPath, harness.ChatBody("slow", true, 5, strings.Repeat("word ", 300)))
		check("prefill", all, "prefill")
	})
	t.Run("between tokens", func(t *testing.T) {
		t.Parallel()
		_, all := g.Stream(harness.ChatPath, harness.ChatBody("slow", true, 5, "two"), "x-sim-fault: stall=3:1500ms")
		check("between tokens", all, "decode")
	})
	t.Run("chunks for clients that cannot read comments", func(t *testing.T) {
		t.Parallel()
		_, all := g.Stream(harness.ChatPath, harness.ChatBody("slow", true, 5, "three"), "x-sim-fault: stall=3:1500ms", "x-sluice-heartbeat: chunk")
		empty := 0
		for _, e := range all {
			if e.Data != "[DONE]" && e.Chunk(t).ID == "heartbeat" {
				empty++
			}
		}
		if n := len(harness.Comments(all)); n > 0 || empty == 0 {
			t.Errorf("%d comments, %d empty chunks", n, empty)
		}
	})
	for _, name := range []string{"queued", "slow"} {
		t.Cleanup(func() { g.AwaitIdle(name) })
	}
}

// The client's time ends a stream as the model's own limit would, with what it has cost so far, and
// the engine stops.
func TestE2E_S5_TimeEndsAStreamProperly(t *testing.T) {
	t.Parallel()
	g := harness.Start(t, `
models:
  - name: m
    engine: sim
    launcher: local
    variables: {prefill_rate: 0, token_interval: 20ms}
    admission: {max_concurrent_requests: 8}
  - name: full
    engine: sim
    launcher: local
    variables: {prefill_rate: 0, token_interval: 20ms}
    admission: {max_concurrent_requests: 1}
`)
	for _, c := range []struct{ name, path, fields, object string }{
		{"timeout", harness.ChatPath, `"timeout_ms":5000`, "chat.completion.chunk"},
		{"duration", harness.ChatPath, `"max_duration_ms":5000`, "chat.completion.chunk"},
		{"usage", harness.ChatPath, `"timeout_ms":5000,"stream_options":{"include_usage":true}`, "chat.completion.chunk"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			_, all := g.Stream(c.path, withFields(harness.ChatBody("m", true, 5000, c.name), c.fields))
			text, finish := harness.StreamedText(t, all)
			if finish != "length" || text == "" || all[len(all)-1].Data != "[DONE]" {
				t.Fatalf("finished with %q after %q, last %q", finish, text, all[len(all)-1].Data)
			}
			last := all[len(all)-2].Chunk(t)
			if last.Usage == nil || last.Usage.Completion == 0 || last.Usage.Prompt == 0 || last.Object != c.object || last.ID != all[0].Chunk(t).ID {
				t.Errorf("the end is %s", all[len(all)-2].Data)
			}
		})
	}
	t.Run("before it could start", func(t *testing.T) {
		t.Parallel()
		busy, err := g.Open(context.Background(), harness.ChatPath, harness.ChatBody("full", true, 5000, "busy"))
		if err != nil {
			t.Fatal(err)
		}
		defer busy.Body.Close()
		if a := g.Post(harness.ChatPath, withFields(harness.ChatBody("full", true, 5, "late"), `"timeout_ms":500`)); a.StatusCode != 408 || a.Code() != "request_timeout" || a.Header.Get("Retry-After") == "" {
			t.Errorf("%s", a)
		}
	})
	t.Cleanup(func() { g.AwaitIdle("m"); g.AwaitIdle("full") })
}

// A stream that breaks off is an error that the client is told of, and before the first token
// another replica takes it over.
func TestE2E_S8_N5_NoCleanEndOfABrokenStream(t *testing.T) {
	t.Parallel()
	g := harness.Start(t, `
models:
  - name: m
    engine: sim
    launcher: local
    replicas: {min: 2, max: 2}
    variables: {prefill_rate: 0, token_interval: 1ms}
    routing: {strategy: round_robin}
    stream: {mode: managed, ttft_timeout: 3s, stall_timeout: 3s, heartbeat: 200ms}
`)
	for fault, code := range map[string]string{"cut=4": "upstream_truncated", "eof=4": "upstream_truncated", "stall=4": "upstream_timeout"} {
		_, all := g.Stream(harness.ChatPath, harness.ChatBody("m", true, 20, fault), "x-sim-fault: "+fault)
		last := all[len(all)-1]
		if last.Data == "[DONE]" {
			t.Errorf("%s: a clean end", fault)
			continue
		}
		if e := last.Chunk(t).Error; e == nil || e.Code != code || !e.Retryable || e.RetryAfter == 0 {
			t.Errorf("%s: %s", fault, last.Data)
		}
	}
	_, all := g.Stream(harness.ChatPath, harness.ChatBody("m", true, 20, "engine's own"), "x-sim-fault: error=4")
	if e := all[len(all)-1].Chunk(t).Error; e == nil {
		t.Errorf("the engine's error became %q", all[len(all)-1].Data)
	}
	// Of what fails before the first token at one replica, the other makes up for.
	for _, fault := range []string{"hang", "stall=0", "cut=1", "eof=0", "error=0", "reset-before-headers", "status=500"} {
		setFault(t, g.Replicas()["m-0"].Address, fault)
		for i := range 4 { // whichever of the two it is that comes first
			_, all := g.Stream(harness.ChatPath, harness.ChatBody("m", true, 10, fmt.Sprint("again ", fault, i)))
			if _, finish := harness.StreamedText(t, all); finish != "length" || all[len(all)-1].Data != "[DONE]" {
				t.Errorf("%s: %v", fault, all)
			}
		}
		setFault(t, g.Replicas()["m-0"].Address, "none")
	}
	if a := g.Post(harness.ChatPath, harness.ChatBody("m", true, 5, "bad"), "x-sim-fault: status=422"); a.StatusCode != 422 || a.Header.Get("X-Sluice-Source") != "engine" {
		t.Errorf("an engine's refusal: %s", a)
	}
	g.AwaitIdle("m")
	metrics := g.AdminText("/metrics")
	for _, reason := range []string{"reset", "5xx", "ttft_timeout"} {
		if !regexp.MustCompile(`stream_retries_total\{reason="` + reason + `"\} [1-9]`).MatchString(metrics) {
			t.Errorf("no retry for %s in the metrics", reason)
		}
	}
}

// setFault makes a simulated engine apply a fault to all its chat requests.
func setFault(t *testing.T, address, fault string) {
	t.Helper()
	r, err := http.Post("http://"+address+"/sim/fault", "application/json", bytes.NewReader(fmt.Appendf(nil, `{"fault":%q,"path":"/v1/chat"}`, fault)))
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	if r.StatusCode/100 != 2 {
		t.Fatalf("fault %s: %s", fault, r.Status)
	}
}

// A model that has been seen to take long over long prompts has those managed, and short ones not.
func TestE2E_S2_AutoForeseesSilence(t *testing.T) {
	t.Parallel()
	g := harness.Start(t, `
models:
  - name: m
    engine: sim
    launcher: local
    variables: {prefill_rate: 500, token_interval: 1ms}
    stream: {heartbeat: 600ms}
`)
	n := 0
	prompt := func(words int) string { // one that no cache knows
		n++
		return fmt.Sprint(n, strings.Repeat(fmt.Sprint(" word", n), words))
	}
	harness.Eventually(t, "a long prompt is managed", func() error {
		r, all := g.Stream(harness.ChatPath, harness.ChatBody("m", true, 5, prompt(400)))
		if len(harness.Comments(all)) == 0 || r.Header.Get("X-Sluice-Source") != "gateway" {
			return fmt.Errorf("%d comments", len(harness.Comments(all)))
		}
		return nil
	})
	if n < 2 {
		t.Error("the first one was foreseen, by whom?")
	}
	// Where a short one was slow, too, it takes another one to learn that this was an exception.
	harness.Eventually(t, "a short prompt is not managed", func() error {
		r, all := g.Stream(harness.ChatPath, harness.ChatBody("m", true, 5, prompt(3)))
		if len(harness.Comments(all)) > 0 || r.Header.Get("X-Sluice-Source") != "engine" {
			return fmt.Errorf("%v", all)
		}
		return nil
	})
	g.AwaitIdle("m")
	harness.Eventually(t, "the routes are known", func() error {
		text := g.LogText()
		if !strings.Contains(text, `"route":"native"`) || !strings.Contains(text, `"route":"managed"`) {
			return fmt.Errorf("%s", text)
		}
		return nil
	})
}
