package dispatch

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluice-gateway/sluice/admission"
	"github.com/sluice-gateway/sluice/engines"
	"github.com/sluice-gateway/sluice/internal/openai"
)

// waitingTask is the answer to a call of /schedule that has waited.
type waitingTask struct {
	admission.Task
	fault *openai.Error
}

// queueTask calls Schedule in another goroutine, and returns when the call waits.
func (s stage) queueTask(t *testing.T, r TaskRequest) <-chan waitingTask {
	answer := make(chan waitingTask, 1)
	go func() {
		task, _, fault := s.Schedule(t.Context(), r)
		answer <- waitingTask{task, fault}
	}()
	synctest.Wait()
	if len(answer) > 0 {
		t.Fatalf("the call does not wait: %+v", <-answer)
	}
	return answer
}

// A call of /schedule that waits gets what has changed meanwhile. It gets a model that is put back,
// or one that has come into the pool from another one. It gets no model that was drained.
func TestW6_AWaitingTaskSeesWhatChanges(t *testing.T) {
	t.Parallel()
	const patience = 4 * time.Minute
	one := Policy{Limits: admission.Limits{MaxConcurrent: 1}}
	for _, c := range []struct {
		name string
		// pools are those before the change.
		pools   map[string][]string
		prepare func(stage)
		change  func(t *testing.T, s stage, task string)
		// want is the model of the task; empty: the call waits in vain.
		want string
	}{
		{"put back", map[string][]string{"p": {"a", "b"}}, func(s stage) { s.DrainModel("b", true) },
			func(_ *testing.T, s stage, _ string) { s.DrainModel("b", false) }, "b"},
		{"drained", map[string][]string{"p": {"a", "b"}}, func(s stage) { s.DrainModel("b", true) }, func(t *testing.T, s stage, task string) {
			s.DrainModel("a", true)
			if ok, fault := s.Complete(t.Context(), "t", task, 1); !ok || fault != nil {
				t.Error(ok, fault)
			}
		}, ""},
		{"from another pool", map[string][]string{"p": {"a"}, "q": {"b"}}, func(stage) {}, func(_ *testing.T, s stage, _ string) {
			s.SetRules(Rules{Pools: map[string][]string{"p": {"a", "b"}}, FirstPool: "p", Default: one})
		}, "b"},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newStage(one)
				s.put("a", replicas("a-1")...)
				s.put("b", replicas("b-1")...)
				s.SetRules(Rules{Pools: c.pools, FirstPool: "p", Default: one})
				c.prepare(s)
				first, _, fault := s.Schedule(t.Context(), TaskRequest{Tenant: "t", Pool: "p", Tokens: 1})
				if fault != nil || first.Model != "a" {
					t.Fatalf("%+v %v", first, fault)
				}
				waits := s.queueTask(t, TaskRequest{Tenant: "t", Pool: "p", Tokens: 1, Key: "k", MaxWait: patience})
				began := time.Now()
				c.change(t, s, first.ID)
				if got := <-waits; got.Model != c.want || got.fault != nil || time.Since(began) > 0 != (c.want == "") {
					t.Errorf("after %v: %+v", time.Since(began), got)
				}
			})
		})
	}
}

// Calls of /schedule need no replica. So they wait on where requests are refused because no server
// can be reached, and no request that is refused holds them up.
func TestW6_TasksWaitWithoutAServer(t *testing.T) {
	t.Parallel()
	for name, ask := range map[string]TaskRequest{"model": {Model: "m"}, "pool": {Pool: "p"}} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newStage(Policy{})
				r := engines.Replica{ID: "up:80", Model: "m", Launcher: engines.Upstream, State: engines.Failed, Since: time.Now()}
				s.fleet.Set("m", engines.Part{Models: []engines.Model{{Name: "m", Launcher: engines.Upstream}}, Replicas: []engines.Replica{r}})
				limits := admission.Limits{MaxConcurrent: 1, QueueTimeout: time.Hour}
				s.SetRules(Rules{Pools: map[string][]string{"p": {"m"}}, FirstPool: "p", Default: Policy{Limits: limits}})
				first, _, fault := s.Schedule(t.Context(), TaskRequest{Tenant: "t", Model: "m", Tokens: 1})
				if fault != nil {
					t.Fatal(fault)
				}
				var requests []*Pending
				for _, model := range []string{"m", "p"} {
					_, waits, fault := s.Begin(t.Context(), newRequest(model, "k"))
					if fault != nil {
						t.Fatal(fault)
					}
					requests = append(requests, waits)
				}
				ask.Tenant, ask.Tokens, ask.MaxWait = "t", 1, 4*time.Minute
				waits := s.queueTask(t, ask)
				if ok, fault := s.Complete(t.Context(), "t", first.ID, 1); !ok || fault != nil {
					t.Fatal(ok, fault)
				}
				began := time.Now()
				if got := <-waits; got.Model != "m" || time.Since(began) != maxOutage {
					t.Errorf("after %v: %+v, want a task when the requests before it are refused", time.Since(began), got)
				}
				for _, r := range requests {
					if _, fault := r.Await(t.Context()); fault == nil || fault.Code != openai.CodeNoReplica {
						t.Errorf("%v, want no_replica", fault)
					}
				}
			})
		})
	}
}
