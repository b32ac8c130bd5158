package grpcserver

import (
	"context"
	"net"
	"net/http"
	"sync"
	"time"
)

// streamContext is a context that ends with its stream. Its channel is made when somebody asks for
// it, which is when the stream waits. Its values are those of the Context within, which is set
// first.
type streamContext struct {
	context.Context
	mu   sync.Mutex
	done chan struct{}
	over bool
}

func (c *streamContext) end() {
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

// closed is the channel of a context that has ended before anybody asked for it.
var closed = func() chan struct{} {
	c := make(chan struct{})
	close(c)
	return c
}()

func (c *streamContext) Deadline() (deadline time.Time, ok bool) { return time.Time{}, false }

func (c *streamContext) Done() <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.done == nil {
		c.done = make(chan struct{})
	}
	return c.done
}

func (c *streamContext) Err() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.over {
		return context.Canceled
	}
	return nil
}

// httpContext is the context of a request to Other. It knows the address of the listener.
type httpContext struct {
	context.Context
	local net.Addr
}

func (c *httpContext) Value(key any) any {
	if key == http.LocalAddrContextKey {
		return c.local
	}
	return c.Context.Value(key)
}
