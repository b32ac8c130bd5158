package admission

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"

	"github.com/sluice-gateway/sluice/tests/e2e/harness"
)

// A call of /schedule waits while the gateway is restarted. What the call waits for comes when the
// new process has read the tasks and does not serve yet. The new process knows the task that the
// caller is told of.
func TestE2E_W6_X20_ARestartLosesNoTask(t *testing.T) {
	t.Parallel()
	up := harness.StartHeldUpstream(t)
	var hangs atomic.Bool
	// The new process waits for its first word before it serves.
	slow := harness.StartUpstream(t, func(w http.ResponseWriter, r *http.Request) {
		if hangs.Load() {
			<-r.Context().Done()
			return
		}
		harness.ServeModelList(w, r, "slow")
	})
	g := harness.Start(t, fmt.Sprintf(`
models:
  - {name: m, launcher: upstream, upstreams: [%s], admission: {max_concurrent_requests: 1, max_per_replica: 4}}
  - {name: slow, launcher: upstream, upstreams: [%s]}
`, up.URL, slow))
	stream, err := g.Open(context.Background(), "/v1/completions", `{"model":"m","prompt":"x","stream":true}`)
	if err != nil {
		t.Fatal(err)
	}
	defer stream.Body.Close()
	const call = `{"estimated_tokens": 1, "model": "m", "max_wait_ms": 60000}`
	told, untold := make(chan decision, 1), make(chan error, 1)
	go func() {
		var d decision
		a, err := g.TryPost(context.Background(), "/schedule", call)
		if err == nil {
			err = json.Unmarshal(a.Content, &d)
		}
		if err != nil || a.StatusCode != 200 {
			untold <- fmt.Errorf("/schedule: %v %w", a, err)
			return
		}
		told <- d
	}()
	g.AwaitQueued("m", 1)
	before := journalOf(g)
	hangs.Store(true)
	restarted := make(chan error, 1)
	go func() {
		out, err := g.RunCommand("restart", "-c", g.Config)
		if err != nil {
			err = fmt.Errorf("%w\n%s", err, out)
		}
		restarted <- err
	}()
	harness.Eventually(t, "the new process has read the tasks", func() error {
		if now := journalOf(g); now == nil || os.SameFile(before, now) {
			return errors.New("not yet")
		}
		return nil
	})
	up.Release <- struct{}{}
	var task decision
	select {
	case task = <-told:
	case err := <-untold:
		t.Error(err)
	}
	hangs.Store(false)
	if err := harness.Receive(t, restarted, "the restart has ended"); err != nil {
		t.Fatal(err)
	}
	if task.Task == "" {
		task = admitTask(g, call)
	}
	if a := g.Post("/renew", fmt.Sprintf(`{"task_id": %q}`, task.Task)); a.StatusCode != 200 {
		t.Errorf("/renew after the restart: %s", a)
	}
	g.AwaitModel("m", "one lease is left, that of the task", func(m harness.Model) bool { return m.InFlight == 1 })
	if a := completeTask(g, task.Task); a.StatusCode != 200 {
		t.Errorf("/complete after the restart: %s", a)
	}
	g.AwaitIdle("m")
}

// journalOf returns the file of the tasks, or nil.
func journalOf(g *harness.Gateway) os.FileInfo {
	g.T.Helper()
	info, err := os.Stat(filepath.Join(g.Dir, "tasks.jsonl"))
	if err != nil {
		return nil
	}
	return info
}
