package filter

import (
	"context"
	"encoding/binary"
	"io"
	"net/http"
	"strings"
	"testing"
)

// record is what End tells.
type record struct {
	numbers [9]int64
	list    map[string]string
}

func (f frame) record(t testing.TB) record {
	t.Helper()
	var r record
	for i := range r.numbers {
		r.numbers[i] = int64(binary.LittleEndian.Uint64(f.payload[8*i:]))
	}
	r.list = f.list(t, 72)
	return r
}

// newStuckBody is a body that does not end before the test does.
func newStuckBody(t *testing.T, beginning string) io.Reader {
	r, w := io.Pipe()
	t.Cleanup(func() { w.Close() })
	return io.MultiReader(strings.NewReader(beginning), r)
}

// sendAborted sends a request that the returned function aborts.
func (b *testbed) sendAborted(t testing.TB, path, body string) (cancel func()) {
	t.Helper()
	ctx, stop := context.WithCancel(context.Background())
	r, err := http.NewRequestWithContext(ctx, "POST", b.url+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		if res, err := b.client.Do(r); err == nil {
			_, _ = io.Copy(io.Discard, res.Body)
			res.Body.Close()
		}
	}()
	return func() {
		stop()
		<-done
	}
}

// upstreamHasBegun waits until a response has begun.
func (b *testbed) upstreamHasBegun(t *testing.T) {
	t.Helper()
	eventually(t, "a response has begun", func() bool { return b.counter("cluster.model/m.upstream_cx_rx_bytes_total") > "0" })
}
