package dispatch

import (
	"fmt"
	"slices"
	"testing"

	"github.com/sluice-gateway/sluice/engines"
	"github.com/sluice-gateway/sluice/internal/openai"
)

// A request that continues a response goes to its replica with every strategy, also when another
// gateway has told of the response. The holder of a response is known to its tenant alone.
func TestR7_PreviousResponseWithEveryStrategy(t *testing.T) {
	for _, strategy := range Strategies() {
		s := newStage(Policy{Strategy: strategy, LoadFloor: 8})
		s.put("m", eight()...)
		make := func(id string) *Request {
			return scanned(t, openai.Responses, map[string]any{"model": "m", "input": "and now?", "previous_response_id": id})
		}
		homes := map[string]int{}
		for n := range 8 {
			first := s.must(t, scanned(t, openai.Responses, map[string]any{"model": "m", "input": words(fmt.Sprint("topic", n), 100)}))
			home, id := first.Replica(), fmt.Sprint("resp_", n)
			homes[home]++
			first.LearnResponse(id)
			first.Release()
			for range 3 {
				if at := s.answer(t, make(id)); at != home {
					t.Errorf("%s: the next request went to %s, not to %s", strategy, at, home)
				}
			}
			tenant := make(id).Tenant
			if model, holder, ok := s.Holder(tenant, id); !ok || model != "m" || holder.ID != home || holder.Address == "" {
				t.Errorf("%s: the holder is %s %+v", strategy, model, holder)
			}
			if _, _, ok := s.Holder("stranger", id); ok {
				t.Errorf("%s: another tenant is told of the holder", strategy)
			}
			foreign := make(id)
			foreign.Tenant = "stranger"
			if _, _, fault := s.Begin(t.Context(), foreign); fault == nil || fault.Code != openai.CodeResponseNotFound {
				t.Errorf("%s: another tenant continues the response: %v", strategy, fault)
			}
		}
		if len(homes) < 2 {
			t.Errorf("%s: all responses are at one replica, so this test shows nothing", strategy)
		}
		told := make("resp_told")
		response := responseOf(told.Tenant, told.Previous)
		s.Place(Placement{Model: "m", Replica: "b", Session: response.key, Owner: response.owner})
		if at := s.answer(t, told); at != "b" {
			t.Errorf("%s: a response of which another gateway has told was looked for at %s", strategy, at)
		}
	}
}

// TestR7_APinnedRequestHasOneReplica: a request that continues a response goes to no other replica
// than the one which has the response. Envoy may repeat it there after a broken connection.
func TestR7_APinnedRequestHasOneReplica(t *testing.T) {
	for _, strategy := range Strategies() {
		s := newStage(Policy{Strategy: strategy, LoadFloor: 8})
		s.put("m", replicas("a", "b", "c")...)
		home := s.respond(t, "acme", "resp_1")
		ticket := s.must(t, responseRequest("acme", "resp_1"))
		address := ticket.Upstreams()[0].Address
		if ticket.Replica() != home || ticket.HasFallback() || len(ticket.Upstreams()) != 1 || ticket.Retries() != 1 ||
			ticket.Endpoints() != address+","+address {
			t.Errorf("%s: %s may go to %s, with %d retries, not only to %s", strategy, ticket.Replica(), ticket.Endpoints(), ticket.Retries(), home)
		}
		ticket.Release()
		s.put("m", slices.DeleteFunc(replicas("a", "b", "c"), func(r engines.Replica) bool { return r.ID == home })...)
		ticket = s.must(t, responseRequest("acme", "resp_1"))
		if ticket.Replica() == home || !ticket.HasFallback() || len(ticket.Upstreams()) != 2 {
			t.Errorf("%s: %s is gone, and the request may go to %s", strategy, home, ticket.Endpoints())
		}
		ticket.Release()
	}
}

// TestR7_AReplicaWithoutNewRequestsKeepsItsResponses: a client may still read a response at a
// replica that an operator has drained, that is scaled down, or that does not answer for now. A
// replica that is started again has lost its responses.
func TestR7_AReplicaWithoutNewRequestsKeepsItsResponses(t *testing.T) {
	t.Parallel()
	s := newStage(Policy{})
	s.put("m", replicas("a", "b")...)
	home := s.respond(t, "acme", "resp_1")
	check := func(when string, want bool) {
		t.Helper()
		if model, u, ok := s.Holder("acme", "resp_1"); ok != want || ok && (model != "m" || u.ID != home || u.Address == "") {
			t.Errorf("%s: %v, %s %+v", when, ok, model, u)
		}
		if _, _, ok := s.Holder("stranger", "resp_1"); ok {
			t.Errorf("%s: another tenant is told of the holder", when)
		}
	}
	s.DrainReplica(home, true)
	check("drained", true)
	s.DrainReplica(home, false)
	for _, c := range []struct {
		state    engines.State
		launcher engines.Launcher
		want     bool
	}{
		{engines.Draining, engines.Local, true}, {engines.Failed, engines.Upstream, true}, {engines.Ready, engines.Local, true},
		{engines.Failed, engines.Local, false}, {engines.Starting, engines.Local, false},
	} {
		list := replicas("a", "b")
		for i := range list {
			if list[i].ID == home {
				list[i].State, list[i].Launcher = c.state, c.launcher
			}
		}
		s.put("m", list...)
		check(string(c.state)+" "+string(c.launcher), c.want)
	}
}
