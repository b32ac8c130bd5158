package dispatch

import (
	"testing"
	"testing/synctest"
	"time"
)

// The first response of a model is sampled, then one a second, and all models together few.
func TestR3_SampleByTime(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var budget sampleBudget
		count := func(models []*sampler, seconds int) []int {
			n := make([]int, len(models))
			for range seconds * 10 {
				for i, m := range models {
					if m.acquire(true, &budget, time.Now()) {
						n[i]++
					}
				}
				time.Sleep(100 * time.Millisecond)
			}
			return n
		}
		one := []*sampler{new(sampler)}
		if !one[0].acquire(true, &budget, time.Now()) || !one[0].acquire(false, &budget, time.Now()) {
			t.Error("the first responses are not sampled")
		}
		if n := count(one, 20)[0]; n < 18 || n > 20 {
			t.Errorf("%d samples in 20 s", n)
		}
		many := make([]*sampler, 20)
		for i := range many {
			many[i] = new(sampler)
		}
		if n := count(many, 1); n[0] != 1 || n[19] != 1 {
			t.Errorf("first responses: %v", n)
		}
		all := 0
		for i, n := range count(many, 100) {
			if all += n; n < 9 {
				t.Errorf("%d samples of model %d in 100 s", n, i)
			}
		}
		if most := 100*samplesPerSecond + 10*len(many); all > most {
			t.Errorf("%d samples in 100 s, want at most %d", all, most)
		}
	})
}

// A gateway without samples has no response read.
func TestR3_NoSamples(t *testing.T) {
	t.Parallel()
	for _, none := range []bool{false, true} {
		s := newStage(Policy{})
		s.unsampled = none
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
