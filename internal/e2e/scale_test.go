package e2e

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"
)

const elastic = `
  - name: %s
    task: text-generation
    engine: sim
    replicas: {min: 0, max: %d}
    cooldown: %s
    variables: {prefill_rate: 0, token_interval: %s, batch_slowdown: 0, max_num_seqs: %d}
`

// awaitReplicas waits until the model has so many replicas, of any state.
func (g *gateway) awaitReplicas(model string, n int) {
	g.t.Helper()
	eventually(g.t, fmt.Sprint(n, " replicas of ", model), func() error {
		if m := g.model(model); m.Replicas != n {
			return fmt.Errorf("%+v", m)
		}
		return nil
	})
}

func TestE2E_P3_FromZeroOnTheFirstRequestAndBackWhenIdle(t *testing.T) {
	t.Parallel()
	g := start(t, "models:"+fmt.Sprintf(elastic, "m", 1, "1s", "0s", 8))
	sims := func() int {
		n := 0
		for _, command := range g.processes() {
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
			a := g.post("/v1/chat/completions", chat("m", stream, 5, "Hello"))
			if a.StatusCode != 200 {
				t.Fatal(a)
			}
		}
		if n := sims(); n != 1 {
			t.Errorf("%d engines run after a request", n)
		}
		g.awaitReplicas("m", 0)
		if n := sims(); n != 0 {
			t.Errorf("%d engines run although nobody has asked for long", n)
		}
	}
	if list := string(g.fetch("/v1/models").body); !strings.Contains(list, `"id":"m"`) {
		t.Errorf("a model without replicas is not listed: %s", list)
	}
}

func TestE2E_P3_NothingIsEndedThatStillStreams(t *testing.T) {
	t.Parallel()
	g := start(t, "models:"+fmt.Sprintf(elastic, "m", 1, "200ms", "20ms", 8))
	a := g.post("/v1/chat/completions", chat("m", true, 200, "Hello")) // four seconds: twenty cooldowns
	if a.StatusCode != 200 {
		t.Fatal(a)
	}
	if err := wholeStream(a.body); err != nil {
		t.Error(err)
	}
	g.awaitReplicas("m", 0)
}

func TestE2E_P4_ManyColdRequestsStartEachModelOnce(t *testing.T) {
	t.Parallel()
	models := []string{"one", "two", "three"}
	config := "models:"
	for _, m := range models {
		config += fmt.Sprintf(elastic, m, 1, "1m", "0s", 256)
	}
	g := start(t, config)
	var callers sync.WaitGroup
	for i := range 210 {
		callers.Go(func() {
			a, err := g.tryPost(context.Background(), "/v1/chat/completions", chat(models[i%3], i%2 == 0, 3, fmt.Sprint("question ", i)))
			if err != nil || a.StatusCode != 200 {
				t.Errorf("%v %v", a, err)
			}
		})
	}
	callers.Wait()
	log := g.logText()
	for _, m := range models {
		if n := strings.Count(log, `"replica": "`+m+`-0", "state": "starting"`); n != 1 {
			t.Errorf("%s was started %d times", m, n)
		}
	}
}

func TestE2E_P4_AModelThatDoesNotStartInTime(t *testing.T) {
	t.Parallel()
	g := start(t, `models:
  - name: m
    task: text-generation
    engine: sim
    replicas: {min: 0, max: 1}
    cold_start_timeout: 1s
    variables: {load_time: 1h}
`)
	a := g.post("/v1/chat/completions", chat("m", false, 1, "Hello"))
	if a.StatusCode != 503 || a.code() != "cold_start_timeout" || a.Header.Get("Retry-After") == "" {
		t.Errorf("%s", a)
	}
}

// TestE2E_P5_RequestsDuringDeletionAreNeitherLostNorMisled: requests come about when the replica goes.
func TestE2E_P5_RequestsDuringDeletionAreNeitherLostNorMisled(t *testing.T) {
	t.Parallel()
	const models, tries = 6, 25
	config := "models:"
	for m := range models {
		config += fmt.Sprintf(elastic, fmt.Sprint("m", m), 1, "200ms", "0s", 8)
	}
	g := start(t, config)
	var callers sync.WaitGroup
	for m := range models {
		callers.Go(func() {
			for range tries {
				a, err := g.tryPost(context.Background(), "/v1/chat/completions", chat(fmt.Sprint("m", m), false, 2, "Hello"))
				if err != nil || a.StatusCode != 200 {
					t.Errorf("%v %v", a, err)
					return
				}
				time.Sleep(100*time.Millisecond + rand.N(400*time.Millisecond)) // around the cooldown, and the leaving after it
			}
		})
	}
	callers.Wait()
	for m := range models {
		g.awaitReplicas(fmt.Sprint("m", m), 0)
	}
	if strings.Count(g.logText(), `"state": "draining"`) < 2*models {
		t.Error("hardly a replica went: the test has met no deletion")
	}
}

func TestE2E_P5_ReplicasComeWithLoadAndGoWithIt(t *testing.T) {
	t.Parallel()
	g := start(t, "models:"+fmt.Sprintf(elastic, "m", 3, "1s", "20ms", 1))
	ctx, leave := context.WithCancel(context.Background())
	defer leave()
	var streams sync.WaitGroup
	for i := range 5 {
		streams.Go(func() {
			if r, err := g.open(ctx, "/v1/chat/completions", chat("m", true, 100_000, fmt.Sprint("question ", i))); err == nil {
				defer r.Body.Close()
				<-ctx.Done()
			}
		})
	}
	eventually(t, "three replicas work, and no more come", func() error {
		if m := g.model("m"); m.Ready != 3 || m.InFlight != 3 || m.Queued != 2 {
			return fmt.Errorf("%+v", m)
		}
		return nil
	})
	// A gateway that comes back keeps what works.
	g.kill()
	g.launch()
	g.awaitReady()
	if m := g.model("m"); m.Replicas != 3 || m.InFlight != 3 {
		t.Errorf("after a crash: %+v", m)
	}
	leave()
	streams.Wait()
	g.awaitReplicas("m", 0)
}
