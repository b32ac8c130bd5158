package dispatch

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluice-gateway/sluice/admission"
	"github.com/sluice-gateway/sluice/internal/headers"
	"github.com/sluice-gateway/sluice/internal/openai"
	"github.com/sluice-gateway/sluice/internal/request"
	"github.com/sluice-gateway/sluice/internal/testutil"
)

// limited is a stage with the model m, whose tenant t has these limits.
func limited(l admission.TenantLimits) stage {
	s := newStage(Policy{Limits: admission.Limits{QueueTimeout: time.Second}})
	s.put("m", replicas("a")...)
	s.SetRules(Rules{Default: Policy{Limits: admission.Limits{QueueTimeout: time.Second}}, Tenants: map[string]admission.TenantLimits{"t": l}})
	return s
}

// schedule admits a task of the tenant t for the model m.
func (s stage) schedule(t *testing.T, tokens int) string {
	t.Helper()
	task, wait, fault := s.Schedule(t.Context(), TaskRequest{Tenant: "t", Model: "m", Tokens: tokens})
	if fault != nil || wait != 0 {
		t.Fatal(wait, fault)
	}
	return task.ID
}

// sized is a request of so many bytes of prompt and one token of output.
func sized(task string, bytes int) *Request {
	r := newRequest("m", "k")
	r.Task, r.PromptBytes, r.MaxTokens = task, bytes, 1
	return r
}

// serve sends a request and answers it with its estimate as usage. It reports whether it was
// admitted.
func (s stage) serve(t *testing.T, r *Request) bool {
	t.Helper()
	ticket, fault := s.Dispatch(t.Context(), r)
	if fault != nil {
		return false
	}
	_, tokens := ticket.Lease()
	ticket.Release()
	ticket.Correct(Response{Known: true, Prompt: int64(tokens), Bytes: 4})
	return true
}

func (s stage) left(tenant string) admission.Quota { return s.config.Admission.Tenant(tenant).Quota }

func TestX2_ATaskOfOneTokenPassesNoLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := limited(admission.TenantLimits{RequestsPerMinute: 3, TokensPerMinute: 2000})
		task := s.schedule(t, 1)
		passed := 0
		for range 20 {
			if s.serve(t, sized(task, 1600)) { // 401 tokens
				passed++
			}
		}
		if passed != 3 {
			t.Errorf("%d of 20 requests passed 3 requests and 2,000 tokens a minute", passed)
		}
		if s.serve(t, sized(task, 200_000)) {
			t.Error("a request of 50,000 tokens passed 2,000 tokens a minute")
		}
		if ok, fault := s.Complete(t.Context(), "t", task, 0); !ok || fault != nil {
			t.Error(ok, fault)
		}
		if got := s.left("t"); got.Tokens.Remaining != 2000-3*401 || got.Requests.Remaining != 0 {
			t.Errorf("after 3 × 401 tokens and a /complete of 0 are left: %+v", got)
		}
	})
}

func TestX2_AnAliasIsNoWayAroundLimits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStage(Policy{})
		s.put("m", replicas("a")...)
		s.SetRules(Rules{Default: Policy{Limits: admission.Limits{TokensPerMinute: 1000, QueueTimeout: time.Second}}})
		if !s.serve(t, sized("", 3200)) {
			t.Fatal("801 of 1,000 tokens were refused")
		}
		r := sized("", 3200)
		r.Model = "m-alias"
		if s.serve(t, r) {
			t.Error("the alias has tokens that its model has not")
		}
		task, _, fault := s.Schedule(t.Context(), TaskRequest{Tenant: "t", Model: "m-alias", Tokens: 800})
		if task.ID != "" || fault != nil {
			t.Error("a task for the alias has tokens that its model has not:", fault)
		}
	})
}

func TestX2_APoolIsNoWayAroundLimits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := pooled(t, Rules{Default: Policy{Limits: admission.Limits{TokensPerMinute: 1000, QueueTimeout: time.Second}},
			Tenants: map[string]admission.TenantLimits{"t": {TokensPerMinute: 2500, RequestsPerMinute: 4}}})
		sent := map[bool]int{}
		for range 3 {
			r := sized("", 3200)
			r.Model = "p"
			sent[s.serve(t, r)]++
		}
		if sent[true] != 2 {
			t.Errorf("%d requests of 801 tokens went to two models of 1,000 tokens a minute each", sent[true])
		}
		if got := s.left("t"); got.Tokens.Remaining != 2500-2*801 || got.Requests.Remaining != 2 {
			t.Errorf("left: %+v", got)
		}
	})
}

// The engine works for a request whose client leaves before the first byte, or lets its time run
// out.
func TestX2_AnAbandonedRequestKeepsItsEstimate(t *testing.T) {
	entry := func(status int, flags string) Response {
		e := request.Entry{Status: status, Flags: flags, Upstream: "127.0.0.1:9000", Model: "m", Details: "d"}
		return e.Response()
	}
	for name, test := range map[string]struct {
		response Response
		cost     int64
	}{
		"the client left":              {entry(0, "DC"), 1001},
		"the client's time was over":   {entry(408, "UT"), 1001},
		"the engine refused":           {entry(400, ""), 0},
		"the engine broke down":        {entry(503, "UC"), 0},
		"no engine was reached":        {entry(503, "UF"), 0},
		"a relayed call was abandoned": {Response{Failed: true, Abandoned: true}, 1001},
		"a relayed call failed":        {Response{Failed: true}, 0},
		"it left, and usage had come":  {Response{Abandoned: true, Failed: true, Known: true, Prompt: 20}, 20},
	} {
		synctest.Test(t, func(t *testing.T) {
			s := limited(admission.TenantLimits{TokensPerMinute: 10_000})
			ticket := s.must(t, sized("", 4000))
			ticket.Correct(test.response)
			ticket.Release()
			if cost := 10_000 - s.left("t").Tokens.Remaining; cost != test.cost {
				t.Errorf("%s: cost %d, want %d", name, cost, test.cost)
			}
		})
	}
}

func TestX2_UsageThatCannotBeTrueIsIgnored(t *testing.T) {
	for _, lie := range []Response{
		{Known: true, Prompt: -5000, Completion: 1}, {Known: true, Completion: -1, Prompt: 1}, {Known: true},
		{Known: true, Prompt: 1 << 62, Completion: 1 << 62},
	} {
		var l estimator
		q := l.estimate(&Request{Tenant: "t", PromptBytes: 4000})
		lie.Bytes, lie.Stream = 18_000, true
		if cost := l.correct(lie, q); cost != 1100 {
			t.Errorf("%+v cost %d, its bytes are worth 1,100", lie, cost)
		}
	}
}

// A client can teach the estimator what its own responses cost, so what it teaches is bounded.
func TestX2_WhatResponsesTeachIsBounded(t *testing.T) {
	var l estimator
	spaces := &Request{Tenant: "t", PromptBytes: 1 << 20}
	for range 1000 { // runs of spaces, and events full of probabilities
		l.correct(Response{Known: true, Prompt: 10, Completion: 10, Bytes: 1 << 20, Stream: true}, l.estimate(spaces))
	}
	if q := l.estimate(&Request{Tenant: "t", PromptBytes: 16_000}); q.tokens.prompt < 1000 {
		t.Errorf("16,000 bytes are taken for %d tokens", q.tokens.prompt)
	}
	if cost := l.cost(Response{Bytes: 72_000, Stream: true}, estimate{tokens: tokenCount{0, 1}}); cost < 100 {
		t.Errorf("72,000 bytes of events are taken for %d tokens", cost)
	}
}

// A caller that names the task of another tenant gets the same answer as for a task that does not
// exist.
func TestX2_ATaskOfAnotherTenantDoesNotExist(t *testing.T) {
	s := limited(admission.TenantLimits{})
	task := s.schedule(t, 1)
	running := s.must(t, sized(task, 4)) // so that it is busy
	defer running.Release()
	answers := map[string]bool{}
	for _, id := range []string{task, "tsk_nobodys"} {
		r := sized(id, 4)
		r.Tenant = "mallory"
		_, fault := s.Dispatch(t.Context(), r)
		ok, renewFault := false, (*openai.Error)(nil)
		_, ok, renewFault = s.Renew(t.Context(), "mallory", id)
		done, doneFault := s.Complete(t.Context(), "mallory", id, 0)
		answers[fmt.Sprint(fault, fault.HTTPStatus(), ok, renewFault, done, doneFault)] = true
	}
	if len(answers) != 1 {
		t.Errorf("two answers: %v", answers)
	}
	if ok, _ := s.Complete(t.Context(), "t", task, 1); !ok {
		t.Error("its owner does not find it any more")
	}
	if _, fault := s.Dispatch(t.Context(), sized(task, 4)); fault == nil || fault.Param != headers.TaskID {
		t.Errorf("a request under a completed task: %v", fault)
	}
}

func TestX2_RenewalsEndWithTheLifetime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStage(Policy{})
		s.put("m", replicas("a")...)
		s.SetRules(Rules{TaskLease: time.Minute, TaskLifetime: 100 * time.Second})
		task := s.schedule(t, 1)
		time.Sleep(50 * time.Second)
		if lease, ok, _ := s.Renew(t.Context(), "t", task); !ok || lease != 50*time.Second {
			t.Errorf("renewed for %v, its lifetime has 50 s left", lease)
		}
		time.Sleep(49 * time.Second)
		if ticket, fault := s.Dispatch(t.Context(), sized(task, 4)); fault != nil {
			t.Error(fault)
		} else {
			ticket.Release()
		}
		time.Sleep(time.Second)
		synctest.Wait()
		if _, ok, _ := s.Renew(t.Context(), "t", task); ok {
			t.Error("renewed after its lifetime")
		}
		if v, _ := s.View("m"); v.InFlight != 0 {
			t.Errorf("%d in flight", v.InFlight)
		}
	})
}

// What ran before a restart is charged when Envoy's access log tells what it was.
func TestX19_RecoveredRequestsAreCharged(t *testing.T) {
	s := limited(admission.TenantLimits{TokensPerMinute: 100_000})
	at := "127.0.0.1:9000"
	s.Recover(map[Location]int{{Model: "m", Address: at}: 1})
	entry := request.Entry{Log: headers.LogRequests, Model: "m", Upstream: at, RequestID: "1", Status: 200, BytesIn: 4000,
		Metadata: map[string]string{headers.MetadataTenant: "t", headers.MetadataTokens: "500"}}
	entry.Usage = request.Usage{Known: true, Prompt: 3000, Completion: 4000}
	s.ObserveRecovered(&entry)
	if left := s.left("t").Tokens.Remaining; left < 93_000 || left > 93_100 {
		t.Errorf("%d tokens are left of 100,000 after a request of 7,000", left)
	}
	entry.RequestID, entry.Usage, entry.BytesOut, entry.Streamed = "2", request.Usage{}, 180_000, true
	s.ObserveRecovered(&entry) // it was never counted
	if left := s.left("t").Tokens.Remaining; left < 90_900 || left > 91_200 {
		t.Errorf("%d tokens are left after a stream of 1,000 events to a prompt of 1,000", left)
	}
	if counted, unlocated := s.RecoveredCount(); counted+unlocated != 0 {
		t.Errorf("%d and %d are still counted", counted, unlocated)
	}
	if v, _ := s.View("m"); v.InFlight != 0 || v.Loads["a"] != 0 {
		t.Errorf("%+v", v)
	}
}

// TestX2_ARecoveredUsageThatCannotBeTrueIsNotCharged: an engine that tells more tokens than can be
// closes nobody's bucket after a restart either.
func TestX2_ARecoveredUsageThatCannotBeTrueIsNotCharged(t *testing.T) {
	for _, told := range []request.Usage{{Known: true, Prompt: 10, Completion: 1 << 31}, {Known: true, Prompt: 1 << 31, Completion: 10}} {
		s := limited(admission.TenantLimits{TokensPerMinute: 100_000})
		entry := request.Entry{Log: headers.LogRequests, Model: "m", Upstream: "127.0.0.1:9000", RequestID: "1", Status: 200, BytesIn: 4000,
			BytesOut: 400, Path: "/v1/chat/completions", Duration: time.Minute, Usage: told,
			Metadata: map[string]string{headers.MetadataTenant: "t"}}
		cost := s.CostOfRecovered(&entry)
		if !cost.Doubted || cost.Usage.Known || cost.Usage.Prompt != 1000 || cost.Usage.Completion != 100 {
			t.Errorf("%+v of %+v", cost, told)
		}
		s.ObserveRecovered(&entry)
		if left := s.left("t").Tokens.Remaining; left < 98_900 || left > 99_000 {
			t.Errorf("%+v: %d tokens are left of 100,000 after a request of 1,100", told, left)
		}
	}
}

// The buckets of a new process have not charged what an earlier process carries, so its real cost
// is charged in full.
func TestX19_CarriedRequestsAreCharged(t *testing.T) {
	s := limited(admission.TenantLimits{TokensPerMinute: 10_000})
	carried := s.Carry(HeldRequest{Model: "m", Replica: "a", Tenant: "t"})
	ticket := s.must(t, sized("", 4*8999)) // 9,000 tokens
	defer ticket.Release()
	carried.Correct(100)
	carried.Release()
	if left := s.left("t").Tokens.Remaining; left < 900 || left > 910 {
		t.Errorf("%d of 10,000 tokens are left after requests of 9,000 and 100", left)
	}
}

// TestX20_ACarriedRequestCountsOnce: Envoy's log may tell a new process of a request that an
// earlier process carries, while it runs and when it has ended.
func TestX20_ACarriedRequestCountsOnce(t *testing.T) {
	s := limited(admission.TenantLimits{MaxConcurrent: 2, TokensPerMinute: 10_000})
	carried := s.Carry(HeldRequest{Model: "m", Replica: "a", Tenant: "t"})
	entry := request.Entry{Log: headers.LogRequests, Interim: true, Model: "m", Upstream: "127.0.0.1:9000", RequestID: "1",
		Metadata: map[string]string{headers.MetadataTenant: "t"}}
	for range 2 {
		s.ObserveRecovered(&entry)
	}
	if v, _ := s.View("m"); v.InFlight != 1 || v.Loads["a"] != 1 {
		t.Errorf("while it runs: %+v", v)
	}
	s.must(t, newRequest("m", "k")).Release()
	entry.Interim, entry.Status, entry.Usage = false, 200, request.Usage{Known: true, Prompt: 3000, Completion: 4000}
	s.ObserveRecovered(&entry)
	carried.Release()
	if v, _ := s.View("m"); v.InFlight != 0 || v.Loads["a"] != 0 {
		t.Errorf("when it has ended: %+v", v)
	}
	if left := s.left("t").Tokens.Remaining; left > 3000 {
		t.Errorf("%d of 10,000 tokens are left after a request of 7,000", left)
	}
}

// A request that could not be counted at the start is counted as soon as the access log tells of
// it.
func TestX19_UncountedRequestsAreCountedWhenTheLogTells(t *testing.T) {
	s := limited(admission.TenantLimits{MaxConcurrent: 1})
	entry := request.Entry{Log: headers.LogRequests, Interim: true, Model: "m", Upstream: "127.0.0.1:9000", RequestID: "1",
		Metadata: map[string]string{headers.MetadataTenant: "t"}}
	s.Recover(nil) // Envoy did not answer
	for range 3 {
		s.ObserveRecovered(&entry)
	}
	if v, _ := s.View("m"); v.InFlight != 1 || v.Loads["a"] != 1 {
		t.Errorf("%+v", v)
	}
	if _, fault := s.Dispatch(t.Context(), newRequest("m", "k")); fault == nil || fault.Code != openai.CodeRateLimited {
		t.Errorf("a second request of a tenant that may have one: %v", fault)
	}
	entry.Interim, entry.Status = false, 200
	s.ObserveRecovered(&entry)
	ticket := s.must(t, newRequest("m", "k"))
	ticket.Release()
}

// A model whose limits are not known yet counts its recovered requests all the same.
func TestX19_NoRecoveredRequestIsForgotten(t *testing.T) {
	c := admission.New(admission.Config{})
	lease := c.RecoverRequest(admission.RecoveredRequest{Model: "later"})
	c.SetLimits("later", admission.Limits{MaxConcurrent: 1})
	if n := c.Stats("later").InFlight; n != 1 {
		t.Errorf("%d in flight", n)
	}
	lease.Release()
	if n := c.Stats("later").InFlight; n != 0 {
		t.Errorf("%d in flight", n)
	}
}

func TestX2_ImagesAreNotFree(t *testing.T) {
	var l estimator
	r := &Request{Tenant: "t", PromptBytes: 400, MediaParts: 10}
	if q := l.estimate(r); q.tokens.prompt < 5000 {
		t.Errorf("ten images are taken for %d tokens", q.tokens.prompt)
	}
	for range 1000 {
		l.correct(Response{Known: true, Prompt: 50_000, Completion: 1}, l.estimate(r))
	}
	if q := l.estimate(&Request{Tenant: "t", PromptBytes: 400}); q.tokens.prompt != 100 {
		t.Errorf("images have taught that 400 bytes of text are %d tokens", q.tokens.prompt)
	}
}

// TestX2_ResponsesInTheBackgroundCostTheirEstimate: the answer to a request for a response in the
// background tells its id alone. Its bytes say nothing of the response.
func TestX2_ResponsesInTheBackgroundCostTheirEstimate(t *testing.T) {
	t.Parallel()
	var e estimator
	usual := e.estimate(&Request{Tenant: "a", PromptBytes: 400})
	for range 50 { // answers of 3,000 tokens are usual
		e.correct(Response{Bytes: 12_000, Known: true, Prompt: 100, Completion: 3000}, usual)
	}
	want := e.estimate(&Request{Tenant: "a", PromptBytes: 400}).tokens
	asked := &Request{Tenant: "a", PromptBytes: 400, Background: true}
	q, queued := e.estimate(asked), Response{Bytes: 900}
	if got := e.correct(queued, q); got != want.total() || want.output < 2000 {
		t.Errorf("a response that is not there yet costs %d tokens, want %+v", got, want)
	}
	if c := e.costOf(queued, q); c.Usage.Completion != int64(want.output) || c.Finish != "" {
		t.Errorf("the ledger has %+v", c)
	}
	if now := e.estimate(asked).tokens; now != want {
		t.Errorf("it has taught that answers have %+v tokens, not %+v", now, want)
	}
	if got := e.correct(Response{Bytes: 9000, Known: true, Prompt: 100, Completion: 2000}, q); got != 2100 {
		t.Errorf("with a usage it costs %d tokens", got)
	}
	if got := e.correct(Response{Stream: true, Bytes: 90_000, Completion: 5000}, q); got != want.prompt+5000 {
		t.Errorf("a stream of 5,000 events costs %d tokens", got)
	}
	if got := e.correct(Response{Failed: true}, q); got != 0 {
		t.Errorf("a refused one costs %d tokens", got)
	}
}

// TestX2_ACountOfOneAnswerIsNotThatOfAll: llama.cpp tells the usage of one answer alone when a
// request asks for several, so their size tells what they have cost. Other engines count all.
func TestX2_ACountOfOneAnswerIsNotThatOfAll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, c := range []struct {
			engine         string
			answers, bound int
			partial        bool
			least, most    int64
		}{
			{"llama-cpp", 20, 0, true, 1000, 10_000}, {"llama-cpp", 20, 10, true, 300, 300},
			{"llama-cpp", 1, 0, false, 55, 55}, {"vllm", 20, 0, false, 55, 55}, {"", 20, 0, false, 55, 55},
		} {
			s := limited(admission.TenantLimits{TokensPerMinute: 1_000_000})
			s.SetEngineNews("a", EngineNews{Engine: c.engine})
			r := newRequest("m", "k")
			r.PromptBytes, r.Choices, r.MaxTokens = 400, c.answers, c.bound
			ticket := s.must(t, r)
			ticket.Release()
			cost := ticket.Correct(Response{Known: true, Prompt: 5, Completion: 50, Bytes: 20_000})
			charged := 1_000_000 - s.left("t").Tokens.Remaining
			if cost.Partial != c.partial || cost.Usage.Known == c.partial || charged < c.least || charged > c.most {
				t.Errorf("%d answers of %q, each of at most %d tokens: %+v, %d tokens were charged", c.answers, c.engine, c.bound, cost, charged)
			}
		}
	})
}

// TestX2_TheUsageOfAResponseInTheBackgroundIsChargedOnce: an engine may tell the usage before or
// after the request has ended, and before or after the id of the response is known.
func TestX2_TheUsageOfAResponseInTheBackgroundIsChargedOnce(t *testing.T) {
	const learn, correct, known, tell = "learn", "correct", "known", "tell"
	for _, steps := range [][]string{
		{learn, correct, tell, tell, learn, tell}, {correct, learn, tell}, {learn, tell, correct}, {learn, tell, known},
	} {
		synctest.Test(t, func(t *testing.T) {
			s := limited(admission.TenantLimits{TokensPerMinute: 100_000})
			r := sized("", 400)
			r.Background, r.Endpoint = true, openai.Responses
			ticket := s.must(t, r)
			ticket.Release()
			for _, step := range steps {
				switch step {
				case learn:
					ticket.LearnResponse("resp_1")
				case correct:
					ticket.Correct(Response{Bytes: 900})
				case known:
					ticket.Correct(Response{Known: true, Prompt: 1000, Completion: 30_000})
				case tell:
					s.TellUsage(r.Tenant, "resp_1", request.UsageOf(1000, 30_000, 0))
				}
			}
			if left := s.left("t").Tokens.Remaining; left != 69_000 || s.AwaitsUsage(r.Tenant, "resp_1") {
				t.Errorf("%q: %d tokens are left; the usage is awaited: %v", steps, left, s.AwaitsUsage(r.Tenant, "resp_1"))
			}
		})
	}
}

// TestX2_TheUsageOfARefusedResponseIsNotAwaited: a request that the engine refuses costs nothing,
// whatever is told of its response.
func TestX2_TheUsageOfARefusedResponseIsNotAwaited(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := limited(admission.TenantLimits{TokensPerMinute: 100_000})
		r := sized("", 400)
		r.Background, r.Endpoint = true, openai.Responses
		ticket := s.must(t, r)
		ticket.LearnResponse("resp_1")
		ticket.Release()
		ticket.Correct(Response{Failed: true})
		s.TellUsage(r.Tenant, "resp_1", request.UsageOf(1000, 30_000, 0))
		if left := s.left("t").Tokens.Remaining; left != 100_000 || s.AwaitsUsage(r.Tenant, "resp_1") {
			t.Errorf("%d tokens are left; the usage is awaited: %v", left, s.AwaitsUsage(r.Tenant, "resp_1"))
		}
	})
}

// TestX2_TheUsageOfManyResponsesIsAwaited: of more responses than are kept, the latest are. Each
// one is charged once.
func TestX2_TheUsageOfManyResponsesIsAwaited(t *testing.T) {
	t.Parallel()
	var l lateCharges
	id := func(n int) sessionID { return sessionID{key: uint64(n + 1), owner: 1} }
	first, second := new(lateCharge), new(lateCharge)
	l.add(sessionID{}, new(lateCharge)) // its id is not known yet
	l.add(id(0), nil)
	l.add(id(0), first)
	l.add(id(1), second)
	for n := 2; n < maxLateCharges/2+1; n++ {
		l.add(id(n), new(lateCharge))
	}
	if len(l.recent) != 1 || !l.has(id(0)) || !l.has(id(maxLateCharges/2)) || l.has(id(maxLateCharges)) {
		t.Errorf("%d recent ones", len(l.recent))
	}
	if got, again := l.take(id(0)), l.take(id(0)); got != first || again != nil || l.has(id(0)) {
		t.Errorf("the first one is taken as %p, then as %p", got, again)
	}
	if l.add(id(0), first); l.has(id(0)) {
		t.Error("it is awaited again when its id is told again")
	}
	for n := range maxLateCharges {
		l.add(id(maxLateCharges+n), new(lateCharge))
	}
	if got := l.take(id(1)); got != nil || len(l.recent)+len(l.earlier) > maxLateCharges {
		t.Errorf("%d are kept, with the oldest: %v", len(l.recent)+len(l.earlier), got != nil)
	}
}

// TestX2_AUsageThatCannotBeTrueIsNotCharged: an engine that tells more tokens than can be closes
// nobody's bucket. What it has sent is estimated from its size.
func TestX2_AUsageThatCannotBeTrueIsNotCharged(t *testing.T) {
	for _, c := range []struct {
		told    Response
		charged int
	}{
		{Response{Bytes: 900, Known: true, Prompt: 100, Completion: 1 << 31}, 325},
		{Response{Bytes: 900, Known: true, Prompt: 1 << 31, Completion: 5}, 325},
		{Response{Bytes: 900, Known: true, Prompt: 100, Completion: firstCompletion + 1}, 325},
		{Response{Bytes: 900, Known: true, Prompt: 5000, Completion: firstCompletion}, 5000 + firstCompletion},
	} {
		synctest.Test(t, func(t *testing.T) {
			s := limited(admission.TenantLimits{TokensPerMinute: 1_000_000})
			var doubts int
			s.Dispatcher.config.Doubted = func(model, replica string, prompt, completion int64) {
				doubts++
				if model != "m" || replica != "a" || prompt != c.told.Prompt || completion != c.told.Completion {
					t.Errorf("told of %s, %s, %d, %d", model, replica, prompt, completion)
				}
			}
			for n := range 2 {
				r := sized("", 400)
				r.MaxTokens = 1000
				ticket := s.must(t, r)
				cost := ticket.Correct(c.told)
				ticket.Release()
				charged := 1_000_000 - int(s.left("t").Tokens.Remaining)
				known := cost.Usage.Known
				if n == 0 && charged != c.charged || known != (c.charged > 1000) || cost.Doubted == known {
					t.Errorf("%+v: %d tokens are charged, want %d; %+v", c.told, charged, c.charged, cost)
				}
			}
			if want := 1; c.charged < 1000 && doubts != want {
				t.Errorf("%+v: told of %d times", c.told, doubts)
			}
		})
	}
}

// TestX2_DoubtsAreToldWhileTheClockIsSet: a usage that cannot be true is told again after a minute
// of running time.
func TestX2_DoubtsAreToldWhileTheClockIsSet(t *testing.T) {
	for _, by := range []time.Duration{-48 * time.Hour, 48 * time.Hour} {
		told, at, now := 0, &replica{counter: new(counter)}, time.Now()
		d := &Dispatcher{config: Config{Doubted: func(string, string, int64, int64) { told++ }}}
		for _, c := range []struct {
			now  time.Time
			told int
		}{{now, 1}, {testutil.WithClockSet(now.Add(doubtInterval-time.Second), by), 1}, {testutil.WithClockSet(now.Add(doubtInterval), by), 2}} {
			if d.doubt("m", at, Response{}, c.now); told != c.told {
				t.Errorf("clock set by %v: after %v told of %d times, want %d", by, c.now.Sub(now), told, c.told)
			}
		}
	}
}

// TestX2_ThePromptsOfAllTurnsAreCharged: an engine that calls tools itself tells the sum of the
// prompts of its turns.
func TestX2_ThePromptsOfAllTurnsAreCharged(t *testing.T) {
	for endpoint, believed := range map[openai.Endpoint]bool{openai.Responses: true, openai.Messages: true, openai.Chat: false} {
		s := limited(admission.TenantLimits{TokensPerMinute: 10_000_000})
		r := sized("", 400)
		r.Endpoint = endpoint
		ticket := s.must(t, r)
		ticket.Release()
		if cost := ticket.Correct(Response{Known: true, Prompt: 3_000_000, Completion: 20_000}); cost.Doubted == believed {
			t.Errorf("%v: %+v", endpoint, cost)
		}
	}
}
