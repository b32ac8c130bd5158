package e2e

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
)

// three simulated replicas whose streams last a few seconds
const slowSims = `
models:
  - name: chat
    task: text-generation
    engine: sim
    launcher: local
    replicas: {min: 3, max: 3}
    variables: {prefill_rate: 0, token_interval: 20ms, batch_slowdown: 0, max_num_seqs: 4096}
`

// streams opens n streams of that many tokens and returns what each of them carried once all have ended.
type streams struct {
	t      *testing.T
	group  sync.WaitGroup
	mu     sync.Mutex
	faults []error
	begun  sync.WaitGroup
}

func (g *gateway) openStreams(n, tokens int) *streams {
	s := &streams{t: g.t}
	s.begun.Add(n)
	for i := range n {
		s.group.Go(func() {
			begun := sync.OnceFunc(s.begun.Done)
			defer begun()
			if err := g.oneStream(fmt.Sprint("conversation ", i), tokens, begun); err != nil {
				s.mu.Lock()
				s.faults = append(s.faults, err)
				s.mu.Unlock()
			}
		})
	}
	s.begun.Wait()
	return s
}

// oneStream reads one stream to its end; begun is called at its first bytes.
func (g *gateway) oneStream(text string, tokens int, begun func()) error {
	r, err := g.open(context.Background(), "/v1/chat/completions", chat("chat", true, tokens, text))
	if err != nil {
		return err
	}
	defer r.Body.Close()
	if r.StatusCode != 200 {
		b, _ := io.ReadAll(r.Body)
		return errors.New(r.Status + string(b))
	}
	first := make([]byte, 1)
	if _, err := io.ReadFull(r.Body, first); err != nil {
		return err
	}
	begun()
	rest, err := io.ReadAll(r.Body)
	if err != nil {
		return err
	}
	if n := strings.Count(string(rest), `"content":`); n < tokens {
		return fmt.Errorf("only %d of %d tokens", n, tokens)
	}
	return wholeStream(rest)
}

func (s *streams) wait() {
	s.t.Helper()
	s.group.Wait()
	if len(s.faults) > 0 {
		s.t.Errorf("%d streams were not whole, the first: %v", len(s.faults), s.faults[0])
	}
}

// pids of Envoy and the replicas.
func (g *gateway) pids() map[string]int {
	pids := map[string]int{}
	for id, r := range g.replicas() {
		pids[id] = r.PID
	}
	var status struct{ Envoy struct{ PID int } }
	g.get("/api/v1/status", &status)
	pids["envoy"] = status.Envoy.PID
	return pids
}

// mustHaveAdopted checks that the processes are those of before, and that they serve.
func (g *gateway) mustHaveAdopted(before map[string]int) {
	g.t.Helper()
	for name, pid := range g.pids() {
		if pid == 0 || before[name] != pid {
			g.t.Errorf("%s had pid %d and has %d now", name, before[name], pid)
		}
	}
	if a := g.post("/v1/chat/completions", chat("chat", false, 2, "new")); a.StatusCode != 200 {
		g.t.Errorf("after the restart: %s", a)
	}
}

// mustBeUnavailable checks that new requests are refused as they must be while Sluice is away.
func (g *gateway) mustBeUnavailable() {
	g.t.Helper()
	for _, path := range []string{"/v1/chat/completions", "/v1/models"} {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		method := map[bool]string{true: http.MethodGet, false: http.MethodPost}[path == "/v1/models"]
		req, _ := http.NewRequestWithContext(ctx, method, g.URL+path, strings.NewReader(chat("chat", false, 1, "x")))
		req.Header.Set("Content-Type", "application/json")
		r, err := client.Do(req)
		if err != nil {
			g.t.Fatal(err)
		}
		b, _ := io.ReadAll(r.Body)
		r.Body.Close()
		a := &answer{r, b}
		if a.StatusCode != 503 || a.code() != "gateway_unavailable" || a.Header.Get("Retry-After") == "" || a.Header.Get("X-Sluice-Source") != "gateway" {
			g.t.Errorf("%s while Sluice is away: %s, headers %v", path, a, a.Header)
		}
	}
}

func TestE2E_E3_KillDuringNativeStreamsAndAdoption(t *testing.T) {
	t.Parallel()
	g := start(t, slowSims)
	before := g.pids()
	running := g.openStreams(100, 250)
	g.kill()
	g.mustBeUnavailable()
	g.launch()
	g.awaitReady()
	g.mustHaveAdopted(before)
	running.wait()
}

func TestE2E_E3_HandOverRestart(t *testing.T) {
	t.Parallel()
	g := start(t, slowSims)
	before := g.pids()
	running := g.openStreams(30, 250)
	if out, err := g.sluice("restart", "-c", g.Config); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	g.awaitReady()
	g.mustHaveAdopted(before)
	running.wait()
}

func TestE2E_E3_GuardEndsWhatNobodyClaims(t *testing.T) {
	t.Parallel()
	g := prepare(t, "orphan_grace: 1s"+oneSim)
	t.Cleanup(g.stop)
	g.launch()
	g.awaitReady()
	if n := len(g.processes()); n < 4 { // Sluice, Envoy, a replica, the guard
		t.Fatalf("only %v", g.processes())
	}
	g.kill()
	eventually(t, "all gone", func() error {
		if left := g.processes(); len(left) > 0 {
			return fmt.Errorf("%v", left)
		}
		return nil
	})
}

func TestE2E_E3_StoppedSluice(t *testing.T) {
	t.Parallel()
	g := start(t, slowSims)
	running := g.openStreams(20, 250)
	g.signal(syscall.SIGSTOP)
	began := time.Now()
	g.mustBeUnavailable()
	took := time.Since(began)
	g.signal(syscall.SIGCONT)
	t.Logf("two refusals one after the other took %v", took)
	eventually(t, "back", func() error {
		if a := g.post("/v1/chat/completions", chat("chat", false, 2, "new")); a.StatusCode != 200 {
			return errors.New(a.String())
		}
		return nil
	})
	running.wait()
}

func TestE2E_N5_ReplicaKilledIsOutAndBack(t *testing.T) {
	t.Parallel()
	g := start(t, strings.Replace(slowSims, "token_interval: 20ms", "token_interval: 0s", 1))
	victim := g.replicas()["chat-1"]
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
				a, err := g.tryPost(context.Background(), "/v1/chat/completions", chat("chat", false, 2, fmt.Sprint(i, "/", n)))
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
	eventually(t, "out of rotation", func() error {
		if r := g.replicas()["chat-1"]; r.State == "ready" && r.PID == victim.PID {
			return fmt.Errorf("%+v", r)
		}
		return nil
	})
	eventually(t, "back under the same id", func() error {
		if r := g.replicas()["chat-1"]; r.State != "ready" || r.PID == victim.PID {
			return fmt.Errorf("%+v", r)
		}
		return nil
	})
	mu.Lock()
	clear(served)
	mu.Unlock()
	eventually(t, "serving again", func() error {
		mu.Lock()
		defer mu.Unlock()
		if served["chat-1"] == 0 {
			return fmt.Errorf("%v", served)
		}
		return nil
	})
	close(stop)
	load.Wait()
	g.awaitIdle("chat")
}

func TestE2E_E3_TwoThousandStreams(t *testing.T) {
	if testing.Short() {
		t.Skip("heavy")
	}
	g := start(t, strings.NewReplacer("token_interval: 20ms", "token_interval: 1s").Replace(slowSims))
	running := g.openStreams(2000, 20)
	if m := g.model("chat"); m.InFlight != 2000 {
		t.Errorf("in flight: %d", m.InFlight)
	}
	running.wait()
	g.awaitIdle("chat")
	if out := g.envoyStats("overflow"); out != "" {
		t.Errorf("overflows:\n%s", out)
	}
}

// envoyStats lists Envoy's counters that match and are not zero.
func (g *gateway) envoyStats(filter string) string {
	g.t.Helper()
	var hits []string
	for line := range strings.Lines(g.envoyAdmin("/stats?filter=" + filter)) {
		if line = strings.TrimSpace(line); line != "" && !strings.HasSuffix(line, ": 0") {
			hits = append(hits, line)
		}
	}
	return strings.Join(hits, "\n")
}

func TestE2E_E3_CleanStopDrains(t *testing.T) {
	t.Parallel()
	g := start(t, slowSims)
	running := g.openStreams(10, 150)
	g.signal(syscall.SIGTERM)
	running.wait()
	<-g.exited
	if code := g.cmd.ProcessState.ExitCode(); code != 0 {
		t.Errorf("exit code %d", code)
	}
}

func TestE2E_E3_EnvoyKilledComesBack(t *testing.T) {
	t.Parallel()
	g := start(t, slowSims)
	before := g.pids()
	ctx, leave := context.WithCancel(context.Background())
	defer leave()
	if _, err := g.open(ctx, "/v1/chat/completions", chat("chat", true, 10000, "cut")); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(before["envoy"], syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	eventually(t, "another Envoy serves", func() error {
		a, err := g.tryPost(context.Background(), "/v1/chat/completions", chat("chat", false, 2, "x"))
		if err != nil {
			return err
		}
		if a.StatusCode != 200 {
			return errors.New(a.String())
		}
		return nil
	})
	g.awaitIdle("chat") // what the dead Envoy carried holds no slot
	after := g.pids()
	if after["envoy"] == before["envoy"] || after["chat-0"] != before["chat-0"] {
		t.Errorf("before %v, after %v", before, after)
	}
}

func TestE2E_E3_LimitsHoldOverARestart(t *testing.T) {
	t.Parallel()
	g := start(t, slowSims+"    admission: {max_concurrent_requests: 12, queue_timeout: 100ms}\n")
	running := g.openStreams(12, 250)
	g.kill()
	g.launch()
	g.awaitReady()
	if m := g.model("chat"); m.InFlight != 12 {
		t.Errorf("in flight after the restart: %d", m.InFlight)
	}
	defer func() {
		if rows := g.adminText("/api/v1/requests?limit=20"); strings.Count(rows, `"tenant":"anyone"`) < 12 {
			t.Errorf("whose were the streams of before the restart? %s", rows)
		}
	}()
	if a := g.post("/v1/chat/completions", chat("chat", false, 2, "one too many")); a.code() != "queue_timeout" {
		t.Errorf("the limit of 12 did not outlive the restart: %s", a)
	}
	running.wait()
	g.awaitIdle("chat")
}
