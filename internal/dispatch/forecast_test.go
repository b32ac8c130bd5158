package dispatch

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/sluice-gateway/sluice/engines"
)

// teach settles a request of so many prompt tokens, of which some were cached, with this time to
// the first token.
func (s stage) teach(t *testing.T, prompt, cached int64, ttft time.Duration) {
	t.Helper()
	r := newRequest("m", "k")
	r.PromptBytes = int(prompt) * bytesPerPromptToken
	ticket := s.must(t, r)
	ticket.Correct(Response{Known: true, Prompt: prompt, Cached: cached, Completion: 1, TTFT: ttft})
	ticket.Release()
}

func (s stage) foreseen(tokens int) time.Duration {
	_, c, _ := s.resolve(&Request{Model: "m"})
	return c.firstToken(tokens * bytesPerPromptToken)
}

func between(t *testing.T, what string, got, least, most time.Duration) {
	t.Helper()
	if got < least || got > most {
		t.Errorf("%s: %v, want %v to %v", what, got, least, most)
	}
}

const ms = time.Millisecond

// The time is base + perToken × tokens, with noise, and an answer that hung changes little.
func TestForeseesTheFirstToken(t *testing.T) {
	s := newStage(Policy{})
	s.put("m", replicas("a")...)
	random := rand.New(rand.NewPCG(1, 1))
	for range 2 {
		s.teach(t, 100, 0, 100*ms)
	}
	if got := s.foreseen(100); got != 0 {
		t.Errorf("%v after two answers", got)
	}
	for range 200 {
		tokens := random.Int64N(20_000)
		noise := time.Duration(random.Int64N(int64(20*ms))) - 10*ms
		s.teach(t, tokens, 0, 50*ms+time.Duration(tokens)*ms/10+noise)
	}
	between(t, "short", s.foreseen(0), 40*ms, 60*ms)
	between(t, "long", s.foreseen(20_000), 2030*ms, 2070*ms)
	s.teach(t, 10_000, 0, time.Hour)
	between(t, "after one that hung", s.foreseen(10_000), 1000*ms, 1150*ms)
	for range 50 {
		s.teach(t, 10_000, 0, 0) // not known
	}
	between(t, "after some that are not known", s.foreseen(10_000), 1000*ms, 1150*ms)
	for range 300 {
		s.teach(t, random.Int64N(20_000), 0, 5*time.Second)
	}
	between(t, "slow whatever the length", s.foreseen(0), 4*time.Second, 6*time.Second)
}

// What the engine had in its cache takes no time; how much that usually is, is known only
// afterwards.
func TestForeseesWhatIsCached(t *testing.T) {
	s := newStage(Policy{})
	s.put("m", replicas("a")...)
	for i := range 100 {
		prompt := int64(1000 + 100*i)
		s.teach(t, prompt, prompt*9/10, time.Duration(prompt/10)*ms)
	}
	between(t, "nine tenths cached", s.foreseen(10_000), 990*ms, 1010*ms)
}

// A line that would fall, or begin below nothing, is bent.
func TestForesightIsNeverNegative(t *testing.T) {
	s := newStage(Policy{})
	s.put("m", replicas("a")...)
	for i := range int64(10) {
		s.teach(t, 100+i*100, 0, 500*ms-time.Duration(i)*10*ms)
	}
	between(t, "falling", s.foreseen(100_000), 400*ms, 500*ms)
	s = newStage(Policy{})
	s.put("m", replicas("a")...)
	for i := range int64(10) {
		s.teach(t, 1000+i*100, 0, time.Duration(i)*100*ms)
	}
	between(t, "from below", s.foreseen(1), 0, ms)
	between(t, "half of what was seen", s.foreseen(500), 100*ms, 400*ms)
	between(t, "far beyond", s.foreseen(1<<40), longestTTFT, longestTTFT)
}

func TestFirstModel(t *testing.T) {
	s := newStage(Policy{})
	s.put("m", replicas("a")...)
	s.put("n", engines.Replica{ID: "n1", State: engines.Starting})
	s.SetRules(Rules{Pools: map[string][]string{"auto": {"m", "n", "gone"}}})
	forbidden := func(string) bool { return false }
	for name, c := range map[string]struct {
		r      Request
		want   string
		starts bool
	}{
		"a model":         {Request{Model: "m"}, "m", false},
		"by its alias":    {Request{Model: "m-alias"}, "m", false},
		"one that starts": {Request{Model: "n"}, "n", true},
		"a pool":          {Request{Model: "auto"}, "m", false},
		"unknown":         {Request{Model: "x"}, "", false},
		"forbidden":       {Request{Model: "m", Allowed: forbidden}, "", false},
	} {
		_, models, _ := s.resolve(&c.r)
		if got := s.FirstModel(&c.r); got != c.want || models.starts() != c.starts {
			t.Errorf("%s: %q, which starts: %v", name, got, models.starts())
		}
	}
}
