package lifecycle

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/sluice-gateway/sluice/tests/e2e/harness"
)

// TestE2E_U7_RunningTargetStartsAReplicaBeforeTheQueue: a replica has slots left, and the fifth
// request of a target of four starts the second replica. When all have ended, it goes.
func TestE2E_U7_RunningTargetStartsAReplicaBeforeTheQueue(t *testing.T) {
	t.Parallel()
	g := harness.Start(t, `models:
  - name: m
    task: text-generation
    engine: sim
    replicas: {min: 1, max: 3}
    scale: {target: {running: 4}}
    cooldown: 1s
    variables: {prefill_rate: 0, token_interval: 20ms, batch_slowdown: 0, max_num_seqs: 64}
`)
	g.AwaitReplicas("m", 1)
	ctx, leave := context.WithCancel(context.Background())
	defer leave()
	var streams sync.WaitGroup
	begin := func(n int) {
		for range n {
			r, err := g.Open(ctx, "/v1/chat/completions", harness.ChatBody("m", true, 100_000, "Hello"))
			if err != nil {
				t.Fatal(err)
			}
			streams.Go(func() { defer r.Body.Close(); <-ctx.Done() })
		}
	}
	begin(4)
	if m := g.Model("m"); m.InFlight != 4 || m.Desired != 1 {
		t.Errorf("four requests: %+v", m)
	}
	begin(1)
	g.AwaitModel("m", "a second replica", func(m harness.Model) bool { return m.Ready == 2 && m.InFlight == 5 })
	if m := g.Model("m"); m.Scaled.From != 1 || m.Scaled.To != 2 || m.Scaled.Reason != "running_target" {
		t.Errorf("the reason is %+v", m.Scaled)
	}
	if n := metricSum(g, "sluice_model_desired_replicas"); n != 2 {
		t.Errorf("the metric says that %v replicas are desired", n)
	}
	leave()
	streams.Wait()
	g.AwaitReplicas("m", 1)
	if m := g.Model("m"); m.Scaled.To != 1 || m.Scaled.Reason != "fewer_enough" {
		t.Errorf("the reason is %+v", m.Scaled)
	}
}

// TestE2E_U7_TTFTTargetStartsAReplicaBeforeTheQueue: prompts come faster than one replica computes
// them. It has slots for all of them, and the times that are predicted start the second replica.
// Without requests it goes, and the last one too.
func TestE2E_U7_TTFTTargetStartsAReplicaBeforeTheQueue(t *testing.T) {
	t.Parallel()
	g := harness.Start(t, `models:
  - name: m
    task: text-generation
    engine: sim
    replicas: {min: 0, max: 2}
    scale: {target: {ttft: 300ms}}
    cooldown: 3s
    variables: {prefill_rate: 2000, token_interval: 1ms, batch_slowdown: 0, max_num_seqs: 64}
`)
	if a := g.Post("/v1/chat/completions", harness.ChatBody("m", true, 1, "Hello")); a.StatusCode != 200 {
		t.Fatal(a)
	}
	if m := g.Model("m"); m.Desired != 1 || m.Scaled.Reason != "requests_wait" {
		t.Errorf("after a cold request: %+v", m)
	}
	ctx, leave := context.WithCancel(context.Background())
	defer leave()
	var callers sync.WaitGroup
	for i := range 8 {
		callers.Go(func() {
			for n := 0; ctx.Err() == nil; n++ {
				prompt := fmt.Sprintf("%d %d %s", i, n, strings.Repeat("word ", 400))
				if a, err := g.TryPost(ctx, "/v1/chat/completions", harness.ChatBody("m", true, 1, prompt)); ctx.Err() == nil && (err != nil || a.StatusCode != 200) {
					t.Errorf("%v %v", a, err)
					return
				}
			}
		})
	}
	g.AwaitReadyReplicas("m", 2)
	if m := g.Model("m"); m.Scaled.From != 1 || m.Scaled.To != 2 || m.Scaled.Reason != "ttft_target" {
		t.Errorf("the reason is %+v", m.Scaled)
	}
	leave()
	callers.Wait()
	g.AwaitReplicas("m", 0)
}

// TestE2E_U6_RequestsThatLackTokensStartNoReplicas: requests wait because the tokens of their model
// are used up. Another replica would not help them, and none is started.
func TestE2E_U6_RequestsThatLackTokensStartNoReplicas(t *testing.T) {
	t.Parallel()
	g := harness.Start(t, `models:
  - name: m
    task: text-generation
    engine: sim
    replicas: {min: 1, max: 4}
    admission: {max_tokens_per_minute: 600}
    variables: {prefill_rate: 0, token_interval: 0s, batch_slowdown: 0, max_num_seqs: 2}
`)
	g.AwaitReplicas("m", 1)
	ctx, leave := context.WithCancel(context.Background())
	var clients sync.WaitGroup
	defer clients.Wait()
	defer leave()
	var answers atomic.Int32
	client := func() { // asks one request after the other
		for {
			r, err := g.Open(ctx, "/v1/chat/completions", harness.ChatBody("m", false, 50, "Hello"))
			if err != nil {
				return
			}
			r.Body.Close()
			answers.Add(1)
		}
	}
	waiting := func(n int) {
		t.Helper()
		g.AwaitModel("m", "requests wait", func(m harness.Model) bool { return m.Queued == n && m.InFlight == 0 })
	}
	clients.Go(client)
	waiting(1)
	for range 3 {
		clients.Go(client)
	}
	waiting(4)
	before := answers.Load()
	harness.Eventually(t, "tokens come", func() error {
		if answers.Load() == before {
			return errors.New("no answer")
		}
		return nil
	})
	if m := g.Model("m"); m.Desired != 1 {
		t.Errorf("%d replicas are desired, because of %+v", m.Desired, m.Scaled)
	}
}
