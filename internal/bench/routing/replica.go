package main

import (
	"slices"
	"time"
)

// tokenTime is how long a replica takes for each token of its answers.
const tokenTime = 20 * time.Millisecond

// replica is a simulated engine. It computes the prompts one after the other and then generates all
// answers side by side.
type replica struct {
	cache *blockCache
	// rate is how many prompt tokens it computes in a second while it generates nothing.
	rate float64
	// slowdown is the share of time that each running answer takes from the computing of prompts.
	// 0: answers cost nothing.
	slowdown float64
	// free is when it has computed all prompts that it was given
	free time.Duration
	// ends is when the running answers end, in order
	ends []time.Duration
	// running and served count its requests: those in flight, and all
	running, served int
}

// serve gives the replica a request and fills in its times.
func (r *replica) serve(now time.Duration, j *job) {
	j.cached = min(r.cache.match(j.Blocks)*blockTokens, j.Prompt-1)
	r.cache.touch(j.Blocks)
	r.free = r.compute(max(now, r.free), float64(j.Prompt-j.cached))
	j.first = r.free
	j.end = j.first + time.Duration(j.Output)*tokenTime
	if r.slowdown > 0 {
		at, _ := slices.BinarySearch(r.ends, j.end)
		r.ends = slices.Insert(r.ends, at, j.end)
	}
	r.running++
	r.served++
}

// compute returns when so many tokens have been computed that are begun at the time given.
func (r *replica) compute(begin time.Duration, tokens float64) time.Duration {
	if r.slowdown == 0 {
		return begin + seconds(tokens/r.rate)
	}
	for {
		r.ends = r.ends[r.decodesEnded(begin):]
		if len(r.ends) == 0 {
			return begin + seconds(tokens/r.rate)
		}
		rate := r.rateWith(len(r.ends))
		until := r.ends[0] - begin
		if left := tokens - until.Seconds()*rate; left > 0 {
			begin, tokens = r.ends[0], left
			continue
		}
		return begin + seconds(tokens/rate)
	}
}

// decodesEnded returns how many of the answers have ended by now.
func (r *replica) decodesEnded(now time.Duration) int {
	n, _ := slices.BinarySearch(r.ends, now+1)
	return n
}

// rateWith is how many tokens a second it computes while so many answers run.
func (r *replica) rateWith(decodes int) float64 { return r.rate / (1 + r.slowdown*float64(decodes)) }

func seconds(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }
