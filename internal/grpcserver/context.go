package grpcserver

import (
	"context"
	"net"
	"net/http"

	"github.com/sluice-gateway/sluice/internal/lazyctx"
)

// streamContext is a context that ends with its stream. Its values are those of base.
type streamContext struct {
	lazyctx.Context
	base context.Context
}

func (c *streamContext) Value(key any) any { return c.base.Value(key) }

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
