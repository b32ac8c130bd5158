package scale

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"
)

// TestReplicasFromBeforeARestartAreFoundOnce: a model that leaves the configuration and comes back
// begins with Min. Replicas that are fewer than desired are no change.
func TestReplicasFromBeforeARestartAreFoundOnce(t *testing.T) {
	t.Parallel()
	s, _ := newTestScalers(nil)
	s.Adopt(map[string]int{"m": 3})
	for i, want := range []int{3, 1} {
		s.Set(map[string]Model{"m": {Min: 1, Max: 5}})
		if got := s.Desired("m"); got != want {
			t.Errorf("time %d: %d replicas, want %d", i, got, want)
		}
		if i == 0 {
			s.Set(nil)
		}
	}
	before := s.LastChange("m")
	s.Adopt(map[string]int{"m": 1})
	if c := s.LastChange("m"); c != before || s.Desired("m") != 1 {
		t.Errorf("fewer replicas were found: %+v after %+v", c, before)
	}
	if c := s.LastChange("unknown"); c != (Change{}) {
		t.Errorf("the last change of an unknown model: %+v", c)
	}
}

// TestMinIsStrongerThanMax: a model whose bounds exclude each other has Min replicas.
func TestMinIsStrongerThanMax(t *testing.T) {
	t.Parallel()
	s, set := newTestScalers(map[string]Model{"m": {Min: 2, Max: 1}})
	set("m", Load{Running: 100, Queued: 100, PerReplica: 1})
	s.Update(time.Now())
	if n := s.Desired("m"); n != 2 {
		t.Errorf("%d replicas, want 2", n)
	}
}

// TestNewBoundsHoldAtOnce: Set has the models updated, although none is due.
func TestNewBoundsHoldAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTestScaler(t, Model{Max: 1})
		w.set(Load{Queued: 20, PerReplica: 10})
		w.want(t, 1)
		time.Sleep(10 * time.Second)
		w.Set(map[string]Model{"m": {Max: 4}})
		w.want(t, 2)
	})
}

// TestAModelThatHasAllReplicasIsNotUpdated for each request that waits.
func TestAModelThatHasAllReplicasIsNotUpdated(t *testing.T) {
	t.Parallel()
	updates := 0
	s := New(Config{Apply: func() {}, Load: func(string) Load { updates++; return Load{Queued: 1} }})
	s.Set(map[string]Model{"m": {Min: 2, Max: 2}})
	<-s.wake // of Set
	now := time.Now()
	s.Update(now)
	s.ReportDemand("m")
	if s.Update(now); updates != 1 || len(s.wake) != 0 {
		t.Errorf("%d updates, want one", updates)
	}
}

// TestAModelMayLeaveWhileItsLoadIsRead: no lock is held then.
func TestAModelMayLeaveWhileItsLoadIsRead(t *testing.T) {
	t.Parallel()
	var s *Scaler
	s = New(Config{Apply: func() {}, Load: func(string) Load { s.Set(nil); return Load{Queued: 1} }})
	for name, use := range map[string]func() bool{
		"IdleModels": func() bool { return len(s.IdleModels()) > 0 },
		"Evict":      func() bool { return s.Evict("m") },
		"Update":     func() bool { changed, _ := s.Update(time.Now()); return changed },
	} {
		s.Set(map[string]Model{"m": {Max: 5}})
		s.Adopt(map[string]int{"m": 1})
		if use() {
			t.Errorf("%s changes a model that has left", name)
		}
	}
}

// TestWhyANumberFalls: a model is idle when it needed no replica during the whole cooldown.
func TestWhyANumberFalls(t *testing.T) {
	t.Parallel()
	s, set := newTestScalers(map[string]Model{"m": {Max: 4, Cooldown: time.Minute}})
	s.Adopt(map[string]int{"m": 3})
	start := time.Now()
	for i, step := range []struct {
		load Load
		want Change
	}{
		{Load{Running: 10, PerReplica: 10, Ready: 3}, Change{From: 3, To: 1, Reason: FewerEnough}},
		{Load{PerReplica: 10, Ready: 1}, Change{From: 1, To: 0, Reason: Idle}},
	} {
		set("m", step.load)
		for minute := range 3 {
			s.Update(start.Add(time.Duration(10*i+minute) * time.Minute))
		}
		c := s.LastChange("m")
		if c.At = (time.Time{}); c != step.want {
			t.Errorf("the last change is %+v, want %+v", c, step.want)
		}
	}
}

// TestWhatWasRefusedBeforeAModelWasKnown starts nothing: the count of a gateway may be old.
func TestWhatWasRefusedBeforeAModelWasKnown(t *testing.T) {
	t.Parallel()
	s, set := newTestScalers(map[string]Model{"m": {Max: 4}})
	set("m", Load{Refused: 7})
	s.Update(time.Now())
	if n := s.Desired("m"); n != 0 {
		t.Errorf("%d replicas, want none", n)
	}
}

// TestU7_PatienceGrowsOncePerFall: only the first rise after a fall says that the fall was wrong.
func TestU7_PatienceGrowsOncePerFall(t *testing.T) {
	t.Parallel()
	st := &modelState{Model: Model{Cooldown: time.Minute}}
	now := time.Now()
	for i, step := range []struct {
		falls bool
		after time.Duration
		want  int
	}{
		{false, 0, 0},
		{true, 59 * time.Second, 2},
		{false, time.Second, 2},
		{true, 119 * time.Second, 4},
		{true, 239 * time.Second, maxPatience},
		{false, time.Hour, maxPatience},
		{true, 4 * time.Minute, 1},
	} {
		if step.falls {
			st.fell = now
		}
		now = now.Add(step.after)
		if st.learnPatience(now); st.patience != step.want {
			t.Errorf("step %d: patience %d, want %d", i, st.patience, step.want)
		}
	}
}

// TestAModelThatWasJustUsedIsEvictedLast: it has not yet been seen without need.
func TestAModelThatWasJustUsedIsEvictedLast(t *testing.T) {
	t.Parallel()
	s, set := newTestScalers(map[string]Model{"a": {Max: 1}, "b": {Max: 1}, "c": {Max: 1}})
	s.Adopt(map[string]int{"a": 1, "b": 1, "c": 1})
	set("a", Load{Running: 1})
	set("c", Load{Running: 1})
	s.Update(time.Now())
	set("a", Load{})
	set("c", Load{})
	if got := s.IdleModels(); !slices.Equal(got, []string{"b", "a", "c"}) {
		t.Errorf("idle are %v", got)
	}
}
