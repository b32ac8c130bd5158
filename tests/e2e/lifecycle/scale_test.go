package lifecycle

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sluice-gateway/sluice/tests/e2e/harness"
)

const elastic = `
  - name: %s
    task: text-generation
    engine: sim
    replicas: {min: 0, max: %d}
    cooldown: %s
    variables: {prefill_rate: 0, token_interval: %s, batch_slowdown: 0, max_num_seqs: %d}
`

func TestE2E_P3_FromZeroOnTheFirstRequestAndBackWhenIdle(t *testing.T) {
	t.Parallel()
	g := harness.Start(t, "models:"+fmt.Sprintf(elastic, "m", 1, "1s", "0s", 8))
	sims := func() int {
		n := 0
		for _, command := range g.Processes() {
			if strings.Contains(command, " sim ") {
				n++
			}
		}
		return n
	}
	if n := sims(); n != 0 {
		t.Fatalf("%d engines run and nobody has asked", n)
	}
	for range 2 {
		for _, stream := range []bool{false, true} {
			a := g.Post("/v1/chat/completions", harness.ChatBody("m", stream, 5, "Hello"))
			if a.StatusCode != 200 {
				t.Fatal(a)
			}
		}
		if n := sims(); n > 1 { // it may have gone again
			t.Errorf("%d engines run after a request", n)
		}
		g.AwaitReplicas("m", 0)
		if n := sims(); n != 0 {
			t.Errorf("%d engines run although nobody has asked for long", n)
		}
	}
	if list := string(g.Fetch("/v1/models").Content); !strings.Contains(list, `"id":"m"`) {
		t.Errorf("a model without replicas is not listed: %s", list)
	}
}

func TestE2E_P3_NothingIsEndedThatStillStreams(t *testing.T) {
	t.Parallel()
	g := harness.Start(t, "models:"+fmt.Sprintf(elastic, "m", 1, "200ms", "20ms", 8))
	a := g.Post("/v1/chat/completions", harness.ChatBody("m", true, 200, "Hello")) // four seconds: twenty cooldowns
	if a.StatusCode != 200 {
		t.Fatal(a)
	}
	if err := harness.CheckWholeStream(a.Content); err != nil {
		t.Error(err)
	}
	g.AwaitReplicas("m", 0)
}

func TestE2E_P4_ManyColdRequestsStartEachModelOnce(t *testing.T) {
	t.Parallel()
	models := []string{"one", "two", "three"}
	config := "models:"
	for _, m := range models {
		config += fmt.Sprintf(elastic, m, 1, "1m", "0s", 256)
	}
	g := harness.Start(t, config)
	var callers sync.WaitGroup
	for i := range 210 {
		callers.Go(func() {
			a, err := g.TryPost(context.Background(), "/v1/chat/completions", harness.ChatBody(models[i%3], i%2 == 0, 3, fmt.Sprint("question ", i)))
			if err != nil || a.StatusCode != 200 {
				t.Errorf("%v %v", a, err)
			}
		})
	}
	callers.Wait()
	log := g.LogText()
	for _, m := range models {
		if n := strings.Count(log, `"replica":"`+m+`-0","state":"starting"`); n != 1 {
			t.Errorf("%s was started %d times", m, n)
		}
	}
}

// TestE2E_P4_OneReplicaForManyColdRequests: a model that may have several replicas starts one for
// as many requests as one replica works on, and more only for more.
func TestE2E_P4_OneReplicaForManyColdRequests(t *testing.T) {
	t.Parallel()
	g := harness.Start(t, `
models:
  - name: m
    task: text-generation
    engine: sim
    replicas: {min: 0, max: 4}
    variables: {load_time: 1s, max_num_seqs: 32, prefill_rate: 0, token_interval: 0s}
`)
	var callers sync.WaitGroup
	for i := range 30 {
		callers.Go(func() {
			a, err := g.TryPost(context.Background(), "/v1/chat/completions", harness.ChatBody("m", i%2 == 0, 3, fmt.Sprint("question ", i)))
			if err != nil || a.StatusCode != 200 {
				t.Errorf("%v %v", a, err)
			}
		})
	}
	callers.Wait()
	if n := strings.Count(g.LogText(), `"state":"starting"`); n != 1 {
		t.Errorf("%d replicas were started for 30 requests", n)
	}
}

func TestE2E_P4_AModelThatDoesNotStartInTime(t *testing.T) {
	t.Parallel()
	g := harness.Start(t, `models:
  - name: m
    task: text-generation
    engine: sim
    replicas: {min: 0, max: 1}
    cold_start_timeout: 1s
    variables: {load_time: 1h}
`)
	a := g.Post("/v1/chat/completions", harness.ChatBody("m", false, 1, "Hello"))
	if a.StatusCode != 503 || a.Code() != "cold_start_timeout" || a.Header.Get("Retry-After") == "" {
		t.Errorf("%s", a)
	}
}

// TestE2E_P5_RequestsDuringDeletionAreNeitherLostNorMisled: hundreds of requests come about when
// the replica goes. Every one is answered, and none was tried at a replica that refused it or broke
// off.
func TestE2E_P5_RequestsDuringDeletionAreNeitherLostNorMisled(t *testing.T) {
	t.Parallel()
	const models, tries = 25, 24
	config := "models:"
	for m := range models {
		config += fmt.Sprintf(elastic, fmt.Sprint("m", m), 1, "200ms", "0s", 8)
	}
	g := harness.Start(t, config)
	var callers sync.WaitGroup
	for m := range models {
		callers.Go(func() {
			for range tries {
				// Around the cooldown, the second of the drain, and the end of the process.
				time.Sleep(100*time.Millisecond + rand.N(1700*time.Millisecond))
				a, err := g.TryPost(context.Background(), "/v1/chat/completions", harness.ChatBody(fmt.Sprint("m", m), false, 2, "Hello"))
				if err != nil || a.StatusCode != 200 || a.Header.Get("X-Sluice-Replica") != fmt.Sprintf("m%d-0", m) {
					t.Errorf("%v %v", a, err)
					return
				}
			}
		})
	}
	callers.Wait()
	for m := range models {
		g.AwaitReplicas(fmt.Sprint("m", m), 0)
	}
	if retries := metricSum(g, "stream_retries_total"); retries != 0 {
		t.Errorf("%v attempts met a replica that did not serve them", retries)
	}
	log := g.LogText()
	drains, ends := strings.Count(log, `"state":"draining"`), strings.Count(log, `"replica stopped"`)
	t.Logf("%d tries met %d drains and %d ends of processes", models*tries, drains, ends)
	if drains < 2*models || ends <= models {
		t.Error("hardly a replica went: the test has met no deletion")
	}
}

// metricSum returns the sum of a metric over all its labels.
func metricSum(g *harness.Gateway, name string) float64 {
	g.T.Helper()
	sum := 0.0
	for line := range strings.Lines(g.AdminText("/metrics")) {
		if !strings.HasPrefix(line, name+"{") {
			continue
		}
		fields := strings.Fields(line)
		v, err := strconv.ParseFloat(fields[len(fields)-1], 64)
		if err != nil {
			g.T.Fatalf("%v in %q", err, line)
		}
		sum += v
	}
	return sum
}

func TestE2E_P5_ReplicasComeWithLoadAndGoWithIt(t *testing.T) {
	t.Parallel()
	g := harness.Start(t, "models:"+fmt.Sprintf(elastic, "m", 3, "1s", "20ms", 1)+"    stream: {mode: native}\n") // they outlive the gateway
	ctx, leave := context.WithCancel(context.Background())
	defer leave()
	var streams sync.WaitGroup
	for i := range 5 {
		streams.Go(func() {
			if r, err := g.Open(ctx, "/v1/chat/completions", harness.ChatBody("m", true, 100_000, fmt.Sprint("question ", i))); err == nil {
				defer r.Body.Close()
				<-ctx.Done()
			}
		})
	}
	g.AwaitModel("m", "three replicas work, and no more come", func(m harness.Model) bool { return m.Ready == 3 && m.InFlight == 3 && m.Queued == 2 })
	// A gateway that comes back keeps what works.
	g.Kill()
	g.Launch()
	g.AwaitReady()
	if m := g.Model("m"); m.Replicas != 3 || m.InFlight != 3 {
		t.Errorf("after a crash: %+v", m)
	}
	leave()
	streams.Wait()
	g.AwaitReplicas("m", 0)
}
