package relay

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// Gaps are reported when there are enough of them or the first of them is old.
func TestTokenGaps(t *testing.T) {
	var reported [][]time.Duration
	gaps := tokenGaps{report: func(gaps ...time.Duration) { reported = append(reported, slices.Clone(gaps)) }}
	now := time.Unix(1, 0)
	add := func(n int, gap time.Duration) {
		for range n {
			before := now
			now = now.Add(gap)
			gaps.add(before, now)
		}
	}
	add(maxGaps+1, time.Millisecond)
	add(1, maxGapAge-time.Millisecond)
	add(1, time.Millisecond)
	add(2, time.Hour)
	gaps.flush()
	gaps.flush()
	want := [][]time.Duration{slices.Repeat([]time.Duration{time.Millisecond}, maxGaps),
		{time.Millisecond, maxGapAge - time.Millisecond, time.Millisecond}, {time.Hour, time.Hour}}
	if d := cmp.Diff(want, reported); d != "" {
		t.Error("wanted - reported +\n", d)
	}
}

// TestS12_GapsOfEachModel: no model is without observed gaps, however rare its streams are.
func TestS12_GapsOfEachModel(t *testing.T) {
	var s gapSampler
	observed := map[string][]bool{}
	for range gapSampling + 1 {
		for _, model := range []string{"a", "b", "c"} {
			observed[model] = append(observed[model], s.next(model))
		}
	}
	want := make([]bool, gapSampling+1)
	want[0], want[gapSampling] = true, true
	if d := cmp.Diff(map[string][]bool{"a": want, "b": want, "c": want}, observed); d != "" {
		t.Error("wanted - observed +\n", d)
	}
}

// The sampler forgets models that are gone: an upstream may list other names each day.
func TestX2_GapSamplerIsBounded(t *testing.T) {
	var s gapSampler
	for i := range 2*maxGapModels + 1 {
		if !s.next(fmt.Sprint(i)) {
			t.Fatalf("the first stream of model %d is not observed", i)
		}
	}
	held := 0
	s.streams.Range(func(any, any) bool { held++; return true })
	if held > maxGapModels {
		t.Errorf("%d models are held, want at most %d", held, maxGapModels)
	}
}

// An attempt that ends before its first token has no gaps, so the next one is the first stream of
// its model.
func TestS12_GapsAfterAFailedAttempt(t *testing.T) {
	var attempts atomic.Int64
	failing, whole := engineThatSends(roleEvent, errorEvent), engineThatSends(roleEvent+strings.Repeat(tokenEvent("a"), 70)+finishEvent("", "stop")+doneEvent)
	h := newHarness(t, options{replicas: 2, handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if attempts.Add(1) == 1 {
			failing.ServeHTTP(w, r)
		} else {
			whole.ServeHTTP(w, r)
		}
	})})
	var counted atomic.Int64
	h.relay.config.Gaps = func(_ string, gaps ...time.Duration) { counted.Add(int64(len(gaps))) }
	h.sendAndRead(hello)
	if attempts.Load() != 2 || counted.Load() != 69 {
		t.Errorf("%d attempts, %d gaps, want 2 and 69", attempts.Load(), counted.Load())
	}
}

// Every gap of an observed stream is reported before its client learns of the end, however it ends.
func TestGapsOfStreams(t *testing.T) {
	tokens := roleEvent + strings.Repeat(tokenEvent("a"), 70)
	for name, events := range map[string]string{"whole": tokens + finishEvent("", "stop") + doneEvent, "cut": tokens, "fails": tokens + errorEvent} {
		h := newHarness(t, options{handler: engineThatSends(events)}) // the first stream of a model is observed
		var mu sync.Mutex
		counted := 0
		h.relay.config.Gaps = func(model string, gaps ...time.Duration) {
			mu.Lock()
			defer mu.Unlock()
			if counted += len(gaps); model != "m" {
				t.Errorf("%s: gaps of model %q", name, model)
			}
		}
		h.sendAndRead(hello)
		mu.Lock()
		if counted != 69 {
			t.Errorf("%s: %d gaps", name, counted)
		}
		mu.Unlock()
	}
}
