package main

import (
	"testing"
	"time"

	"github.com/sluice-gateway/sluice/internal/bench/trace"
	"github.com/sluice-gateway/sluice/internal/scale"
)

// outcomes replays the recorded hour as a workload under some rules, by their names.
func outcomes(t *testing.T, w workload, names ...string) []outcome {
	t.Helper()
	recorded, err := trace.Conversation()
	if err != nil {
		t.Fatal(err)
	}
	requests := w.arrive(recorded)
	var all []outcome
	for _, name := range names {
		for _, r := range rules() {
			if r.name == name {
				all = append(all, simulate(requests, r))
			}
		}
	}
	if len(all) != len(names) {
		t.Fatalf("there are no rules %v", names)
	}
	return all
}

// TestU7_TargetsOnTheRecordedHour has the recorded hour, waves and steps, with cold starts of a
// minute. Scaling by a target rarely misses the target, where scaling by the queue alone misses it
// most of the time. It needs a fraction of the replicas of a fleet that never misses the target,
// and does not flap.
func TestU7_TargetsOnTheRecordedHour(t *testing.T) {
	t.Parallel()
	for _, w := range workloads() {
		t.Run(w.name, func(t *testing.T) {
			t.Parallel()
			o := outcomes(t, w, "queue alone, 256 slots", "queue alone, 32 slots", "`running: 8`", "`ttft: 6s`", "always 16 replicas")
			full, queue, running, ttft, always := o[0], o[1], o[2], o[3], o[4]
			if ttft.above > 0.1 || ttft.mean > 6*time.Second {
				t.Errorf("the target is missed %.1f %% of the time; the mean is %v", 100*ttft.above, ttft.mean)
			}
			for name, target := range map[string]outcome{"running": running, "ttft": ttft} {
				if target.above > 0.3*queue.above || target.mean > queue.mean/3 || target.mean > full.mean/20 {
					t.Errorf("%s is above %.2f of the time, the queue alone %.2f; the means are %v, %v and %v", name, target.above, queue.above, target.mean, queue.mean, full.mean)
				}
				if target.hours > 0.75*always.hours {
					t.Errorf("%s used %.1f replica-hours, a fixed fleet %.1f", name, target.hours, always.hours)
				}
				if target.changes > queue.changes+8 {
					t.Errorf("%s changed the number %d times, the queue alone %d times", name, target.changes, queue.changes)
				}
			}
		})
	}
}

// An even load starts what it needs, and what the arrears of the cold start needed goes once.
func TestU7_AnEvenLoadDoesNotFlap(t *testing.T) {
	t.Parallel()
	var requests []trace.Request
	for i := range 7200 { // two a second, each of one second, for an hour
		requests = append(requests, trace.Request{At: time.Duration(i) * time.Second / 2, Prompt: prefillRate, Output: 100, Blocks: unique(i)})
	}
	for _, target := range []scale.Target{{TTFT: 3 * time.Second}, {Running: 4}} {
		o := simulate(requests, rule{"even", scale.Model{Min: 1, Max: 16, Target: target}, engineSlots})
		if o.replicas < 2 || o.replicas > 5 || o.turns > 1 || o.above > 0.05 {
			t.Errorf("%+v: %.1f replicas on average, %d turns, above %.2f of the time", target, o.replicas, o.turns, o.above)
		}
	}
}

// unique returns the blocks of a prompt of prefillRate tokens that shares nothing with others.
func unique(i int) []int32 {
	blocks := make([]int32, (prefillRate+trace.BlockTokens-1)/trace.BlockTokens)
	for k := range blocks {
		blocks[k] = int32(i*len(blocks) + k)
	}
	return blocks
}
