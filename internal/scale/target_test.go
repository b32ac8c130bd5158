package scale

import (
	"math"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluice-gateway/sluice/internal/predict"
)

// flow is n requests a second, each with a prompt of prefill seconds that waits for wait seconds.
func flow(n, wait, prefill float64) predict.Flow {
	return predict.Flow{Requests: n, TTFT: n * (wait + prefill), Prefill: n * prefill}
}

// A model with a target gets its second replica when the first is full, and no request has waited.
func TestU7_RunningTargetComesBeforeTheQueue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTestScaler(t, Model{Min: 1, Max: 4, Cooldown: time.Minute, Target: Target{Running: 16}})
		w.set(Load{Running: 16, PerReplica: 256, Ready: 1})
		time.Sleep(time.Hour)
		w.want(t, 1)
		w.set(Load{Running: 17, PerReplica: 256, Ready: 1})
		time.Sleep(2 * time.Second)
		w.want(t, 2)
		if c := w.LastChange("m"); c.From != 1 || c.To != 2 || c.Reason != RunningTarget || c.At.IsZero() {
			t.Errorf("the last change is %+v", c)
		}
		w.set(Load{Running: 1000, PerReplica: 256, Ready: 1})
		time.Sleep(2 * time.Second)
		w.want(t, 4) // the bound
		w.set(Load{Ready: 4})
		time.Sleep(2 * time.Minute)
		w.want(t, 1)
		if c := w.LastChange("m"); c.From != 4 || c.To != 1 || c.Reason != FewerEnough {
			t.Errorf("the last change is %+v", c)
		}
	})
}

// The queue starts replicas besides the target, and a target cannot be above a replica's slots.
func TestU7_TargetAndQueue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTestScaler(t, Model{Min: 0, Max: 9, Target: Target{TTFT: time.Hour}})
		w.set(Load{Queued: 3, PerReplica: 1})
		w.want(t, 3)
		if c := w.LastChange("m"); c.Reason != RequestsWait {
			t.Errorf("the reason is %s", c.Reason)
		}
		w = newTestScaler(t, Model{Min: 1, Max: 9, Target: Target{Running: 100}})
		w.set(Load{Running: 8, PerReplica: 4, Ready: 1})
		time.Sleep(2 * time.Second)
		w.want(t, 2)
		w = newTestScaler(t, Model{Min: 1, Max: 9, Target: Target{Running: 4}})
		w.set(Load{Running: 8, Queued: 90, MaxRunning: 8, PerReplica: 8, Ready: 1})
		w.want(t, 2) // the model's own limit holds the others back
	})
}

// Load that swings around the target changes the number once, not at each swing. Load just below
// the target of fewer replicas stops none.
func TestU7_NoFlapping(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTestScaler(t, Model{Min: 1, Max: 4, Cooldown: time.Minute, Target: Target{Running: 10}})
		for range 30 {
			w.set(Load{Running: 11, PerReplica: 256, Ready: 2})
			time.Sleep(10 * time.Second)
			w.set(Load{Running: 3, PerReplica: 256, Ready: 2})
			time.Sleep(50 * time.Second)
		}
		w.set(Load{Running: 9, PerReplica: 256, Ready: 2})
		time.Sleep(time.Hour)
		w.want(t, 2)
		if len(w.applied) != 1 {
			t.Errorf("the number changed %d times: %v", len(w.applied), w.applied)
		}
		w.set(Load{Running: 8, PerReplica: 256, Ready: 2})
		time.Sleep(2 * time.Minute)
		w.want(t, 1)
	})
}

// A target of a first token asks for as many replicas as what arrives needs, at once, and for no
// more while they start.
func TestU7_TTFTTargetWaitsForColdStarts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTestScaler(t, Model{Min: 1, Max: 20, Cooldown: time.Minute, Target: Target{TTFT: 2 * time.Second}})
		w.set(Load{Running: 1, Ready: 1, Predicted: flow(0.2, 0.1, 1)})
		time.Sleep(10 * time.Minute)
		w.want(t, 1)
		// Three replicas would be busy all the time. What waits grows by two seconds each second
		// until others are ready.
		for second := range 60 {
			w.set(Load{Running: 3 * second, Ready: 1, Predicted: flow(3, 2*float64(second), 1)})
			time.Sleep(time.Second)
			if second == 10 && (w.Desired("m") < 4 || w.Desired("m") > 6) {
				t.Errorf("%d replicas are desired after 10 s, want about 5", w.Desired("m"))
			}
		}
		if n := w.Desired("m"); n > 8 {
			t.Errorf("%d replicas are desired for the work of 3 and a minute's arrears", n)
		}
		if c := w.LastChange("m"); c.Reason != TTFTTarget {
			t.Errorf("the reason is %s", c.Reason)
		}
		changes := len(w.applied)
		w.set(Load{Running: 5, Ready: 8, Predicted: flow(3, 0.2, 1)})
		time.Sleep(10 * time.Minute)
		if n := w.Desired("m"); n < 4 || n > 6 || len(w.applied) > changes+1 {
			t.Errorf("%d replicas after %d changes", n, len(w.applied)-changes)
		}
		w.set(Load{Ready: 5, Predicted: flow(3, 0.2, 1)}) // of requests that have ended
		time.Sleep(2 * time.Minute)
		w.want(t, 1)
	})
}

// Prompts that take longer than the target alone get no more replicas than their waits need.
func TestU7_ATargetThatNoReplicaCanHold(t *testing.T) {
	t.Parallel()
	st := &modelState{Model: Model{Min: 1, Max: 50, Target: Target{TTFT: time.Second}}, desired: 1}
	if n, _ := st.needed(Load{Running: 3, Ready: 1, Predicted: flow(0.5, 0, 4)}, 1); n < 3 || n > 6 {
		t.Errorf("%d replicas for the work of 2", n)
	}
}

// More load never asks for fewer replicas, and a stricter target neither.
func TestU7_NeedGrowsWithTheLoad(t *testing.T) {
	t.Parallel()
	st := &modelState{Model: Model{Max: 1000}, desired: 1}
	last := 0
	for rate := 0.1; rate < 100; rate *= 1.1 {
		need := st.neededForTTFT(Load{Running: 1, Ready: 1, Predicted: flow(rate, 0, 0.5)}, 1)
		strict := st.neededForTTFT(Load{Running: 1, Ready: 1, Predicted: flow(rate, 0, 0.5)}, keepShare)
		if need < last || strict < need || float64(need) < rate/2 || float64(need) > rate/2*1.3+3 {
			t.Errorf("%.1f requests a second of half a second: %d replicas, %d for the stricter target, %d before", rate, need, strict, last)
		}
		last = need
	}
}

// Ten cold requests start one replica, also if nobody knows yet how many it handles at once.
func TestU6_OneReplicaUntilOneIsReady(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for name, slots := range map[string]int{"unknown": 0, "catalogue": 256} {
			w := newTestScaler(t, Model{Max: 4, PerReplica: slots})
			for n := range 10 {
				w.set(Load{Queued: n + 1})
				time.Sleep(time.Second)
			}
			time.Sleep(time.Minute)
			if n := w.Desired("m"); n != 1 {
				t.Errorf("slots %s: %d replicas for ten requests", name, n)
			}
		}
		w := newTestScaler(t, Model{Max: 4})
		w.set(Load{Queued: 10})
		w.set(Load{Running: 8, Queued: 8, Ready: 1})
		w.want(t, 2)
	})
}

// A model with a target is updated each second, others are not.
func TestU7_TargetsAreUpdatedEachSecond(t *testing.T) {
	t.Parallel()
	updates := map[string]int{}
	s := New(Config{Apply: func() {}, Load: func(name string) Load { updates[name]++; return Load{} }})
	s.Set(map[string]Model{"target": {Max: 2, Target: Target{Running: 1}}, "fixed": {Min: 2, Max: 2, Target: Target{Running: 1}}, "queue": {Max: 2}})
	now, end := time.Unix(1e9, 0), time.Unix(1e9+60, 0)
	for now.Before(end) {
		_, now = s.Update(now)
	}
	if updates["target"] != 60 || updates["queue"] != 2 || updates["fixed"] != 2 {
		t.Errorf("updates in a minute: %v", updates)
	}
}

// A model that needs two replicas whenever it has one, and one whenever it has two, is tried with
// one more and more rarely. When it is idle, that delays nothing.
func TestU7_WrongFallsBecomeRare(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTestScaler(t, Model{Min: 0, Max: 4, Cooldown: time.Minute, Target: Target{Running: 10}})
		follow := func(d time.Duration) {
			for range d / time.Second {
				w.set(map[int]Load{0: {Running: 1}, 1: {Running: 11}, 2: {Running: 7}}[w.Desired("m")])
				time.Sleep(time.Second)
			}
		}
		follow(2 * time.Hour)
		if falls := len(w.applied) / 2; falls < 20 || falls > 35 {
			t.Errorf("%d falls in two hours, want one each four minutes", falls)
		}
		for w.Desired("m") < 2 {
			follow(time.Second)
		}
		w.set(Load{})
		time.Sleep(62 * time.Second)
		w.want(t, 0)
		// After a quiet hour the load is another one: one cooldown is enough again.
		time.Sleep(time.Hour)
		w.set(Load{Running: 11, PerReplica: 20})
		time.Sleep(2 * time.Second)
		w.want(t, 2)
		w.set(Load{Running: 5, PerReplica: 20})
		time.Sleep(62 * time.Second)
		w.want(t, 1)
	})
}

// The expected wait is that of the theory of queues: exact for one replica (Pollaczek and
// Khinchine), and near Erlang's formula for more.
func TestU7_ExpectedWaitIsThatOfAQueue(t *testing.T) {
	t.Parallel()
	const prefill = 0.4
	for n := 1; n <= 16; n++ {
		for _, share := range []float64{0.3, 0.5, 0.7, 0.8, 0.9, 0.95} {
			busy := share * float64(n)
			erlang := waitVariance * erlangC(n, busy) * prefill / (float64(n) - busy)
			got := expectedWait(n, busy, prefill)
			if diff := math.Abs(got - erlang); diff > 0.04*prefill+0.02*erlang || n == 1 && diff > 1e-9 {
				t.Errorf("%d replicas, each busy %.0f %% of the time: a wait of %.4f s, Erlang says %.4f", n, 100*share, got, erlang)
			}
		}
		if got := expectedWait(n, maxBusy*float64(n), prefill); !math.IsInf(got, 1) {
			t.Errorf("%d replicas that are too busy: a wait of %f s", n, got)
		}
	}
}

// erlangC returns the share of arrivals that find all of n servers busy, when they offer the work
// of busy servers.
func erlangC(n int, busy float64) float64 {
	sum, term := 0.0, 1.0
	for k := range n {
		sum += term
		term *= busy / float64(k+1)
	}
	term *= float64(n) / (float64(n) - busy)
	return term / (sum + term)
}

// The number of replicas that a target of a first token needs, computed by hand.
func TestU7_NumbersForATargetOfAFirstToken(t *testing.T) {
	t.Parallel()
	st := &modelState{Model: Model{Max: 50}}
	for _, c := range []struct {
		name   string
		target float64
		load   Load
		want   int
	}{
		// One replica: 1.5 · 0.5 s · 0.5 / 0.5 = 0.75 s of waiting.
		{"one replica holds exactly the target", 1.25, Load{Running: 1, Ready: 1, Predicted: flow(1, 0, 0.5)}, 1},
		{"a little stricter", 1.24, Load{Running: 1, Ready: 1, Predicted: flow(1, 0, 0.5)}, 2},
		// At least a quarter of the target may be waited: 0.8 s of 3.2 s.
		{"prompts as long as the target", 3.2, Load{Running: 1, Ready: 1, Predicted: flow(0.04, 0, 3.2)}, 1},
		// What waits 10 s at each of 12 replicas is 120 s of work, two replicas for a minute.
		{"what waits asks for two more", 1, Load{Running: 1, Ready: 12, Predicted: flow(2, 10, 0.5)}, 3},
		{"what waits no longer than allowed asks for none", 1, Load{Running: 1, Ready: 600, Predicted: flow(0.1, 0.5, 0.5)}, 1},
		{"the bound", 1, Load{Running: 1, Ready: 1, Predicted: flow(1000, 0, 0.5)}, 50},
		{"requests that have ended", 1, Load{Ready: 1, Predicted: flow(1000, 0, 0.5)}, 0},
		{"no request", 1, Load{Running: 1, Ready: 1}, 0},
	} {
		if got := st.neededForTTFT(c.load, c.target); got != c.want {
			t.Errorf("%s: %d replicas, want %d", c.name, got, c.want)
		}
	}
}

func TestU7_MeanOfPredictions(t *testing.T) {
	t.Parallel()
	sum := flow(2, 0.5, 0.25).Add(flow(1, 2, 0.25))
	if got := meanTTFT(sum); got != 1250*time.Millisecond {
		t.Errorf("the mean is %v", got)
	}
	if sum.Requests != 3 || sum.Prefill != 0.75 {
		t.Errorf("the sum is %+v", sum)
	}
	if got := meanTTFT(predict.Flow{}); got != 0 {
		t.Errorf("the mean of no request is %v", got)
	}
}
