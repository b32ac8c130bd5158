package usage

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/sluice-gateway/sluice/internal/redistest"
)

// TestB3_ASlowLinkCarriesAllInTheEnd: after Redis was emptied, all rows together take longer than
// one call may. Each publication goes on where the last one has stopped.
func TestB3_ASlowLinkCarriesAllInTheEnd(t *testing.T) {
	t.Parallel()
	const rows = 3000
	server := redistest.Start(t)
	l := shared(t, t.TempDir(), server)
	address := strings.TrimPrefix(redistest.Slow(server, 20*time.Millisecond), "redis://")
	slow := redis.NewClient(&redis.Options{Addr: address, MaxRetries: -1, ContextTimeoutEnabled: true, DialerRetries: 1})
	t.Cleanup(func() { _ = slow.Close() })
	l.shared.remote.client = slow
	for i := range rows {
		l.Add(Subject{Tenant: "acme", Key: fmt.Sprint("k", i%500), Model: fmt.Sprint("m", i/500)}, OfRequest(1, 0, 1, true), time.Now())
	}
	l.shared.timeout = 150 * time.Millisecond // less than the calls take together, more than one takes
	for deadline := time.Now().Add(30 * time.Second); ; {
		err := l.shared.publish(t.Context(), whole)
		if err == nil && !l.shared.compare {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("not published: %v", err)
		}
	}
	if n, err := server.Client().Keys(t.Context(), keyPrefix+"hours:*").Result(); err != nil || len(n) != 1 {
		t.Fatal(n, err)
	}
	other := shared(t, t.TempDir(), server)
	if got := ask(t, other, ByTenant).Items; len(got) != 1 || got[0].Requests != rows {
		t.Errorf("another gateway answers %+v, want %d requests", got, rows)
	}
}
