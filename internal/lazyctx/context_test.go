package lazyctx_test

import (
	"context"
	"errors"
	"testing"

	"github.com/sluice-gateway/sluice/internal/lazyctx"
)

func TestEnd(t *testing.T) {
	t.Parallel()
	for name, asked := range map[string]bool{"somebody waits": true, "nobody waits": false} {
		var c lazyctx.Context
		if asked {
			select {
			case <-c.Done():
				t.Errorf("%s: the context has ended before End", name)
			default:
			}
		}
		if err := c.Err(); err != nil {
			t.Errorf("%s: the error before End is %v", name, err)
		}
		c.End()
		c.End()
		<-c.Done()
		if err := c.Err(); !errors.Is(err, context.Canceled) {
			t.Errorf("%s: the error after End is %v", name, err)
		}
	}
}

func TestNoChannelWithoutAWaiter(t *testing.T) {
	contexts := make([]lazyctx.Context, 101)
	allocs := testing.AllocsPerRun(100, func() {
		c := &contexts[0]
		contexts = contexts[1:]
		c.End()
		<-c.Done()
	})
	if allocs != 0 {
		t.Errorf("a context that ends before somebody waits made %v allocations", allocs)
	}
}
