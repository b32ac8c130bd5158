package dispatch

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluice-gateway/sluice/internal/testutil"
)

// sampled returns how many responses of each model are sampled while each has so many a second.
func sampled(credit *sampleCredit, models []*sampler, seconds, perSecond int) []int {
	n := make([]int, len(models))
	for range seconds * perSecond {
		for i, m := range models {
			if m.acquire(true, credit, time.Now()) {
				n[i]++
			}
		}
		time.Sleep(time.Second / time.Duration(perSecond))
	}
	return n
}

// The first response of a model is sampled. Later ones are so for each model at most once a second,
// and few of all responses.
func TestR3_SampleByTime(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var credit sampleCredit
		one := []*sampler{new(sampler)}
		if !one[0].acquire(true, &credit, time.Now()) || !one[0].acquire(false, &credit, time.Now()) {
			t.Error("the first responses are not sampled")
		}
		if n := sampled(&credit, one, 8, 10)[0]; n < 7 || n > 8 {
			t.Errorf("%d samples in the first 8 s", n)
		}
		sampled(&credit, one, 60, 20)
		if n := sampled(&credit, one, 64, 20)[0]; n < 20 || n > 30 {
			t.Errorf("%d samples of 1280 responses in 64 s", n)
		}
		if n := sampled(&credit, one, 20, 640)[0]; n < 19 || n > 20 {
			t.Errorf("%d samples in 20 s, with 640 responses a second", n)
		}
	})
}

// Models share the credit. Those that were not sampled for long come first.
func TestR3_SampleOfManyModels(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var credit sampleCredit
		many := make([]*sampler, 20)
		for i := range many {
			many[i] = new(sampler)
		}
		if n := sampled(&credit, many, 1, 1); slices.Contains(n, 0) {
			t.Errorf("first responses: %v", n)
		}
		all := 0
		for i, n := range sampled(&credit, many, 100, 10) {
			if all += n; n < 9 {
				t.Errorf("%d samples of model %d in 100 s", n, i)
			}
		}
		if most := 100*10*len(many)/sampleShare + 10 + maxSamples; all > most {
			t.Errorf("%d samples in 100 s, want at most %d", all, most)
		}
	})
}

// A model with a response each ten seconds has all of them sampled.
func TestR3_SampleOfRareResponses(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var credit sampleCredit
		rare := new(sampler)
		for n := range 50 {
			if !rare.acquire(true, &credit, time.Now()) {
				t.Fatalf("response %d is not sampled", n)
			}
			time.Sleep(10 * time.Second)
		}
	})
}

// A gateway without samples has no response read.
func TestR3_NoSamples(t *testing.T) {
	t.Parallel()
	for _, none := range []bool{false, true} {
		s := newStage(Policy{})
		s.config.NoSamples = none
		s.put("m", replicas("a")...)
		ticket := s.must(t, ask(t, nil, "hello"))
		if got := ticket.AcquireSample(true); got == none {
			t.Errorf("without samples: %t, and the first response is read: %t", none, got)
		}
		ticket.Release()
	}
}

// What a response has cost follows from the engine's count, from its events, or from its bytes and
// what sampled responses have taught.
func TestR3_CostOfAResponse(t *testing.T) {
	t.Parallel()
	var l estimator
	q := l.estimate(&Request{Tenant: "a", PromptBytes: 4000, MaxTokens: 100})
	for range 200 { // 90 bytes an event
		l.correct(Response{Bytes: 9000, Stream: true, Completion: 100}, q)
	}
	for name, c := range map[string]struct {
		r                  Response
		prompt, completion int64
		finish             string
	}{
		"told":          {Response{Known: true, Prompt: 900, Completion: 50, Bytes: 1}, 900, 50, "stop"},
		"counted":       {Response{Completion: 100, Bytes: 1, Stream: true}, 1000, 100, "length"},
		"bytes":         {Response{Bytes: 4500, Stream: true}, 1000, 50, "stop"},
		"many bytes":    {Response{Bytes: 90_000, Stream: true}, 1000, 100, "length"},
		"nothing":       {Response{Failed: true}, 0, 0, ""},
		"nobody waited": {Response{Failed: true, Abandoned: true}, 1000, 0, ""},
	} {
		got := l.costOf(c.r, q)
		u := got.Usage
		if u.Prompt != c.prompt || u.Completion < c.completion*88/100 || u.Completion > c.completion*112/100 || got.Finish != c.finish || u.Known != c.r.Known {
			t.Errorf("%s: %+v, want %d, %d, %q", name, got, c.prompt, c.completion, c.finish)
		}
	}
	embedding := l.estimate(&Request{Tenant: "a", PromptBytes: 4000, NoOutput: true})
	if got := l.costOf(Response{Bytes: 5000}, embedding); got.Usage.Prompt != 1000 || got.Usage.Completion != 0 || got.Finish != "" {
		t.Errorf("an embedding: %+v", got)
	}
	speech := l.estimate(&Request{Tenant: "a", PromptBytes: 4000, MediaOutput: 70})
	if got := l.costOf(Response{Bytes: 5000}, speech); got.Usage.Prompt != 1000 || got.Usage.Completion != 70 || got.Finish != "" {
		t.Errorf("speech: %+v", got)
	}
}

// TestR3_SamplesWhileTheClockIsSet: a clock of the machine that is set changes neither the samples
// nor what is counted by the second.
func TestR3_SamplesWhileTheClockIsSet(t *testing.T) {
	t.Parallel()
	for _, by := range []time.Duration{-48 * time.Hour, 48 * time.Hour} {
		var credit sampleCredit
		var s sampler
		var b sampleBudget
		now := time.Now()
		after := func(passed time.Duration) time.Time { return testutil.WithClockSet(now.Add(passed), by) }
		s.acquire(true, &credit, now)
		if s.acquire(true, &credit, after(sampleEvery/2)) || !s.acquire(true, &credit, after(2*sampleEvery)) {
			t.Errorf("clock set by %v: a model is sampled never again, or always", by)
		}
		b.acquire(now, 2)
		for i, want := range []bool{true, true, false} {
			if got := b.acquire(after(time.Second), 2); got != want {
				t.Errorf("clock set by %v: number %d of two in a second: %v", by, i+1, got)
			}
		}
		if b.acquire(now, 2) {
			t.Errorf("clock set by %v: a goroutine that is late gets the budget once more", by)
		}
	}
}
