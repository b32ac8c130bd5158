// Package backlog measures how fast a backlog of tasks is solved: in batches, as by the set-up that Sluice was asked to replace, and one by one
// through package admission. It is to be run in a bubble of testing/synctest, where an hour takes a moment: `go test ./internal/backlog -run Report -v`
// prints the table.
//
// Both ways have the same tasks in the same order, the same models with the same limits, and the same time for each task, whatever model it goes to. That
// time is log-uniform between 1 s and 2 min and known to nobody before. Tokens are known, and are charged when a call begins.
//
// Batches: the unsolved tasks are split into 20 equal parts for 20 workers. A worker sends 10 tasks at a time to the Models Backend, which calls the
// models in turn, all 10 at once, and answers when the slowest is done. A worker is ended after 30 minutes, and the batch that it waits for is lost and
// solved again. When all workers are done or ended, the next round splits what is left. What is not known is set in favour of the batches: calls of
// an ended worker stop at once, rounds follow each other without a pause, writing answers takes no time, nothing ever fails, and a model that
// is given more than its limit answers no later for that. Batches have no control over limits, so two kinds are measured: Batches ignores them, as the set-up
// does, and the Observer counts how often they are exceeded; with Obey each call waits at its model until the limits have room.
//
// Scheduled: as many callers as the models may have calls at once take the tasks from one list. A caller asks the Controller for a model, waits as
// told, calls, completes, and takes the next task.
package backlog

import (
	"context"
	"math"
	"math/rand/v2"
	"time"

	"github.com/sluice-gateway/sluice/admission"
)

// pace of an answer, in tokens a second.
const pace = 30

// Task is one task.
type Task struct {
	// Tokens that it costs.
	Tokens int
	// Takes is how long a model works on it.
	Takes time.Duration
}

// Tasks makes n tasks, the same ones for the same seed.
func Tasks(n int, seed uint64) []Task {
	rng := rand.New(rand.NewPCG(seed, 8))
	tasks := make([]Task, n)
	for i := range tasks {
		takes := math.Pow(120, rng.Float64())       // log-uniform between 1 s and 120 s
		prompt := 100 * math.Pow(20, rng.Float64()) // log-uniform between 100 and 2,000
		tasks[i] = Task{Tokens: int(prompt + pace*takes), Takes: time.Duration(takes * float64(time.Second))}
	}
	return tasks
}

// Model is a model behind the Models Backend.
type Model struct {
	Name string
	admission.Limits
}

// Models makes models that may have so many calls at once, and so many tokens a minute as that many calls cost on average, times tokens.
func Models(tokens float64, concurrency ...int) []Model {
	const (
		takes = 119 / 4.787      // mean of Task.Takes in seconds: (120 − 1) ÷ ln 120
		costs = 634 + pace*takes // mean of Task.Tokens
	)
	models := make([]Model, len(concurrency))
	for i, n := range concurrency {
		models[i] = Model{Name: string(rune('a' + i)), Limits: admission.Limits{MaxConcurrent: n, Weight: n,
			TokensPerMinute: int(tokens * float64(n) * costs * 60 / takes)}}
	}
	return models
}

// Result is how it went.
type Result struct {
	// Makespan is the time until the last task was solved.
	Makespan time.Duration
	// Calls is how many calls were begun; more than tasks if some were lost.
	Calls int
	// OverConcurrency and OverTokens count the calls that began although their model had no room for them.
	OverConcurrency, OverTokens int
}

// Bound is the time in which no schedule whatever can be done: all work spread evenly over all that may run at once, the longest task, or
// all tokens at the pace of the limits.
func Bound(models []Model, tasks []Task) time.Duration {
	var longest time.Duration
	tokens, perMinute := 0, 0
	for _, t := range tasks {
		longest, tokens = max(longest, t.Takes), tokens+t.Tokens
	}
	for _, m := range models {
		perMinute += m.TokensPerMinute
	}
	// The buckets are full at the start.
	paced := time.Duration(float64(tokens-perMinute) / float64(perMinute) * float64(time.Minute))
	return max(Spread(models, tasks), longest, paced)
}

// Spread is all work spread evenly over all that may run at once.
func Spread(models []Model, tasks []Task) time.Duration {
	var work time.Duration
	slots := 0
	for _, t := range tasks {
		work += t.Takes
	}
	for _, m := range models {
		slots += m.MaxConcurrent
	}
	return work / time.Duration(slots)
}

// Utilisation is the part of all that may run at once that was used for work that counted.
func (r Result) Utilisation(models []Model, tasks []Task) float64 {
	return Spread(models, tasks).Seconds() / r.Makespan.Seconds()
}

// sleep waits for so long and says whether ctx allowed it.
func sleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}
