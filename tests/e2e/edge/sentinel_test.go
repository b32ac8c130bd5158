package edge

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/sluice-gateway/sluice/internal/redistest"
	"github.com/sluice-gateway/sluice/tests/e2e/harness"
)

// TestE2E_W5_FailoverBySentinels: the host of Redis' master dies, with the sentinel that the
// gateways ask, while requests with a key of run time run. No request fails, and both gateways
// share limits, keys and usage at the new master.
func TestE2E_W5_FailoverBySentinels(t *testing.T) {
	t.Parallel()
	files := redistest.NewCertificates(t)
	files.Authority.Issue(t, files.Dir, "client")
	g := redistest.Sentinels(t, files)
	config := fmt.Sprintf(`
auth: {mode: keys}
tenants: [{name: acme, limits: {max_concurrent_streams: 100, tokens_per_minute: 1000000}}]
redis_timeout: 500ms
redis:
  url: %s
  cert: %s
  key: %s
  ca: %s
  sentinel: {master: %s, username: %s, password: %s}
%s`, g.URL(), filepath.Join(files.Dir, "client.crt"), filepath.Join(files.Dir, "client.key"), files.CA(),
		redistest.MasterName, redistest.SentinelUser, redistest.SentinelPassword, small)
	gateways := []*harness.Gateway{harness.Start(t, config), harness.Start(t, config)}
	key, _ := newKeyBy(t, gateways[0])
	for _, one := range gateways {
		one.AwaitSharedState(true, 2)
		awaitStatus(t, one, key, 200, "")
	}
	replica := g.Servers[1].Client()
	harness.Eventually(t, "the replica has the key", func() error {
		if n, err := replica.HLen(t.Context(), "sluice:keys").Result(); err != nil || n != 1 {
			return fmt.Errorf("%d keys, %w", n, err)
		}
		return nil
	})
	const lost = "Redis lost, limits divided by the number of gateways"
	var before []int
	for _, one := range gateways {
		before = append(before, strings.Count(one.LogText(), lost))
	}
	dead := []*redistest.Server{g.Servers[0], g.Sentinels[max(g.Used(t), 0)]}
	for _, s := range dead {
		s.Pause() // no connection is closed, as when a host dies
		defer s.Resume()
	}
	ctx, stop := context.WithCancel(t.Context())
	var callers sync.WaitGroup
	defer callers.Wait()
	defer stop()
	for _, one := range gateways {
		callers.Go(func() {
			for i := 0; ctx.Err() == nil; i++ {
				for _, a := range asks(one, "authorization: Bearer "+key) {
					if a.StatusCode != 200 {
						t.Errorf("request %d: %v", i, a)
					}
				}
			}
		})
	}
	for i, one := range gateways { // the status may say so for a moment only
		one.AwaitLogged(lost, before[i]+1)
	}
	for _, one := range gateways {
		one.AwaitSharedState(true, 2)
	}
	stop()
	callers.Wait()
	var made string
	harness.Eventually(t, "keys are stored", func() (err error) { // another client of Redis does that
		made, _, err = tryNewKey(gateways[1])
		return err
	})
	awaitStatus(t, gateways[0], made, 200, "")
	harness.Eventually(t, "both gateways know all usage", func() error {
		for _, one := range gateways {
			a := (&harness.Gateway{T: t, URL: one.Admin}).Fetch("/api/v1/usage?group_by=key")
			if a.StatusCode != 200 || !strings.Contains(string(a.Content), `"complete":true`) {
				return fmt.Errorf("%v", a)
			}
		}
		return nil
	})
}
