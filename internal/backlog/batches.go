package backlog

import (
	"context"
	"sync"
	"sync/atomic"
	"time"
)

const (
	workers       = 20
	batchSize     = 10
	workerTimeout = 30 * time.Minute
)

// Batches solves the tasks in batches and ignores the limits.
func Batches(models []Model, tasks []Task) Result {
	o := newObserver(models)
	return inBatches(tasks, &modelsBackend{models: models, call: o.call}, o)
}

// Obey solves the tasks in batches; each call waits at its model until the limits have room.
func Obey(models []Model, tasks []Task) Result {
	o := newObserver(models)
	gates := map[string]*gate{}
	for _, m := range models {
		gates[m.Name] = newGate(m)
	}
	return inBatches(tasks, &modelsBackend{models: models, call: func(ctx context.Context, model string, t Task) bool {
		if !gates[model].acquire(ctx, t.Tokens) {
			return false
		}
		defer gates[model].release()
		return o.call(ctx, model, t)
	}}, o)
}

func inBatches(tasks []Task, backend *modelsBackend, o *observer) Result {
	start := time.Now()
	for left := tasks; len(left) > 0; {
		left = round(left, backend)
	}
	o.result.Makespan = time.Since(start)
	return o.result
}

// round is one run of the workers. It returns the tasks that are left.
func round(tasks []Task, backend *modelsBackend) (left []Task) {
	ctx, cancel := context.WithTimeout(context.Background(), workerTimeout)
	defer cancel()
	lefts := make([][]Task, workers)
	var wg sync.WaitGroup
	for i := range workers {
		part := tasks[len(tasks)*i/workers : len(tasks)*(i+1)/workers]
		wg.Go(func() {
			for len(part) > 0 && backend.batch(ctx, part[:min(batchSize, len(part))]) {
				part = part[min(batchSize, len(part)):]
			}
			lefts[i] = part
		})
	}
	wg.Wait()
	for _, part := range lefts {
		left = append(left, part...)
	}
	return left
}

// modelsBackend is the Models Backend, which calls the models in turn.
type modelsBackend struct {
	models []Model
	next   atomic.Int64
	call   func(ctx context.Context, model string, t Task) bool
}

// batch solves the tasks and returns when the slowest is done. It reports whether all were done
// before ctx ended.
func (b *modelsBackend) batch(ctx context.Context, tasks []Task) bool {
	var wg sync.WaitGroup
	var lost atomic.Bool
	for _, t := range tasks {
		model := b.models[int(b.next.Add(1)-1)%len(b.models)].Name
		wg.Go(func() {
			if !b.call(ctx, model, t) {
				lost.Store(true)
			}
		})
	}
	wg.Wait()
	return !lost.Load()
}

// gate makes calls wait in order until their model has room for them.
type gate struct {
	order, slots chan struct{}
	// The goroutine that holds order may use the bucket.
	size, level, rate float64
	at                time.Time
}

func newGate(m Model) *gate {
	size := float64(m.TokensPerMinute)
	return &gate{order: make(chan struct{}, 1), slots: make(chan struct{}, m.MaxConcurrent), size: size, level: size, rate: size / 60, at: time.Now()}
}

// acquire returns true when the call may start, and false when ctx has ended before.
func (g *gate) acquire(ctx context.Context, tokens int) bool {
	if !acquire(ctx, g.order) {
		return false
	}
	defer func() { <-g.order }()
	if !acquire(ctx, g.slots) {
		return false
	}
	g.refill()
	if missing := float64(tokens) - g.level; missing > 0 {
		if !sleep(ctx, time.Duration(missing/g.rate*float64(time.Second))+time.Microsecond) {
			<-g.slots
			return false
		}
		g.refill()
	}
	g.level -= float64(tokens)
	return true
}

func (g *gate) refill() {
	now := time.Now()
	g.level = min(g.size, g.level+g.rate*now.Sub(g.at).Seconds())
	g.at = now
}

func (g *gate) release() { <-g.slots }

func acquire(ctx context.Context, slots chan struct{}) bool {
	select {
	case slots <- struct{}{}:
		return true
	case <-ctx.Done():
		return false
	}
}
