package predict

import (
	"math/rand/v2"
	"testing"
	"time"
)

// twin is a replica with what may happen to it: requests of its own, and those of another replica
// of its model.
type twin struct {
	model        *Model
	one, other   *Replica
	work, beside []Work
}

func newTwin() *twin {
	m := NewModel(PrefillRate(1000))
	return &twin{model: m, one: NewReplica(m), other: NewReplica(m)}
}

// step has something happen that the random numbers say.
func (w *twin) step(random *rand.Rand, now time.Time) {
	tokens := float64(1 + random.IntN(4000))
	took := time.Duration(1+random.IntN(5000)) * time.Millisecond
	switch random.IntN(10) {
	case 0, 1:
		w.work = append(w.work, w.one.Begin(now, len(w.work), tokens))
	case 2:
		w.beside = append(w.beside, w.other.Begin(now, len(w.beside), tokens))
	case 3:
		w.one.SetRemote(now, "g", max(tokens-2000, 0))
	case 4:
		w.one.SetForeign(now, max(tokens-2000, 0), float64(random.IntN(2)))
	case 5:
		w.model.SetGuess(PrefillRate(tokens))
	case 6:
		if n := len(w.beside); n > 0 {
			w.beside[n-1].End(now, Outcome{TTFT: took, Uncached: -1})
			w.beside = w.beside[:n-1]
		}
	default:
		if len(w.work) == 0 {
			return
		}
		if last := &w.work[len(w.work)-1]; random.IntN(2) == 0 {
			last.End(now, Outcome{TTFT: took, Uncached: tokens})
		} else {
			last.Leave(now)
		}
		w.work = w.work[:len(w.work)-1]
	}
}

// A replica that has nothing to compute is predicted without its lock, and as with it, whatever has
// happened before.
func TestB1_IdleReplicasNeedNoLock(t *testing.T) {
	idle := 0
	for seed := range uint64(50) {
		one, locked := newTwin(), newTwin()
		a, b := rand.New(rand.NewPCG(seed, 1)), rand.New(rand.NewPCG(seed, 1))
		now := start
		for i := range 100 {
			one.step(a, now)
			locked.step(b, now)
			locked.one.idle.valid.Store(false)
			got, want := one.one.Predict(now, i%3, 500), locked.one.Predict(now, i%3, 500)
			if got != want {
				t.Fatalf("seed %d, step %d: %+v, with the lock %+v", seed, i, got, want)
			}
			_, without := one.one.ratesIfIdle(now)
			r := locked.one
			if nothing := len(r.queue) == 0 && r.waiting+r.remote+r.foreignTokens+r.foreignRunning == 0; without != nothing {
				t.Fatalf("seed %d, step %d: predicted without the lock: %t, nothing to compute: %t", seed, i, without, nothing)
			}
			if without {
				idle++
			}
			now = now.Add(time.Duration(i%5) * 1250 * time.Millisecond)
		}
	}
	if idle < 500 {
		t.Errorf("the replica was idle only %d times", idle)
	}
}
