package dispatch

import (
	"fmt"
	"testing"
	"time"

	"github.com/sluice-gateway/sluice/internal/openai"
	"github.com/sluice-gateway/sluice/internal/testutil"
)

// responseRequest is a request of /v1/responses that continues this response. The empty id is none.
func responseRequest(tenant, previous string) *Request {
	r := newRequest("m", "k")
	r.Tenant, r.Endpoint = tenant, openai.Responses
	if previous != "" {
		r.Previous = openai.ResponseSession(previous)
	}
	return r
}

// respond has a tenant get a response with this id.
func (s *stage) respond(t *testing.T, tenant, id string) (replica string) {
	t.Helper()
	ticket := s.must(t, responseRequest(tenant, ""))
	defer ticket.Release()
	ticket.LearnResponse(id)
	return ticket.Replica()
}

// TestR7_ATenantContinuesEachOfItsResponses: no response of a tenant is taken for that of another
// one, and none is forgotten as long as the table may grow.
func TestR7_ATenantContinuesEachOfItsResponses(t *testing.T) {
	const n = 4000
	s := newStage(Policy{})
	s.put("m", replicas("a")...)
	id := func(i int) string { return fmt.Sprintf("resp_%08x", i) }
	for i := range n {
		s.respond(t, "acme", id(i))
	}
	refused, let, lost := 0, 0, 0
	for i := range n {
		if ticket, fault := s.Dispatch(t.Context(), responseRequest("acme", id(i))); fault != nil {
			refused++
		} else {
			ticket.Release()
		}
		if ticket, fault := s.Dispatch(t.Context(), responseRequest("stranger", id(i))); fault == nil {
			let++
			ticket.Release()
		}
		if _, _, ok := s.Holder("acme", id(i)); !ok {
			lost++
		}
	}
	if refused+let+lost > 0 {
		t.Errorf("of %d responses, %d were refused to their tenant, %d were let to a stranger, %d have no holder", n, refused, let, lost)
	}
}

// TestR7_AResponseThatIsForgottenIsForTheEngine: a full table forgets a response altogether, so
// that its tenant is never refused.
func TestR7_AResponseThatIsForgottenIsForTheEngine(t *testing.T) {
	const n = 2 * maxEntries
	s := newStage(Policy{})
	s.put("m", replicas("a")...)
	table, r := &s.table.Load().routes["m"].estimator.sessions, &s.table.Load().routes["m"].replicas[0]
	id := func(i int) sessionID { return responseOf("acme", openai.ResponseSession(fmt.Sprint(i))) }
	for i := range n {
		table.put(id(i), r.counter, 0, time.Now())
	}
	if len(table.entries) != maxEntries {
		t.Errorf("the table has %d entries, want %d", len(table.entries), maxEntries)
	}
	known, now := 0, time.Now()
	for i := range n {
		if s.table.Load().continuesOther(responseRequest("acme", fmt.Sprint(i)), now) {
			t.Fatalf("response %d is refused to its tenant", i)
		}
		if _, ok := table.find(id(i), now); ok {
			known++
		}
	}
	if known < maxEntries*9/10 || known > maxEntries {
		t.Errorf("%d of %d responses are known", known, n)
	}
}

// TestR7_AHalfFullTableForgetsFewResponses: 30,000 responses in an hour are nearly all known.
func TestR7_AHalfFullTableForgetsFewResponses(t *testing.T) {
	t.Parallel()
	const n = 30_000
	s := newStage(Policy{})
	s.put("m", replicas("a")...)
	table, r := &s.table.Load().routes["m"].estimator.sessions, &s.table.Load().routes["m"].replicas[0]
	now, forgotten := time.Now(), 0
	id := func(i int) sessionID { return responseOf("acme", openai.ResponseSession(fmt.Sprint(i))) }
	for i := range n {
		table.put(id(i), r.counter, 0, now.Add(time.Duration(i)*time.Millisecond))
	}
	for i := range n {
		if _, ok := table.find(id(i), now.Add(time.Minute)); !ok {
			forgotten++
		}
	}
	if forgotten > n/100 {
		t.Errorf("%d of %d responses are forgotten, want 1 %% at most", forgotten, n)
	}
}

// TestR7_TwoTenantsWithOneResponseID: engines may give two tenants responses of one id, each at its
// own replica. Each tenant continues its own.
func TestR7_TwoTenantsWithOneResponseID(t *testing.T) {
	s := newStage(Policy{Strategy: RoundRobin})
	s.put("m", replicas("a", "b")...)
	homes := map[string]string{"acme": s.respond(t, "acme", "resp_1"), "other": s.respond(t, "other", "resp_1")}
	if homes["acme"] == homes["other"] {
		t.Fatal("both responses are at one replica, so this test shows nothing")
	}
	for tenant, home := range homes {
		for range 2 {
			if at := s.answer(t, responseRequest(tenant, "resp_1")); at != home {
				t.Errorf("%s goes to %s, not to %s", tenant, at, home)
			}
		}
	}
	if _, fault := s.Dispatch(t.Context(), responseRequest("stranger", "resp_1")); fault == nil || fault.Code != openai.CodeResponseNotFound {
		t.Errorf("a stranger continues the response: %v", fault)
	}
}

// TestR7_AResponseStaysWithItsReplica: a request that continues a response of a replica that is
// gone goes elsewhere, and the response has no holder then.
func TestR7_AResponseStaysWithItsReplica(t *testing.T) {
	s := newStage(Policy{})
	s.put("m", replicas("a", "b")...)
	gone := s.respond(t, "acme", "resp_1")
	left := map[string]string{"a": "b", "b": "a"}[gone]
	s.put("m", replicas(left)...)
	if at := s.answer(t, responseRequest("acme", "resp_1")); at != left {
		t.Errorf("the request goes to %s", at)
	}
	if _, holder, ok := s.Holder("acme", "resp_1"); ok {
		t.Errorf("%s holds the response of %s", holder.ID, gone)
	}
}

// BenchmarkSession is one look-up and one update in a table of 30,000 sessions.
func BenchmarkSession(b *testing.B) {
	const n = 30_000
	var table sessionTable
	c, now := new(counter), time.Now()
	ids := make([]sessionID, n)
	for i := range ids {
		ids[i] = responseOf("acme", openai.ResponseSession(fmt.Sprint(i)))
		table.put(ids[i], c, 0, now)
	}
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		id := ids[i%n]
		table.find(id, now)
		table.put(id, c, 0, now)
	}
}

// TestR7_APoolContinuesAResponseAtItsModel: a request to a pool that continues a response goes to
// the model whose replica has the response, and waits for a slot there. Without that replica it
// goes to any model of the pool.
func TestR7_APoolContinuesAResponseAtItsModel(t *testing.T) {
	t.Parallel()
	s := pooled(t, Rules{Default: Policy{MaxPerReplica: 1}})
	request := func(previous string) *Request {
		r := responseRequest("acme", previous)
		r.Model = "p"
		return r
	}
	for i := range 20 {
		id := fmt.Sprint("resp_", i)
		first := s.must(t, request(""))
		first.LearnResponse(id)
		ticket, wait, fault := s.Begin(t.Context(), request(id))
		if fault != nil {
			t.Fatal(fault)
		}
		if ticket != nil {
			t.Errorf("%s of %s was continued at %s, which does not have it", id, first.Model, ticket.Model)
			ticket.Release()
			first.Release()
			continue
		}
		first.Release()
		if ticket, fault = wait.Await(t.Context()); fault != nil || ticket.Model != first.Model {
			t.Fatalf("%s of %s was continued at %+v: %v", id, first.Model, ticket, fault)
		}
		ticket.Release()
	}
	first := s.must(t, request(""))
	first.LearnResponse("resp_gone")
	first.Release()
	s.put(first.Model, replicas("another")...)
	ticket := s.must(t, request("resp_gone"))
	other := s.must(t, request("resp_gone"))
	if ticket.Model == other.Model {
		t.Errorf("without the replica both went to %s", ticket.Model)
	}
	ticket.Release()
	other.Release()
}

// Sessions are kept for an hour of running time, also when the clock of the machine is set
// meanwhile.
func TestR7_SessionsOutliveAClockThatIsSet(t *testing.T) {
	t.Parallel()
	now := time.Now()
	for _, by := range []time.Duration{48 * time.Hour, -48 * time.Hour} {
		if step := testutil.WithClockSet(now, by).Round(0).Sub(now.Round(0)); step != by {
			t.Fatalf("the clock is set by %v, want %v", step, by)
		}
		var p sessionTable
		id := responseOf("acme", "resp_1")
		p.put(id, new(counter), 1, now)
		if _, ok := p.find(id, testutil.WithClockSet(now.Add(sessionTTL-time.Minute), by)); !ok {
			t.Errorf("clock set by %v: the session is forgotten", by)
		}
		if n := len(p.responses(time.Time{}, testutil.WithClockSet(now, by))); n != 1 {
			t.Errorf("clock set by %v: %d responses are told", by, n)
		}
		if _, ok := p.find(id, testutil.WithClockSet(now.Add(3*sessionTTL), by)); ok {
			t.Errorf("clock set by %v: the session is kept for ever", by)
		}
	}
}
