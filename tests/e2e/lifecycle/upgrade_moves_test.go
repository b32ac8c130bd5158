package lifecycle

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/sluice-gateway/sluice/internal/testutil"
	"github.com/sluice-gateway/sluice/tests/e2e/harness"
)

// A stream with a request id that runs at the old process is found by a resume, by a repeated start
// and by a cancel, after two restarts.
func TestE2E_X20_StreamsAreFoundAtTheOldProcess(t *testing.T) {
	t.Parallel()
	g := harness.Start(t, strings.Replace(upgradeModels, "{mode: managed}", "{mode: managed, resume: 30s}", 1))
	body := func(id string, tokens int) string {
		return strings.Replace(harness.ChatBody("managed", true, tokens, "found"), "{", `{"request_id":"`+id+`",`, 1)
	}
	left, leave := context.WithCancel(t.Context())
	r, err := g.Open(left, harness.ChatPath, body("kept", 400))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(r.Body, make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	cancelled, err := g.Open(t.Context(), harness.ChatPath, body("cancelled", 100_000))
	if err != nil {
		t.Fatal(err)
	}
	defer cancelled.Body.Close()
	restart(g)
	leave()
	restart(g)
	req, _ := http.NewRequestWithContext(t.Context(), http.MethodPost, g.URL+"/v1/streams/cancelled/cancel", nil)
	if a := g.Do(harness.Client, req); a.StatusCode != 200 {
		t.Errorf("the cancel: %s", a)
	}
	if rest, err := io.ReadAll(cancelled.Body); err != nil || !strings.Contains(string(rest), "cancelled") {
		t.Errorf("the cancelled stream ends with %.200s, %v", rest[max(0, len(rest)-200):], err)
	}
	var whole [2]string
	var reading sync.WaitGroup
	reading.Go(func() {
		a, err := g.TryPost(context.Background(), harness.ChatPath, body("kept", 400))
		if err == nil {
			err = harness.CheckWholeStream(a.Content)
		}
		if err != nil {
			t.Errorf("the repeated start: %v", err)
			return
		}
		whole[0] = string(a.Content)
	})
	resumed := g.Fetch("/v1/streams/kept", "Last-Event-ID: 5")
	reading.Wait()
	if err := harness.CheckWholeStream(resumed.Content); err != nil || resumed.StatusCode != 200 {
		t.Fatalf("the resume: %v %.300s", err, resumed)
	}
	if _, rest, ok := strings.Cut(whole[0], "id: 6\n"); !ok || !strings.HasSuffix(string(resumed.Content), rest) {
		t.Error("the resumed stream is not the rest of the repeated one")
	}
	if a := g.Fetch("/v1/streams/nobody"); a.Code() != "stream_not_found" {
		t.Errorf("an unknown id: %s", a)
	}
}

// The requests of a tenant at old processes count for its limits until they end.
func TestE2E_X20_CarriedRequestsCountForLimits(t *testing.T) {
	t.Parallel()
	keys, tenants := harness.TenantKeys("acme")
	tenants = strings.Replace(tenants, "name: acme,", "name: acme, limits: {max_concurrent_streams: 2},", 1)
	g := harness.Start(t, "\nauth: {mode: keys}\n"+tenants+harness.Lasting(upgradeModels))
	key := "Authorization: Bearer " + keys["acme"]
	var streams []*http.Response
	for _, model := range []string{"chat", "managed"} {
		r, err := g.Open(t.Context(), harness.ChatPath, harness.ChatBody(model, true, harness.LastingTokens, "count"), key)
		if err != nil || r.StatusCode != 200 {
			t.Fatal(r, err)
		}
		defer r.Body.Close()
		streams = append(streams, r)
	}
	for range 2 {
		restart(g)
		if a := g.Post(harness.ChatPath, harness.ChatBody("chat", false, 2, "more"), key); a.StatusCode != 429 {
			t.Errorf("a third stream: %s", a)
		}
		awaitListed(g, "streaming")
	}
	harness.FinishAnswers(t, g.Replicas())
	for _, r := range streams {
		b, err := io.ReadAll(r.Body)
		if err == nil {
			err = harness.CheckWholeStream(b)
		}
		if err != nil {
			t.Error(err)
		}
	}
	g.AwaitIdle("chat")
	g.AwaitIdle("managed")
	awaitListed(g, "done")
	harness.Eventually(t, "the requests of old processes are in the metrics", func() error {
		for _, model := range []string{"chat", "managed"} {
			series := fmt.Sprintf(`sluice_requests_total{code="200",model=%q,source="engine"}`, model)
			if n := g.Metric(series); n != 1 {
				return fmt.Errorf("%s is %v", series, n)
			}
		}
		return nil
	})
	if a := g.Post(harness.ChatPath, harness.ChatBody("chat", false, 2, "more"), key); a.StatusCode != 200 {
		t.Errorf("after the streams: %s", a)
	}
}

// awaitListed waits until the list of requests has a good one of each of the two models, in the
// state.
func awaitListed(g *harness.Gateway, state string) {
	g.T.Helper()
	harness.Eventually(g.T, "the requests are listed as "+state, func() error {
		var answer struct {
			Requests []struct {
				Model, Tenant, State, Code string
			}
		}
		if err := g.TryGet("/api/v1/requests", &answer); err != nil {
			return err
		}
		listed := map[string]int{}
		for _, r := range answer.Requests {
			if r.State == state && r.Tenant == "acme" && r.Code == "" {
				listed[r.Model]++
			}
		}
		if listed["chat"] != 1 || listed["managed"] != 1 {
			return fmt.Errorf("listed %v of %+v", listed, answer)
		}
		return nil
	})
}

// Requests of all ways that wait in a queue are answered, although the process that they wait in is
// replaced twice.
func TestE2E_X20_WaitingRequestsMove(t *testing.T) {
	t.Parallel()
	limit := "    admission: {max_concurrent_requests: 1, queue_timeout: 5m}\n"
	g := harness.Start(t, strings.ReplaceAll(harness.Lasting(upgradeModels), "    stream:", limit+"    stream:"))
	var running sync.WaitGroup
	ask := func(what, body string) {
		running.Go(func() {
			a, err := g.TryPost(context.Background(), harness.ChatPath, body)
			if err == nil && a.StatusCode != 200 {
				err = errors.New(a.String())
			}
			if err == nil && strings.Contains(body, `"stream":true`) {
				err = harness.CheckWholeStream(a.Content)
			}
			if err != nil {
				t.Errorf("%s: %v", what, err)
			}
		})
	}
	for _, model := range []string{"chat", "managed"} {
		first := make(chan struct{})
		running.Go(func() {
			r, err := g.Open(context.Background(), harness.ChatPath, harness.ChatBody(model, true, harness.LastingTokens, "first"))
			close(first)
			if err != nil {
				t.Error(err)
				return
			}
			defer r.Body.Close()
			if b, err := io.ReadAll(r.Body); err != nil || harness.CheckWholeStream(b) != nil {
				t.Errorf("the stream that the others wait for: %v", err)
			}
		})
		harness.Receive(t, first, "the first stream begins")
		for i := range 3 {
			ask(fmt.Sprint(model, " answer ", i), harness.ChatBody(model, false, 3, "waits"))
			ask(fmt.Sprint(model, " stream ", i), harness.ChatBody(model, true, 3, "waits"))
			if model == "chat" {
				continue // Envoy alone cannot join requests
			}
			named := strings.Replace(harness.ChatBody(model, true, 3, "waits"), "{", fmt.Sprintf(`{"request_id":"%s-%d",`, model, i), 1)
			ask(fmt.Sprint(model, " named ", i), named)
			ask(fmt.Sprint(model, " joins ", i), named)
		}
	}
	harness.Eventually(t, "they wait", func() error {
		if a, b := g.Model("chat"), g.Model("managed"); a.Queued < 6 || b.Queued < 9 {
			return fmt.Errorf("%d and %d", a.Queued, b.Queued)
		}
		return nil
	})
	restart(g)
	restart(g)
	harness.FinishAnswers(t, g.Replicas())
	running.Wait()
	g.AwaitIdle("chat")
	g.AwaitIdle("managed")
}

// A binary that does not start changes nothing: the command says why, and the old process goes on.
func TestE2E_X20_ABrokenBinaryChangesNothing(t *testing.T) {
	t.Parallel()
	g := harness.Prepare(t, upgradeModels)
	g.Binary = filepath.Join(filepath.Dir(g.Dir), "sluice")
	install := func(content []byte) {
		t.Helper()
		if err := os.WriteFile(g.Binary+".new", content, 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(g.Binary+".new", g.Binary); err != nil {
			t.Fatal(err)
		}
	}
	good, err := os.ReadFile(harness.Program())
	if err != nil {
		t.Fatal(err)
	}
	install(good)
	t.Cleanup(g.Stop)
	g.Launch()
	g.AwaitReady()
	before := processIDs(g)
	l := &load{Gateway: g, tokens: 250, texts: map[string]string{}}
	l.run("managed stream", 3, func(_ int, begun func()) (string, error) { return l.stream("managed", "", begun) })
	l.begun.Wait()
	small := startFlow(g, 2)
	for content, reason := range map[string]string{
		"#!/bin/sh\nexit 3\n":                  "exit status 3",
		"not a program":                        "exec format error",
		"#!/bin/sh\necho '{}' >&3; exec cat\n": "does not know how to take over",
	} {
		install([]byte(content))
		if out, err := g.RunCommand("restart", "-c", g.Config); err == nil || !strings.Contains(out, reason) {
			t.Errorf("%q: the command printed %q, want %q", content, out, reason)
		}
		if s := upgradeOf(g); s.PID != g.Process.Process.Pid || !strings.Contains(s.Upgrade.Failed, reason) {
			t.Errorf("%q: %+v", content, s)
		}
	}
	install(good)
	restart(g)
	small.stop()
	l.running.Wait()
	mustHaveAdopted(g, before)
}

// SIGTERM after a restart reaches the gateway by its first process. Streams at the old and at the
// new process end in time, and nothing is left.
func TestE2E_X20_SIGTERMDrainsAllProcesses(t *testing.T) {
	t.Parallel()
	g := harness.Start(t, upgradeModels)
	l := &load{Gateway: g, tokens: 200, texts: map[string]string{}}
	l.run("old stream", 4, func(_ int, begun func()) (string, error) { return l.stream("managed", "", begun) })
	l.begun.Wait()
	restart(g)
	l.run("new stream", 4, func(_ int, begun func()) (string, error) { return l.stream("managed", "", begun) })
	l.begun.Wait()
	g.Signal(syscall.SIGTERM)
	l.running.Wait()
	g.AwaitExit()
	if code := g.Process.ProcessState.ExitCode(); code != 0 {
		t.Errorf("exit code %d", code)
	}
}

// SIGTERM stops the gateway also while its process hands over to the next one.
func TestE2E_X20_SIGTERMDuringARestartStopsTheGateway(t *testing.T) {
	t.Parallel()
	for _, moment := range []string{"hand-over started", "new process prepared"} {
		t.Run(moment, func(t *testing.T) {
			t.Parallel()
			g := harness.Start(t, upgradeModels)
			restart(g)
			command := make(chan struct{})
			go func() {
				defer close(command)
				// It may see the new process before that stops.
				if out, err := g.RunCommand("restart", "-c", g.Config); err != nil && !strings.Contains(out, "the gateway has stopped") {
					t.Errorf("the command: %v\n%s", err, out)
				}
			}()
			g.AwaitLogged(moment, 2)
			g.Signal(syscall.SIGTERM)
			harness.Receive(t, command, "the command has ended")
			g.AwaitExit()
			if code := g.Process.ProcessState.ExitCode(); code != 0 {
				t.Errorf("exit code %d", code)
			}
		})
	}
}

// Two signals that come while a process hands over are two for the new one: it does not let streams
// run for drain_timeout.
func TestE2E_X20_TwoSIGTERMsDuringARestartEndEverythingAtOnce(t *testing.T) {
	t.Parallel()
	for _, moment := range []string{"hand-over started", "new process prepared"} {
		t.Run(moment, func(t *testing.T) {
			t.Parallel()
			g := startBusy(t)
			command := make(chan struct{})
			go func() {
				defer close(command)
				_, _ = g.RunCommand("restart", "-c", g.Config) // it may see the new process before that stops
			}()
			g.AwaitLogged(moment, 1)
			g.Signal(syscall.SIGTERM)
			signalAgain(g)
			harness.Receive(t, command, "the command has ended")
			g.AwaitExit()
		})
	}
}

// A new process that fails after it was told to take over changes nothing. That holds also when the
// first process of the gateway is no more the one that serves.
func TestE2E_X20_AFailedRestartAfterAnotherChangesNothing(t *testing.T) {
	t.Parallel()
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	g := harness.Start(t, upgradeModels)
	before := processIDs(g)
	restart(g)
	good, err := os.ReadFile(g.Config)
	if err != nil {
		t.Fatal(err)
	}
	for range 8 {
		write := func(content string) {
			if err := os.WriteFile(g.Config, []byte(content), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		write("health: " + taken.Addr().String() + "\n" + string(good))
		if out, err := g.RunCommand("restart", "-c", g.Config); err == nil || !strings.Contains(out, "address already in use") {
			t.Fatalf("the command printed %q, %v", out, err)
		}
		write(string(good))
		if a := g.Post(harness.ChatPath, harness.ChatBody("managed", false, 2, "still there?")); a.StatusCode != 200 {
			t.Fatalf("after a failed restart: %s", a)
		}
	}
	restart(g)
	mustHaveAdopted(g, before)
	g.Signal(syscall.SIGTERM)
	g.AwaitExit()
	if code := g.Process.ProcessState.ExitCode(); code != 0 {
		t.Errorf("exit code %d", code)
	}
}

// A restart applies another address of the admin listener. The command has to know the one in use.
func TestE2E_X20_TheAdminAddressMoves(t *testing.T) {
	t.Parallel()
	g := harness.Start(t, upgradeModels)
	before := processIDs(g)
	used := g.Admin
	g.Admin = fmt.Sprint("http://127.0.0.1:", testutil.FreePort(t))
	g.Configure(upgradeModels)
	if out, err := g.RunCommand("restart", "-c", g.Config); err == nil || !strings.Contains(out, "name it by --admin") {
		t.Fatalf("the command printed %q, %v", out, err)
	}
	if out, err := g.RunCommand("restart", "-c", g.Config, "--admin", used); err != nil || !strings.Contains(out, "adopted: Envoy") {
		t.Fatalf("the command printed %q, %v", out, err)
	}
	mustHaveAdopted(g, before)
	if r, err := http.Get(used + "/readyz"); err == nil {
		r.Body.Close()
		t.Error("the address that is not in use any more answers")
	}
}

// When the new process dies while the first one still carries a stream, the first one ends with a
// failure. So its supervisor starts the gateway again, which adopts everything.
func TestE2E_X20_TheDeathOfANewProcessIsNoticedAtOnce(t *testing.T) {
	t.Parallel()
	g := harness.Start(t, upgradeModels)
	before := processIDs(g)
	l := &load{Gateway: g, tokens: 1000, texts: map[string]string{}}
	stream, cancel := context.WithCancel(t.Context())
	defer cancel()
	go func() {
		_, _ = g.TryPost(stream, harness.ChatPath, harness.ChatBody("managed", true, 100_000, "a long story")) // it is cut
	}()
	l.run("native stream", 1, func(_ int, begun func()) (string, error) { return l.stream("chat", "", begun) })
	l.begun.Wait()
	harness.Eventually(t, "the stream runs", func() error {
		if n := g.Model("managed").InFlight; n != 1 {
			return fmt.Errorf("%d requests", n)
		}
		return nil
	})
	restart(g)
	if err := syscall.Kill(upgradeOf(g).PID, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	g.AwaitExit()
	if code := g.Process.ProcessState.ExitCode(); code != 1 {
		t.Errorf("exit code %d, want 1", code)
	}
	g.Launch()
	g.AwaitReady()
	mustHaveAdopted(g, before)
	l.running.Wait() // the native stream goes on
}

// A WebSocket goes on over a restart, and its next turn is a request to the new process. When the
// first process is killed, the gateway is gone, and the next start adopts what is left.
func TestE2E_X20_ThePidOfTheStartStandsForTheGateway(t *testing.T) {
	t.Parallel()
	g := harness.Start(t, upgradeModels)
	before := processIDs(g)
	l := &load{Gateway: g, tokens: 20, texts: map[string]string{}}
	ws := g.Realtime("")
	for range 3 {
		if _, err := l.turn(ws, func() {}); err != nil {
			t.Fatal(err)
		}
		restart(g)
	}
	ws.CloseNow()
	l.tokens = 400
	l.run("native stream", 5, func(_ int, begun func()) (string, error) { return l.stream("chat", "", begun) })
	l.begun.Wait()
	restart(g)
	g.Kill()
	g.Launch()
	g.AwaitReady()
	mustHaveAdopted(g, before)
	l.running.Wait()
	g.AwaitIdle("chat")
	awaitOneGateway(g)
}
