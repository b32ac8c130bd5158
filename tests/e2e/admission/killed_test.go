package admission

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/sluice-gateway/sluice/tests/e2e/harness"
)

// TestE2E_W6_X19_ATaskIsKnownByItsRequestAfterAKill: Envoy carries a request of a task on while the
// gateway is killed and started again. The new process learns whose request it is. It lets no other
// request of the task run meanwhile.
func TestE2E_W6_X19_ATaskIsKnownByItsRequestAfterAKill(t *testing.T) {
	t.Parallel()
	arrived, release := make(chan struct{}), make(chan struct{})
	defer close(release)
	up := harness.StartUpstream(t, func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		if strings.Contains(string(body), "long") {
			close(arrived)
			<-release
		}
		w.Header().Set("Content-Type", "application/json")
		io.WriteString(w, `{"choices":[{"text":"done","finish_reason":"stop"}],"usage":{"prompt_tokens":1,"completion_tokens":1}}`)
	})
	g := harness.Start(t, fmt.Sprintf("models:\n  - {name: m, launcher: upstream, upstreams: [%s], admission: {max_per_replica: 4}}\n", up))
	task := admitTask(g, `{"estimated_tokens": 10, "model": "m"}`)
	header := "x-sluice-task-id: " + task.Task
	answered := g.PostLater("/v1/completions", `{"model":"m","prompt":"long"}`, header)
	<-arrived
	g.Kill()
	g.Launch()
	g.AwaitReady()
	harness.Eventually(t, "another request of the task is refused", func() error {
		if a := g.Post("/v1/completions", `{"model":"m","prompt":"short"}`, header); a.StatusCode != http.StatusConflict {
			return fmt.Errorf("the answer is %v", a)
		}
		return nil
	})
	release <- struct{}{}
	if a := <-answered; a.StatusCode != http.StatusOK {
		t.Errorf("the request of before: %v", a)
	}
	harness.Eventually(t, "the task is free", func() error {
		if a := g.Post("/v1/completions", `{"model":"m","prompt":"short"}`, header); a.StatusCode != http.StatusOK {
			return fmt.Errorf("the answer is %v", a)
		}
		return nil
	})
}
