package dispatch

import (
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluice-gateway/sluice/admission"
	"github.com/sluice-gateway/sluice/engines"
	"github.com/sluice-gateway/sluice/internal/openai"
)

// wantRefusal dispatches a request and wants this refusal at once.
func (s *stage) wantRefusal(t *testing.T, code openai.Code, after time.Duration, text string) {
	t.Helper()
	began := time.Now()
	_, fault := s.Dispatch(t.Context(), newRequest("m", "k"))
	if fault == nil || fault.Code != code || fault.RetryAfter != after || !strings.Contains(fault.Message, text) {
		t.Errorf("got %+v, want %s after %v with %q", fault, code, after, text)
	}
	if took := time.Since(began); took != 0 {
		t.Errorf("it was refused after %v, want at once", took)
	}
}

// TestU8_NoWait: a request for a cold model is refused at once, the scaler learns of it, and the
// Retry-After is what is left of the start.
func TestU8_NoWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStage(Policy{ColdStart: NoWait})
		demanded := 0
		s.config.Demand = func(string) { demanded++ }
		s.put("m", engines.Replica{ID: "a", State: engines.Starting, Since: time.Now()})
		s.wantRefusal(t, openai.CodeColdStartTimeout, unknownStart, "is being started")
		if v, _ := s.View("m"); v.Refused != 1 || demanded != 1 || v.Queued != 0 {
			t.Errorf("%d refused, %d demanded, %d queued; want 1, 1, 0", v.Refused, demanded, v.Queued)
		}
		ready := replicas("a")[0]
		ready.LoadTime = 40 * time.Second
		s.put("m", ready)
		s.must(t, newRequest("m", "k")).Release()

		s.put("m", engines.Replica{ID: "a", State: engines.Starting, Since: time.Now()})
		time.Sleep(15 * time.Second)
		s.wantRefusal(t, openai.CodeColdStartTimeout, 25*time.Second, "is being started")
		time.Sleep(25 * time.Second)
		s.wantRefusal(t, openai.CodeColdStartTimeout, 30*time.Second, "is being started") // slower than usual
	})
}

// TestU8_BetweenTwoStarts: after a start that failed, requests wait for the next one as they wait
// for the first one, or are refused at once.
func TestU8_BetweenTwoStarts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		failed := engines.Replica{ID: "a", State: engines.Failed, FailedStarts: 1, NextStart: time.Now().Add(time.Second)}
		s := newStage(Policy{ColdStart: NoWait})
		s.put("m", failed)
		s.wantRefusal(t, openai.CodeColdStartTimeout, unknownStart, "is being started")

		s = newStage(Policy{ColdStart: time.Hour, Limits: admission.Limits{QueueTimeout: time.Second}})
		s.put("m", failed)
		waiting := s.queue("m")
		time.Sleep(time.Minute)
		s.put("m", replicas("a")...)
		if ticket := <-waiting; ticket == nil {
			t.Error("the request did not wait for the next start")
		} else {
			ticket.Release()
		}
	})
}

// TestR13_RetryAfterOfAColdStart: a request that has waited for a start is told what is left of it.
func TestR13_RetryAfterOfAColdStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStage(Policy{ColdStart: 10 * time.Second})
		ready := replicas("a")[0]
		ready.LoadTime = time.Minute
		s.put("m", ready)
		s.put("m", engines.Replica{ID: "a", State: engines.Starting, Since: time.Now()})
		_, fault := s.Dispatch(t.Context(), newRequest("m", "k"))
		if fault == nil || fault.Code != openai.CodeColdStartTimeout || fault.RetryAfter != 50*time.Second {
			t.Errorf("got %+v, want cold_start_timeout after 50s", fault)
		}
	})
}

// TestU9_ACrashLoop: clients wait through one failed start. After the second one those that wait
// and those that come are answered at once, with the kind of fault and the next start.
func TestU9_ACrashLoop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStage(Policy{})
		failed := func(starts int) engines.Replica {
			return engines.Replica{ID: "a", State: engines.Failed, FailedStarts: starts, Failure: engines.GPUOutOfMemory, NextStart: time.Now().Add(12 * time.Second)}
		}
		s.put("m", failed(1))
		waited := make(chan *openai.Error)
		go func() {
			_, fault := s.Dispatch(t.Context(), newRequest("m", "k"))
			waited <- fault
		}()
		synctest.Wait()
		if v, _ := s.View("m"); v.Queued != 1 {
			t.Fatalf("%d wait after one failed start, want 1", v.Queued)
		}
		s.put("m", failed(2))
		if fault := <-waited; fault == nil || fault.Code != openai.CodeReplicaFailed || fault.RetryAfter != 12*time.Second {
			t.Errorf("the one that waited got %+v", fault)
		}
		s.wantRefusal(t, openai.CodeReplicaFailed, 12*time.Second, "too little GPU memory. The next start is in 12s.")

		again := failed(2)
		again.State, again.NextStart, again.Since = engines.Starting, time.Time{}, time.Now()
		s.put("m", again)
		s.wantRefusal(t, openai.CodeReplicaFailed, unknownStart, "too little GPU memory.")

		s.put("m", again, engines.Replica{ID: "b", State: engines.Starting})
		if r, pending, fault := s.Begin(t.Context(), newRequest("m", "k")); pending == nil {
			t.Errorf("with a replica that may still start well: %v %v, want it to wait", r, fault)
		} else {
			pending.Cancel()
		}
	})
}

// TestR9_ServersThatAreDown: requests wait for a server of upstreams that has just failed. When
// none has been reached for a while, those that wait and those that come are answered at once. A
// pool has its other models.
func TestR9_ServersThatAreDown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStage(Policy{Limits: admission.Limits{QueueTimeout: time.Minute}})
		set := func(name string, state engines.State) {
			r := engines.Replica{ID: name, Model: name, Launcher: engines.Upstream, State: state, Since: time.Now(), Address: netip.MustParseAddrPort("127.0.0.1:9000")}
			s.fleet.Set(name, engines.Part{Models: []engines.Model{{Name: name, Launcher: engines.Upstream}}, Replicas: []engines.Replica{r}})
			s.acknowledge(name, r)
		}
		took := func(model string) (time.Duration, *openai.Error) {
			began := time.Now()
			ticket, fault := s.Dispatch(t.Context(), newRequest(model, "k"))
			if fault == nil {
				ticket.Release()
			}
			return time.Since(began), fault
		}
		set("m", engines.Failed)
		set("other", engines.Failed)
		s.SetRules(Rules{Default: Policy{Limits: admission.Limits{QueueTimeout: time.Minute}}, Pools: map[string][]string{"p": {"m", "other"}}, FirstPool: "p"})
		refused := func(name string, after time.Duration) {
			wait, fault := took(name)
			if fault == nil || fault.Code != openai.CodeNoReplica || !strings.Contains(fault.Message, "can be reached") || wait != after {
				t.Errorf("of %s: %v after %v, want no_replica after %v", name, fault, wait, after)
			}
		}
		refused("m", maxOutage)
		set("m", engines.Failed)
		time.Sleep(maxOutage / 3)
		set("other", engines.Failed)
		refused("p", maxOutage)
		for _, name := range []string{"m", "p"} {
			refused(name, 0)
		}
		set("other", engines.Starting)
		if wait, fault := took("p"); fault == nil || wait < time.Minute {
			t.Errorf("of a pool with a server that starts: %v after %v, want a minute or more", fault, wait)
		}
		set("other", engines.Ready)
		task, _, fault := s.Schedule(t.Context(), TaskRequest{Tenant: "t", Model: "m", Tokens: 5})
		if fault != nil {
			t.Fatal(fault)
		}
		r, began := newRequest("p", "k"), time.Now()
		r.Task = task.ID
		if _, fault := s.Dispatch(t.Context(), r); fault == nil || fault.Code != openai.CodeNoReplica || time.Since(began) != 0 {
			t.Errorf("of a task of m in a pool that has another server: %v after %v, want no_replica at once", fault, time.Since(began))
		}
		set("m", engines.Ready)
		if wait, fault := took("m"); fault != nil || wait != 0 {
			t.Errorf("of a server that is back: %v after %v", fault, wait)
		}
	})
}

// TestU9_AFetchAfterFailedStarts: after failed starts requests wait while weights arrive, and are
// refused again while none do.
func TestU9_AFetchAfterFailedStarts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStage(Policy{})
		r := engines.Replica{ID: "a", State: engines.Starting, FailedStarts: 2, Failure: engines.NoWeights, Since: time.Now(),
			Fetch: engines.Fetch{Done: 1000, Total: 4000, Rate: 100}}
		s.put("m", r)
		if _, pending, fault := s.Begin(t.Context(), newRequest("m", "k")); pending == nil {
			t.Errorf("while weights arrive: %v, want it to wait", fault)
		} else {
			pending.Cancel()
		}
		r.Fetch.Rate = 0
		s.put("m", r)
		s.wantRefusal(t, openai.CodeReplicaFailed, unknownStart, "cannot be started")
	})
}

// TestU9_APoolWhoseModelsAllFail: requests that wait for a pool are answered when none of its
// models can be started, and wait as long as one may start.
func TestU9_APoolWhoseModelsAllFail(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStage(Policy{})
		s.SetRules(Rules{Pools: map[string][]string{"p": {"m", "n"}}, FirstPool: "p"})
		failed := engines.Replica{ID: "a", State: engines.Failed, FailedStarts: 2, Failure: engines.GPUOutOfMemory, NextStart: time.Now().Add(12 * time.Second)}
		s.put("m", engines.Replica{ID: "a", State: engines.Starting})
		s.put("n", engines.Replica{ID: "b", State: engines.Starting})
		waited := make(chan *openai.Error, 1)
		go func() {
			_, fault := s.Dispatch(t.Context(), newRequest("p", "k"))
			waited <- fault
		}()
		synctest.Wait()
		s.put("m", failed)
		synctest.Wait()
		if n := s.config.Admission.PoolStats("p").Queued; n != 1 {
			t.Fatalf("%d wait while one model may start, want 1: %+v", n, <-waited)
		}
		failed.ID, failed.NextStart = "b", time.Now().Add(5*time.Second)
		s.put("n", failed)
		if fault := <-waited; fault == nil || fault.Code != openai.CodeReplicaFailed || fault.RetryAfter != 5*time.Second {
			t.Errorf("the one that waited got %+v", fault)
		}
	})
}

// TestU19_RetryAfterOfAFetch: the start begins when the weights are there.
func TestU19_RetryAfterOfAFetch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStage(Policy{ColdStart: NoWait})
		ready := replicas("a")[0]
		ready.LoadTime = 40 * time.Second
		s.put("m", ready)
		for fetch, want := range map[engines.Fetch]time.Duration{
			{Done: 1000, Total: 3000, Rate: 100}: time.Minute,
			{Done: 0, Total: 1 << 50, Rate: 1}:   maxStartsIn,
			{Done: 0, Total: 1 << 30}:            40 * time.Second,
		} {
			s.put("m", engines.Replica{ID: "a", State: engines.Starting, Since: time.Now(), Fetch: fetch})
			s.wantRefusal(t, openai.CodeColdStartTimeout, want, "is being started")
		}
	})
}

// TestU9_RecoveryBeforeTheRefusalIsExplained: a replica may become ready, and a model may go,
// between the refusal of a request and its error.
func TestU9_RecoveryBeforeTheRefusalIsExplained(t *testing.T) {
	s := newStage(Policy{})
	s.put("m", replicas("a")...)
	r := newRequest("m", "k")
	c, fault := s.table.Load().resolve(r)
	if fault != nil {
		t.Fatal(fault)
	}
	for _, change := range []func(){func() {}, func() { s.fleet.Set("test-m", engines.Part{}); s.rebuild() }} {
		change()
		if fault := s.explain(t.Context(), c, r, errHopeless); fault == nil || fault.Code != openai.CodeNoReplica {
			t.Errorf("got %v, want no_replica", fault)
		}
	}
}

// A pool refuses those that wait for it as soon as none of its models can be started or reached,
// whatever becomes of the model that was the last one with a hope.
func TestU9_ThePoolLosesItsLastHope(t *testing.T) {
	t.Parallel()
	pools := func(models ...string) Rules { return Rules{Pools: map[string][]string{"p": models}, FirstPool: "p"} }
	for name, change := range map[string]func(stage){
		"drained": func(s stage) { s.DrainModel("hope", true) },
		"removed": func(s stage) { s.fleet.Set("test-hope", engines.Part{}); s.rebuild() },
		"failing": func(s stage) {
			s.put("hope", engines.Replica{ID: "hope", State: engines.Failed, FailedStarts: maxFailedStarts})
		},
		"no member": func(s stage) { s.SetRules(pools("failing")) },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newStage(Policy{})
				s.put("failing", engines.Replica{ID: "failing", State: engines.Failed, FailedStarts: maxFailedStarts})
				s.put("hope", engines.Replica{ID: "hope", State: engines.Starting})
				s.SetRules(pools("failing", "hope"))
				_, waits, fault := s.Begin(t.Context(), newRequest("p", "k"))
				if fault != nil {
					t.Fatal(fault)
				}
				began := time.Now()
				change(s)
				if _, fault := waits.Await(t.Context()); fault == nil || fault.Code != openai.CodeReplicaFailed || time.Since(began) != 0 {
					t.Errorf("%v after %v, want replica_failed at once", fault, time.Since(began))
				}
			})
		})
	}
}

// Those that wait for a pool wait on while a model of it is started again, as those do that wait
// for that model alone. It makes no difference that another model keeps failing to start, and that
// new requests do not wait for a start.
func TestU9_ThePoolHasAModelThatIsStartedAgain(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		policy := Policy{ColdStart: NoWait, MaxPerReplica: 1}
		s := newStage(policy)
		s.put("failing", engines.Replica{ID: "failing", State: engines.Failed, FailedStarts: maxFailedStarts})
		s.put("hope", replicas("hope")...)
		s.SetRules(Rules{Default: policy, Pools: map[string][]string{"p": {"failing", "hope"}}, FirstPool: "p"})
		first := s.must(t, newRequest("p", "k"))
		waiting := s.queue("p")
		s.put("hope", engines.Replica{ID: "hope", State: engines.Starting})
		first.Release()
		time.Sleep(10 * time.Second)
		s.put("hope", replicas("hope")...)
		if ticket := <-waiting; ticket == nil {
			t.Error("the request was refused although its replica came back")
		} else {
			ticket.Release()
		}
	})
}
