// Package backlog measures how fast a backlog of tasks is solved, in batches and one by one through
// package admission. Only its own tests use it: `go test ./internal/backlog -run Report -v` prints
// the table. The measurement runs in a bubble of testing/synctest, where an hour takes a moment.
//
// Both ways have the same tasks in the same order, the same models with the same limits, and the
// same time for each task on every model. That time is log-uniform between 1 s and 2 min, and
// nobody knows it before. Tokens are known, and are charged when a call starts.
//
// Batches is the set-up that Sluice replaces. The unsolved tasks are split into 20 equal parts for
// 20 workers. A worker sends 10 tasks at a time to the Models Backend. The backend calls the models
// in turn, all 10 at once, and answers when the slowest is done. A worker is stopped after 30
// minutes; the batch that it waits for is lost and solved again. When all workers are done or
// stopped, the next round splits what is left.
//
// Where the set-up is unknown, it is taken in favour of the batches. Calls of a stopped worker stop
// at once. Rounds follow each other without a pause. Writing answers takes no time. Nothing fails.
// A model above its limit answers no later. Batches have no control over limits, so two kinds are
// measured. Batches ignores the limits, and the observer counts how often they are exceeded. With
// Obey, each call waits at its model until the limits have room.
//
// Scheduled takes the tasks from one list, with as many callers as the models may have calls at
// once. A caller asks the Controller for a model, waits as told, calls the model, completes the
// task, and takes the next one.
package backlog

import (
	"context"
	"math"
	"math/rand/v2"
	"time"

	"github.com/sluice-gateway/sluice/admission"
)

// pace is the speed of an answer in tokens per second.
const pace = 30

// Task is one task.
type Task struct {
	// Tokens is what it costs.
	Tokens int
	// Takes is how long a model works on it.
	Takes time.Duration
}

// Tasks returns n tasks. The same seed gives the same tasks.
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

// Models returns models that may have so many calls at once. Each may use as many tokens per minute
// as that many calls cost on average, times tokens.
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

// Result is what a run measured.
type Result struct {
	// Makespan is the time until the last task was solved.
	Makespan time.Duration
	// Calls counts calls that were started. There are more calls than tasks if some were lost.
	Calls int
	// OverConcurrency and OverTokens count the calls that started although their model's limit had
	// no room.
	OverConcurrency, OverTokens int
}

// Bound is a time that no schedule can beat: the largest of Spread, the longest task, and all
// tokens at the rate of the limits.
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

// Spread is the time of all work, spread evenly over all calls that may run at once.
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

// Utilisation is the part of the possible calls that was used for work that counted.
func (r Result) Utilisation(models []Model, tasks []Task) float64 {
	return Spread(models, tasks).Seconds() / r.Makespan.Seconds()
}

// sleep waits for d and reports whether ctx allowed it.
func sleep(ctx context.Context, d time.Duration) bool {
	select {
	case <-time.After(d):
		return true
	case <-ctx.Done():
		return false
	}
}
