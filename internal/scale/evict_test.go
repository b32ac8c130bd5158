package scale

import (
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// newTestScalers returns a Scaler of models whose loads the test sets. The test calls update
// itself.
func newTestScalers(models map[string]Model) (s *Scaler, set func(model string, l Load)) {
	var mu sync.Mutex
	loads := map[string]Load{}
	s = New(Config{Load: func(model string) Load {
		mu.Lock()
		defer mu.Unlock()
		return loads[model]
	}, Apply: func() {}})
	s.Set(models)
	return s, func(model string, l Load) {
		mu.Lock()
		defer mu.Unlock()
		loads[model] = l
	}
}

func TestEvictTakesOnlyIdleReplicas(t *testing.T) {
	t.Parallel()
	s, set := newTestScalers(map[string]Model{"used": {Max: 1}, "waited": {Max: 1}, "kept": {Min: 1, Max: 2}, "idle": {Max: 2}})
	s.Adopt(map[string]int{"used": 1, "waited": 1, "kept": 1, "idle": 2})
	set("used", Load{Running: 1, Admitted: 1})
	set("waited", Load{Queued: 1})
	set("idle", Load{Admitted: 7})
	if got := s.IdleModels(); !slices.Equal(got, []string{"idle", "idle"}) {
		t.Errorf("idle are %v", got)
	}
	for _, model := range []string{"used", "waited", "kept", "unknown"} {
		if s.Evict(model) {
			t.Errorf("%s was evicted", model)
		}
	}
	if !s.Evict("idle") || s.Desired("idle") != 1 || !s.Evict("idle") || s.Desired("idle") != 0 || s.Evict("idle") {
		t.Errorf("%d of idle are left", s.Desired("idle"))
	}
	s.Update(time.Now())
	if s.Desired("idle") != 0 {
		t.Error("what it did before it was evicted brought it back")
	}
	set("idle", Load{Queued: 1, Admitted: 7})
	s.ReportDemand("idle")
	s.Update(time.Now())
	if s.Desired("idle") != 1 {
		t.Error("a request did not bring it back")
	}
}

// TestIdleModelsAreListedOnceForEachReplica: a model is listed as often as it may be evicted.
func TestIdleModelsAreListedOnceForEachReplica(t *testing.T) {
	t.Parallel()
	s, _ := newTestScalers(map[string]Model{"three": {Min: 1, Max: 5}, "two": {Max: 2}})
	s.Adopt(map[string]int{"three": 4, "two": 2})
	idle := s.IdleModels()
	if !slices.Equal(idle, []string{"three", "three", "three", "two", "two"}) {
		t.Errorf("idle are %v", idle)
	}
	for _, model := range idle {
		if !s.Evict(model) {
			t.Errorf("%s was not evicted", model)
		}
	}
	if s.Desired("three") != 1 || s.Desired("two") != 0 || len(s.IdleModels()) > 0 {
		t.Errorf("three has %d, two has %d", s.Desired("three"), s.Desired("two"))
	}
}

func TestLongestIdleModelComesFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		models := map[string]Model{}
		s, set := newTestScalers(models)
		for _, name := range []string{"a", "b", "c", "d"} {
			models[name] = Model{Max: 1, Cooldown: time.Hour}
			s.Adopt(map[string]int{name: 1})
			set(name, Load{Running: 1})
		}
		s.Set(models)
		for _, name := range []string{"c", "a", "b"} {
			set(name, Load{})
			s.Update(time.Now())
			time.Sleep(time.Minute)
		}
		set("d", Load{}) // The model was not updated since.
		if got := s.IdleModels(); !slices.Equal(got, []string{"c", "a", "b", "d"}) {
			t.Errorf("idle are %v", got)
		}
	})
}

// The existing replicas may become known late, because an API server was unreachable.
func TestAdoptAfterSet(t *testing.T) {
	t.Parallel()
	s, _ := newTestScalers(map[string]Model{"m": {Max: 3}, "n": {Min: 1, Max: 2}})
	found := map[string]int{"m": 2, "n": 9, "later": 1}
	s.Adopt(found)
	found["later"] = 5
	// a reload before all models are known
	s.Set(map[string]Model{"m": {Max: 3}, "n": {Min: 1, Max: 2}})
	if s.Desired("m") != 2 || s.Desired("n") != 2 {
		t.Errorf("%d and %d", s.Desired("m"), s.Desired("n"))
	}
	s.Set(map[string]Model{"m": {Max: 3}, "later": {Max: 2}})
	if s.Desired("m") != 2 || s.Desired("later") != 1 {
		t.Errorf("%d and %d", s.Desired("m"), s.Desired("later"))
	}
	s.Adopt(map[string]int{"m": 1})
	if s.Desired("m") != 2 {
		t.Error("adopting fewer took some away")
	}
}
