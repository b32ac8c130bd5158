package scale

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// testScaler is a Scaler of one model "m" whose load the test sets.
type testScaler struct {
	*Scaler
	mu      sync.Mutex
	load    Load
	applied []int
}

func newTestScaler(t *testing.T, m Model) *testScaler {
	t.Helper()
	w := new(testScaler)
	w.Scaler = New(Config{
		Load: func(string) Load {
			w.mu.Lock()
			defer w.mu.Unlock()
			return w.load
		},
		Apply: func() {
			n := w.Desired("m")
			w.mu.Lock()
			w.applied = append(w.applied, n)
			w.mu.Unlock()
		},
	})
	w.Set(map[string]Model{"m": m})
	ctx, cancel := context.WithCancel(t.Context())
	t.Cleanup(cancel)
	go w.Run(ctx)
	synctest.Wait()
	return w
}

// set changes the load, and reports demand if requests wait.
func (w *testScaler) set(l Load) {
	w.mu.Lock()
	w.load = l
	w.mu.Unlock()
	if l.Queued > 0 {
		w.ReportDemand("m")
	}
	synctest.Wait()
}

func (w *testScaler) want(t *testing.T, n int) {
	t.Helper()
	synctest.Wait()
	if got := w.Desired("m"); got != n {
		t.Errorf("%d replicas are desired, want %d", got, n)
	}
}

func TestFromZeroToOneAndBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTestScaler(t, Model{Min: 0, Max: 1, Cooldown: 5 * time.Minute})
		w.want(t, 0)
		for range 100 {
			w.set(Load{Queued: 100})
		}
		w.want(t, 1)
		if len(w.applied) != 1 {
			t.Errorf("100 requests changed the number %d times: %v", len(w.applied), w.applied)
		}
		w.set(Load{Running: 3, Admitted: 100})
		time.Sleep(time.Hour)
		w.want(t, 1) // A request is running.
		w.set(Load{Admitted: 100})
		time.Sleep(4 * time.Minute)
		w.want(t, 1)
		time.Sleep(2 * time.Minute)
		w.want(t, 0)
		w.set(Load{Queued: 1, Admitted: 100})
		w.want(t, 1)
	})
}

func TestRequestBetweenTwoUpdatesCounts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTestScaler(t, Model{Min: 0, Max: 1, Cooldown: 5 * time.Minute})
		w.set(Load{Queued: 1})
		for i := range 20 { // Each request is short, and one comes every four minutes.
			w.set(Load{Admitted: uint64(i + 1)})
			time.Sleep(4 * time.Minute)
			w.want(t, 1)
		}
		time.Sleep(3 * time.Minute)
		w.want(t, 0)
	})
}

func TestRisesAtOnceAndFallsLate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTestScaler(t, Model{Min: 1, Max: 4, Cooldown: time.Minute})
		w.want(t, 1)
		w.set(Load{Running: 10, PerReplica: 10})
		w.want(t, 1) // All slots are used, but no request waits.
		w.set(Load{Running: 10, Queued: 11, PerReplica: 10})
		w.want(t, 3)
		w.set(Load{Running: 10, Queued: 1000, PerReplica: 10})
		w.want(t, 4)
		// Load that changes faster than the cooldown changes nothing.
		for range 10 {
			w.set(Load{Running: 5, PerReplica: 10})
			time.Sleep(40 * time.Second)
			w.set(Load{Running: 40, PerReplica: 10})
			time.Sleep(40 * time.Second)
			w.want(t, 4)
		}
		w.set(Load{Running: 15, PerReplica: 10})
		time.Sleep(2 * time.Minute)
		w.want(t, 2)
		w.set(Load{PerReplica: 10})
		time.Sleep(time.Hour)
		w.want(t, 1)
	})
}

func TestReplicasFromBeforeARestartStay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := New(Config{Load: func(string) Load { return Load{} }, Apply: func() {}})
		s.Adopt(map[string]int{"m": 3, "gone": 2})
		s.Set(map[string]Model{"m": {Min: 0, Max: 2}, "new": {Min: 1, Max: 2}})
		for model, want := range map[string]int{"m": 2, "gone": 0, "new": 1} {
			if got := s.Desired(model); got != want {
				t.Errorf("%s: %d, want %d", model, got, want)
			}
		}
		s.Set(map[string]Model{"m": {Min: 1, Max: 1}})
		if s.Desired("m") != 1 || s.Desired("new") != 0 {
			t.Errorf("after a reload: %d and %d", s.Desired("m"), s.Desired("new"))
		}
		s.ReportDemand("m")
		s.ReportDemand("unknown")
	})
}

// A waiting request causes an update of its own model only. With hundreds of models, an update of
// all models for each request would use a whole CPU.
func TestDemandUpdatesItsModelOnly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		updates := map[string]int{}
		s := New(Config{Apply: func() {}, Load: func(name string) Load {
			mu.Lock()
			defer mu.Unlock()
			updates[name]++
			return Load{Queued: 1}
		}})
		s.Set(map[string]Model{"a": {Max: 9}, "b": {Max: 9}})
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		go s.Run(ctx)
		synctest.Wait()
		mu.Lock()
		a, b := updates["a"], updates["b"]
		mu.Unlock()
		for range 5 {
			s.ReportDemand("a")
			synctest.Wait()
		}
		mu.Lock()
		if updates["a"] != a+5 || updates["b"] != b {
			t.Errorf("%d updates of a, %d of b; want 5 and none", updates["a"]-a, updates["b"]-b)
		}
		mu.Unlock()
		s.ReportDemand("b")
		synctest.Wait()
		mu.Lock()
		if updates["a"] != a+5 || updates["b"] != b+1 {
			t.Errorf("%d updates of a, %d of b; want no more of a, and one", updates["a"]-a, updates["b"]-b)
		}
		a, b = updates["a"], updates["b"]
		mu.Unlock()
		time.Sleep(time.Minute)
		synctest.Wait()
		mu.Lock()
		defer mu.Unlock()
		if updates["a"] == a || updates["b"] == b {
			t.Error("no update without demand")
		}
	})
}

// A replica may tell only after its start how many requests it handles at once. Many requests for a
// model without replicas start one replica.
func TestFirstReplicaTellsHowManyAreNeeded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTestScaler(t, Model{Min: 0, Max: 4})
		w.set(Load{Queued: 100})
		w.want(t, 1)
		w.mu.Lock()
		// The replica exists but is not ready, and no further request comes.
		w.load = Load{Queued: 100, PerReplica: 40}
		w.mu.Unlock()
		time.Sleep(2 * time.Second)
		w.want(t, 3)
	})
}

// Requests that the model's own limit holds back do not need more replicas.
func TestLimitBoundsTheNumber(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTestScaler(t, Model{Min: 1, Max: 4})
		w.set(Load{Running: 12, Queued: 100, PerReplica: 8, MaxRunning: 12})
		w.want(t, 2)
		w.set(Load{Running: 12, Queued: 100, PerReplica: 8})
		w.want(t, 4)
	})
}

// TestU6_HeldRequestsNeedNoReplicas: requests that wait for tokens of the model, or for a limit of
// their tenant, add no replicas and keep what there is. The first of them starts one.
func TestU6_HeldRequestsNeedNoReplicas(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTestScaler(t, Model{Min: 0, Max: 8, Cooldown: time.Minute})
		w.set(Load{Queued: 20, Held: 20, PerReplica: 2})
		w.want(t, 1)
		time.Sleep(time.Hour)
		w.want(t, 1) // It is not idle.
		w.set(Load{Running: 2, Queued: 20, Held: 20, PerReplica: 2, Ready: 1})
		w.want(t, 1)
		w.set(Load{Running: 2, Queued: 20, Held: 18, PerReplica: 2, Ready: 1})
		w.want(t, 2)
		w.set(Load{Queued: 20, PerReplica: 2, Ready: 2})
		w.want(t, 8)
	})
}
