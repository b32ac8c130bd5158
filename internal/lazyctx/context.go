// Package lazyctx has a context that costs nothing until somebody waits for its end. Packages
// internal/grpcserver and internal/frames use one for each request, and most requests do not wait.
package lazyctx

import (
	"context"
	"sync"
	"time"
)

// Context is a context.Context that ends with End. Its channel is made when somebody asks for it.
// It has no values and no deadline. The zero value is ready to use.
type Context struct {
	mu   sync.Mutex
	done chan struct{}
	over bool
}

// closed is the channel of a context that has ended before anybody asked for it.
var closed = func() chan struct{} {
	c := make(chan struct{})
	close(c)
	return c
}()

// End ends the context. Further calls do nothing.
func (c *Context) End() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.over {
		return
	}
	if c.over = true; c.done == nil {
		c.done = closed
		return
	}
	close(c.done)
}

// Deadline implements context.Context.
func (c *Context) Deadline() (deadline time.Time, ok bool) { return time.Time{}, false }

// Done implements context.Context.
func (c *Context) Done() <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.done == nil {
		c.done = make(chan struct{})
	}
	return c.done
}

// Err implements context.Context.
func (c *Context) Err() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.over {
		return context.Canceled
	}
	return nil
}

// Value implements context.Context.
func (c *Context) Value(any) any { return nil }
