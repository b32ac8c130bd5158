package backlog

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/sluice-gateway/sluice/admission"
)

// Scheduled solves the tasks one by one through a Controller of its own. The error is one of the
// Controller.
func Scheduled(models []Model, tasks []Task) (Result, error) {
	const pool = "all"
	c := admission.New(admission.Config{})
	names, callers := make([]string, len(models)), 0
	for i, m := range models {
		c.SetLimits(m.Name, m.Limits)
		names[i] = m.Name
		callers += m.MaxConcurrent
	}
	c.SetPools(map[string][]string{pool: names})

	list := make(chan int, len(tasks))
	for i := range tasks {
		list <- i
	}
	close(list)
	o, start := newObserver(models), time.Now()
	group, ctx := errgroup.WithContext(context.Background())
	for range callers {
		group.Go(func() error {
			for i := range list {
				ask := admission.TaskRequest{Pool: pool, Tenant: "backlog", Tokens: tasks[i].Tokens, Key: fmt.Sprint(i), MaxWait: 20 * time.Second}
				task, err := schedule(ctx, c, ask)
				if err != nil {
					return err
				}
				o.call(ctx, task.Model, tasks[i])
				if err := c.Complete(ctx, ask.Tenant, task.ID, ask.Tokens); err != nil {
					return err
				}
			}
			return nil
		})
	}
	err := group.Wait()
	o.result.Makespan = time.Since(start)
	return o.result, err
}

// schedule asks until it gets a task, as the callers of /schedule do.
func schedule(ctx context.Context, c *admission.Controller, ask admission.TaskRequest) (admission.Task, error) {
	for {
		task, wait, err := c.Schedule(ctx, ask)
		if err != nil || wait == 0 {
			return task, err
		}
		if !sleep(ctx, time.Duration(float64(wait)*(1+rand.Float64()/4))) {
			return admission.Task{}, ctx.Err()
		}
	}
}
