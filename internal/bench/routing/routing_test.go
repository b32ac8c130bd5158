package main

import (
	"math"
	"strings"
	"sync"
	"testing"

	"github.com/sluice-gateway/sluice/internal/bench/trace"
)

// hour is the recorded hour.
var hour = sync.OnceValue(func() *workload {
	requests, err := trace.Conversation()
	if err != nil {
		panic(err)
	}
	return newWorkload(conversationName, requests)
})

// first returns the first n requests of a workload.
func first(w *workload, n int) *workload {
	part := *w
	part.prompts = part.prompts[:min(n, len(part.prompts))]
	return &part
}

// named returns the rules of these names.
func named(t *testing.T, names ...string) (found []namedRule) {
	t.Helper()
	for _, name := range names {
		for _, r := range append(rules[:len(rules):len(rules)], variants...) {
			if r.name == name {
				found = append(found, r)
			}
		}
	}
	if len(found) != len(names) {
		t.Fatalf("there are %d rules of %q", len(found), names)
	}
	return found
}

// TestB1_TheSimulatorIsRight compares rules without chance with the figures of another
// implementation of the same simulator, over the whole hour.
func TestB1_TheSimulatorIsRight(t *testing.T) {
	for _, want := range []struct {
		rule              string
		cache             int
		load              float64
		mean, p90, cached float64
	}{
		{"round robin", smallCache, 1, 9.64, 24.33, 0.051},
		{leastName, smallCache, 1, 6.20, 14.50, 0.051},
		{leastName, largeCache, 1.3, 19.83, 36.86, 0.095},
		{"thresholds", smallCache, 1, 14.49, 57.65, 0.062},
	} {
		p := newPoint(hour(), want.cache, want.load)
		p.run(named(t, want.rule))
		got := p.outcomes[want.rule]
		if math.Abs(got.mean-want.mean) > 0.006 || math.Abs(got.p90-want.p90) > 0.006 || math.Abs(got.cached-want.cached) > 0.0006 {
			t.Errorf("%s, caches of %s, load %g: got %.2f s, p90 %.2f s, %.1f %% cached; want %.2f s, %.2f s, %.1f %%", want.rule, p.cacheName(), want.load,
				got.mean, got.p90, 100*got.cached, want.mean, want.p90, 100*want.cached)
		}
	}
}

// TestB1_BeatsTheOtherRules holds the strategy `prefix` to the demands on a part of the hour.
func TestB1_BeatsTheOtherRules(t *testing.T) {
	w := first(hour(), 3000)
	for _, cache := range caches {
		for _, load := range demandedLoads {
			p := newPoint(w, cache, load)
			p.run(named(t, compared...))
			for i := range demands {
				d := demands[i]
				if d.other == scoresName && load < 1 && d.about == "mean" {
					d.atMost = 0.7 // docs/routing.md says why
				}
				if !d.isMet(p) {
					t.Errorf("caches of %s, load %g: the %s is %.2f × that of %s, demanded is %g ×", p.cacheName(), load, d.about, d.ratio(p), d.other, d.atMost)
				}
			}
		}
	}
}

// TestB1_NeverWorseThanLeastConnections runs the made-up worst cases.
func TestB1_NeverWorseThanLeastConnections(t *testing.T) {
	for _, c := range worstCases {
		w := first(madeWorkload(c.name, c.requests), 5000)
		for _, load := range []float64{0.5, 1, 1.2} {
			p := newPoint(w, smallCache, load)
			p.slow = load == 0.5
			p.run(named(t, leastName, oursName))
			for _, line := range missed([]*point{p}) {
				t.Error(line)
			}
		}
	}
}

// TestB1_WhatAGatewayDoesNotKnow: a wrong first guess, first tokens that are known late, engines
// that do not tell what they had cached, and several gateways cost little.
func TestB1_WhatAGatewayDoesNotKnow(t *testing.T) {
	w := first(hour(), 3000)
	for _, cache := range caches {
		p := newPoint(w, cache, 1)
		p.run(variants)
		usual := p.outcomes[variants[0].name].mean
		for _, v := range variants[1:] {
			if strings.Contains(v.name, "believed") || strings.Contains(v.name, "do not") {
				continue
			}
			if got := p.outcomes[v.name].mean; got > 1.1*usual {
				t.Errorf("caches of %s, %s: %.2f s, and usually %.2f s", p.cacheName(), v.name, got, usual)
			}
		}
		alone, told := p.outcomes["4 gateways that do not"].mean, p.outcomes["4 gateways that tell each other"].mean
		if alone < 1.2*told {
			t.Errorf("caches of %s: 4 gateways that tell each other nothing reach %.2f s, the others %.2f s: the test shows nothing", p.cacheName(), alone, told)
		}
	}
}

func TestCacheForgetsTheEndOfPromptsFirst(t *testing.T) {
	c := newBlockCache(4, 8)
	c.touch([]int32{0, 1, 2})
	c.touch([]int32{0, 1, 3, 4})
	if got := c.match([]int32{0, 1, 2}); got != 2 {
		t.Errorf("%d blocks of the first prompt are left, want 2", got)
	}
	c.touch([]int32{5, 6})
	if got := c.match([]int32{0, 1, 3, 4}); got != 2 {
		t.Errorf("%d blocks of the second prompt are left, want 2", got)
	}
}

// TestAnswersSlowPrompts computes a prompt beside two answers, of which one ends in between.
func TestAnswersSlowPrompts(t *testing.T) {
	r := replica{rate: 1000, slowdown: 0.5}
	r.ends = append(r.ends, seconds(1), seconds(10))
	// 500 tokens in the first second beside two answers, 1,000 in 1.5 s beside one.
	if got := r.compute(0, 1500); math.Abs(got.Seconds()-2.5) > 1e-6 {
		t.Errorf("computed after %v, want 2.5 s", got)
	}
}
