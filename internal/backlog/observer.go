package backlog

import (
	"context"
	"sync"
	"time"
)

// observer sees the calls where they reach their models, and checks each against the limits of its
// model. It knows nothing of the callers or of package admission.
type observer struct {
	mu     sync.Mutex
	models map[string]*observed
	result Result
}

type observed struct {
	maxRunning, running int
	// The bucket: size and level in tokens, rate in tokens per second.
	size, level, rate float64
	at                time.Time
}

func newObserver(models []Model) *observer {
	o := &observer{models: map[string]*observed{}}
	for _, m := range models {
		size := float64(m.TokensPerMinute)
		o.models[m.Name] = &observed{maxRunning: m.MaxConcurrent, size: size, level: size, rate: size / 60, at: time.Now()}
	}
	return o
}

// call makes the model work on the task, and reports whether it was solved before ctx ended.
func (o *observer) call(ctx context.Context, model string, t Task) bool {
	o.callStarted(model, t)
	defer o.callFinished(model)
	return sleep(ctx, t.Takes)
}

func (o *observer) callStarted(model string, t Task) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.result.Calls++
	m := o.models[model]
	if m.running++; m.running > m.maxRunning {
		o.result.OverConcurrency++
	}
	now := time.Now()
	m.level = min(m.size, m.level+m.rate*now.Sub(m.at).Seconds())
	m.at = now
	// A call over the limit counts once and is not charged to those that follow. A thousandth of a
	// token allows for rounding.
	if m.level-float64(t.Tokens) < -0.001 {
		o.result.OverTokens++
		return
	}
	m.level -= float64(t.Tokens)
}

func (o *observer) callFinished(model string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.models[model].running--
}
