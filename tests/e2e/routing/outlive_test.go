package routing

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/sluice-gateway/sluice/tests/e2e/harness"
)

// TestE2E_R7_StoredResponsesOutliveTheGateway: after a hand-over, a kill and a stop, the gateway
// still knows which replica has which response. So does the successor for a response that its
// predecessor has begun and carries to its end.
func TestE2E_R7_StoredResponsesOutliveTheGateway(t *testing.T) {
	t.Parallel()
	asked, finish := make(chan struct{}), make(chan struct{})
	config := "models:\n  - name: m\n    launcher: upstream\n    admission: {max_per_replica: 16}\n    routing: {strategy: round_robin}\n    upstreams:\n"
	for n := range 4 {
		s := &responseStore{known: map[string]bool{}, name: fmt.Sprint("s", n), asked: asked, finish: finish}
		config += fmt.Sprintf("      - {url: %q}\n", harness.StartUpstream(t, s.ServeHTTP))
	}
	g := harness.Start(t, config)
	g.AwaitReplicas("m", 4)
	homes := map[string]string{}
	create := func(way, body string, headers ...string) {
		a := g.Post("/v1/responses", body, headers...)
		id := responseID(t, a)
		homes[id] = a.Header.Get("X-Sluice-Replica")
		if way == "native" {
			awaitSession(g, id)
		}
	}
	for n := range 4 {
		create("native", `{"model":"m","input":"Hello."}`)
		create("managed", `{"model":"m","input":"Hello.","stream":true}`, fmt.Sprint("Idempotency-Key: ", n))
	}
	carried := make(chan struct{})
	go func() {
		defer close(carried)
		create("managed", fmt.Sprintf(`{"model":"m","input":%q,"stream":true}`, inputOfSlow), "Idempotency-Key: slow")
	}()
	harness.Receive(t, asked, "an engine works on the slow response")
	if out, err := g.RunCommand("restart", "-c", g.Config); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	g.AwaitReady()
	close(finish)
	harness.Receive(t, carried, "the slow response is made")
	checkHomes(g, "restart", homes)
	create("native", `{"model":"m","input":"Hello."}`)
	awaitKept(g, `{"model":"m","input":"One more."}`)
	g.Kill()
	g.Launch()
	g.AwaitReady()
	g.AwaitReadyReplicas("m", 4)
	checkHomes(g, "kill", homes)
	create("native", `{"model":"m","input":"Hello."}`)
	g.Signal(syscall.SIGTERM)
	g.AwaitExit()
	g.Launch()
	g.AwaitReady()
	g.AwaitReadyReplicas("m", 4)
	checkHomes(g, "stop", homes)
}

// awaitKept waits until a kill loses none of the responses that the gateway knows. body asks for
// one more response, so the gateway writes its file of responses again. A write that had begun
// before may lack some, so a second one is waited for.
func awaitKept(g *harness.Gateway, body string) {
	g.T.Helper()
	written := func() time.Time {
		info, err := os.Stat(filepath.Join(g.Dir, "responses.json"))
		if err != nil {
			return time.Time{}
		}
		return info.ModTime()
	}
	for range 2 {
		before := written()
		if a := g.Post("/v1/responses", body); a.StatusCode != 200 {
			g.T.Fatal(a)
		}
		harness.Eventually(g.T, "the responses are written", func() error {
			if written().Equal(before) {
				return fmt.Errorf("the file is of %v", before)
			}
			return nil
		})
	}
}

// checkHomes reads each response and continues it, both at the replica that has it.
func checkHomes(g *harness.Gateway, after string, homes map[string]string) {
	g.T.Helper()
	different := map[string]bool{}
	for id, home := range homes {
		different[home] = true
		request, err := http.NewRequest(http.MethodGet, g.URL+"/v1/responses/"+id, http.NoBody)
		if err != nil {
			g.T.Fatal(err)
		}
		if a := g.Do(harness.Client, request); a.StatusCode != 200 || a.Header.Get("X-Sluice-Replica") != home || !strings.Contains(string(a.Content), id) {
			g.T.Errorf("after the %s: GET of %s at %s, from %s: %s", after, id, home, a.Header.Get("X-Sluice-Replica"), a)
		}
		a := g.Post("/v1/responses", fmt.Sprintf(`{"model":"m","input":"And then?","previous_response_id":%q}`, id))
		if a.StatusCode != 200 || a.Header.Get("X-Sluice-Replica") != home {
			g.T.Errorf("after the %s: %s at %s is continued at %s: %s", after, id, home, a.Header.Get("X-Sluice-Replica"), a)
		}
	}
	if len(different) < 2 {
		g.T.Errorf("all responses are at one replica, so this test shows nothing: %v", homes)
	}
}

// TestE2E_R7_AdoptedReplicasKeepTheirResponses: a gateway that adopts replicas after a kill knows
// their responses. A stop ends the replicas, and so their responses.
func TestE2E_R7_AdoptedReplicasKeepTheirResponses(t *testing.T) {
	t.Parallel()
	g := harness.Start(t, harness.SlowSims)
	homes := map[string]string{}
	for range 4 {
		a := g.Post("/v1/responses", `{"model":"chat","input":"Hello.","max_output_tokens":2}`)
		homes[responseID(t, a)] = a.Header.Get("X-Sluice-Replica")
	}
	check := func(known bool) error {
		for id, home := range homes {
			var p picked
			body := fmt.Sprintf(`{"model":"chat","input":"And then?","previous_response_id":%q}`, id)
			answer, err := http.Post(g.Admin+"/api/v1/models/chat/pick?tenant=anyone", "application/json", strings.NewReader(body))
			if err != nil {
				return err
			}
			err = json.NewDecoder(answer.Body).Decode(&p)
			answer.Body.Close()
			if err != nil || (p.Reason == "session") != known || known && p.Picked != home {
				return fmt.Errorf("%s at %s is continued at %+v: %w", id, home, p, err)
			}
		}
		return nil
	}
	harness.Eventually(t, "the gateway knows the responses", func() error { return check(true) })
	awaitKept(g, `{"model":"chat","input":"One more.","max_output_tokens":2}`)
	g.Kill()
	g.Launch()
	g.AwaitReady()
	g.AwaitReadyReplicas("chat", 3)
	if err := check(true); err != nil {
		t.Errorf("after the kill: %v", err)
	}
	g.Signal(syscall.SIGTERM)
	g.AwaitExit()
	g.Launch()
	g.AwaitReady()
	g.AwaitReadyReplicas("chat", 3)
	if err := check(false); err != nil {
		t.Errorf("after the stop: %v", err)
	}
}
