package dispatch

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluice-gateway/sluice/engines"
)

// A pick records the replicas that it chose from as they were: the picked one and the best of the
// others.
func TestO10_CandidatesOfAPick(t *testing.T) {
	for strategy, predicts := range map[Strategy]bool{LeastConnections: false, Prefix: true} {
		s := newStage(Policy{Strategy: strategy, LoadFloor: 8})
		many := make([]engines.Replica, 40)
		for i := range many {
			many[i].ID = fmt.Sprint("replica-", i)
		}
		s.put("m", many...)
		route := s.table.Load().routes["m"]
		for i := range route.replicas[:30] {
			route.replicas[i].load.Add(5)
		}
		ticket := s.must(t, ask(t, nil, "which one?"))
		p := ticket.Prediction()
		if p.Considered != 40 || len(p.Candidates) != maxExplained || p.Strategy != string(strategy) {
			t.Fatalf("%s: of 40 replicas: %+v", strategy, p)
		}
		picked := 0
		for _, c := range p.Candidates {
			if c.Picked {
				picked++
			}
			if c.Picked != (c.Replica == ticket.Replica()) || !c.Picked && c.Load != 0 || c.Full || (c.TTFT > 0) != predicts {
				t.Errorf("%s: the request is at %s, and of ten idle replicas there is %+v", strategy, ticket.Replica(), c)
			}
		}
		if picked != 1 {
			t.Errorf("%s: %d candidates are picked", strategy, picked)
		}
		ticket.Release()
	}
}

// The picks of a second whose candidates are recorded are bounded.
func TestO10_FewPicksAreExplained(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStage(Policy{})
		s.put("m", replicas("a", "b")...)
		explained := func() (n int) {
			for range 3 * explainedPerSecond {
				ticket := s.must(t, ask(t, nil, "again"))
				if len(ticket.Prediction().Candidates) > 0 {
					n++
				}
				ticket.Release()
			}
			return n
		}
		if n := explained(); n != explainedPerSecond {
			t.Errorf("%d picks are explained", n)
		}
		time.Sleep(time.Second)
		if n := explained(); n != explainedPerSecond {
			t.Errorf("%d picks are explained a second later", n)
		}
		s.config.ExplainPicks = true
		if n := explained(); n != 3*explainedPerSecond {
			t.Errorf("%d picks are explained where all are", n)
		}
	})
}
