package dispatch

import (
	"strings"
	"testing"
	"time"
)

// Each strategy of the table picks a free replica, and peeks at the one that it picks next.
func TestEachStrategyPeeksAndPicks(t *testing.T) {
	for _, name := range append(Strategies(), "") {
		s := newStage(Policy{Strategy: name, MaxPerReplica: 1})
		s.put("m", replicas("a", "b")...)
		route := s.table.Load().routes["m"]
		peek := func() int { return peekAt(route, 1) }
		for range 2 {
			next := peek()
			if again := peek(); next < 0 || again != next {
				t.Fatalf("%q: peeked at %d, then at %d", name, next, again)
			}
			r := newRequest("m", "k")
			r.Key = func(int) uint64 { return 1 }
			if ticket := s.must(t, r); ticket.Replica() != route.replicas[next].id {
				t.Errorf("%q: picked %s after a look at %s", name, ticket.Replica(), route.replicas[next].id)
			}
		}
		if i := peek(); i >= 0 {
			t.Errorf("%q: picks %d although both are full", name, i)
		}
	}
}

// peekAt returns the replica that a request with this key would get now.
func peekAt(t *modelRoute, key uint64) int {
	p := pickInput{key: key, loads: t.loads(nil), now: t.warmUpTime(), peek: true, forecasts: new(forecasts)}
	t.forecast(p.forecasts, &prompt{}, p.loads, time.Now())
	return t.pick(&p)
}

// An unknown strategy is refused, and picks nothing if it was not checked.
func TestUnknownStrategy(t *testing.T) {
	good := Rules{Models: map[string]Policy{"m": {Strategy: RoundRobin}, "n": {}}}
	if err := good.Check(); err != nil {
		t.Error(err)
	}
	bad := Rules{Models: map[string]Policy{"m": {Strategy: "prefixx"}}}
	if err := bad.Check(); err == nil || !strings.Contains(err.Error(), `model m: routing strategy "prefixx" does not exist`) {
		t.Error(err)
	}
	s := newStage(Policy{Strategy: "prefixx"})
	s.put("m", replicas("a")...)
	if i := peekAt(s.table.Load().routes["m"], 1); i >= 0 {
		t.Errorf("picks %d", i)
	}
}
