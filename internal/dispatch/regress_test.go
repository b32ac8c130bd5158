package dispatch

import (
	"context"
	"testing"
	"testing/synctest"

	"github.com/sluice-gateway/sluice/engines"
)

// TestPoolGoesOnToAModelThatComes: requests that wait for a pool go to a model that had no replica
// when they came.
func TestPoolGoesOnToAModelThatComes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStage(Policy{MaxPerReplica: 1})
		s.SetRules(Rules{Default: Policy{MaxPerReplica: 1}, Pools: map[string][]string{"auto": {"a", "b"}}, FirstPool: "auto"})
		s.put("a", replicas("ra")...)
		s.put("b")
		busy := s.must(t, newRequest("auto", "k"))
		waiting := s.queue("auto")
		s.put("b", replicas("rb")...)
		synctest.Wait()
		select {
		case second := <-waiting:
			if second == nil || second.Model != "b" {
				t.Fatalf("got %+v", second)
			}
			second.Release()
		default:
			t.Error("it waits on beside a free replica")
			busy.Release()
			(<-waiting).Release()
			return
		}
		busy.Release()
	})
}

// TestModelsOfAReplicaTakeTurns: of models that share a replica, the one whose request ends does
// not keep the slot for its own queue.
func TestModelsOfAReplicaTakeTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStage(Policy{MaxPerReplica: 1})
		part := engines.Part{}
		models := []string{"a", "b", "c"}
		for _, model := range models {
			r := replicas("r")[0]
			r.State, r.Model = engines.Ready, model
			part.Models = append(part.Models, engines.Model{Name: model, Launcher: engines.Upstream, Desired: 1})
			part.Replicas = append(part.Replicas, r)
		}
		s.fleet.Set("test", part)
		for _, model := range models {
			s.acknowledge(model, part.Replicas[0])
		}
		running := s.must(t, newRequest("a", "k"))
		went := make(chan *Ticket, 9)
		for range 3 {
			for _, model := range models {
				go func() {
					ticket, _ := s.Dispatch(context.Background(), newRequest(model, "k"))
					went <- ticket
				}()
				synctest.Wait()
			}
		}
		order := ""
		for range 9 {
			running.Release()
			synctest.Wait()
			running = <-went
			order += running.Model
		}
		running.Release()
		if order != "bcabcabca" {
			t.Errorf("they went in the order %s", order)
		}
	})
}

// TestViewSaysWhatAReplicaWillTake: how many replicas a crowd needs is asked while the first of
// them starts, or before.
func TestViewSaysWhatAReplicaWillTake(t *testing.T) {
	t.Parallel()
	s := newStage(Policy{})
	r := replicas("r")[0]
	r.State, r.Model, r.Slots, r.Launcher = engines.Starting, "m", 7, engines.Local
	s.fleet.Set("test", engines.Part{Models: []engines.Model{{Name: "m", Launcher: engines.Local, MaxReplicas: 2}}, Replicas: []engines.Replica{r}})
	s.rebuild()
	if v, _ := s.View("m"); v.PerReplica != 7 || len(v.Loads) != 0 {
		t.Errorf("one that starts: %+v", v)
	}
	s.fleet.Set("test", engines.Part{Models: []engines.Model{{Name: "m", Launcher: engines.Local, MaxReplicas: 2}}})
	s.SetRules(Rules{Default: Policy{MaxPerReplica: 3}})
	if v, _ := s.View("m"); v.PerReplica != 3 {
		t.Errorf("none, and the file says: %+v", v)
	}
}
