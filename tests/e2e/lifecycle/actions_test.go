package lifecycle

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/sluice-gateway/sluice/internal/condition"
	"github.com/sluice-gateway/sluice/tests/e2e/harness"
)

// do sends a call that changes something to the admin listener. It fails the test unless the
// status is the wanted one, and returns the body.
func do(g *harness.Gateway, method, path, body string, want int) string {
	g.T.Helper()
	req, err := http.NewRequest(method, g.Admin+path, strings.NewReader(body))
	if err != nil {
		g.T.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	a := g.Do(harness.Client, req)
	if a.StatusCode != want {
		g.T.Errorf("%s %s %s: %v, want %d", method, path, body, a, want)
	}
	return string(a.Content)
}

// A drained model refuses new requests while its streams go on, and a drained replica gets none.
func TestE2E_O8_Drain(t *testing.T) {
	t.Parallel()
	g := harness.Start(t, harness.SlowSims)
	ask := func() int { return g.Post("/v1/chat/completions", harness.ChatBody("chat", false, 1, "x")).StatusCode }
	running := g.OpenStreams(3, 100)
	if out, err := g.RunCommand("models", "drain", "chat", "-c", g.Config); err != nil || !strings.Contains(out, "is drained") {
		t.Errorf("%v: %s", err, out)
	}
	if a := g.Post("/v1/chat/completions", harness.ChatBody("chat", false, 1, "x")); a.StatusCode != 503 || !strings.Contains(string(a.Content), "An operator has drained the model `chat`") {
		t.Errorf("a drained model answers %v", a)
	}
	if err := printed(g, `(?m)^chat +ready, drained `, "models", "-c", g.Config); err != nil {
		t.Error(err)
	}
	running.Wait()
	do(g, "POST", "/api/v1/models/chat/undrain", "", 200)
	if status := ask(); status != 200 {
		t.Errorf("after undrain: %d", status)
	}
	for _, id := range []string{"chat-0", "chat-2"} {
		if out, err := g.RunCommand("replicas", "drain", id, "-c", g.Config); err != nil {
			t.Errorf("%v: %s", err, out)
		}
	}
	before := g.Generations("chat-0") + g.Generations("chat-2")
	for range 20 {
		if status := ask(); status != 200 {
			t.Errorf("with one replica left: %d", status)
		}
	}
	if now := g.Generations("chat-0") + g.Generations("chat-2"); now != before {
		t.Errorf("drained replicas got %d requests", now-before)
	}
	do(g, "POST", "/api/v1/replicas/chat-0/undrain", "{}", 200)
	do(g, "POST", "/api/v1/replicas/chat-9/drain", "{}", 404)
	do(g, "POST", "/api/v1/models/none/drain", "{}", 404)
	do(g, "POST", "/api/v1/models/chat/drain", `{"force":true}`, 400)
	if log := g.LogText(); !strings.Contains(log, `"/api/v1/replicas/chat-0/drain"`) {
		t.Errorf("no audit line of the drain:\n%s", log)
	}
}

// The number of replicas is set at run time, and restored by the call and by a change of the file.
func TestE2E_O8_Scale(t *testing.T) {
	t.Parallel()
	g := harness.Start(t, harness.OneSim)
	if out, err := g.RunCommand("models", "scale", "chat", "--min", "2", "-c", g.Config); err != nil || !strings.Contains(out, "chat has 2 to 2 replicas") {
		t.Errorf("%v: %s", err, out)
	}
	awaitReadyReplicas(g, 2)
	for _, body := range []string{`{"min":-1}`, `{"min":3,"max":2}`, `{"max":0}`, `{"max":1000000}`, `{"most":3}`, `3`} {
		do(g, "PUT", "/api/v1/models/chat/scale", body, 400)
	}
	var answer struct {
		Min, Max   int
		File       struct{ Min, Max int }
		Overridden bool
	}
	text := do(g, "PUT", "/api/v1/models/chat/scale", `{"min":1,"max":3}`, 200)
	if err := json.Unmarshal([]byte(text), &answer); err != nil || answer.Min != 1 || answer.Max != 3 || answer.File.Max != 1 || !answer.Overridden {
		t.Errorf("%v: %s", err, text)
	}
	if out, err := g.RunCommand("models", "scale", "chat", "--reset", "-c", g.Config); err != nil || !strings.Contains(out, "chat has 1 to 1 replicas") {
		t.Errorf("%v: %s", err, out)
	}
	awaitReadyReplicas(g, 1)
	do(g, "PUT", "/api/v1/models/chat/scale", `{"min":2,"max":2}`, 200)
	awaitReadyReplicas(g, 2)
	g.Configure(harness.OneSim + "    cooldown: 2m\n")
	awaitReadyReplicas(g, 1)
}

// Drains and numbers of replicas outlive a crash, an upgrade and a stop of the gateway.
func TestE2E_O8_DrainsAndScalesOutliveRestarts(t *testing.T) {
	t.Parallel()
	g := harness.Start(t, harness.OneSim)
	do(g, "PUT", "/api/v1/models/chat/scale", `{"min":2,"max":2}`, 200)
	awaitReadyReplicas(g, 2)
	do(g, "POST", "/api/v1/replicas/chat-1/drain", "", 200)
	do(g, "POST", "/api/v1/models/chat/drain", "", 200)
	for name, restart := range map[string]func(){
		"a crash": func() {
			g.Kill()
			g.Launch()
		},
		"an upgrade": func() {
			if out, err := g.RunCommand("restart", "-c", g.Config); err != nil {
				t.Fatalf("%v: %s", err, out)
			}
		},
	} {
		restart()
		g.AwaitAdmin()
		harness.Eventually(t, "a drained replica is named", func() error {
			found, err := g.Conditions(condition.ModelReady)
			if err == nil && found["chat"].Reason != "ReplicaDrained" {
				err = fmt.Errorf("%+v", found)
			}
			return err
		})
		for command, want := range map[string]string{"models": `(?m)^chat +degraded, drained +1 +2 +2 +2 `, "ps": `(?m)^chat-1 +chat +ready, drained `} {
			harness.Eventually(t, command+" after "+name, func() error { return printed(g, want, command, "-c", g.Config) })
		}
	}
	do(g, "POST", "/api/v1/models/chat/undrain", "", 200)
	g.Kill()
	g.Launch()
	harness.Eventually(t, "the model takes requests", func() error {
		if a, err := g.TryPost(t.Context(), "/v1/chat/completions", harness.ChatBody("chat", false, 1, "x")); err != nil || a.StatusCode != 200 {
			return fmt.Errorf("%v, %v", a, err)
		}
		return nil
	})
	before := g.Generations("chat-1")
	for range 5 {
		if a := g.Post("/v1/chat/completions", harness.ChatBody("chat", false, 1, "x")); a.StatusCode != 200 {
			t.Error(a)
		}
	}
	if now := g.Generations("chat-1"); now != before {
		t.Errorf("the drained replica got %d requests", now-before)
	}
}

func awaitReadyReplicas(g *harness.Gateway, n int) {
	g.T.Helper()
	g.AwaitModel("chat", fmt.Sprint(n, " ready replicas"), func(m harness.Model) bool { return m.Ready == n && m.Replicas == n })
}

// runningID returns the id of the one request that runs or waits in this state.
func runningID(g *harness.Gateway, state string) string {
	g.T.Helper()
	id := ""
	harness.Eventually(g.T, "a request is "+state, func() error {
		var list struct {
			Requests []struct {
				RequestID string `json:"request_id"`
				State     string
			}
		}
		g.Get("/api/v1/requests", &list)
		for _, q := range list.Requests {
			if q.State == state {
				id = q.RequestID
				return nil
			}
		}
		return fmt.Errorf("%+v", list)
	})
	return id
}

// An operator ends one request: a native stream breaks off, a managed one ends with an error, and
// one that waits gets the error. The replica is free afterwards, and no other stream ends.
func TestE2E_O8_CancelARequest(t *testing.T) {
	t.Parallel()
	g := harness.Start(t, `
models:
  - name: chat
    engine: sim
    launcher: local
    variables: {prefill_rate: 0, token_interval: 20ms, max_num_seqs: 1}
    admission: {max_per_replica: 1}
`)
	for _, way := range []string{"native", "managed", "queued"} {
		t.Run(way, func(t *testing.T) {
			body := harness.ChatBody("chat", true, 5000, "x")
			if way == "managed" {
				body = `{"request_id":"mine",` + body[1:]
			}
			first := openStream(t, g, body)
			id := runningID(g, "streaming")
			var waiting <-chan *harness.Answer
			if way == "queued" {
				waiting = g.PostLater(harness.ChatPath, harness.ChatBody("chat", false, 1, "x"))
				id = runningID(g, "queued")
			}
			if out, err := g.RunCommand("requests", "cancel", id, "-c", g.Config); err != nil || !strings.Contains(out, "is cancelled") {
				t.Errorf("%v: %s", err, out)
			}
			if way == "queued" {
				if a := harness.Receive(t, waiting, "the waiting request is answered"); a.StatusCode != 499 || !strings.Contains(string(a.Content), `"cancelled"`) {
					t.Errorf("the waiting request was answered %v", a)
				}
				if _, err := first.Peek(1); err != nil {
					t.Error("the other stream has ended:", err)
				}
				do(g, "POST", "/api/v1/requests/"+runningID(g, "streaming")+"/cancel", "", 202)
			}
			rest, err := io.ReadAll(first)
			if way == "managed" && (err != nil || !strings.Contains(string(rest), `"cancelled"`)) || way == "native" && err == nil {
				t.Errorf("the stream ended with %v: %.2000s", err, rest)
			}
			g.AwaitIdle("chat")
			harness.Eventually(t, "the list says so", func() error { return listedAs(g, id, "cancelled") })
			do(g, "POST", "/api/v1/requests/"+id+"/cancel", "", 404)
		})
	}
}

// openStream sends a request for a stream and reads the beginning of the stream.
func openStream(t *testing.T, g *harness.Gateway, body string) *bufio.Reader {
	t.Helper()
	resp, err := http.Post(g.URL+"/v1/chat/completions", "application/json", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { resp.Body.Close() })
	stream := bufio.NewReader(resp.Body)
	if _, err := stream.ReadString('\n'); err != nil {
		t.Fatal(err)
	}
	return stream
}

// listedAs returns an error unless the list has the request as done, with this code.
func listedAs(g *harness.Gateway, id, code string) error {
	var list struct {
		Requests []struct {
			RequestID   string `json:"request_id"`
			State, Code string
		}
	}
	g.Get("/api/v1/requests", &list)
	for _, q := range list.Requests {
		if q.RequestID == id && q.State == "done" && q.Code == code {
			return nil
		}
	}
	return errors.New(fmt.Sprint(list))
}

// TestE2E_O8_CancelBeforeTheAnswer: a request that an engine has not begun to answer is answered by
// the gateway, which says so.
func TestE2E_O8_CancelBeforeTheAnswer(t *testing.T) {
	t.Parallel()
	g := harness.Start(t, strings.Replace(harness.OneSim, "token_interval: 0s", "token_interval: 20ms", 1))
	answered := g.PostLater(harness.ChatPath, harness.ChatBody("chat", false, 5000, "x"))
	do(g, "POST", "/api/v1/requests/"+runningID(g, "streaming")+"/cancel", "", 202)
	if a := harness.Receive(t, answered, "the cancelled request is answered"); a.StatusCode != 499 || a.Code() != "cancelled" || !slices.Equal(a.Header.Values("X-Sluice-Source"), []string{"gateway"}) {
		t.Errorf("the request was answered %v %v", a, a.Header)
	}
	g.AwaitIdle("chat")
}

// A restart of a replica, and of a model one replica after another, gives new processes and cuts no
// stream.
func TestE2E_O8_Restart(t *testing.T) {
	t.Parallel()
	g := harness.Start(t, harness.SlowSims)
	before := g.Replicas()
	running := g.OpenStreams(6, 100)
	if out, err := g.RunCommand("replicas", "restart", "chat-1", "-c", g.Config); err != nil {
		t.Errorf("%v: %s", err, out)
	}
	awaitNewProcess(g, before, "chat-1")
	running.Wait()
	for _, id := range []string{"chat-0", "chat-2"} {
		if g.Replicas()[id].PID != before[id].PID {
			t.Error(id, "was restarted as well")
		}
	}
	before = g.Replicas()
	running = g.OpenStreams(6, 300) // the restart cannot have ended when it is asked for again
	if out, err := g.RunCommand("models", "restart", "chat", "-c", g.Config); err != nil {
		t.Errorf("%v: %s", err, out)
	}
	do(g, "POST", "/api/v1/models/chat/restart", "", 409)
	harness.Eventually(t, "the model is restarted", func() error {
		down := 0
		for _, r := range g.Replicas() {
			if r.State != "ready" {
				down++
			}
		}
		if down > 1 {
			t.Errorf("%d replicas were away at once", down)
		}
		return allNew(g, before)
	})
	running.Wait()
}

// awaitNewProcess waits until the replica is ready with another process than before.
func awaitNewProcess(g *harness.Gateway, before map[string]harness.Replica, id string) {
	g.T.Helper()
	harness.Eventually(g.T, id+" has a new process", func() error {
		if now := g.Replicas()[id]; now.State != "ready" || now.PID == before[id].PID {
			return fmt.Errorf("%+v", now)
		}
		return nil
	})
}

// allNew returns an error while a replica is not ready with another process than before.
func allNew(g *harness.Gateway, before map[string]harness.Replica) error {
	now := g.Replicas()
	for id, old := range before {
		if r := now[id]; r.State != "ready" || r.PID == old.PID {
			return fmt.Errorf("%s: %+v", id, r)
		}
	}
	return nil
}

// The log of an engine is shown, searched and followed, also over a restart of the replica.
func TestE2E_O8_Logs(t *testing.T) {
	t.Parallel()
	g := harness.Start(t, harness.OneSim)
	harness.Eventually(t, "the engine has logged", func() error {
		return printed(g, `listens on http`, "logs", "chat-0", "-c", g.Config)
	})
	if out, err := g.RunCommand("logs", "chat-0", "--search", "nobody says this", "-c", g.Config); err != nil || out != "No line with \"nobody says this\" was found in the log of chat-0.\n" {
		t.Errorf("%v: %q", err, out)
	}
	if out, err := g.RunCommand("logs", "chat-9", "-c", g.Config); err == nil || !strings.Contains(out, "no replica `chat-9`") {
		t.Errorf("%v: %q", err, out)
	}
	resp, err := http.Get(g.Admin + "/api/v1/replicas/chat-0/log?tail=0&follow=true")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	before := g.Replicas()
	do(g, "POST", "/api/v1/replicas/chat-0/restart", "", 202)
	awaitNewProcess(g, before, "chat-0")
	line, err := bufio.NewReader(resp.Body).ReadString('\n')
	if err != nil || line == "" || resp.Header.Get("Content-Type") != "text/plain; charset=utf-8" {
		t.Errorf("followed: %q, %v", line, err)
	}
}
