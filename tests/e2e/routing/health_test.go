package routing

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/sluice-gateway/sluice/internal/condition"
	"github.com/sluice-gateway/sluice/tests/e2e/harness"
)

// setFault makes a simulated replica have a fault until its process ends.
func setFault(g *harness.Gateway, replica, fault string) {
	g.T.Helper()
	r, err := http.Post("http://"+g.Replicas()[replica].Address+"/sim/fault", "application/json", strings.NewReader(`{"fault":"`+fault+`"}`))
	if err != nil {
		g.T.Fatal(err)
	}
	r.Body.Close()
}

// TestE2E_N5_AReplicaThatFailsIsSpared: launched replicas whose answers are 500 get no requests for
// a while, but for the last. Until then another replica answers. The operator sees which and why; a
// process that takes the place of a failing one starts with a clean slate.
func TestE2E_N5_AReplicaThatFailsIsSpared(t *testing.T) {
	t.Parallel()
	g := harness.Start(t, harness.SlowSims+"    routing: {strategy: round_robin}\n")
	g.AwaitReplicas("chat", 3)
	send := func() *harness.Answer {
		return g.Post("/v1/chat/completions", harness.ChatBody("chat", false, 1, "Hello"))
	}
	for _, id := range []string{"chat-0", "chat-1"} {
		setFault(g, id, "status=500")
		// After the first failure the replica is asked for its health, and believed. After the
		// second it is spared.
		harness.Eventually(t, id+" is out", func() error {
			if a := send(); a.StatusCode != 200 {
				t.Fatalf("another replica was to answer: %s", a)
			}
			before := g.Generations(id)
			for range 6 {
				send()
			}
			if n := g.Generations(id) - before; n > 0 {
				return fmt.Errorf("it got %d requests", n)
			}
			return nil
		})
	}
	harness.Eventually(t, "the operator is told why both get no requests", func() error {
		send() // the time in which one of them is spared may be over
		told, err := g.Conditions(condition.ReplicaSuspended)
		for _, id := range []string{"chat-0", "chat-1"} {
			if !strings.Contains(told[id].Message, "answered 500") {
				return fmt.Errorf("of %s: %+v %w", id, told, err)
			}
		}
		return nil
	})
	syscall.Kill(g.Replicas()["chat-0"].PID, syscall.SIGKILL)
	harness.Eventually(t, "the new process gets requests", func() error {
		if now := send().Header.Get("X-Sluice-Replica"); now != "chat-0" {
			return fmt.Errorf("%s has this one", now)
		}
		return nil
	})
}

// TestE2E_N5_AReplicaThatHangsIsSpared: a launched replica that is healthy, takes requests and
// answers nothing, gets no more of them after a few.
func TestE2E_N5_AReplicaThatHangsIsSpared(t *testing.T) {
	t.Parallel()
	g := harness.Start(t, harness.SlowSims+"    routing: {strategy: round_robin}\n")
	g.AwaitReplicas("chat", 3)
	setFault(g, "chat-0", "hang")
	// round asks at the same time, so that a replica that is not spared gets some, and returns how
	// many had no answer.
	round := func() (lost int64) {
		var asking sync.WaitGroup
		var count atomic.Int64
		for range 9 {
			asking.Go(func() {
				a, err := g.TryPost(t.Context(), "/v1/chat/completions", harness.ChatBody("chat", false, 1, "Hello"), "x-sluice-timeout-ms: 5200")
				if err != nil || a.StatusCode != 200 {
					count.Add(1)
				}
			})
		}
		asking.Wait()
		return count.Load()
	}
	whole := 0
	harness.Eventually(t, "the replica is spared", func() error {
		// After the first suspension the replica is asked for its health, and believed.
		told := strings.Contains(g.AdminText("/api/v1/conditions"), "left several requests in a row without an answer")
		if lost := round(); lost > 0 || !told {
			whole = 0
			return fmt.Errorf("%d requests lost, the operator is told: %v", lost, told)
		}
		if whole++; whole < 3 {
			time.Sleep(time.Second)
			return fmt.Errorf("%d rounds without a loss", whole)
		}
		return nil
	})
	if list := g.AdminText("/api/v1/requests?code=request_timeout&limit=1"); !strings.Contains(list, `"replica":"chat-0"`) {
		t.Errorf("the requests that ended by their timeout are not found by their code: %s", list)
	}
}

// TestE2E_N5_TheLastReplicaIsNotSpared: a model's last replica gets requests whatever it answers.
func TestE2E_N5_TheLastReplicaIsNotSpared(t *testing.T) {
	t.Parallel()
	g := harness.Start(t, harness.OneSim)
	g.AwaitReplicas("chat", 1)
	setFault(g, "chat-0", "status=500")
	for range 5 {
		if a := g.Post("/v1/chat/completions", harness.ChatBody("chat", false, 1, "Hello")); a.StatusCode != 500 || a.Header.Get("X-Sluice-Replica") != "chat-0" {
			t.Errorf("the last one is out: %s %v", a, a.Header)
		}
	}
}

// faultyUpstream is an upstream that answers every chat with a status.
type faultyUpstream struct {
	url            string
	status, served atomic.Int64
}

func startFaultyUpstream(t *testing.T, models ...string) *faultyUpstream {
	f := new(faultyUpstream)
	f.status.Store(200)
	f.url = harness.StartUpstream(t, func(w http.ResponseWriter, r *http.Request) {
		if harness.ServeModelList(w, r, models...) {
			return
		}
		io.Copy(io.Discard, r.Body)
		f.served.Add(1)
		w.WriteHeader(int(f.status.Load()))
		fmt.Fprint(w, `{"choices":[]}`)
	})
	return f
}

func (f *faultyUpstream) id() string { return strings.TrimPrefix(f.url, "http://") }

// TestE2E_T4_UnhealthyOn: what takes an upstream out is its model's own rule; a server that two
// models share follows neither's.
func TestE2E_T4_UnhealthyOn(t *testing.T) {
	t.Parallel()
	own, other := startFaultyUpstream(t, "own"), startFaultyUpstream(t, "own")
	shared, beside := startFaultyUpstream(t, "x", "y"), startFaultyUpstream(t, "x", "y")
	const text = `
  - name: %s
    launcher: upstream
    upstreams: [%s, %s]
    unhealthy_on: ["503"]
    fail_over_on: []
    routing: {strategy: round_robin, slow_start: 0s}
`
	g := harness.Start(t, "models:"+fmt.Sprintf(text, "own", own.url, other.url)+fmt.Sprintf(text, "x", shared.url, beside.url)+
		fmt.Sprintf(text, "y", shared.url, beside.url))
	fails := func(model string, f *faultyUpstream, status int64) (failed int) {
		f.status.Store(status)
		for range 10 {
			if a := g.Post("/v1/chat/completions", harness.ChatBody(model, false, 1, "Hello")); a.StatusCode != 200 {
				failed++
			}
		}
		return failed
	}
	if n := fails("own", own, 500); n != 5 {
		t.Errorf("%d of 10 requests went to a server whose 500 is none of the rule, in turn with another", n)
	}
	if r := g.Replicas()[own.id()]; r.State != "ready" {
		t.Errorf("its 500 is none of the rule: %+v", r)
	}
	// A look at a server that comes after its last failure, and is good, brings the server back.
	harness.Eventually(t, "its 503 takes it out", func() error {
		fails("own", own, 503)
		if r := g.Replicas()[own.id()]; r.State != "failed" {
			return fmt.Errorf("%+v", r)
		}
		return nil
	})
	harness.Eventually(t, "the rule of neither model holds for a server that they share", func() error {
		fails("x", shared, 500)
		if m := g.Model("x"); m.Ready != 1 {
			return fmt.Errorf("%+v", m)
		}
		return nil
	})
	shared.status.Store(200)
	own.status.Store(200)
	harness.Eventually(t, "a good look brings them back", func() error {
		if all := g.Replicas(); all[own.id()].State != "ready" || g.Model("x").Ready != 2 {
			return fmt.Errorf("%+v", all)
		}
		return nil
	})
}

// TestE2E_N6_SlowStart: a replica that comes beside one that is busy is not sent everything at
// once; without slow start it is.
func TestE2E_N6_SlowStart(t *testing.T) {
	t.Parallel()
	const slow, n = 5 * time.Second, 16
	const text = `
  - name: %s
    launcher: upstream
    upstreams: [%s]
    admission: {max_per_replica: 64}
    routing: {strategy: least_connections, slow_start: %s}
`
	names, old, young := []string{"slow", "sudden"}, []*harness.HeldUpstream{harness.StartHeldUpstream(t), harness.StartHeldUpstream(t)}, []*harness.HeldUpstream{harness.StartHeldUpstream(t), harness.StartHeldUpstream(t)}
	g := harness.Start(t, "models:"+fmt.Sprintf(text, "slow", old[0].URL, slow)+fmt.Sprintf(text, "sudden", old[1].URL, "0s"))
	send := func(model string) {
		for i := range n {
			r, err := g.Open(t.Context(), "/v1/chat/completions", harness.ChatBody(model, true, 1, fmt.Sprint(i)))
			if err != nil || r.StatusCode != 200 {
				t.Fatal(r, err)
			}
			t.Cleanup(func() { r.Body.Close() })
		}
	}
	for _, model := range names {
		send(model)
	}
	warm := time.Now().Add(slow)
	harness.Eventually(t, "they are warm", func() error {
		if left := time.Until(warm); left > 0 {
			return fmt.Errorf("in %v", left)
		}
		return nil
	})
	begun := time.Now()
	g.Configure("models:" + fmt.Sprintf(text, "slow", old[0].URL+", "+young[0].URL, slow) + fmt.Sprintf(text, "sudden", old[1].URL+", "+young[1].URL, "0s"))
	g.Signal(syscall.SIGHUP)
	for i, model := range names {
		harness.Eventually(t, "both serve "+model, func() error {
			var pick struct{ Order []struct{ ID string } }
			if g.Get("/api/v1/models/"+model+"/pick?key=k", &pick); len(pick.Order) != 2 {
				return fmt.Errorf("%+v", pick)
			}
			return nil
		})
		send(model)
		// It counts as having what the old one has, less as time goes by.
		got, warmth := float64(young[i].Running.Load()), time.Since(begun).Seconds()/slow.Seconds()
		t.Logf("%s: the new one has %v of the next %d requests, after %.2f of its slow start", model, got, n, warmth)
		if model == "slow" && got > 2*n*warmth+2 || model == "sudden" && got < n-1 {
			t.Errorf("%s: the new one has %v of the next %d requests", model, got, n)
		}
	}
}
