package lifecycle

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/sluice-gateway/sluice/internal/testutil"
	"github.com/sluice-gateway/sluice/tests/e2e/harness"
)

// A second signal ends at once what the first one lets finish, and leaves nothing behind (stop
// looks).
func TestE2E_E4_ASecondSignalEndsEverythingAtOnce(t *testing.T) {
	t.Parallel()
	g := startBusy(t)
	g.Signal(syscall.SIGTERM)
	g.AwaitLogged("Envoy drains", 1)
	signalAgain(g)
	g.AwaitExit()
}

// signalAgain sends another SIGTERM until the gateway has taken one for a second stop. On a busy
// machine the gateway may read two of them at one time, and takes them for the same stop then.
func signalAgain(g *harness.Gateway) {
	g.T.Helper()
	harness.Eventually(g.T, "the gateway has taken a second signal", func() error {
		time.Sleep(50 * time.Millisecond)             // one that comes at once is the same stop
		_ = g.Process.Process.Signal(syscall.SIGTERM) // it may have ended
		if !strings.Contains(g.LogText(), "second stop requested") {
			return errors.New(g.LogText())
		}
		return nil
	})
}

// startBusy starts a gateway with a stream for which a drain waits half an hour.
func startBusy(t *testing.T) *harness.Gateway {
	t.Helper()
	g := harness.Start(t, "drain_timeout: 30m"+harness.SlowSims)
	r, err := g.Open(t.Context(), harness.ChatPath, harness.ChatBody("chat", true, 100_000, "Hello"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.Body.Close() })
	return g
}

// processIDs returns the process ids of Envoy and of the replicas by name.
func processIDs(g *harness.Gateway) map[string]int {
	pids := map[string]int{}
	for id, r := range g.Replicas() {
		pids[id] = r.PID
	}
	var status struct{ Envoy struct{ PID int } }
	g.Get("/api/v1/status", &status)
	pids["envoy"] = status.Envoy.PID
	return pids
}

// mustHaveAdopted checks that Envoy and the replicas are still the processes of before, and that
// they serve requests.
func mustHaveAdopted(g *harness.Gateway, before map[string]int) {
	g.T.Helper()
	for name, pid := range processIDs(g) {
		if pid == 0 || before[name] != pid {
			g.T.Errorf("%s had pid %d and has %d now", name, before[name], pid)
		}
	}
	if a := g.Post("/v1/chat/completions", harness.ChatBody("chat", false, 2, "new")); a.StatusCode != 200 {
		g.T.Errorf("after the restart: %s", a)
	}
}

// mustBeUnavailable checks that Envoy refuses new requests with the documented error while Sluice
// is not running.
func mustBeUnavailable(g *harness.Gateway) {
	g.T.Helper()
	for _, path := range []string{"/v1/chat/completions", "/v1/models"} {
		ctx, cancel := context.WithTimeout(context.Background(), testutil.Patience)
		defer cancel()
		method := map[bool]string{true: http.MethodGet, false: http.MethodPost}[path == "/v1/models"]
		req, _ := http.NewRequestWithContext(ctx, method, g.URL+path, strings.NewReader(harness.ChatBody("chat", false, 1, "x")))
		req.Header.Set("Content-Type", "application/json")
		r, err := harness.Client.Do(req)
		if err != nil {
			g.T.Fatal(err)
		}
		b, _ := io.ReadAll(r.Body)
		r.Body.Close()
		a := &harness.Answer{Response: r, Content: b}
		if a.StatusCode != 503 || a.Code() != "gateway_unavailable" || a.Header.Get("Retry-After") == "" || a.Header.Get("X-Sluice-Source") != "gateway" {
			g.T.Errorf("%s while Sluice is away: %s, headers %v", path, a, a.Header)
		}
	}
}

func TestE2E_E3_KillDuringNativeStreamsAndAdoption(t *testing.T) {
	t.Parallel()
	g := harness.Start(t, harness.LastingSims)
	before := processIDs(g)
	running := g.OpenStreams(100, harness.LastingTokens)
	g.Kill()
	mustBeUnavailable(g)
	g.Launch()
	g.AwaitReady()
	mustHaveAdopted(g, before)
	harness.FinishAnswers(t, g.Replicas())
	running.Wait()
}

func TestE2E_E3_HandOverRestart(t *testing.T) {
	t.Parallel()
	g := harness.Start(t, harness.LastingSims)
	before := processIDs(g)
	running := g.OpenStreams(30, harness.LastingTokens)
	if out, err := g.RunCommand("restart", "-c", g.Config); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	g.AwaitReady()
	mustHaveAdopted(g, before)
	harness.FinishAnswers(t, g.Replicas())
	running.Wait()
}

func TestE2E_E3_GuardEndsWhatNobodyClaims(t *testing.T) {
	t.Parallel()
	g := harness.Prepare(t, "orphan_grace: 1s"+harness.OneSim)
	t.Cleanup(g.Stop)
	g.Launch()
	g.AwaitReady()
	if n := len(g.Processes()); n < 4 { // Sluice, Envoy, a replica, the guard
		t.Fatalf("only %v", g.Processes())
	}
	g.Kill()
	harness.Eventually(t, "all gone", func() error {
		if left := g.Processes(); len(left) > 0 {
			return fmt.Errorf("%v", left)
		}
		return nil
	})
}

func TestE2E_E3_StoppedSluice(t *testing.T) {
	t.Parallel()
	g := harness.Start(t, harness.SlowSims)
	running := g.OpenStreams(20, 250)
	g.Signal(syscall.SIGSTOP)
	began := time.Now()
	mustBeUnavailable(g)
	took := time.Since(began)
	g.Signal(syscall.SIGCONT)
	t.Logf("two refusals one after the other took %v", took)
	harness.Eventually(t, "back", func() error {
		if a := g.Post("/v1/chat/completions", harness.ChatBody("chat", false, 2, "new")); a.StatusCode != 200 {
			return errors.New(a.String())
		}
		return nil
	})
	running.Wait()
}

func TestE2E_N5_ReplicaKilledIsOutAndBack(t *testing.T) {
	t.Parallel()
	g := harness.Start(t, strings.Replace(harness.SlowSims, "token_interval: 20ms", "token_interval: 0s", 1))
	victim := g.Replicas()["chat-1"]
	stop := make(chan struct{})
	var load sync.WaitGroup
	var mu sync.Mutex
	served := map[string]int{}
	for i := range 8 {
		load.Go(func() {
			for n := 0; ; n++ {
				select {
				case <-stop:
					return
				default:
				}
				a, err := g.TryPost(context.Background(), "/v1/chat/completions", harness.ChatBody("chat", false, 2, fmt.Sprint(i, "/", n)))
				if err != nil || a.StatusCode != 200 {
					t.Errorf("a request failed: %v, %v", err, a)
					return
				}
				mu.Lock()
				served[a.Header.Get("X-Sluice-Replica")]++
				mu.Unlock()
			}
		})
	}
	if err := syscall.Kill(-victim.PID, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	harness.Eventually(t, "out of rotation", func() error {
		if r := g.Replicas()["chat-1"]; r.State == "ready" && r.PID == victim.PID {
			return fmt.Errorf("%+v", r)
		}
		return nil
	})
	harness.Eventually(t, "back under the same id", func() error {
		if r := g.Replicas()["chat-1"]; r.State != "ready" || r.PID == victim.PID {
			return fmt.Errorf("%+v", r)
		}
		return nil
	})
	mu.Lock()
	clear(served)
	mu.Unlock()
	harness.Eventually(t, "serving again", func() error {
		mu.Lock()
		defer mu.Unlock()
		if served["chat-1"] == 0 {
			return fmt.Errorf("%v", served)
		}
		return nil
	})
	close(stop)
	load.Wait()
	g.AwaitIdle("chat")
}

func TestE2E_E3_TwoThousandStreams(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("heavy")
	}
	g := harness.Start(t, strings.NewReplacer("token_interval: 20ms", "token_interval: 10s").Replace(harness.SlowSims))
	running := g.OpenStreams(2000, 20)
	if m := g.Model("chat"); m.InFlight != 2000 {
		t.Errorf("in flight: %d", m.InFlight)
	}
	harness.FinishAnswers(t, g.Replicas())
	running.Wait()
	g.AwaitIdle("chat")
	if out := envoyStats(g, "overflow"); out != "" {
		t.Errorf("overflows:\n%s", out)
	}
}

// envoyStats returns the lines of Envoy's counters that match the filter and are not zero.
func envoyStats(g *harness.Gateway, filter string) string {
	g.T.Helper()
	var hits []string
	for line := range strings.Lines(g.EnvoyAdmin("/stats?filter=" + filter)) {
		if line = strings.TrimSpace(line); line != "" && !strings.HasSuffix(line, ": 0") {
			hits = append(hits, line)
		}
	}
	return strings.Join(hits, "\n")
}

func TestE2E_E3_CleanStopDrains(t *testing.T) {
	t.Parallel()
	g := harness.Start(t, harness.SlowSims)
	running := g.OpenStreams(10, 150)
	g.Signal(syscall.SIGTERM)
	running.Wait()
	g.AwaitExit()
	if code := g.Process.ProcessState.ExitCode(); code != 0 {
		t.Errorf("exit code %d", code)
	}
}

func TestE2E_E3_EnvoyKilledComesBack(t *testing.T) {
	t.Parallel()
	g := harness.Start(t, harness.SlowSims)
	before := processIDs(g)
	ctx, leave := context.WithCancel(context.Background())
	defer leave()
	if _, err := g.Open(ctx, "/v1/chat/completions", harness.ChatBody("chat", true, 10000, "cut")); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(before["envoy"], syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	harness.Eventually(t, "another Envoy serves", func() error {
		a, err := g.TryPost(context.Background(), "/v1/chat/completions", harness.ChatBody("chat", false, 2, "x"))
		if err != nil {
			return err
		}
		if a.StatusCode != 200 {
			return errors.New(a.String())
		}
		return nil
	})
	g.AwaitIdle("chat") // what the dead Envoy carried holds no slot
	after := processIDs(g)
	if after["envoy"] == before["envoy"] || after["chat-0"] != before["chat-0"] {
		t.Errorf("before %v, after %v", before, after)
	}
}

func TestE2E_E3_LimitsHoldOverARestart(t *testing.T) {
	t.Parallel()
	g := harness.Start(t, harness.LastingSims+"    admission: {max_concurrent_requests: 12, queue_timeout: 100ms}\n")
	running := g.OpenStreams(12, harness.LastingTokens)
	g.Kill()
	g.Launch()
	g.AwaitReady()
	if m := g.Model("chat"); m.InFlight != 12 {
		t.Errorf("in flight after the restart: %d", m.InFlight)
	}
	defer func() {
		if rows := g.AdminText("/api/v1/requests?limit=20"); strings.Count(rows, `"tenant":"anyone"`) < 12 {
			t.Errorf("whose were the streams of before the restart? %s", rows)
		}
	}()
	if a := g.Post("/v1/chat/completions", harness.ChatBody("chat", false, 2, "one too many")); a.Code() != "queue_timeout" {
		t.Errorf("the limit of 12 did not outlive the restart: %s", a)
	}
	harness.FinishAnswers(t, g.Replicas())
	running.Wait()
	g.AwaitIdle("chat")
}
