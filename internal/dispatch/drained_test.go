package dispatch

import (
	"fmt"
	"testing"
	"testing/synctest"

	"github.com/sluice-gateway/sluice/internal/openai"
)

// What an operator drains gets no new requests, in all places that pick, until it is put back.
func TestO8_Drained(t *testing.T) {
	t.Parallel()
	s := pooled(t, Rules{})
	refused := func(model string) bool {
		ticket, fault := s.Dispatch(t.Context(), newRequest(model, "k"))
		if fault == nil {
			ticket.Release()
		} else if fault.Code != openai.CodeNoReplica {
			t.Errorf("%s: %v", model, fault)
		}
		return fault != nil
	}
	taskRefused := func(r TaskRequest) bool {
		_, fault := s.table.Load().taskRequest(r)
		return fault != nil
	}
	s.DrainModel("a", true)
	if !refused("a") || !refused("a-alias") || refused("b") {
		t.Error("a is drained, and b is not")
	}
	for range 10 {
		if ticket := s.must(t, newRequest("p", "k")); ticket.Model != "b" {
			t.Error("the pool gave a request to its drained model")
		}
	}
	if !taskRefused(TaskRequest{Model: "a"}) || taskRefused(TaskRequest{Model: "b"}) || taskRefused(TaskRequest{}) {
		t.Error("tasks are for b alone")
	}
	s.DrainModel("b", true)
	if !refused("p") || !taskRefused(TaskRequest{}) {
		t.Error("the pool has only drained models")
	}
	s.DrainModel("a", false)
	s.DrainModel("b", false)
	if models, _ := s.Drained(); models != nil || refused("a") || refused("p") {
		t.Error("nothing is drained any more:", models)
	}
	s.put("m", launched("x", "y")...)
	s.DrainReplica("x", true)
	s.expectCandidates(t, "x is drained", "y")
	s.put("m", launched("x", "y", "z")...)
	s.DrainReplica("y", true)
	s.expectCandidates(t, "y is drained too", "z")
	s.DrainReplica("y", false)
	s.expectCandidates(t, "y is back", "y", "z")
}

// A drained replica that is away while another one is drained is still drained when it comes back.
func TestO8_AnAbsentReplicaStaysDrained(t *testing.T) {
	t.Parallel()
	s := newStage(Policy{})
	s.put("m", launched("x", "y", "z")...)
	s.DrainReplica("x", true)
	s.put("m", launched("y", "z")...)
	s.DrainReplica("y", true)
	s.put("m", launched("x", "y", "z")...)
	s.expectCandidates(t, "x is back", "z")
}

// Drains of replicas that have ended do not add up for ever.
func TestO8_DrainsOfAbsentReplicasAreBounded(t *testing.T) {
	t.Parallel()
	s := newStage(Policy{})
	s.put("m", launched("x", "y")...)
	s.DrainReplica("x", true)
	for i := range mostDrained {
		s.DrainReplica(fmt.Sprintf("gone-%d", i), true)
	}
	if _, replicas := s.Drained(); len(replicas) > mostDrained || !replicas["x"] {
		t.Errorf("%d replicas are drained, x is among them: %t", len(replicas), replicas["x"])
	}
	s.expectCandidates(t, "x is drained", "y")
}

// Operators see what a drained replica has done and does, and its limit.
func TestO8_ADrainedReplicaKeepsItsFigures(t *testing.T) {
	t.Parallel()
	s := newStage(Policy{MaxPerReplica: 3})
	s.put("m", launched("x")...)
	s.must(t, newRequest("m", "k")).Release()
	s.must(t, newRequest("m", "k"))
	s.DrainReplica("x", true)
	if got := s.Replica("m", "x"); got.Served != 2 || got.Load != 1 || got.Limit != 3 || got.LimitFrom != LimitSet {
		t.Errorf("drained: %+v", got)
	}
	if got := s.Replica("m", "none"); got != (ReplicaView{}) {
		t.Errorf("a replica that does not exist: %+v", got)
	}
}

// A model that is put back takes a request that waits for its pool.
func TestO8_UndrainedModelsTakeWaitersOfTheirPool(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newStage(Policy{MaxPerReplica: 1})
		s.put("a", replicas("a-1")...)
		s.put("b", replicas("b-1")...)
		s.SetRules(Rules{Pools: map[string][]string{"p": {"a", "b"}}, FirstPool: "p", Default: Policy{MaxPerReplica: 1}})
		s.DrainModel("b", true)
		s.must(t, newRequest("p", "k"))
		waits := s.queue("p")
		s.DrainModel("b", false)
		synctest.Wait()
		select {
		case ticket := <-waits:
			if ticket == nil || ticket.Model != "b" {
				t.Errorf("it got %+v", ticket)
			}
		default:
			t.Error("it still waits")
			<-waits
		}
	})
}

// TestX14_ADrainedModelStaysHidden: a task for a model that the caller may not use is answered as
// one for a model that does not exist. That holds also while the model is drained.
func TestX14_ADrainedModelStaysHidden(t *testing.T) {
	t.Parallel()
	s := newStage(Policy{})
	s.put("m", replicas("a")...)
	s.DrainModel("m", true)
	for _, model := range []string{"m", "other"} {
		_, _, fault := s.Schedule(t.Context(), TaskRequest{Model: model, Tenant: "t", Allowed: func(string) bool { return false }})
		if fault == nil || fault.Code != openai.CodeModelNotFound {
			t.Errorf("%s: %v", model, fault)
		}
	}
}
