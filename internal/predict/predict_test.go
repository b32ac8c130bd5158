package predict

import (
	"math"
	"math/rand/v2"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/sluice-gateway/sluice/internal/testutil"
	"github.com/sluice-gateway/sluice/ringhash"
)

// start is when virtual time begins.
var start = time.Unix(1_000_000, 0)

// engine computes prompts one after the other.
type engine struct {
	base, perToken float64
	free           time.Time
}

// run gives a prompt to the engine and returns when its first token comes.
func (e *engine) run(now time.Time, tokens float64) time.Time {
	if e.free.Before(now) {
		e.free = now
	}
	e.free = e.free.Add(time.Duration(tokens * e.perToken * float64(time.Second)))
	return e.free.Add(time.Duration(e.base * float64(time.Second)))
}

// TestB1_RatesAreLearned gives a replica requests whose first tokens are reported late, as for
// native streams, and compares predictions with what happens.
func TestB1_RatesAreLearned(t *testing.T) {
	for name, wrong := range map[string]float64{"right": 1, "guess three times too slow": 1. / 3, "guess three times too fast": 3} {
		t.Run(name, func(t *testing.T) {
			random := rand.New(rand.NewPCG(1, 2))
			e := &engine{base: 0.03, perToken: 1. / 3000}
			m := NewModel(PrefillRate(3000 * wrong))
			r := NewReplica(m)
			type running struct {
				work Work
				ttft time.Duration
				end  time.Time
			}
			var live []running
			now, errors, n := start, 0.0, 0
			for i := range 600 {
				now = now.Add(time.Duration(random.ExpFloat64() * 0.9 * float64(time.Second)))
				for k := 0; k < len(live); {
					if live[k].end.After(now) {
						k++
						continue
					}
					live[k].work.End(live[k].end, Outcome{TTFT: live[k].ttft, Uncached: -1})
					live = append(live[:k], live[k+1:]...)
				}
				tokens := math.Exp(random.NormFloat64()) * 1000
				w := r.Begin(now, len(live), tokens)
				first := e.run(now, tokens)
				live = append(live, running{w, first.Sub(now), first.Add(5 * time.Second)})
				if i >= 200 {
					real := first.Sub(now).Seconds()
					errors += math.Abs(w.TTFT.Seconds()-real) / real
					n++
				}
			}
			if mean := errors / float64(n); mean > 0.15 {
				t.Errorf("predictions are wrong by %.0f %% in the mean", 100*mean)
			}
			if rate := 1 / r.rates.Token; rate < 2000 || rate > 4500 {
				t.Errorf("learned %.0f tokens a second of 3000", rate)
			}
		})
	}
}

// TestB1_AWrongGuessEndsWithTheQueue overloads a replica whose guess is wrong, so that most of each
// time is waiting that nobody has seen. The rates and the queue must be right soon after.
func TestB1_AWrongGuessEndsWithTheQueue(t *testing.T) {
	for _, wrong := range []float64{1. / 4, 4} {
		random := rand.New(rand.NewPCG(5, 6))
		e := &engine{perToken: 1. / 4000}
		r := NewReplica(NewModel(PrefillRate(4000 * wrong)))
		type running struct {
			work       Work
			first, end time.Time
		}
		var live []running
		now := start
		for range 100 {
			now = now.Add(time.Duration(random.ExpFloat64() * 0.2 * float64(time.Second)))
			live = slices.DeleteFunc(live, func(x running) bool {
				if x.end.After(now) {
					return false
				}
				x.work.End(x.end, Outcome{TTFT: x.first.Sub(x.work.began), Uncached: -1})
				return true
			})
			tokens := math.Exp(random.NormFloat64()) * 1000
			w := r.Begin(now, len(live), tokens)
			first := e.run(now, tokens)
			live = append(live, running{w, first, first.Add(time.Duration(random.ExpFloat64() * 10 * float64(time.Second)))})
		}
		if got := r.Predict(now, len(live), 1000).Rate; got < 3200 || got > 4800 {
			t.Errorf("guess × %v: learned %.0f tokens a second of 4000", wrong, got)
		}
		if got, want := r.Waiting(now)/4000, e.free.Sub(now).Seconds(); math.Abs(got-want) > 0.25*want {
			t.Errorf("guess × %v: the queue is believed to last %.1f s, and lasts %.1f s", wrong, got, want)
		}
	}
}

// TestB1_AReplicaWithoutRequestsFollowsTheModel: what one replica teaches holds for a replica that
// has had no request, too. Otherwise the first replica that turns out faster than the guess would
// get every request.
func TestB1_AReplicaWithoutRequestsFollowsTheModel(t *testing.T) {
	m := NewModel(DefaultRates)
	busy, idle := NewReplica(m), NewReplica(m)
	now := start
	for range 100 {
		w := busy.Begin(now, 0, 100)
		now = now.Add(2 * time.Millisecond)
		w.FirstToken(now)
		now = now.Add(time.Second)
	}
	one, other := busy.Predict(now, 0, 100), idle.Predict(now, 0, 100)
	if other.TTFT > within(one.TTFT, tieShare, tieSlack) {
		t.Errorf("the replica with requests: %v, the one without: %v", one.TTFT, other.TTFT)
	}
}

// TestB1_RatesReturnToTheGuess: old samples fade.
func TestB1_RatesReturnToTheGuess(t *testing.T) {
	guess := PrefillRate(8000)
	f := fit{halfLife: halfLife}
	now, current := start, guess
	for range 100 {
		now = now.Add(100 * time.Millisecond)
		f.learn(Sample{Tokens: 2000, Seconds: 4}, current, now)
		current = f.rates(guess, 1)
	}
	if got := current.seconds(2000, 0); got < 3.5 {
		t.Fatalf("learned %.2f s, want about 4", got)
	}
	f.decay(now.Add(5 * time.Hour))
	if got, want := f.rates(guess, 1).seconds(2000, 0), guess.seconds(2000, 0); math.Abs(got-want) > 0.01 {
		t.Errorf("after hours without news: %.3f s, want the guess of %.3f s", got, want)
	}
}

// TestB1_ASlowStartIsForgiven: a replica whose first answers were slow is believed to be slow, gets
// no requests, and is trusted again after some minutes, also if the clock of the machine was set
// meanwhile.
func TestB1_ASlowStartIsForgiven(t *testing.T) {
	for _, by := range []time.Duration{0, -48 * time.Hour, 48 * time.Hour} {
		t.Run(by.String(), func(t *testing.T) { testASlowStart(t, by) })
	}
}

// testASlowStart is the test with a clock that was set by so much.
func testASlowStart(t *testing.T, by time.Duration) {
	m := NewModel(PrefillRate(5000))
	slow, other := NewReplica(m), NewReplica(m)
	now := time.Now()
	for range 50 {
		now = now.Add(time.Second)
		w := other.Begin(now, 0, 1000)
		w.FirstToken(now.Add(220 * time.Millisecond))
	}
	for range 3 {
		now = now.Add(10 * time.Second)
		w := slow.Begin(now, 0, 1000)
		w.FirstToken(now.Add(8 * time.Second))
	}
	if got := slow.Predict(now, 0, 1000).TTFT; got < time.Second {
		t.Fatalf("three slow answers teach nothing: %v", got)
	}
	later := testutil.WithClockSet(now.Add(8*time.Minute), by)
	for range 2 { // the second may read without the lock
		if got := slow.Predict(later, 0, 1000).TTFT; got > 400*time.Millisecond {
			t.Errorf("after eight minutes without news: %v", got)
		}
	}
}

// TestB1_WhatDecodesCost: requests that generate make prompts slower.
func TestB1_WhatDecodesCost(t *testing.T) {
	random := rand.New(rand.NewPCG(3, 4))
	guess := PrefillRate(5000)
	var f fit
	now, current := start, guess
	for range 300 {
		now = now.Add(100 * time.Millisecond)
		s := Sample{Tokens: 100 + 4000*random.Float64(), Decodes: float64(random.IntN(40))}
		s.Seconds = 0.02 + s.Tokens*(1./4000+s.Decodes/100_000)
		f.learn(s, current, now)
		current = f.rates(guess, 1)
	}
	for _, decodes := range []float64{0, 10, 40} {
		want := 0.02 + 2000*(1./4000+decodes/100_000)
		if got := current.seconds(2000, decodes); math.Abs(got-want) > 0.1*want {
			t.Errorf("beside %.0f: %.3f s, want %.3f s", decodes, got, want)
		}
	}
}

func TestB1_WaitingDrains(t *testing.T) {
	r := NewReplica(NewModel(PrefillRate(1000)))
	a := r.Begin(start, 0, 1000)
	b := r.Begin(start, 1, 500)
	expect := func(what string, now time.Time, want float64) {
		t.Helper()
		if got := r.Waiting(now); math.Abs(got-want) > 1 {
			t.Errorf("%s: %.0f tokens wait, want %.0f", what, got, want)
		}
	}
	if b.Waiting != 1000 {
		t.Errorf("the second request waits for %.0f tokens", b.Waiting)
	}
	expect("at once", start, 1500)
	queued := func(what string, want float64) {
		t.Helper()
		if got := r.Predict(r.at, 0, 1).Queued; got != want {
			t.Errorf("%s: %.1f requests wait, want %.0f", what, got, want)
		}
	}
	queued("at once", 2)
	expect("after half a second", start.Add(500*time.Millisecond), 1000)
	a.FirstToken(start.Add(500 * time.Millisecond))
	expect("after the first token of the first", start.Add(500*time.Millisecond), 500)
	queued("after the first token of the first", 1)
	b.End(start.Add(600*time.Millisecond), Outcome{Uncached: -1})
	expect("after both", start.Add(600*time.Millisecond), 0)
	queued("after both", 0)
	a.FirstToken(start.Add(time.Second))
	b.End(start.Add(time.Second), Outcome{Uncached: -1})
	if r.pending != 0 || r.unconfirmed != 0 {
		t.Errorf("left: %.0f tokens, %d requests", r.pending, r.unconfirmed)
	}
}

// TestB1_IdleReplicas are predicted like others: by the rates in force, and not when they have
// something to compute.
func TestB1_IdleReplicas(t *testing.T) {
	m := NewModel(PrefillRate(1000))
	r := NewReplica(m)
	expect := func(what string, now time.Time, want time.Duration) {
		t.Helper()
		for range 2 { // the second may read without the lock
			if got := r.Predict(now, 0, 1000).TTFT; got < want-want/50 || got > want+want/50 {
				t.Errorf("%s: %v, want %v", what, got, want)
			}
		}
	}
	expect("idle", start, 1020*time.Millisecond)
	m.SetGuess(PrefillRate(2000))
	expect("another guess", start, 520*time.Millisecond)
	w := r.Begin(start, 0, 2000)
	expect("behind a request", start, 1520*time.Millisecond)
	w.Leave(start)
	expect("idle again", start, 520*time.Millisecond)
	r.SetRemote(start, "g", 2000)
	expect("behind another gateway", start, 1520*time.Millisecond)
	expect("later", start.Add(time.Second), 520*time.Millisecond)
	r.SetForeign(start.Add(time.Second), 2000, 0)
	expect("behind somebody else", start.Add(time.Second), 1520*time.Millisecond)
	expect("long after the last news", start.Add(time.Minute), 520*time.Millisecond)
	w = r.Begin(start.Add(time.Minute), 0, 1000)
	w.FirstToken(start.Add(time.Minute + 4*time.Second))
	if got := r.Predict(start.Add(time.Minute+4*time.Second), 0, 1000).TTFT; got < time.Second {
		t.Errorf("after a slow first token: %v", got)
	}
}

func TestB1_OtherGatewaysCount(t *testing.T) {
	r := NewReplica(NewModel(PrefillRate(1000)))
	r.SetRemote(start, "a", 700)
	r.SetRemote(start, "b", 300)
	if got := r.Predict(start, 0, 500).Waiting; got != 1000 {
		t.Errorf("%.0f tokens wait, want 1000", got)
	}
	if got := r.Waiting(start); got != 0 {
		t.Errorf("%.0f tokens of this gateway wait, want none", got)
	}
	r.SetRemote(start, "a", 0)
	if len(r.gateways) != 1 {
		t.Errorf("the gateways %v are kept, want b alone", r.gateways)
	}
	r.SetRemote(start, "c", 1)
	r.SetForeign(start, 49, 2)
	if got := r.Predict(start, 0, 500); got.Waiting != 350 || got.Own != 500*time.Millisecond {
		t.Errorf("%.0f tokens wait, want 350; the own ones take %v, want 500 ms", got.Waiting, got.Own)
	}
}

// TestB1_OthersWhoGenerateCount: a request takes longer beside requests that generate, those of
// other clients too. What an engine has told of others holds for 15 s.
func TestB1_OthersWhoGenerateCount(t *testing.T) {
	r := NewReplica(NewModel(Rates{Token: 0.001, Decode: 0.0005}))
	r.SetForeign(start, 500, 2)
	for _, c := range []struct {
		after time.Duration
		load  int
		want  time.Duration
	}{{0, 0, 3 * time.Second}, {0, 2, 4500 * time.Millisecond}, {15 * time.Second, 0, 3 * time.Second}, {16 * time.Second, 0, time.Second}} {
		if got := r.Predict(start.Add(c.after), c.load, 1000).TTFT.Round(time.Millisecond); got != c.want {
			t.Errorf("after %v, beside 2 of others and %d: %v, want %v", c.after, c.load, got, c.want)
		}
	}
}

func TestB1_Choose(t *testing.T) {
	ids := []string{"a", "b", "c"}
	ring := ringhash.New(ids, 0)
	ms := func(n int) time.Duration { return time.Duration(n) * time.Millisecond }
	first := ring.Order(7)[0]
	for _, c := range []struct {
		name       string
		candidates [3]Candidate
		session    int
		want       int
		why        Reason
	}{
		{"the fastest", [3]Candidate{{TTFT: ms(100), Matched: 0, Load: 0}, {TTFT: ms(50), Matched: 0, Load: 0}, {TTFT: ms(100), Matched: 4, Load: 0}}, -1, 1, Fastest},
		{"not an excluded one", [3]Candidate{{TTFT: ms(100), Matched: 0, Load: 0}, {TTFT: ms(50), Matched: 0, Load: -1}, {TTFT: ms(300), Matched: 0, Load: 0}}, -1, 0, Fastest},
		{"about as fast, and cached", [3]Candidate{{TTFT: ms(100), Matched: 64, Load: 3}, {TTFT: ms(97), Matched: 0, Load: 0}, {TTFT: ms(97), Matched: 0, Load: 0}}, -1, 0, Cached},
		{"cached, but too busy", [3]Candidate{{TTFT: ms(100), Matched: 64, Load: 30}, {TTFT: ms(97), Matched: 32, Load: 0}, {TTFT: ms(97), Matched: 0, Load: 0}}, -1, 1, Cached},
		{"the ring", [3]Candidate{{TTFT: ms(10), Matched: 0, Load: 0}, {TTFT: ms(10), Matched: 0, Load: 0}, {TTFT: ms(10), Matched: 0, Load: 0}}, -1, first, Ring},
		{"the session", [3]Candidate{{TTFT: ms(10), Matched: 0, Load: 0}, {TTFT: ms(10), Matched: 900, Load: 0}, {TTFT: ms(55), Matched: 0, Load: 0}}, 2, 2, Session},
		{"a session that is too slow", [3]Candidate{{TTFT: ms(10), Matched: 0, Load: 0}, {TTFT: ms(10), Matched: 900, Load: 0}, {TTFT: ms(75), Matched: 0, Load: 0}}, 2, 1, Cached},
		{"a session on a full replica", [3]Candidate{{TTFT: ms(10), Matched: 0, Load: 0}, {TTFT: ms(10), Matched: 900, Load: 0}, {TTFT: ms(10), Matched: 0, Load: -1}}, 2, 1, Cached},
		{"none", [3]Candidate{{TTFT: ms(10), Matched: 0, Load: -1}, {TTFT: ms(10), Matched: 0, Load: -1}, {TTFT: ms(10), Matched: 0, Load: -1}}, 0, -1, ""},
	} {
		choice := Choice{Ring: ring, Key: 7, Bound: ringhash.Bound{Floor: 8}, Session: c.session}
		if got, why := choice.Choose(c.candidates[:], make([]int, 3)); got != c.want || why != c.why {
			t.Errorf("%s: got %d (%s), want %d (%s)", c.name, got, why, c.want, c.why)
		}
	}
}

// TestB1_OwnTokensDelayOthers: while requests wait, a request prefers the replica that has its
// beginning, and a long one keeps away from where many wait.
func TestB1_OwnTokensDelayOthers(t *testing.T) {
	ring := ringhash.New([]string{"a", "b"}, 0)
	choose := func(candidates ...Candidate) int {
		i, _ := Choice{Ring: ring, Session: -1}.Choose(candidates, make([]int, 2))
		return i
	}
	cached := Candidate{TTFT: 500 * time.Millisecond, Own: 100 * time.Millisecond}
	uncached := Candidate{TTFT: 400 * time.Millisecond, Own: 400 * time.Millisecond}
	if got := choose(cached, uncached); got != 1 {
		t.Error("nobody waits: the slower replica was chosen")
	}
	cached.Queued, uncached.Queued = 2, 1
	if got := choose(cached, uncached); got != 0 {
		t.Error("others wait: the replica that has to compute more was chosen")
	}
	many := Candidate{TTFT: 1000 * time.Millisecond, Own: 500 * time.Millisecond, Queued: 9}
	few := Candidate{TTFT: 1100 * time.Millisecond, Own: 500 * time.Millisecond, Queued: 1}
	if got := choose(many, few); got != 1 {
		t.Error("the long prompt went where many wait")
	}
}

// TestB1_HotBeginningsAreCopied: requests with one beginning come to two replicas. One replica has
// the beginning. Each request is right to wait for it, until they have waited as long as the other
// replica needs to compute it.
func TestB1_HotBeginningsAreCopied(t *testing.T) {
	second := time.Second
	choice := Choice{Ring: ringhash.New([]string{"a", "b"}, 0), Bound: ringhash.Bound{Floor: 8}, Session: -1, Hot: new(Hot), Beginning: 7, Now: start}
	busy := []Candidate{{TTFT: second / 2, Own: second / 10, Matched: 64}, {TTFT: second, Own: second}}
	pick := func(c Choice) int {
		i, _ := c.Choose(busy, make([]int, 2))
		return i
	}
	waited := 0
	for ; pick(choice) == 0; waited++ {
		if waited > 10 {
			t.Fatal("the hot beginning stays where it is")
		}
	}
	// Each waits 0.4 s longer than if both had the beginning. When two have waited, it may cost
	// the third 0.8 s more to compute the beginning.
	if waited != 2 {
		t.Errorf("%d requests waited before the beginning was copied, want 2", waited)
	}
	if got := pick(choice); got != 0 {
		t.Error("the beginning was copied once more at once")
	}
	pick(choice)
	later := choice
	later.Now = start.Add(10 * time.Minute)
	if got := pick(later); got != 0 {
		t.Error("what was waited long ago still counts")
	}
	peek := choice
	peek.Hot, peek.Peek = new(Hot), true
	for range 10 {
		if pick(peek) != 0 {
			t.Fatal("a peek counts as a request that waits")
		}
	}
	other := choice
	other.Beginning = 8
	for range 2 {
		if pick(other) != 0 {
			t.Error("requests with another beginning have not waited")
		}
	}
}

// TestB1_SamplesKnowWhatIsDoubtful: what a request waited for is put right by the first tokens of
// others, and doubtful as far as these do not tell.
func TestB1_SamplesKnowWhatIsDoubtful(t *testing.T) {
	at := func(seconds float64) time.Time { return start.Add(time.Duration(seconds * float64(time.Second))) }
	r := NewReplica(NewModel(PrefillRate(10))) // a guess a hundred times too slow
	a, b := r.Begin(at(0), 0, 1000), r.Begin(at(0.5), 1, 1000)
	c := r.Begin(at(2.5), 2, 1000)
	if s := b.observe(at(5), Outcome{TTFT: 1500 * time.Millisecond, Uncached: -1}); s.Doubt < 0.4 {
		t.Errorf("nobody knows what was computed before b came, and the doubt is %.2f", s.Doubt)
	}
	// The first token of b came at 2 s, so c waited for nothing.
	if s := c.observe(at(5), Outcome{TTFT: time.Second, Uncached: -1}); s.Tokens != 1000 || s.Doubt != 0 {
		t.Errorf("c waited for nothing, and the sample has %.0f tokens, doubt %.2f", s.Tokens, s.Doubt)
	}
	if s := a.observe(at(5), Outcome{TTFT: time.Second, Uncached: -1}); s.Tokens != 1000 || s.Doubt != 0 {
		t.Errorf("a waited for nothing, and the sample has %.0f tokens, doubt %.2f", s.Tokens, s.Doubt)
	}
}

// BenchmarkPredict is the prediction for each of 1,000 replicas.
func BenchmarkPredict(b *testing.B) {
	m := NewModel(PrefillRate(5000))
	replicas := make([]*Replica, 1000)
	for i := range replicas {
		replicas[i] = NewReplica(m)
		replicas[i].Begin(start, 0, 1000)
	}
	now := start
	for b.Loop() {
		now = now.Add(time.Microsecond)
		for _, r := range replicas {
			r.Predict(now, 3, 500)
		}
	}
}

func BenchmarkLearn(b *testing.B) {
	r := NewReplica(NewModel(PrefillRate(5000)))
	now := start
	for b.Loop() {
		now = now.Add(time.Millisecond)
		w := r.Begin(now, 3, 500)
		w.FirstToken(now.Add(50 * time.Millisecond))
	}
}

// BenchmarkChoose is the choice among 1,000 replicas.
func BenchmarkChoose(b *testing.B) {
	ids := make([]string, 1000)
	candidates := make([]Candidate, len(ids))
	for i := range ids {
		ids[i] = strconv.Itoa(i)
		candidates[i] = Candidate{TTFT: time.Duration(i%97+1) * time.Millisecond, Own: time.Millisecond, Queued: float64(i % 5), Load: i % 7}
	}
	c := Choice{Ring: ringhash.New(ids, 0), Session: -1, Hot: new(Hot), Beginning: 7, Now: start}
	loads := make([]int, len(ids))
	for b.Loop() {
		c.Choose(candidates, loads)
	}
}

// TestB1_CostsByHand: what a request costs at a replica, computed by hand.
func TestB1_CostsByHand(t *testing.T) {
	ms := time.Millisecond
	f := overview{maxLoad: 8, queued: 2, own: 100 * ms}
	x := Candidate{TTFT: 300 * ms, Own: 200 * ms, Load: 10, Queued: 5}
	// Three requests beyond the bound cost 30 ms. The own 200 ms delay 2 + 0.1 · 5 others.
	if got := f.full(&x); got != 830*ms {
		t.Errorf("a request costs %v by itself, want 830ms", got)
	}
	// 100 ms are computed again, and delay as many.
	if got := f.again(&x); got != 350*ms {
		t.Errorf("%v are for what another replica has, want 350ms", got)
	}
	for waited, want := range map[time.Duration]time.Duration{0: 830 * ms, 100 * ms: 730 * ms, time.Hour: 480 * ms} {
		f.waited = waited
		if got := f.cost(&x); got != want {
			t.Errorf("others have waited %v: a cost of %v, want %v", waited, got, want)
		}
	}
	if got := within(200*ms, 0.25, 50*ms); got != 300*ms {
		t.Errorf("a quarter and 50 ms more than 200 ms are %v", got)
	}
	if !(&Candidate{Matched: 4, TTFT: ms}).holdsMore(&Candidate{Matched: 4, TTFT: 2 * ms}) || (&Candidate{Matched: 4}).holdsMore(&Candidate{Matched: 4}) {
		t.Error("of replicas that have as much, the faster one does not win")
	}
	for doubt, want := range map[float64]float64{0: 1, 0.5: 0.25, 1: 0.0025} {
		if got := (&Sample{Doubt: doubt}).weight(); math.Abs(got-want) > 1e-12 {
			t.Errorf("a sample of which %v is a guess counts %v, want %v", doubt, got, want)
		}
	}
}

// TestB1_QueuedRequests: what other gateways and other clients have waiting counts in requests of
// the usual length.
func TestB1_QueuedRequests(t *testing.T) {
	r := NewReplica(NewModel(PrefillRate(1000)))
	r.SetRemote(start, "a", 10*minTokens)
	if got := r.Predict(start, 0, 500).Queued; got != 10 {
		t.Errorf("%v requests wait before any length is known, want 10", got)
	}
	r.Begin(start, 0, 4*minTokens)
	r.SetForeign(start, 16*minTokens, 3)
	// One of this gateway, and (10 + 16) / 4 of others.
	if got := r.Predict(start, 1, 500).Queued; got != 7.5 {
		t.Errorf("%v requests wait, want 7.5", got)
	}
	const more = 100
	for range more {
		w := r.Begin(start, 1, 8*minTokens)
		w.Leave(start)
	}
	usual := 8 - (8-4)*math.Pow(memory, more) // in minTokens
	if got, want := r.Predict(start, 1, 500).Queued, 1+(10+16)/usual; math.Abs(got-want) > 0.01 {
		t.Errorf("%v requests wait after longer ones, want %v", got, want)
	}
	if now, later := r.Queued(start), r.Queued(start.Add(time.Hour)); now != 1 || later != 0 {
		t.Errorf("%d requests of this gateway wait now and %d in an hour, want 1 and none", now, later)
	}
}
