package streams

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/coder/websocket"

	llmv1 "github.com/sluice-gateway/sluice/api/llm/v1"
	"github.com/sluice-gateway/sluice/internal/headers"
	"github.com/sluice-gateway/sluice/internal/redistest"
	"github.com/sluice-gateway/sluice/internal/testutil"
	"github.com/sluice-gateway/sluice/tests/e2e/harness"
)

// twoGateways starts two gateways that share a Redis. Their only upstream is the replica m-0 of a
// third gateway, which it starts as well.
func twoGateways(t *testing.T) (third *harness.Gateway, two [2]*harness.Gateway) {
	t.Helper()
	redis := redistest.Start(t)
	third = harness.Start(t, `
models:
  - {name: m, engine: sim, launcher: local, variables: {prefill_rate: 0, token_interval: 10ms}}
`)
	for i := range two {
		g := harness.Prepare(t, fmt.Sprintf(`
redis: %s
redis_timeout: 500ms
models:
  - {name: m, launcher: upstream, upstreams: ["http://%s"], admission: {max_per_replica: 100}, stream: {resume: 10m, heartbeat: 1s}}
`, redistest.URL(redis), third.Replicas()["m-0"].Address))
		t.Cleanup(g.Stop)
		// as the pods of one Deployment, which have one file
		g.Command = append(g.Command, "--peers", fmt.Sprintf("[127.0.0.1]:%d", testutil.FreePort(t)))
		g.Launch()
		g.AwaitReady()
		two[i] = g
	}
	for _, g := range two {
		g.AwaitSharedState(true, 2)
	}
	return third, two
}

// A client that comes back to another gateway gets its stream from the one that has it.
func TestE2E_S6_S7_AcrossGateways(t *testing.T) {
	t.Parallel()
	one, gateways := twoGateways(t)
	engine, a, b := one.Replicas()["m-0"].Address, gateways[0], gateways[1]
	body := withFields(harness.ChatBody("m", true, 150, "across"), `"request_id":"x"`)
	r, err := a.Open(context.Background(), harness.ChatPath, body)
	if err != nil {
		t.Fatal(err)
	}
	head := make([]byte, 1500) // more than the events up to the one that is resumed after
	io.ReadFull(r.Body, head)
	joined, err := b.Open(context.Background(), harness.ChatPath, body) // a start that is repeated elsewhere
	if err != nil {
		t.Fatal(err)
	}
	resumed := resume(b, "x", "2")
	whole, err := io.ReadAll(r.Body)
	if err != nil {
		t.Fatal(err)
	}
	whole = append(head, whole...)
	other, err := io.ReadAll(joined.Body)
	if err != nil || !bytes.Equal(plainStream(other), plainStream(whole)) || harness.CheckWholeStream(whole) != nil {
		t.Errorf("joined (%v):\n%s\nthe first:\n%s", err, other, whole)
	}
	if at := bytes.Index(whole, []byte("id: 3\n")); at < 0 || !bytes.Equal(plainStream(resumed.Content), plainStream(whole[at:])) {
		t.Errorf("resumed:\n%s", resumed.Content)
	}
	if n := one.Generations("m-0"); n != 1 {
		t.Errorf("%d generations", n)
	}
	// A cancel at the other gateway.
	r, err = a.Open(context.Background(), harness.ChatPath, withFields(harness.ChatBody("m", true, 100000, "long"), `"request_id":"y"`))
	if err != nil {
		t.Fatal(err)
	}
	io.ReadFull(r.Body, head)
	if c := b.Post("/v1/streams/y/cancel", ""); c.StatusCode != 200 {
		t.Errorf("cancel: %s", c)
	}
	harness.Eventually(t, "the engine is free", func() error { return checkIdle(engine) })
	r.Body.Close()
	if c := b.Fetch("/v1/streams/nobody"); c.StatusCode != 404 {
		t.Errorf("an unknown id: %s", c)
	}
	// The owner is gone, and with it what it ran: the other one begins anew.
	r, err = a.Open(context.Background(), harness.ChatPath, withFields(harness.ChatBody("m", true, 100000, "lost"), `"request_id":"z"`))
	if err != nil {
		t.Fatal(err)
	}
	io.ReadFull(r.Body, head)
	a.Signal(syscall.SIGKILL)
	a.AwaitExit()
	harness.Eventually(t, "another gateway takes over", func() error {
		again, err := b.TryPost(context.Background(), harness.ChatPath, withFields(harness.ChatBody("m", true, 5, "lost"), `"request_id":"z"`))
		if err != nil || again.StatusCode != 200 || harness.CheckWholeStream(again.Content) != nil {
			return fmt.Errorf("%v %v", err, again)
		}
		return nil
	})
	r.Body.Close()
	a.Launch()
	a.AwaitReady()
}

// A client of the Messages API whose stream another gateway runs is told in the form of that API
// that the other gateway has gone.
func TestE2E_B9_MessagesOfAGatewayThatHasGone(t *testing.T) {
	t.Parallel()
	_, gateways := twoGateways(t)
	body := withFields(harness.ChatBody("m", true, 100_000, "long"), `"request_id":"m"`)
	open := func(g *harness.Gateway, method, path, body string) io.Reader {
		req, err := http.NewRequestWithContext(t.Context(), method, g.URL+path, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("content-type", "application/json")
		r, err := harness.Client.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { r.Body.Close() })
		if _, err := io.ReadFull(r.Body, make([]byte, 1000)); err != nil {
			t.Fatal(err)
		}
		if name := r.Header.Get(headers.Resumed); name != "" {
			t.Errorf("%s has the header %s", path, headers.Resumed)
		}
		return r.Body
	}
	open(gateways[0], http.MethodPost, "/v1/messages", body) // the first one runs the stream
	answers := map[string]io.Reader{
		"a repeated start": open(gateways[1], http.MethodPost, "/v1/messages", body),
		"a resume":         open(gateways[1], http.MethodGet, "/v1/streams/m?after=1", ""),
	}
	gateways[0].Signal(syscall.SIGKILL)
	gateways[0].AwaitExit()
	for way, answer := range answers {
		rest, err := io.ReadAll(answer)
		_, last, _ := bytes.Cut(rest, []byte("event: error\n"))
		if err != nil || !bytes.HasPrefix(last, []byte(`data: {"type":"error","error":{`)) || !bytes.Contains(last, []byte("gateway_unavailable")) {
			t.Errorf("%s: %v: %s", way, err, rest[max(0, len(rest)-500):])
		}
	}
	harness.Eventually(t, "the record of the gateway that has forwarded it says so", func() error {
		var list struct {
			Requests []struct{ Code, Cause string }
		}
		gateways[1].Get("/api/v1/requests", &list)
		for _, q := range list.Requests {
			if q.Code == "gateway_unavailable" && q.Cause == "gateway" {
				return nil
			}
		}
		return fmt.Errorf("%+v", list)
	})
	gateways[0].Launch()
	gateways[0].AwaitReady()
}

// What has a name is found from a WebSocket or a gRPC call at another gateway too, and cancelled
// from there.
func TestE2E_S7_S9_S10_AcrossGateways(t *testing.T) {
	t.Parallel()
	one, gateways := twoGateways(t)
	engine := one.Replicas()["m-0"].Address
	turn := func(id string, tokens int) harness.Message {
		return harness.Message{"type": "start", "request_id": id, "model": "m", "messages": []harness.Message{{"role": "user", "content": id}},
			"params": harness.Message{"max_tokens": tokens, "ignore_eos": true}}
	}
	sockets := []*websocket.Conn{gateways[0].Realtime(""), gateways[1].Realtime("")}
	begin := func(id string, tokens int) (begun [2][]harness.Message) {
		for i, ws := range sockets {
			harness.SendMessage(t, ws, turn(id, tokens))
			begun[i] = readMessages(t, ws, "token")
		}
		return begun
	}
	begun := begin("w", 150)
	var finals [2]harness.Message
	var texts [2]string
	for i, ws := range sockets {
		all := slices.Concat(begun[i], readMessages(t, ws, "final"))
		finals[i], texts[i] = all[len(all)-1], messageText(all)
	}
	if texts[0] == "" || texts[0] != texts[1] || fmt.Sprint(finals[0]) != fmt.Sprint(finals[1]) {
		t.Errorf("two sockets heard %q %v and %q %v", texts[0], finals[0], texts[1], finals[1])
	}
	if n := one.Generations("m-0"); n != 1 {
		t.Errorf("%d generations of one turn", n)
	}
	begin("long", 100_000)
	harness.SendMessage(t, sockets[1], harness.Message{"type": "cancel"})
	for _, ws := range sockets {
		if all := readMessages(t, ws, "final"); all[len(all)-1]["finish_reason"] != "cancelled" {
			t.Errorf("%v", all[len(all)-1])
		}
	}
	harness.Eventually(t, "the engine is free", func() error { return checkIdle(engine) })

	var calls sync.WaitGroup
	var heard [2]string
	for i, g := range gateways {
		client := dialGRPC(g)
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
	if n := one.Generations("m-0"); n != 3 {
		t.Errorf("%d generations in all, want 3", n)
	}
}

// A gateway that is restarted keeps its streams. A client that comes back to it finds its stream,
// and so does one that comes back to another gateway.
func TestE2E_X20_RestartAmongGateways(t *testing.T) {
	t.Parallel()
	_, gateways := twoGateways(t)
	a, b := gateways[0], gateways[1]
	body := withFields(harness.ChatBody("m", true, 1500, "across"), `"request_id":"y"`) // it runs until after the restart
	r, err := a.Open(context.Background(), harness.ChatPath, body)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	head := make([]byte, 1500) // more than the events up to the one that is resumed after
	if _, err := io.ReadFull(r.Body, head); err != nil {
		t.Fatal(err)
	}
	if out, err := a.RunCommand("restart", "-c", a.Config); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	var resumed [2]*harness.Answer
	var reading sync.WaitGroup
	for i, g := range gateways {
		reading.Go(func() { resumed[i] = resume(g, "y", "2") })
	}
	whole, err := io.ReadAll(r.Body)
	if err != nil {
		t.Fatal(err)
	}
	whole = append(head, whole...)
	reading.Wait()
	if err := harness.CheckWholeStream(whole); err != nil {
		t.Error(err)
	}
	at := bytes.Index(whole, []byte("id: 3\n"))
	for i, answer := range resumed {
		if at < 0 || !bytes.Equal(plainStream(answer.Content), plainStream(whole[at:])) {
			t.Errorf("resumed at gateway %d: %.300s", i, answer)
		}
	}
	a.AwaitIdle("m")
	b.AwaitIdle("m")
}
