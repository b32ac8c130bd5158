package streams

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/coder/websocket"

	"github.com/sluice-gateway/sluice/internal/testutil"
	"github.com/sluice-gateway/sluice/tests/e2e/harness"
)

// A gateway that hands over to a new process ends no stream, neither a managed nor a native one.
func TestE2E_S8_X20_HandOverEndsNoStream(t *testing.T) {
	t.Parallel()
	g := harness.Start(t, `
models:
  - {name: native, engine: sim, launcher: local, variables: {prefill_rate: 0, token_interval: 20ms}, stream: {mode: native}}
  - {name: managed, engine: sim, launcher: local, variables: {prefill_rate: 0, token_interval: 20ms}, stream: {mode: managed}}
`)
	open := func(model string) *http.Response {
		r, err := g.Open(context.Background(), harness.ChatPath, harness.ChatBody(model, true, 300, "hand over"))
		if err != nil {
			t.Fatal(err)
		}
		io.ReadFull(r.Body, make([]byte, 300))
		return r
	}
	native, managed := open("native"), open("managed")
	defer native.Body.Close()
	defer managed.Body.Close()
	if out, err := g.RunCommand("restart", "-c", g.Config); err != nil {
		t.Fatalf("%v %s", err, out)
	}
	for name, r := range map[string]*http.Response{"native": native, "managed": managed} {
		whole, err := harness.ReadEvents(r.Body)
		if err != nil || whole[len(whole)-1].Data != "[DONE]" {
			t.Errorf("the %s stream: %v %v", name, err, whole[max(0, len(whole)-1):])
		}
	}
	for _, name := range []string{"native", "managed"} {
		g.AwaitIdle(name)
	}
	if _, all := g.Stream(harness.ChatPath, harness.ChatBody("managed", true, 5, "again")); all[len(all)-1].Data != "[DONE]" {
		t.Errorf("%v", all)
	}
}

// The engine is asked for its count of tokens, of which clients that did not ask hear nothing.
func TestE2E_S12_T5_InjectedUsageIsHidden(t *testing.T) {
	t.Parallel()
	g := harness.Start(t, `
models:
  - {name: m, engine: sim, launcher: local, variables: {prefill_rate: 0, token_interval: 1ms}, stream: {inject_usage: true}}
`)
	_, all := g.Stream(harness.ChatPath, harness.ChatBody("m", true, 17, "count"))
	for _, e := range all {
		if strings.Contains(e.Data, `"usage":{`) {
			t.Errorf("told without being asked: %s", e.Data)
		}
	}
	if _, all = g.Stream(harness.ChatPath, withFields(harness.ChatBody("m", true, 17, "count"), `"stream_options":{"include_usage":true}`)); !strings.Contains(all[len(all)-2].Data, `"completion_tokens":17`) {
		t.Errorf("who asked was told %s", all[len(all)-2].Data)
	}
	harness.Eventually(t, "the log has the tokens of both", func() error {
		if n := strings.Count(g.LogText(), `"tokens_out":17`); n != 2 {
			return fmt.Errorf("%d", n)
		}
		return nil
	})
}

// TestE2E_S4_TheEngineIsFreeWithin100ms: an engine knows that the client of its stream has left
// before another stream of the gateway has its next heartbeat, which comes after 100 ms. A machine
// that is busy delays both. It may delay the one alone, so most of the clients count, and the test
// tries again: a gateway that is slow is slow each time.
func TestE2E_S4_TheEngineIsFreeWithin100ms(t *testing.T) {
	t.Parallel()
	var beats atomic.Int64              // heartbeats of the other stream so far
	ended := make(chan int64, 1)        // their number when an engine knew that its client had left
	heard := make(chan struct{}, 1<<16) // one for each of them
	url := harness.StartUpstream(t, func(w http.ResponseWriter, r *http.Request) {
		if harness.ServeModelList(w, r, "native", "managed", "other") {
			return
		}
		body, _ := io.ReadAll(r.Body)
		w.Header().Set("Content-Type", "text/event-stream")
		fmt.Fprint(w, `data: {"choices":[{"index":0,"delta":{"content":"one"}}]}`+"\n\n")
		http.NewResponseController(w).Flush()
		if <-r.Context().Done(); !bytes.Contains(body, []byte(`"other"`)) {
			ended <- beats.Load()
		}
	})
	g := harness.Start(t, fmt.Sprintf(`
models:
  - {name: native, launcher: upstream, upstreams: [%[1]q], admission: {max_per_replica: 9}, stream: {mode: native}}
  - {name: managed, launcher: upstream, upstreams: [%[1]q], admission: {max_per_replica: 9}, stream: {mode: managed}}
  - {name: other, launcher: upstream, upstreams: [%[1]q], admission: {max_per_replica: 9}, stream: {mode: managed, heartbeat: 100ms}}
`, url))
	other, err := g.Open(t.Context(), harness.ChatPath, harness.ChatBody("other", true, 5, "wait"))
	if err != nil {
		t.Fatal(err)
	}
	defer other.Body.Close()
	go func() {
		for lines := bufio.NewScanner(other.Body); lines.Scan(); {
			if strings.HasPrefix(lines.Text(), ":") {
				beats.Add(1)
				heard <- struct{}{}
			}
		}
	}()
	for _, model := range []string{"native", "managed"} {
		harness.Eventually(t, model+": most of the engines are free within 100 ms", func() error {
			const clients = 15
			late := 0
			for range clients {
				ctx, leave := context.WithTimeout(t.Context(), testutil.Patience)
				r, err := g.Open(ctx, harness.ChatPath, harness.ChatBody(model, true, 5, "wait"))
				if err != nil {
					t.Fatal(err)
				}
				io.ReadFull(r.Body, make([]byte, 20))
				for len(heard) > 0 {
					<-heard
				}
				harness.Receive(t, heard, "the other stream has a heartbeat")
				left := beats.Load()
				leave()
				r.Body.Close()
				if harness.Receive(t, ended, "the engine knows that its client has left") > left {
					late++
				}
				g.AwaitIdle(model)
			}
			if late > clients/2 {
				return fmt.Errorf("%d of %d were not", late, clients)
			}
			return nil
		})
	}
}

// A client that leaves a managed stream frees the engine, whatever the stream is at.
func TestE2E_S4_ClientLeavesAManagedStream(t *testing.T) {
	t.Parallel()
	g := harness.Start(t, `
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
		r, err := g.Open(ctx, harness.ChatPath, body)
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
		cancel()
		r.Body.Close()
		if what != "queue" {
			harness.Eventually(t, "the engine is free after "+what, func() error { return checkIdle(g.Replicas()["m-0"].Address) })
		}
	}
	leave("prefill", harness.ChatBody("m", true, 10, strings.Repeat("word ", 2000)), ": prefill")
	leave("decode", harness.ChatBody("m", true, 100000, "x"), `"content"`)
	busy, err := g.Open(context.Background(), harness.ChatPath, harness.ChatBody("m", true, 100000, "busy"))
	if err != nil {
		t.Fatal(err)
	}
	leave("queue", harness.ChatBody("m", true, 10, "waits"), ": queued")
	g.AwaitQueued("m", 0)
	busy.Body.Close()
	g.AwaitIdle("m")
}

// A gateway that stops lets streams end; who is left when the time is up is told, as long as there
// is an Envoy to tell them by.
func TestE2E_S8_S9_DrainTellsWhoIsLeft(t *testing.T) {
	t.Parallel()
	g := harness.Start(t, `
drain_timeout: 8s
models:
  - {name: m, engine: sim, launcher: local, variables: {prefill_rate: 0, token_interval: 20ms}, stream: {mode: managed}}
`)
	open := func(tokens int) *http.Response {
		r, err := g.Open(context.Background(), harness.ChatPath, harness.ChatBody("m", true, tokens, fmt.Sprint("drain ", tokens)))
		if err != nil {
			t.Fatal(err)
		}
		io.ReadFull(r.Body, make([]byte, 300))
		return r
	}
	short, long, idle := open(60), open(100000), g.Realtime("")
	defer short.Body.Close()
	defer long.Body.Close()
	closed := make(chan websocket.StatusCode, 1)
	go func() {
		_, _, err := idle.Read(context.Background())
		closed <- websocket.CloseStatus(err)
	}()
	g.Signal(syscall.SIGTERM)
	whole, err := harness.ReadEvents(short.Body)
	if err != nil || whole[len(whole)-1].Data != "[DONE]" {
		t.Errorf("a stream with time enough: %v %v", err, whole[max(0, len(whole)-1):])
	}
	told, err := harness.ReadEvents(long.Body)
	if err != nil || told[len(told)-1].Chunk(t).Error == nil || told[len(told)-1].Chunk(t).Error.Code != "gateway_unavailable" {
		t.Errorf("a stream without: %v %v", err, told[max(0, len(told)-1):])
	}
	if code := harness.Receive(t, closed, "the idle WebSocket is closed"); code != websocket.StatusGoingAway {
		t.Errorf("an idle WebSocket: %v", code)
	}
	g.AwaitExit()
	g.Launch() // for the clean-up
	g.AwaitReady()
}
