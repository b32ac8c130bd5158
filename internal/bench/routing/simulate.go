package main

import (
	"cmp"
	"container/heap"
	"slices"
	"time"

	"github.com/sluice-gateway/sluice/internal/bench/trace"
	"github.com/sluice-gateway/sluice/internal/prefix"
)

const blockTokens = trace.BlockTokens

// job is one request on its way through the simulation.
type job struct {
	*prompt
	// at is when it arrived, first when its first token came, end when its answer was complete
	at, first, end time.Duration
	// replica is where it was sent. cached is how many of its tokens that replica had.
	replica, cached int
	// note is for the rule that sent it.
	note any
}

// prompt is what rules know of a request before it is sent.
type prompt struct {
	trace.Request
	// chain is its beginnings, as the gateway would compute them from its text. key is its position
	// on the ring.
	chain prefix.Chain
	key   uint64
}

// rule picks a replica for each request.
type rule interface {
	// pick returns the index of a replica. The simulation sends the job there at once.
	pick(now time.Duration, j *job) int
	// sent is called when the job has been sent; its replica is set.
	sent(now time.Duration, j *job)
	// firstToken is called when the job's first token has come, and ended at the end of its answer.
	firstToken(now time.Duration, j *job)
	ended(now time.Duration, j *job)
}

// blind is a rule that learns nothing from what happens.
type blind struct{}

func (blind) sent(time.Duration, *job)       {}
func (blind) firstToken(time.Duration, *job) {}
func (blind) ended(time.Duration, *job)      {}

// event is a first token, or the end of an answer.
type event struct {
	at    time.Duration
	order int
	end   bool
	job   *job
}

// events is a heap, the earliest first.
type events []event

func (e events) Len() int { return len(e) }
func (e events) Less(a, b int) bool {
	return e[a].at < e[b].at || e[a].at == e[b].at && e[a].order < e[b].order
}
func (e events) Swap(a, b int) { e[a], e[b] = e[b], e[a] }
func (e *events) Push(x any)   { *e = append(*e, x.(event)) }
func (e *events) Pop() any {
	last := (*e)[len(*e)-1]
	*e = (*e)[:len(*e)-1]
	return last
}

// simulate sends the requests to the fleet by the rule. The arrivals come speed times as fast as
// they were recorded.
func simulate(w *workload, f *fleet, r rule, speed float64) outcome {
	var pending events
	jobs := make([]job, len(w.prompts))
	for i := range w.prompts {
		j := &jobs[i]
		j.prompt = &w.prompts[i]
		j.at = time.Duration(float64(j.At) / speed)
		for len(pending) > 0 && pending[0].at <= j.at {
			f.happened(heap.Pop(&pending).(event), r)
		}
		j.replica = r.pick(j.at, j)
		f.replicas[j.replica].serve(j.at, j)
		r.sent(j.at, j)
		heap.Push(&pending, event{j.first, 2 * i, false, j})
		heap.Push(&pending, event{j.end, 2*i + 1, true, j})
	}
	return f.outcome(jobs)
}

// happened tells the fleet and the rule of an event.
func (f *fleet) happened(e event, r rule) {
	if !e.end {
		r.firstToken(e.at, e.job)
		return
	}
	f.replicas[e.job.replica].running--
	r.ended(e.at, e.job)
}

// outcome is what a rule made of a workload.
type outcome struct {
	// mean, p50, p90 and p99 are of the times to the first token, in seconds
	mean, p50, p90, p99 float64
	// cached is the share of all prompt tokens that a cache had
	cached float64
	// busiest is the number of requests of the busiest replica beside the mean
	busiest float64
}

func (f *fleet) outcome(jobs []job) outcome {
	times := make([]float64, len(jobs))
	var sum, tokens, cached float64
	for i := range jobs {
		j := &jobs[i]
		times[i] = (j.first - j.at).Seconds()
		sum += times[i]
		tokens += float64(j.Prompt)
		cached += float64(j.cached)
	}
	slices.Sort(times)
	at := func(share float64) float64 { return times[int(share*float64(len(times)-1))] }
	most := slices.MaxFunc(f.replicas, func(a, b *replica) int { return cmp.Compare(a.served, b.served) })
	return outcome{
		mean: sum / float64(len(jobs)), p50: at(0.5), p90: at(0.9), p99: at(0.99),
		cached:  cached / tokens,
		busiest: float64(most.served*len(f.replicas)) / float64(len(jobs)),
	}
}
