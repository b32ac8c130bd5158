package lifecycle

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/sluice-gateway/sluice/internal/process"
	"github.com/sluice-gateway/sluice/internal/seal"
	"github.com/sluice-gateway/sluice/tests/e2e/harness"
)

// makeEnvoyDiffer has the next gateway find that the running Envoy was started with another
// bootstrap, as after an upgrade to a release that has another one.
func makeEnvoyDiffer(g *harness.Gateway) {
	g.T.Helper()
	path := filepath.Join(g.Dir, "processes", "envoy.json")
	content, err := os.ReadFile(path)
	if err != nil {
		g.T.Fatal(err)
	}
	var r process.Record
	if err := json.Unmarshal(content, &r); err != nil {
		g.T.Fatal(err)
	}
	r.Meta["bootstrap"] = "another"
	if content, err = json.Marshal(r); err != nil {
		g.T.Fatal(err)
	}
	for _, file := range []string{path, path + ".copy"} {
		if err := os.WriteFile(file, seal.Add(content), 0o600); err != nil {
			g.T.Fatal(err)
		}
	}
}

// envoys is what the admin API says of the Envoys of a gateway.
type envoys struct {
	PID          int
	Adopted      bool
	Predecessors []struct{ PID, Requests int }
}

func envoysOf(g *harness.Gateway) envoys {
	g.T.Helper()
	var s struct{ Envoy envoys }
	g.Get("/api/v1/status", &s)
	return s.Envoy
}

// awaitPredecessor waits until the admin API lists one predecessor, whose requests the gateway has
// counted then. It returns all Envoys.
func awaitPredecessor(g *harness.Gateway) (now envoys) {
	g.T.Helper()
	harness.Eventually(g.T, "a predecessor is listed", func() error {
		if now = envoysOf(g); len(now.Predecessors) != 1 {
			return fmt.Errorf("%+v", now)
		}
		return nil
	})
	return now
}

// Streams of all kinds run on over two restarts that each replace Envoy, while small requests are
// served, half of them on new connections. The streams count until they end. The Envoys that were
// replaced are gone then.
func TestE2E_X20_E4_AReplacedEnvoyCutsNothing(t *testing.T) {
	t.Parallel()
	n := upgradeStreams()
	g := harness.Start(t, harness.Lasting(upgradeModels))
	first := envoysOf(g).PID
	l := &load{Gateway: g, tokens: harness.LastingTokens, texts: map[string]string{}}
	small, fresh := startFlow(g, 3), startFlow(g, 3, "Connection: close")
	l.run("native stream", n, func(_ int, begun func()) (string, error) { return l.stream("chat", "", begun) })
	l.run("managed stream", n, func(i int, begun func()) (string, error) { return l.stream("managed", fmt.Sprint("story-", i), begun) })
	l.run("WebSocket", n/5, func(_ int, begun func()) (string, error) {
		ws := g.Realtime("")
		defer ws.CloseNow() //nolint:errcheck // the turn is over
		return l.turn(ws, begun)
	})
	l.run("gRPC call", n/5, func(_ int, begun func()) (string, error) { return l.call(begun) })
	l.begun.Wait()
	old := []int{first}
	for range 2 {
		makeEnvoyDiffer(g)
		out := restart(g)
		t.Logf("%s", out)
		now := envoysOf(g)
		if !strings.Contains(out, "replaced: Envoy ") || now.Adopted || now.PID == old[len(old)-1] {
			t.Errorf("the command printed %q, status %+v", out, now)
		}
		if got, want := g.Model("managed").InFlight, n+2*(n/5); got < want {
			t.Errorf("%d managed requests count after the restart, want %d", got, want)
		}
		if got := g.Model("chat").InFlight; got < n {
			t.Errorf("%d native requests count after the restart, want %d", got, n)
		}
		harness.Eventually(t, "the first Envoy carries the streams on", func() error {
			s := envoysOf(g)
			if len(s.Predecessors) == 0 || s.Predecessors[0].PID != first || s.Predecessors[0].Requests < 2*n {
				return fmt.Errorf("%+v", s)
			}
			return nil
		})
		old = append(old, now.PID)
	}
	harness.FinishAnswers(t, g.Replicas())
	l.running.Wait()
	t.Logf("%d and %d small requests", small.stop(), fresh.stop())
	harness.Client.CloseIdleConnections()
	g.AwaitIdle("chat")
	g.AwaitIdle("managed")
	harness.Eventually(t, "one Envoy is left", func() error {
		if s := envoysOf(g); len(s.Predecessors) > 0 || s.PID != old[2] {
			return fmt.Errorf("%+v", s)
		}
		return nil
	})
	for _, pid := range old[:2] {
		if command, runs := g.Processes()[pid]; runs {
			t.Errorf("%d still runs: %s", pid, command)
		}
	}
	awaitOneGateway(g)
}

// A gateway that is killed while a predecessor of Envoy runs is followed by one that adopts both
// Envoys. The stream goes on, its request counts, and new requests are served. A stop drains both.
func TestE2E_X20_E3_APredecessorIsAdopted(t *testing.T) {
	t.Parallel()
	g := harness.Start(t, harness.LastingSims)
	running, replicas := g.OpenStreams(10, harness.LastingTokens), g.Replicas()
	makeEnvoyDiffer(g)
	restart(g)
	second := awaitPredecessor(g)
	g.Kill()
	g.Launch()
	g.AwaitReady()
	now := awaitPredecessor(g)
	if !now.Adopted || now.PID != second.PID || now.Predecessors[0].PID != second.Predecessors[0].PID {
		t.Errorf("Envoys %+v, before the kill %+v", now, second)
	}
	if got := g.Model("chat").InFlight; got != 10 {
		t.Errorf("%d requests count after the restart, want 10", got)
	}
	if a := g.Post(harness.ChatPath, harness.ChatBody("chat", false, 2, "new")); a.StatusCode != 200 {
		t.Error(a)
	}
	g.Signal(syscall.SIGTERM)
	g.AwaitLogged("drain started", 1)
	harness.FinishAnswers(t, replicas)
	running.Wait()
	g.Stop()
}
