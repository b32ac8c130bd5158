package gateway

import (
	"context"
	"time"

	"golang.org/x/sync/errgroup"
)

// scope is a group of goroutines that end together.
type scope struct {
	*errgroup.Group
	// ctx ends with stop, or when a goroutine has failed.
	ctx context.Context
	end context.CancelFunc
}

// newScope returns a scope that does not end with ctx.
func newScope(ctx context.Context) *scope {
	ctx, end := context.WithCancel(context.WithoutCancel(ctx))
	group, ctx := errgroup.WithContext(ctx)
	return &scope{group, ctx, end}
}

func (s *scope) run(components []func(context.Context) error) {
	for _, component := range components {
		s.Go(func() error { return component(s.ctx) })
	}
}

// stop ends the scope, waits for its goroutines, and returns the first error of one.
func (s *scope) stop() error {
	s.end()
	return s.Wait()
}

// awaitUntil looks at each interval whether a condition holds, until it does or ctx ends. It
// reports whether it does.
func awaitUntil(ctx context.Context, interval time.Duration, holds func() bool) bool {
	tick := time.NewTicker(interval)
	defer tick.Stop()
	for !holds() {
		select {
		case <-ctx.Done():
			return false
		case <-tick.C:
		}
	}
	return true
}
