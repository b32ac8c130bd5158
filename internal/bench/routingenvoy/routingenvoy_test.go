package main

import (
	"math"
	"strings"
	"testing"
	"time"

	"github.com/sluice-gateway/sluice/internal/bench/trace"
)

func TestB1_TheScaledTraceKeepsBeginnings(t *testing.T) {
	work := scaled([]trace.Request{
		{At: time.Minute, Prompt: 1024 + 160, Output: 320, Blocks: []int32{0, 1, 2}},
		{At: 2 * time.Minute, Prompt: 1024 + 320, Output: 3, Blocks: []int32{0, 1, 3}},
	}, 20)
	tokens := func(i int) int { return strings.Count(work[i].prompt, " ") }
	if work[0].at != 3*time.Second || tokens(0) != 74 || work[0].output != 20 || tokens(1) != 84 || work[1].output != 1 {
		t.Errorf("got %d and %d tokens, %+v", tokens(0), tokens(1), work)
	}
	shared := 64 * tokenBytes
	if work[0].prompt[:shared] != work[1].prompt[:shared] || work[0].prompt[shared:] == work[1].prompt[shared:shared+40] {
		t.Errorf("two blocks must be shared, and the third not:\n%q\n%q", work[0].prompt, work[1].prompt)
	}
}

func TestB1_MovedShareCountsFollowUps(t *testing.T) {
	work := []request{{blocks: []int32{0, 1}}, {blocks: []int32{0, 2}}, {blocks: []int32{0, 1, 3}}, {blocks: []int32{0, 1, 3, 4}}}
	at := []answer{{replica: "a"}, {replica: "b"}, {replica: "b"}, {replica: "b"}}
	if got := movedShare(work, at); got != 0.5 {
		t.Errorf("%v of the follow-ups moved, want the first of two", got)
	}
}

func TestB1_MedianOfAHistogram(t *testing.T) {
	text := `# HELP sluice_x y
sluice_x_bucket{model="chat",le="0.5"} 2
sluice_x_bucket{model="chat",le="1"} 6
sluice_x_bucket{model="chat",le="+Inf"} 8
sluice_x_sum{model="chat"} 9
`
	if got := histogram(text, "sluice_x").median(); math.Abs(got-0.75) > 1e-9 {
		t.Errorf("the median is %v, want 0.75", got)
	}
	if got := histogram(text, "sluice_y").median(); got != 0 {
		t.Errorf("the median of nothing is %v", got)
	}
}

func TestB1_TheCheckNamesWhatIsMissed(t *testing.T) {
	least := result{strategy: "least_connections", mean: 10}
	good := result{strategy: "prefix", mean: 6, predictions: predictions{ratio: 1.2}}
	if err := check([]result{least, good}); err != nil {
		t.Error(err)
	}
	for _, bad := range []result{
		{strategy: "prefix", mean: 6.1, predictions: predictions{ratio: 1}},
		{strategy: "prefix", mean: 5, predictions: predictions{ratio: 0.7}},
		{strategy: "chwbl"},
	} {
		if check([]result{least, bad}) == nil {
			t.Errorf("%+v passes", bad)
		}
	}
}
