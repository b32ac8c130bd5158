package dispatch

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluice-gateway/sluice/admission"
	"github.com/sluice-gateway/sluice/engines"
	"github.com/sluice-gateway/sluice/internal/headers"
	"github.com/sluice-gateway/sluice/internal/openai"
	"github.com/sluice-gateway/sluice/internal/request"
)

// pooled is a stage with the models a and b of one replica each, in the pool p.
func pooled(t *testing.T, rules Rules) stage {
	t.Helper()
	s := newStage(Policy{})
	s.put("a", engines.Replica{ID: "a-1"})
	s.put("b", engines.Replica{ID: "b-1"})
	rules.Pools, rules.FirstPool = map[string][]string{"p": {"a", "b"}}, "p"
	s.SetRules(rules)
	return s
}

func TestAPoolIsServedByItsModels(t *testing.T) {
	s := pooled(t, Rules{Default: Policy{MaxPerReplica: 1}})
	one, two := s.must(t, newRequest("p", "k")), s.must(t, newRequest("p", "k"))
	if one.Model == two.Model || one.Model+two.Model != "ab" && one.Model+two.Model != "ba" {
		t.Errorf("went to %s and %s, each has one slot", one.Model, two.Model)
	}
	if one.Cluster() != "model/"+one.Model || one.Replica() != one.Model+"-1" {
		t.Errorf("%s is routed to %s of %s", one.Model, one.Replica(), one.Cluster())
	}
	one.Release()
	if three := s.must(t, newRequest("p", "k")); three.Model != one.Model {
		t.Errorf("went to %s, free is %s", three.Model, one.Model)
	}
}

func TestAPoolFallsOverToAModelWithReplicas(t *testing.T) {
	s := pooled(t, Rules{})
	s.put("a")
	for range 10 {
		if ticket := s.must(t, newRequest("p", "k")); ticket.Model != "b" {
			t.Fatalf("went to %s, which has no replica", ticket.Model)
		}
	}
	s.put("b")
	if _, fault := s.Dispatch(t.Context(), newRequest("p", "k")); fault == nil || fault.Code != openai.CodeNoReplica {
		t.Errorf("without any replica: %v", fault)
	}
}

func TestAPoolOfModelsThatAreServedElsewhere(t *testing.T) {
	s := newStage(Policy{})
	s.fleet.Set("none", engines.Part{Models: []engines.Model{{Name: "a", Launcher: engines.None}}})
	s.SetRules(Rules{Pools: map[string][]string{"p": {"a"}}})
	for _, name := range []string{"p", "a"} {
		if _, fault := s.Dispatch(t.Context(), newRequest(name, "k")); fault == nil || fault.HTTPStatus() != 400 {
			t.Errorf("%s: %v", name, fault)
		}
	}
}

func TestAPoolKeepsToWhatTheTenantMay(t *testing.T) {
	s := pooled(t, Rules{})
	may := func(names ...string) *Request {
		r := newRequest("p", "k")
		r.Allowed = func(name string) bool {
			for _, n := range names {
				if n == name {
					return true
				}
			}
			return false
		}
		return r
	}
	for range 10 {
		if ticket := s.must(t, may("p", "b")); ticket.Model != "b" {
			t.Fatalf("went to %s, which the tenant may not use", ticket.Model)
		}
	}
	for _, r := range []*Request{may("a", "b"), may("p")} {
		if _, fault := s.Dispatch(t.Context(), r); fault == nil || fault.Code != openai.CodeModelNotFound {
			t.Errorf("got %v", fault)
		}
	}
}

func TestTasks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := pooled(t, Rules{Default: Policy{Limits: admission.Limits{MaxConcurrent: 1}}, TaskLease: time.Minute})
		ask := TaskRequest{Tenant: "t", Tokens: 10}
		one, _, fault := s.Schedule(t.Context(), ask)
		two, _, fault2 := s.Schedule(t.Context(), ask)
		if fault != nil || fault2 != nil || one.Model == two.Model || one.Model == "" || two.Model == "" {
			t.Fatalf("%+v %v, %+v %v", one, fault, two, fault2)
		}
		if _, wait, fault := s.Schedule(t.Context(), ask); wait < 100*time.Millisecond || wait > 250*time.Millisecond || fault != nil {
			t.Errorf("all is taken: wait %v, %v", wait, fault)
		}
		if ok, fault := s.Complete(t.Context(), "somebody else", one.ID, -1); ok || fault != nil {
			t.Errorf("completed another's task: %v %v", ok, fault)
		}
		if ok, fault := s.Complete(t.Context(), "t", one.ID, 5); !ok || fault != nil {
			t.Errorf("complete: %v %v", ok, fault)
		}
		time.Sleep(50 * time.Second)
		if lease, ok, fault := s.Renew(t.Context(), "t", two.ID); lease != time.Minute || !ok || fault != nil {
			t.Errorf("renew: %v %v %v", lease, ok, fault)
		}
		time.Sleep(61 * time.Second)
		if _, ok, _ := s.Renew(t.Context(), "t", two.ID); ok {
			t.Error("renewed after the lease")
		}
		for _, bad := range []TaskRequest{{Pool: "x"}, {Model: "x"}, {Pool: "p", Model: "a"}, {Allowed: func(string) bool { return false }}} {
			if _, _, fault := s.Schedule(t.Context(), bad); fault == nil || fault.HTTPStatus() < 400 || fault.HTTPStatus() >= 500 {
				t.Errorf("%+v: %v", bad, fault)
			}
		}
	})
}

func TestARequestOfATaskIsNotAdmittedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := pooled(t, Rules{Default: Policy{Limits: admission.Limits{MaxConcurrent: 1, QueueTimeout: time.Second}}})
		task, _, fault := s.Schedule(t.Context(), TaskRequest{Tenant: "t", Model: "a", Tokens: 10})
		if fault != nil {
			t.Fatal(fault)
		}
		ask := func(model, tenant, id string) (*Ticket, *openai.Error) {
			r := newRequest(model, "k")
			r.Tenant, r.Task = tenant, id
			return s.Dispatch(t.Context(), r)
		}
		if _, fault := ask("a", "t", ""); fault == nil {
			t.Error("a request without the task passed the limit that the task has used up")
		}
		ticket, fault := ask("p", "t", task.ID)
		if fault != nil || ticket.Model != "a" {
			t.Fatalf("%+v %v", ticket, fault)
		}
		if _, fault := ask("a", "t", task.ID); fault == nil || fault.HTTPStatus() != 409 {
			t.Errorf("a second request of the task beside the first: %v", fault)
		}
		ticket.Release()
		again, fault := ask("a", "t", task.ID)
		if fault != nil {
			t.Fatalf("a second request of the task after the first: %v", fault)
		}
		again.Release()
		for _, bad := range [][3]string{{"b", "t", task.ID}, {"a", "other", task.ID}, {"a", "t", "tsk_x"}} {
			if _, fault := ask(bad[0], bad[1], bad[2]); fault == nil || fault.HTTPStatus() != 400 {
				t.Errorf("%v: %v", bad, fault)
			}
		}
		if v, _ := s.View("a"); v.InFlight != 1 {
			t.Errorf("%d in flight, the task alone should be", v.InFlight)
		}
	})
}

// TestW6_ATaskLastsAsLongAsItsRequest: nobody renews a task whose request waits and runs for much
// longer than its lease. It is there when the caller completes it, and not beyond its lifetime.
func TestW6_ATaskLastsAsLongAsItsRequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStage(Policy{MaxPerReplica: 1})
		s.put("m", replicas("a")...)
		s.SetRules(Rules{TaskLease: time.Minute, TaskLifetime: time.Hour, Default: Policy{MaxPerReplica: 1, Limits: admission.Limits{QueueTimeout: time.Hour}}})
		ask := func(task string) <-chan *Ticket {
			got := make(chan *Ticket, 1)
			go func() {
				ticket, fault := s.Dispatch(t.Context(), sized(task, 4))
				if fault != nil {
					t.Error(fault)
				}
				got <- ticket
			}()
			synctest.Wait()
			return got
		}
		before := s.must(t, newRequest("m", "k"))
		task := s.schedule(t, 10)
		waits := ask(task)
		time.Sleep(10 * time.Minute)
		before.Release()
		running := <-waits
		time.Sleep(10 * time.Minute)
		running.Release()
		time.Sleep(30 * time.Second)
		if ok, fault := s.Complete(t.Context(), "t", task, 2000); !ok || fault != nil {
			t.Errorf("complete after the request: %v, %v", ok, fault)
		}

		endless := s.schedule(t, 10)
		running = <-ask(endless)
		time.Sleep(time.Hour)
		if _, ok, _ := s.Renew(t.Context(), "t", endless); ok {
			t.Error("a task lasts longer than its lifetime")
		}
		running.Release()

		left := s.schedule(t, 10)
		(<-ask(left)).Release()
		time.Sleep(time.Minute)
		if _, ok, _ := s.Renew(t.Context(), "t", left); ok {
			t.Error("a task without a request was renewed")
		}
	})
}

// TestW6_ATaskLastsAsLongAsItsCarriedRequest: an earlier process carries a request of a task for
// much longer than the lease. The process that has the tasks now keeps the task until the request
// has ended, and no other request of the task runs meanwhile.
func TestW6_ATaskLastsAsLongAsItsCarriedRequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		old, s := newStage(Policy{}), newStage(Policy{})
		for _, one := range []stage{old, s} {
			one.put("m", replicas("a")...)
			one.SetRules(Rules{TaskLease: time.Minute})
		}
		ticket := old.must(t, sized(old.schedule(t, 10), 4))
		held := ticket.heldRequest()
		ticket.Release()
		if held.Task == "" || !held.SlotOnly {
			t.Fatalf("the successor is told %+v", held)
		}
		held.Task = s.schedule(t, 10)
		carried := s.Carry(held)
		if _, fault := s.Dispatch(t.Context(), sized(held.Task, 4)); fault == nil || fault.Code != openai.CodeRequestIDConflict {
			t.Errorf("a second request of the task: %v", fault)
		}
		time.Sleep(10 * time.Minute)
		if _, ok, fault := s.Renew(t.Context(), "t", held.Task); !ok || fault != nil {
			t.Errorf("while the request runs: %v, %v", ok, fault)
		}
		carried.Release()
		s.must(t, sized(held.Task, 4)).Release()
		time.Sleep(2 * time.Minute)
		if _, ok, _ := s.Renew(t.Context(), "t", held.Task); ok {
			t.Error("the task is renewed after its request")
		}
	})
}

// TestW6_ATaskLastsAsLongAsItsRecoveredRequest: Envoy carries a request of a task on while the
// gateway is killed and started again. The log of Envoy names the task, which is then kept until
// the request has ended.
func TestW6_ATaskLastsAsLongAsItsRecoveredRequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStage(Policy{})
		s.put("m", replicas("a")...)
		s.SetRules(Rules{TaskLease: time.Minute})
		task := s.schedule(t, 10)
		s.Recover(map[Location]int{{Model: "m", Address: "127.0.0.1:9000"}: 1})
		entry := request.Entry{Log: headers.LogRequests, Interim: true, Model: "m", Upstream: "127.0.0.1:9000", RequestID: "1",
			Metadata: map[string]string{headers.MetadataTenant: "t", headers.MetadataTask: task}}
		time.Sleep(50 * time.Second)         // the lease has almost expired
		running := s.must(t, sized(task, 4)) // it runs before the log tells of the first one
		for range 2 {                        // which the log does again and again
			s.ObserveRecovered(&entry)
		}
		running.Release()
		if v, _ := s.View("m"); v.InFlight != 1 || v.Loads["a"] != 1 {
			t.Errorf("the recovered request counts beside its task: %+v", v)
		}
		if _, fault := s.Dispatch(t.Context(), sized(task, 4)); fault == nil || fault.Code != openai.CodeRequestIDConflict {
			t.Errorf("a second request of the task: %v", fault)
		}
		time.Sleep(10 * time.Minute)
		if _, ok, fault := s.Renew(t.Context(), "t", task); !ok || fault != nil {
			t.Errorf("while the request runs: %v, %v", ok, fault)
		}
		entry.Interim, entry.Status = false, 200
		s.ObserveRecovered(&entry)
		s.must(t, sized(task, 4)).Release()
		time.Sleep(2 * time.Minute)
		if _, ok, _ := s.Renew(t.Context(), "t", task); ok {
			t.Error("the task is renewed after its request")
		}
	})
}

func TestPrefillIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStage(Policy{MaxPrefillPerReplica: 1})
		s.put("m", replicas("a", "b")...)
		one, two := s.must(t, newRequest("m", "k")), s.must(t, newRequest("m", "k"))
		if one.Replica() == two.Replica() || !one.Watched() {
			t.Fatalf("both on %s, watched: %v", one.Replica(), one.Watched())
		}
		third := s.queue("m")
		select {
		case <-third:
			t.Fatal("a third one in prefill")
		default:
		}
		one.FirstToken()
		ticket := <-third
		if ticket.Replica() != one.Replica() {
			t.Errorf("on %s, the one with a token is on %s", ticket.Replica(), one.Replica())
		}
		ticket.FirstToken()
		ticket.FirstToken()
		for _, t := range []*Ticket{one, two, ticket} {
			t.Release()
			t.FirstToken() // too late
		}
		last := []*Ticket{s.must(t, newRequest("m", "k")), s.must(t, newRequest("m", "k"))}
		next := s.queue("m")
		select {
		case <-next:
			t.Error("prefill is counted wrong after the end")
		default:
		}
		for _, t := range last {
			t.Release()
		}
		(<-next).Release()
	})
}

func TestWhoseTheRequestsOfBeforeARestartAre(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStage(Policy{Limits: admission.Limits{QueueTimeout: time.Second}})
		s.put("m", replicas("a")...)
		s.SetRules(Rules{Tenants: map[string]admission.TenantLimits{"acme": {MaxConcurrent: 2}}})
		at := Location{Model: "m", Address: "127.0.0.1:9000"}
		s.Recover(map[Location]int{at: 3})
		for range 3 { // entries come again and again
			s.IdentifyRecovered(RecoveredRequest{Location: at, Request: "1", Tenant: "acme", Tokens: 5})
			s.IdentifyRecovered(RecoveredRequest{Location: at, Request: "2", Tenant: "acme"})
		}
		if v, _ := s.View("m"); v.InFlight != 3 || v.Loads["a"] != 3 {
			t.Errorf("%+v", v)
		}
		mine := newRequest("m", "k")
		mine.Tenant = "acme"
		if _, fault := s.Dispatch(t.Context(), mine); fault == nil || fault.Code != openai.CodeRateLimited {
			t.Errorf("a third request of a tenant that may have two: %v", fault)
		}
		s.EndRecovered(RecoveredRequest{Location: at, Request: "2", Tenant: "acme"})
		ticket, fault := s.Dispatch(t.Context(), mine)
		if fault != nil {
			t.Fatal(fault)
		}
		ticket.Release()
		s.EndRecovered(RecoveredRequest{Location: at, Request: "3", Tenant: "other"})
		s.LimitRecovered(nil)
		if v, _ := s.View("m"); v.InFlight != 0 || v.Loads["a"] != 0 || s.recoveredRequest() != 0 {
			t.Errorf("%+v, %d recoveredRequest", v, s.recoveredRequest())
		}
	})
}

func TestTheFirstAnswersTeachWhatRequestsCost(t *testing.T) {
	var l estimator
	r := &Request{Tenant: "t", PromptBytes: 4000, MaxTokens: 10_000}
	q := l.estimate(r)
	if q.tokens != (tokenCount{1000, expectedOutput}) {
		t.Errorf("at first %+v", q.tokens)
	}
	for range 300 {
		l.correct(Response{Bytes: 30_000, Stream: true, Known: true, Prompt: 2000, Completion: 100}, l.estimate(r))
	}
	near := func(got, want int) bool { return got > want*9/10 && got < want*11/10 }
	if q = l.estimate(r); !near(q.tokens.prompt, 2000) || !near(q.tokens.output, 100) {
		t.Errorf("learned %+v, the answers were of 100 tokens and the prompts of 2000", q.tokens)
	}
	if cost := l.correct(Response{Bytes: 60_000, Stream: true}, q); !near(cost, 2000+200) {
		t.Errorf("60,000 bytes of a stream at 300 a token cost %d", cost)
	}
	if cost := l.correct(Response{Failed: true}, q); cost != 0 {
		t.Errorf("a failed request cost %d", cost)
	}
	if q = l.estimate(&Request{Tenant: "t", PromptBytes: 400, MaxTokens: 7, Choices: 2}); q.tokens.output != 14 {
		t.Errorf("two answers of at most 7 tokens are taken for %d", q.tokens.output)
	}
	if q = l.estimate(&Request{Tenant: "t", PromptBytes: 400, NoOutput: true}); q.tokens.output != 0 {
		t.Errorf("an embedding is taken for %d tokens of output", q.tokens.output)
	}
	for i := range 3 * maxTenants {
		l.correct(Response{Known: true, Completion: 1}, l.estimate(&Request{Tenant: string(rune(i))}))
	}
	if n := len(l.outputs); n > maxTenants {
		t.Errorf("%d tenants are remembered", n)
	}
}

func TestCorrectChangesTheBucketOnce(t *testing.T) {
	s := newStage(Policy{Limits: admission.Limits{TokensPerMinute: 10_000}})
	s.put("m", replicas("a")...)
	r := newRequest("m", "k")
	r.PromptBytes, r.MaxTokens = 20_000, 1000
	ticket := s.must(t, r)
	if !ticket.Measured() {
		t.Error("the tokens of a model with a limit are not counted")
	}
	ticket.Release()
	for range 3 {
		ticket.Correct(Response{Known: true, Prompt: 100, Completion: 100})
	}
	v, _ := s.View("m")
	if v.Tokens < 9800 || v.Tokens > 9900 {
		t.Errorf("%v tokens are left of 10,000 after a request that cost 200", v.Tokens)
	}
}

func TestCancelledSchedule(t *testing.T) {
	s := pooled(t, Rules{Default: Policy{Limits: admission.Limits{MaxConcurrent: 1}}})
	ask := TaskRequest{Tenant: "t", Model: "a", Tokens: 10}
	if _, _, fault := s.Schedule(t.Context(), ask); fault != nil {
		t.Fatal(fault)
	}
	ctx, leave := context.WithCancel(t.Context())
	leave()
	ask.MaxWait = time.Minute
	if _, _, fault := s.Schedule(ctx, ask); fault == nil || fault.HTTPStatus() != 499 {
		t.Errorf("the caller has left: %v", fault)
	}
}

func TestAModelWithoutReplicasIsAskedForOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		asked := make(chan string, 10)
		fleet := engines.NewFleet()
		s := stage{New(Config{Fleet: fleet, Admission: admission.New(admission.Config{}), Demand: func(model string) { asked <- model }}), fleet}
		s.SetRules(Rules{Default: Policy{ColdStart: time.Hour, Limits: admission.Limits{QueueTimeout: time.Second}}})
		model := engines.Part{Models: []engines.Model{{Name: "m", Launcher: engines.Local, MaxReplicas: 1}}}
		s.fleet.Set("test-m", model)
		s.rebuild()
		waiting := s.queue("m")
		if got := <-asked; got != "m" || len(asked) != 0 {
			t.Errorf("asked for %s, and %d more", got, len(asked))
		}
		time.Sleep(time.Minute) // longer than a queue's timeout: a start takes what it takes
		s.put("m", replicas("m-0")...)
		(<-waiting).Release()

		s.fleet.Set("test-m", model)
		s.SetRules(Rules{Default: Policy{ColdStart: time.Second}})
		if _, fault := s.Dispatch(t.Context(), newRequest("m", "k")); fault == nil || fault.Code != openai.CodeColdStartTimeout {
			t.Errorf("no replica came: %v", fault)
		}
		model.Replicas = []engines.Replica{{ID: "m-0", Model: "m", State: engines.Failed}}
		s.fleet.Set("test-m", model)
		s.SetRules(Rules{Default: Policy{ColdStart: time.Hour, Limits: admission.Limits{QueueTimeout: time.Second}}})
		began := time.Now()
		if _, fault := s.Dispatch(t.Context(), newRequest("m", "k")); fault == nil || time.Since(began) > time.Minute {
			t.Errorf("one that cannot start was waited for %v: %v", time.Since(began), fault)
		}
		s.fleet.Set("test-m", engines.Part{Models: []engines.Model{{Name: "m", Launcher: engines.Local}}})
		s.rebuild()
		if _, fault := s.Dispatch(t.Context(), newRequest("m", "k")); fault == nil || fault.Code != openai.CodeNoReplica {
			t.Errorf("none may come: %v", fault)
		}
	})
}

// A task that cannot be recorded is refused for a while. Before, its models did not exist.
func TestX5_ATaskThatCannotBeRecordedIsRefusedForAWhile(t *testing.T) {
	_, renewed := taskExists(fmt.Errorf("renew: %w", admission.ErrNotRecorded))
	for name, fault := range map[string]*openai.Error{
		"schedule": explainTask(t.Context(), admission.TaskRequest{Model: "a"}, fmt.Errorf("schedule: %w", admission.ErrNotRecorded)),
		"renew":    renewed,
	} {
		if fault == nil || fault.HTTPStatus() != 503 || fault.RetryAfter == 0 || !strings.Contains(fault.Message, "state directory") {
			t.Errorf("%s: %+v", name, fault)
		}
	}
	_, closed := taskExists(fmt.Errorf("%w: %w", admission.ErrNotRecorded, admission.ErrClosed))
	if closed == nil || closed.HTTPStatus() != 503 || closed.RetryAfter == 0 || !strings.Contains(closed.Message, "restarting") {
		t.Errorf("while the gateway is restarted: %+v", closed)
	}
}
