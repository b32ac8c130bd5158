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

// TestP3_AReplicaForARefusedRequestStays: a request that does not wait has started a replica. Until
// its client could try again, the replica is not evicted for another model. A replica that keeps
// failing is.
func TestP3_AReplicaForARefusedRequestStays(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, set := newTestScalers(map[string]Model{"m": {Max: 1, Cooldown: 5 * time.Minute}})
		now := func(l Load) { // as the load is from now on
			set("m", l)
			s.ReportDemand("m")
			s.Update(time.Now())
		}
		wantEvictable := func(want bool) {
			t.Helper()
			if got := len(s.IdleModels()) == 1; got != want {
				t.Errorf("the replica can be evicted: %v", got)
			}
		}
		now(Load{Refused: 7})
		now(Load{Refused: 8})
		if s.Desired("m") != 1 {
			t.Fatal("a refused request started nothing")
		}
		wantEvictable(false)
		time.Sleep(2 * time.Minute)
		wantEvictable(false)
		set("m", Load{Refused: 8, Ready: 1})
		time.Sleep(29 * time.Second)
		wantEvictable(false)
		if s.Evict("m") {
			t.Error("evicted")
		}
		time.Sleep(2 * time.Second)
		wantEvictable(true)
		set("m", Load{Refused: 9, Ready: 1}) // as when it became busy and idle again
		wantEvictable(false)
		set("m", Load{Refused: 9})
		time.Sleep(5 * time.Minute)
		wantEvictable(true) // nobody has come for the whole cooldown
		set("m", Load{Refused: 10, Failing: true})
		wantEvictable(true)
	})
}

// TestP3_WhatWasRefusedBeforeAnEviction: requests that were refused before the eviction of their
// model's replica do not bring it back.
func TestP3_WhatWasRefusedBeforeAnEviction(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, set := newTestScalers(map[string]Model{"m": {Max: 1}})
		s.Adopt(map[string]int{"m": 1})
		s.Update(time.Now())
		set("m", Load{Ready: 1, Refused: 1, RefusedElsewhere: map[string]uint64{"other": 4}})
		s.ReportDemand("m") // It has all replicas that it may have.
		if s.Evict("m") {
			t.Fatal("it was evicted at once")
		}
		time.Sleep(retryTime)
		if !s.Evict("m") {
			t.Fatal("it was not evicted")
		}
		time.Sleep(40 * time.Second)
		s.Update(time.Now())
		if s.Desired("m") != 0 {
			t.Error("it came back without a request")
		}
	})
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

// A model that the file gets later has nothing to do with replicas that were found at a start.
func TestFoundReplicasAreForgotten(t *testing.T) {
	t.Parallel()
	s, _ := newTestScalers(map[string]Model{"m": {Max: 3}})
	s.Adopt(map[string]int{"m": 2, "x": 3})
	s.ForgetFound()
	s.Adopt(map[string]int{"m": 3, "y": 3})
	s.Set(map[string]Model{"m": {Max: 3}, "x": {Max: 4}, "y": {Max: 4}})
	if m, x, y := s.Desired("m"), s.Desired("x"), s.Desired("y"); m != 3 || x != 0 || y != 0 {
		t.Errorf("%d, %d and %d, want 3, 0 and 0", m, x, y)
	}
}

// TestP3_WhatAnotherGatewayRefusedBefore: requests that another gateway refused before it was known
// keep no replica, neither the first time nor after a pause. What it refuses then does.
func TestP3_WhatAnotherGatewayRefusedBefore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, set := newTestScalers(map[string]Model{"m": {Max: 1}})
		s.Adopt(map[string]int{"m": 1})
		for _, step := range []struct {
			elsewhere map[string]uint64
			evictable bool
		}{
			{nil, true},
			{map[string]uint64{"other": 57}, true},
			{nil, true},
			{map[string]uint64{"other": 57, "third": 9}, true},
			{map[string]uint64{"other": 58, "third": 9}, false},
		} {
			set("m", Load{Ready: 1, RefusedElsewhere: step.elsewhere})
			s.Update(time.Now())
			if got := len(s.IdleModels()) == 1; got != step.evictable {
				t.Errorf("others have refused %v: the replica can be evicted: %v", step.elsewhere, got)
			}
			time.Sleep(time.Second)
		}
	})
}

// TestP3_WhatAnEvictionReadIsNotLost: a refused request starts a replica, also when the look for
// idle replicas has read its count first.
func TestP3_WhatAnEvictionReadIsNotLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, set := newTestScalers(map[string]Model{"m": {Min: 0, Max: 2}})
		s.Update(time.Now())
		set("m", Load{Refused: 1})
		s.Evict("m")
		s.IdleModels()
		s.ReportDemand("m")
		s.Update(time.Now())
		if s.Desired("m") != 1 {
			t.Error("the refused request started nothing")
		}
	})
}

// TestP3_AReplicaThatHasServedIsNotHeld: a replica that a refused request has started is held for
// the client. Once the model has served, its idle replica may be evicted.
func TestP3_AReplicaThatHasServedIsNotHeld(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, set := newTestScalers(map[string]Model{"m": {Max: 1}})
		want := func(evictable bool, l Load) {
			t.Helper()
			set("m", l)
			time.Sleep(time.Second)
			if got := len(s.IdleModels()) == 1; got != evictable {
				t.Errorf("with %+v the replica can be evicted: %v", l, got)
			}
		}
		s.Update(time.Now())
		set("m", Load{Refused: 1, Admitted: 3})
		s.ReportDemand("m")
		s.Update(time.Now())
		want(false, Load{Refused: 1, Admitted: 3})
		want(false, Load{Refused: 1, Admitted: 3, Ready: 1})
		want(false, Load{Refused: 1, Admitted: 4, Ready: 1, Running: 1})
		want(true, Load{Refused: 1, Admitted: 4, Ready: 1})
		want(false, Load{Refused: 2, Admitted: 4})
		// One was refused, came back and was served before anybody looked.
		want(true, Load{Refused: 3, Admitted: 5, Ready: 1})
	})
}

// oneReplica runs a scaler of the model m, which has its one replica.
func oneReplica(t *testing.T, load func(*Scaler) Load) *Scaler {
	t.Helper()
	var s *Scaler
	s = New(Config{Apply: func() {}, Load: func(string) Load { return load(s) }})
	s.Set(map[string]Model{"m": {Max: 1}})
	s.Adopt(map[string]int{"m": 1})
	go s.Run(t.Context()) //nolint:errcheck // always nil
	synctest.Wait()
	return s
}

// TestP3_ARequestThatMeetsAnEviction: a request that comes after an eviction has read the load, and
// before the number is lower, brings the replica back at once.
func TestP3_ARequestThatMeetsAnEviction(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		evicting, queued := false, 0
		s := oneReplica(t, func(s *Scaler) Load {
			l := Load{Queued: queued}
			if evicting {
				evicting, queued = false, 1
				s.ReportDemand("m")
			}
			return l
		})
		if evicting = true; !s.Evict("m") {
			t.Fatal("it was not evicted")
		}
		synctest.Wait()
		if s.Desired("m") != 1 {
			t.Error("the request waits for the next look at the model")
		}
	})
}

// TestP3_ARequestThatMeetsAnEvictionAndAnUpdate: the same holds while an update goes on that has
// read its load before the eviction.
func TestP3_ARequestThatMeetsAnEvictionAndAnUpdate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		step, queued := 0, 0
		s := oneReplica(t, func(s *Scaler) Load {
			l := Load{Queued: queued}
			switch step {
			case 1: // the update
				step = 2
				if !s.Evict("m") {
					t.Error("it was not evicted")
				}
			case 2: // the eviction
				step, queued = 0, 1
				s.ReportDemand("m")
			}
			return l
		})
		step = 1
		s.Set(map[string]Model{"m": {Max: 1}}) // updates it
		synctest.Wait()
		if s.Desired("m") != 1 {
			t.Error("the request waits for the next look at the model")
		}
	})
}
