package e2e

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/sluice-gateway/sluice/authz"
)

// event is one server-sent event of a response, or a comment.
type event struct {
	id, data, comment string
	at                time.Time
}

// events reads a stream to its end, each event with the time at which it came. Of a stream that breaks off, err says how.
func events(body io.Reader) (all []event, err error) {
	r := bufio.NewReaderSize(body, 4<<20)
	var e event
	for {
		line, err := r.ReadString('\n')
		switch text := strings.TrimRight(line, "\r\n"); {
		case strings.HasPrefix(text, "id: "):
			e.id = text[len("id: "):]
		case strings.HasPrefix(text, "data: "):
			e.data += text[len("data: "):]
		case strings.HasPrefix(text, ":"):
			e.comment = strings.TrimSpace(text[1:])
		case text == "" && (e.data != "" || e.comment != ""):
			e.at = time.Now()
			all, e = append(all, e), event{}
		}
		if err == io.EOF {
			return all, nil
		}
		if err != nil {
			return all, err
		}
	}
}

// chunk is what the tests look at of an event's data.
type chunk struct {
	ID, Object string
	Choices    []struct {
		Index        int
		Delta        struct{ Content, Role string }
		Text         string
		FinishReason *string `json:"finish_reason"`
	}
	Usage *struct {
		Prompt     int `json:"prompt_tokens"`
		Completion int `json:"completion_tokens"`
	}
	Error *struct {
		Code          any // engines have numbers
		Message, Type string
		Retryable     bool
		RetryAfter    int `json:"retry_after_ms"`
	}
}

func (e event) chunk(t *testing.T) chunk {
	t.Helper()
	var c chunk
	if err := json.Unmarshal([]byte(e.data), &c); err != nil {
		t.Fatalf("%q: %v", e.data, err)
	}
	return c
}

// said is the text of all events, and how the stream finished.
func said(t *testing.T, all []event) (text, finish string) {
	t.Helper()
	for _, e := range all {
		if e.data == "" || e.data == "[DONE]" {
			continue
		}
		for _, c := range e.chunk(t).Choices {
			text += c.Delta.Content
			if c.FinishReason != nil {
				finish = *c.FinishReason
			}
		}
	}
	return text, finish
}

// comments are the heartbeats among the events.
func comments(all []event) (texts []string) {
	for _, e := range all {
		if e.comment != "" {
			texts = append(texts, e.comment)
		}
	}
	return texts
}

// stream asks for a stream and reads it to its end.
func (g *gateway) stream(path, body string, headers ...string) (*http.Response, []event) {
	g.t.Helper()
	r, err := g.open(context.Background(), path, body, headers...)
	if err != nil {
		g.t.Fatal(err)
	}
	defer r.Body.Close()
	if r.StatusCode != 200 {
		b, _ := io.ReadAll(r.Body)
		g.t.Fatalf("%s: %s", r.Status, b)
	}
	all, err := events(r.Body)
	if err != nil {
		g.t.Fatal(err)
	}
	return r, all
}

const chats = "/v1/chat/completions"

// with adds fields to a JSON body.
func with(body, fields string) string { return strings.TrimSuffix(body, "}") + "," + fields + "}" }

// varying are the parts of a response that differ from one request to the next.
var varying = regexp.MustCompile(`"id":"[^"]*"|"created":\d+`)

// A managed stream is what the engine sent, byte for byte, with the headers that keep proxies from holding it back.
func TestE2E_S1_ManagedStreamIsTheEnginesOwn(t *testing.T) {
	t.Parallel()
	g := start(t, `
models:
  - name: m
    engine: sim
    launcher: local
    variables: {prefill_rate: 0, token_interval: 1ms}
    stream: {mode: managed}
`)
	body := with(chat("m", true, 40, "tell me"), `"stream_options":{"include_usage":true}`)
	r, err := g.open(context.Background(), chats, body)
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
	direct, err := http.Post("http://"+g.replicas()["m-0"].Address+chats, "application/json", strings.NewReader(body))
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
	if err := wholeStream(got); err != nil {
		t.Error(err)
	}
	g.awaitIdle("m")
	var list struct {
		Requests []struct{ Route, Source, Replica string }
	}
	g.get("/api/v1/requests?limit=1", &list)
	if q := list.Requests[0]; q.Replica != "m-0" || q.Source != "engine" {
		t.Errorf("the operator sees %+v", q)
	}
}

// A client hears something in every kind of silence: in the queue, while a replica starts, before the first token, between tokens.
func TestE2E_S2_P4_NoSilenceInAManagedStream(t *testing.T) {
	t.Parallel()
	g := start(t, `
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
	check := func(name string, all []event, words string, since time.Time) {
		t.Helper()
		if _, finish := said(t, all); finish != "length" || all[len(all)-1].data != "[DONE]" {
			t.Errorf("%s: finished with %q, last %q", name, finish, all[len(all)-1].data)
		}
		if !strings.Contains(strings.Join(comments(all), "|"), words) {
			t.Errorf("%s: no %q among %q", name, words, comments(all))
		}
		for _, e := range all {
			if gap := e.at.Sub(since); gap > 3*time.Second { // ten times the interval: machines are slow
				t.Errorf("%s: nothing came for %v before %q%q", name, gap, e.comment, e.data)
			}
			since = e.at
		}
	}
	t.Run("queue", func(t *testing.T) {
		t.Parallel()
		first, err := g.open(context.Background(), chats, chat("queued", true, 60, "one"))
		if err != nil {
			t.Fatal(err)
		}
		defer first.Body.Close()
		began := time.Now()
		r, all := g.stream(chats, chat("queued", true, 5, "two"))
		check("queue", all, "queued position=1", began)
		if r.Header.Get("X-Sluice-Source") != "gateway" {
			t.Errorf("the one who spoke first is %q", r.Header.Get("X-Sluice-Source"))
		}
	})
	t.Run("cold start", func(t *testing.T) {
		t.Parallel()
		began := time.Now()
		_, all := g.stream(chats, chat("cold", true, 5, "one"))
		check("cold start", all, "starting", began)
	})
	t.Run("prefill", func(t *testing.T) {
		t.Parallel()
		began := time.Now()
		_, all := g.stream(chats, chat("slow", true, 5, strings.Repeat("word ", 300)))
		check("prefill", all, "prefill", began)
	})
	t.Run("between tokens", func(t *testing.T) {
		t.Parallel()
		began := time.Now()
		_, all := g.stream(chats, chat("slow", true, 5, "two"), "x-sim-fault: stall=3:1500ms")
		check("between tokens", all, "decode", began)
	})
	t.Run("chunks for clients that cannot read comments", func(t *testing.T) {
		t.Parallel()
		_, all := g.stream(chats, chat("slow", true, 5, "three"), "x-sim-fault: stall=3:1500ms", "x-sluice-heartbeat: chunk")
		empty := 0
		for _, e := range all {
			if e.data != "[DONE]" && e.chunk(t).ID == "heartbeat" {
				empty++
			}
		}
		if n := len(comments(all)); n > 0 || empty == 0 {
			t.Errorf("%d comments, %d empty chunks", n, empty)
		}
	})
	for _, name := range []string{"queued", "slow"} {
		t.Cleanup(func() { g.awaitIdle(name) })
	}
}

// The client's time ends a stream as the model's own limit would, with what it has cost so far, and the engine stops.
func TestE2E_S5_TimeEndsAStreamProperly(t *testing.T) {
	t.Parallel()
	g := start(t, `
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
		{"timeout", chats, `"timeout_ms":700`, "chat.completion.chunk"},
		{"duration", chats, `"max_duration_ms":700`, "chat.completion.chunk"},
		{"usage", chats, `"timeout_ms":700,"stream_options":{"include_usage":true}`, "chat.completion.chunk"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			_, all := g.stream(c.path, with(chat("m", true, 5000, c.name), c.fields))
			text, finish := said(t, all)
			if finish != "length" || text == "" || all[len(all)-1].data != "[DONE]" {
				t.Fatalf("finished with %q after %q, last %q", finish, text, all[len(all)-1].data)
			}
			last := all[len(all)-2].chunk(t)
			if last.Usage == nil || last.Usage.Completion < 5 || last.Usage.Prompt == 0 || last.Object != c.object || last.ID != all[0].chunk(t).ID {
				t.Errorf("the end is %s", all[len(all)-2].data)
			}
		})
	}
	t.Run("before it could start", func(t *testing.T) {
		t.Parallel()
		busy, err := g.open(context.Background(), chats, chat("full", true, 5000, "busy"))
		if err != nil {
			t.Fatal(err)
		}
		defer busy.Body.Close()
		if a := g.post(chats, with(chat("full", true, 5, "late"), `"timeout_ms":500`)); a.StatusCode != 408 || a.code() != "request_timeout" || a.Header.Get("Retry-After") == "" {
			t.Errorf("%s", a)
		}
	})
	t.Cleanup(func() { g.awaitIdle("m"); g.awaitIdle("full") })
}

// A stream that breaks off is an error that the client is told of, and before the first token another replica takes it over.
func TestE2E_S8_N5_NoCleanEndOfABrokenStream(t *testing.T) {
	t.Parallel()
	g := start(t, `
models:
  - name: m
    engine: sim
    launcher: local
    replicas: {min: 2, max: 2}
    variables: {prefill_rate: 0, token_interval: 1ms}
    stream: {mode: managed, ttft_timeout: 1s, stall_timeout: 500ms, heartbeat: 200ms}
`)
	for fault, code := range map[string]string{"cut=4": "upstream_truncated", "eof=4": "upstream_truncated", "stall=4": "upstream_timeout"} {
		_, all := g.stream(chats, chat("m", true, 20, fault), "x-sim-fault: "+fault)
		last := all[len(all)-1]
		if last.data == "[DONE]" {
			t.Errorf("%s: a clean end", fault)
			continue
		}
		if e := last.chunk(t).Error; e == nil || e.Code != code || !e.Retryable || e.RetryAfter == 0 {
			t.Errorf("%s: %s", fault, last.data)
		}
	}
	_, all := g.stream(chats, chat("m", true, 20, "engine's own"), "x-sim-fault: error=4")
	if e := all[len(all)-1].chunk(t).Error; e == nil {
		t.Errorf("the engine's error became %q", all[len(all)-1].data)
	}
	// Of what fails before the first token at one replica, the other makes up for.
	for _, fault := range []string{"hang", "stall=0", "cut=1", "eof=0", "error=0", "reset-before-headers", "status=500"} {
		set(t, g.replicas()["m-0"].Address, fault)
		for i := range 4 { // whichever of the two it is that comes first
			_, all := g.stream(chats, chat("m", true, 10, fmt.Sprint("again ", fault, i)))
			if _, finish := said(t, all); finish != "length" || all[len(all)-1].data != "[DONE]" {
				t.Errorf("%s: %v", fault, all)
			}
		}
		set(t, g.replicas()["m-0"].Address, "none")
	}
	if a := g.post(chats, chat("m", true, 5, "bad"), "x-sim-fault: status=422"); a.StatusCode != 422 || a.Header.Get("X-Sluice-Source") != "engine" {
		t.Errorf("an engine's refusal: %s", a)
	}
	g.awaitIdle("m")
	metrics := g.adminText("/metrics")
	for _, reason := range []string{"reset", "5xx", "ttft_timeout"} {
		if !regexp.MustCompile(`stream_retries_total\{reason="` + reason + `"\} [1-9]`).MatchString(metrics) {
			t.Errorf("no retry for %s in the metrics", reason)
		}
	}
}

// set gives an engine a fault for all its requests.
func set(t *testing.T, address, fault string) {
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

// tenantKeys makes tenants with a key each: the keys by name, and the section of the file.
func tenantKeys(names ...string) (keys map[string]string, text string) {
	keys = map[string]string{}
	text = "tenants:\n"
	for _, name := range names {
		key := authz.NewKey()
		keys[name] = key.Secret
		text += fmt.Sprintf("  - {name: %s, keys: [%q]}\n", name, key.Hash)
	}
	return keys, text
}

// A model that has been seen to take long over long prompts has those managed, and short ones not.
func TestE2E_S2_AutoForeseesSilence(t *testing.T) {
	t.Parallel()
	g := start(t, `
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
	eventually(t, "a long prompt is managed", func() error {
		r, all := g.stream(chats, chat("m", true, 5, prompt(400)))
		if len(comments(all)) == 0 || r.Header.Get("X-Sluice-Source") != "gateway" {
			return fmt.Errorf("%d comments", len(comments(all)))
		}
		return nil
	})
	if n < 2 {
		t.Error("the first one was foreseen, by whom?")
	}
	r, all := g.stream(chats, chat("m", true, 5, prompt(3)))
	if len(comments(all)) > 0 || r.Header.Get("X-Sluice-Source") != "engine" {
		t.Errorf("a short prompt is managed: %v", all)
	}
	g.awaitIdle("m")
	eventually(t, "the routes are known", func() error {
		text := g.logText()
		if !strings.Contains(text, `"route": "native"`) || !strings.Contains(text, `"route": "managed"`) {
			return fmt.Errorf("%s", text)
		}
		return nil
	})
}
