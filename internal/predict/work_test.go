package predict

import (
	"testing"
	"time"
)

// TestB1_ARequestTeachesOnce: a first token teaches, once. A request that ends without one teaches
// nothing, and so does the zero value, which is no request.
func TestB1_ARequestTeachesOnce(t *testing.T) {
	r := NewReplica(NewModel(PrefillRate(1000)))
	expect := func(what string, want int) {
		t.Helper()
		if r.fit.samples != want {
			t.Errorf("%s: %d samples, want %d", what, r.fit.samples, want)
		}
	}
	none, known, unknown := Work{}, r.Begin(start, 0, 1000), r.Begin(start, 1, 1000)
	none.Leave(start)
	none.End(start, Outcome{TTFT: time.Second, Uncached: -1})
	unknown.End(start, Outcome{Uncached: -1})
	expect("without a first token", 0)
	known.End(start, Outcome{TTFT: 1, Uncached: -1})
	expect("with a first token, even after a nanosecond", 1)
	known.FirstToken(start)
	known.End(start, Outcome{TTFT: time.Second, Uncached: -1})
	expect("told again", 1)
}

// TestB1_TokensOfASample: what the engine has told of a request counts, 0 too. A negative number
// means that it is not known.
func TestB1_TokensOfASample(t *testing.T) {
	for told, want := range map[float64]float64{-1: 1000, 0: 1, 0.5: 1, 1.5: 1.5, 300: 300} {
		r := NewReplica(NewModel(PrefillRate(1000)))
		w := r.Begin(start, 0, 1000)
		if s := w.observe(start.Add(time.Second), Outcome{TTFT: time.Second, Uncached: told}); s.Tokens != want {
			t.Errorf("told %v: the sample has %v tokens, want %v", told, s.Tokens, want)
		}
	}
}

// TestB1_PendingTokens: a request that leaves takes its tokens along. The last one leaves none.
func TestB1_PendingTokens(t *testing.T) {
	r := NewReplica(NewModel(PrefillRate(1000)))
	a, b, c := r.Begin(start, 0, 0.1), r.Begin(start, 1, 700), r.Begin(start, 2, 0.2)
	for _, step := range []struct {
		work *Work
		want float64
	}{{&b, 2}, {&a, 1}, {&c, 0}} { // a request has at least one token
		step.work.Leave(start)
		step.work.Leave(start)
		if got := r.Pending(); got != step.want {
			t.Errorf("%v tokens are pending, want %v", got, step.want)
		}
	}
}
