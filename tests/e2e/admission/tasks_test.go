package admission

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sluice-gateway/sluice/internal/testutil"
	"github.com/sluice-gateway/sluice/tests/e2e/harness"
)

// decision is the answer of the schedule API.
type decision struct {
	Wait  *int   `json:"wait_for_ms"`
	Model string `json:"model_backend_id"`
	Task  string `json:"task_id"`
}

func scheduleTask(g *harness.Gateway, body string, headers ...string) decision {
	g.T.Helper()
	a := g.Post("/schedule", body, headers...)
	if a.StatusCode != 200 {
		g.T.Fatalf("/schedule %s: %s", body, a)
	}
	var d decision
	if err := json.Unmarshal(a.Content, &d); err != nil {
		g.T.Fatal(err)
	}
	if (d.Wait == nil) == (d.Task == "") || (d.Task == "") != (d.Model == "") {
		g.T.Fatalf("/schedule answered %s", a.Content)
	}
	return d
}

// admitTask repeats scheduleTask until the gateway admits the task.
func admitTask(g *harness.Gateway, body string, headers ...string) decision {
	g.T.Helper()
	var d decision
	harness.Eventually(g.T, "a task", func() error {
		if d = scheduleTask(g, body, headers...); d.Wait != nil {
			return fmt.Errorf("wait %d ms", *d.Wait)
		}
		return nil
	})
	return d
}

func completeTask(g *harness.Gateway, task string) *harness.Answer {
	g.T.Helper()
	return g.Post("/complete", fmt.Sprintf(`{"task_id": %q}`, task))
}

const twoUpstreams = `
models:
  - {name: a, launcher: none, admission: {max_concurrent_requests: 2, max_tokens_per_minute: 100000}}
  - {name: b, launcher: none, admission: {max_concurrent_requests: 1, max_tokens_per_minute: 1000}}
`

func TestE2E_W1_W4_ScheduleAndComplete(t *testing.T) {
	t.Parallel()
	g := harness.Start(t, twoUpstreams)
	var tasks []decision
	for range 3 {
		tasks = append(tasks, scheduleTask(g, `{"estimated_tokens": 1000}`))
	}
	seen := map[string]int{}
	for _, d := range tasks {
		seen[d.Model]++
	}
	if seen["a"] != 2 || seen["b"] != 1 {
		t.Fatalf("three tasks went to %v, the limits are a: 2, b: 1", seen)
	}
	for range 20 {
		if d := scheduleTask(g, `{"estimated_tokens": 1000}`); d.Wait == nil || *d.Wait < 100 || *d.Wait > 250 {
			t.Fatalf("all slots are taken: %+v, want a wait of 100 to 250 ms", d)
		}
	}
	// b lacks a slot and 1,000 tokens: the longer of the two waits counts.
	if d := scheduleTask(g, `{"estimated_tokens": 1000, "model": "b"}`); d.Wait == nil || *d.Wait < 5000 || *d.Wait > 70000 {
		t.Errorf("%+v: b lacks 1,000 tokens at 1,000 a minute, besides a slot: some 60 s", d)
	}
	for i, d := range tasks {
		if a := completeTask(g, d.Task); a.StatusCode != 200 || string(a.Content) != `{"ok":true}` {
			t.Fatalf("task %d: %s", i, a)
		}
		if a := completeTask(g, d.Task); a.StatusCode != 404 || string(a.Content) != `{"error":"Task not found"}` {
			t.Fatalf("completed twice: %s", a)
		}
	}
	// b has given its 1,000 tokens: 1,000 more come in a minute. a has slots, so nobody waits.
	if d := scheduleTask(g, `{"estimated_tokens": 1000}`); d.Model != "a" {
		t.Errorf("%+v, only a has the tokens", d)
	}
	if d := scheduleTask(g, `{"estimated_tokens": 1000, "model": "b"}`); d.Wait == nil || *d.Wait < 5000 || *d.Wait > 70000 {
		t.Errorf("%+v: 1,000 tokens are missing at 1,000 a minute: some 60 s", d)
	}
	awaitTasks(g, 1)
}

// awaitTasks waits until so many tasks run.
func awaitTasks(g *harness.Gateway, n int) {
	g.T.Helper()
	harness.Eventually(g.T, "tasks end", func() error {
		if running := g.Model("a").InFlight + g.Model("b").InFlight; running != n {
			return fmt.Errorf("%d tasks run", running)
		}
		return nil
	})
}

func TestE2E_W1_BadTasksAreToldWhy(t *testing.T) {
	t.Parallel()
	g := harness.Start(t, twoUpstreams)
	for _, tt := range []struct {
		path, body, param string
		status            int
	}{
		{"/schedule", `{"estimated_tokens": 100001}`, "estimated_tokens", 400}, // no model is ever given so many
		{"/schedule", `{"estimated_tokens": 1001, "model": "b"}`, "estimated_tokens", 400},
		{"/schedule", `{}`, "estimated_tokens", 400},
		{"/schedule", `{"estimated_tokens": -1}`, "estimated_tokens", 400},
		{"/schedule", `{"estimated_tokens": "many"}`, "estimated_tokens", 400},
		{"/schedule", `{"estimated_tokens": 1, "estimated_tokens": 2}`, "estimated_tokens", 400},
		{"/schedule", `{"estimated_tokens": 1, "max_wait": 2}`, "max_wait", 400},
		{"/schedule", `{"estimated_tokens": 1, "pool": "none"}`, "pool", 404},
		{"/schedule", `{"estimated_tokens": 1, "model": "none"}`, "model", 404},
		{"/schedule", `nonsense`, "", 400},
		{"/complete", `{}`, "task_id", 400},
	} {
		a := g.Post(tt.path, tt.body)
		var e struct {
			Error struct{ Message, Param string }
		}
		if err := json.Unmarshal(a.Content, &e); err != nil || a.StatusCode != tt.status || e.Error.Param != tt.param || e.Error.Message == "" {
			t.Errorf("%s %s: %s, want %d for %q", tt.path, tt.body, a, tt.status, tt.param)
		}
	}
	harness.Eventually(t, "the refused tasks are counted and listed", func() error {
		n, list := g.Metric(`sluice_rejected_total{model="other",reason="model_not_found"}`), g.AdminText("/api/v1/requests?code=model_not_found")
		if n != 2 || strings.Count(list, `"path":"/schedule"`) != 2 {
			return fmt.Errorf("%v in the metric, in the list: %s", n, list)
		}
		return nil
	})
	if a := g.Fetch("/schedule"); a.StatusCode != 405 {
		t.Errorf("GET: %s", a)
	}
	if a := g.Post("/schedule", `{"estimated_tokens": 1, "request_id": "`+strings.Repeat("x", 80<<10)+`"}`); a.StatusCode != 413 {
		t.Errorf("80 KiB: %s", a)
	}
	a := g.Post("/v1/chat/completions", harness.ChatBody("a", false, 1, "Hello"))
	if a.StatusCode != 400 || !strings.Contains(string(a.Content), "/schedule") {
		t.Errorf("a chat with a model that is only admitted: %s", a)
	}
}

func TestE2E_W6_RetriedCallsCountOnce(t *testing.T) {
	t.Parallel()
	g := harness.Start(t, twoUpstreams)
	tasks := map[string]bool{}
	var mu sync.Mutex
	var callers sync.WaitGroup
	for range 20 {
		callers.Go(func() {
			a, err := g.TryPost(context.Background(), "/schedule", `{"estimated_tokens": 10, "request_id": "one"}`)
			if err != nil {
				t.Error(err)
				return
			}
			var d decision
			json.Unmarshal(a.Content, &d)
			mu.Lock()
			tasks[d.Task] = true
			mu.Unlock()
		})
	}
	callers.Wait()
	if len(tasks) != 1 {
		t.Errorf("20 calls with one request id made the tasks %v", tasks)
	}
	awaitTasks(g, 1)
	var ok atomic.Int64
	for task := range tasks {
		for range 20 {
			callers.Go(func() {
				if a := completeTask(g, task); a.StatusCode == 200 {
					ok.Add(1)
				}
			})
		}
	}
	callers.Wait()
	if ok.Load() != 1 {
		t.Errorf("20 calls of /complete freed %d times", ok.Load())
	}
	awaitTasks(g, 0)
}

func TestE2E_W6_ACallerThatDiesFreesItsSlotByLease(t *testing.T) {
	t.Parallel()
	g := harness.Start(t, "task_lease: 6s"+twoUpstreams) // longer than a busy machine needs between two calls
	dies, lives := admitTask(g, `{"estimated_tokens": 1, "model": "a"}`), admitTask(g, `{"estimated_tokens": 1, "model": "a"}`)
	harness.Eventually(t, "the task of the caller that died is gone", func() error {
		if a := g.Post("/renew", fmt.Sprintf(`{"task_id": %q}`, lives.Task)); a.StatusCode != 200 {
			t.Fatalf("the one that is renewed is gone: %s", a)
		}
		if n := g.Model("a").InFlight; n != 1 {
			return fmt.Errorf("%d tasks run", n)
		}
		return nil
	})
	if a := completeTask(g, dies.Task); a.StatusCode != 404 {
		t.Errorf("completed after its lease: %s", a)
	}
	if a := completeTask(g, lives.Task); a.StatusCode != 200 {
		t.Errorf("completed in time: %s", a)
	}
}

func TestE2E_W6_TasksOutliveACrash(t *testing.T) {
	t.Parallel()
	g := harness.Start(t, twoUpstreams)
	one := admitTask(g, `{"estimated_tokens": 700, "model": "b", "request_id": "same"}`)
	g.Kill()
	g.Launch()
	g.AwaitReady()
	if n := g.Model("b").InFlight; n != 1 {
		t.Errorf("%d tasks of b after the crash, want the one of before", n)
	}
	if again := scheduleTask(g, `{"estimated_tokens": 700, "model": "b", "request_id": "same"}`); again.Task != one.Task {
		t.Errorf("the retry got %+v, before it was %+v", again, one)
	}
	if a := completeTask(g, one.Task); a.StatusCode != 200 {
		t.Errorf("completed after the crash: %s", a)
	}
	awaitTasks(g, 0)
}

func TestE2E_W6_LongPoll(t *testing.T) {
	t.Parallel()
	g := harness.Start(t, twoUpstreams)
	first := admitTask(g, `{"estimated_tokens": 1, "model": "b"}`)
	const call = `{"estimated_tokens": 1, "model": "b", "max_wait_ms": 60000}`
	ctx, leave := context.WithCancel(t.Context())
	answers := make(chan string, 1)
	ask := func() {
		a, err := g.TryPost(ctx, "/schedule", call)
		if err != nil {
			answers <- err.Error()
			return
		}
		answers <- a.String()
	}
	go ask()
	g.AwaitQueued("b", 1)
	completeTask(g, first.Task)
	if got := harness.Receive(t, answers, "the call that waited is answered"); !strings.Contains(got, `"model_backend_id":"b"`) {
		t.Errorf("the call that waited is answered %s", got)
	}
	// One whose caller leaves is admitted for nobody.
	go ask()
	g.AwaitQueued("b", 1)
	leave()
	if got := harness.Receive(t, answers, "the call whose caller left has ended"); !strings.Contains(got, context.Canceled.Error()) {
		t.Errorf("the call was answered although it could not: %s", got)
	}
	g.AwaitQueued("b", 0)
}

func TestE2E_W3_TokenSharesFollowWeights(t *testing.T) {
	t.Parallel()
	g := harness.Start(t, `
models:
  - {name: five, launcher: none, admission: {weight: 5, max_concurrent_requests: 100}}
  - {name: three, launcher: none, admission: {weight: 3, max_concurrent_requests: 100}}
  - {name: two, launcher: none, admission: {weight: 2, max_concurrent_requests: 100}}
pools: [{name: all, models: [five, three, two]}]
`)
	var mu sync.Mutex
	tokens := map[string]int{}
	var callers sync.WaitGroup
	// Callers ask at different rates: the slow ones pause for ten times as long as the fast ones
	// work.
	for caller := range 8 {
		callers.Go(func() {
			for i := range 250 {
				n := 50 + (caller*131+i*71)%900
				a, err := g.TryPost(context.Background(), "/schedule", fmt.Sprintf(`{"estimated_tokens": %d, "pool": "all"}`, n))
				var d decision
				if err != nil || json.Unmarshal(a.Content, &d) != nil || d.Task == "" {
					t.Errorf("%v %v", a, err)
					return
				}
				mu.Lock()
				tokens[d.Model] += n
				mu.Unlock()
				g.TryPost(context.Background(), "/complete", fmt.Sprintf(`{"task_id": %q}`, d.Task))
				if caller < 4 {
					time.Sleep(time.Millisecond)
				}
			}
		})
	}
	callers.Wait()
	sum := float64(tokens["five"] + tokens["three"] + tokens["two"])
	for model, want := range map[string]float64{"five": 0.5, "three": 0.3, "two": 0.2} {
		if share := float64(tokens[model]) / sum; share < want-0.02 || share > want+0.02 {
			t.Errorf("%s got %.3f of the tokens, its weight is %.1f of all", model, share, want)
		}
	}
}

// TestE2E_W8_AirflowWorkersDrainABacklog runs the example's workers against the gateway: every task
// is solved once, and the models never have more calls at once than they may.
func TestE2E_W8_AirflowWorkersDrainABacklog(t *testing.T) {
	t.Parallel()
	const limit, tasks = 3, 60
	var mu sync.Mutex
	running, most, solved := map[string]int{}, map[string]int{}, map[string]int{}
	models := harness.StartUpstream(t, func(w http.ResponseWriter, r *http.Request) {
		var call struct{ Model, Prompt string }
		if err := json.NewDecoder(r.Body).Decode(&call); err != nil {
			http.Error(w, err.Error(), 400)
			return
		}
		mu.Lock()
		running[call.Model]++
		most[call.Model] = max(most[call.Model], running[call.Model])
		solved[call.Prompt]++
		mu.Unlock()
		time.Sleep(10 * time.Millisecond) // the model thinks
		mu.Lock()
		running[call.Model]--
		mu.Unlock()
		json.NewEncoder(w).Encode(map[string]any{"answer": "done: " + call.Prompt, "total_tokens": 20})
	})
	var config strings.Builder
	config.WriteString("\nmodels:\n")
	for i := range 4 {
		fmt.Fprintf(&config, "  - {name: m%d, launcher: none, admission: {max_concurrent_requests: %d}}\n", i, limit)
	}
	g := harness.Start(t, config.String())
	dir := t.TempDir()
	lines := filepath.Join(dir, "tasks.jsonl")
	var text strings.Builder
	for i := range tasks {
		fmt.Fprintf(&text, "{\"id\": \"t%d\", \"prompt\": \"question %d\", \"estimated_tokens\": 50}\n", i, i)
	}
	if err := os.WriteFile(lines, []byte(text.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{{"load", lines}, {"run", "--sluice", g.URL, "--backend", models, "--workers", "20"}} {
		worker := exec.Command("python3", append([]string{filepath.Join(testutil.Root(), "examples", "airflow", "worker.py"),
			"--db", filepath.Join(dir, "tasks.db")}, args...)...)
		if out, err := worker.CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
	}
	if len(solved) != tasks {
		t.Errorf("%d of %d tasks were solved", len(solved), tasks)
	}
	for prompt, n := range solved {
		if n != 1 {
			t.Errorf("%s was solved %d times", prompt, n)
		}
	}
	for model, n := range most {
		if n > limit {
			t.Errorf("%s had %d calls at once, its limit is %d", model, n, limit)
		}
	}
	for i := range 4 {
		g.AwaitIdle(fmt.Sprint("m", i))
	}
}

// TestE2E_R11_ALateRepetitionIsNotAdmittedAgain: a call that is repeated after its task was
// completed gets 409, and admits nothing.
func TestE2E_R11_ALateRepetitionIsNotAdmittedAgain(t *testing.T) {
	t.Parallel()
	g := harness.Start(t, "models:\n  - {name: m, launcher: none, admission: {max_concurrent_requests: 1}}\n")
	const call = `{"estimated_tokens": 5, "request_id": "one"}`
	first := scheduleTask(g, call)
	if again := scheduleTask(g, call); again.Task != first.Task {
		t.Errorf("%+v, then %+v", first, again)
	}
	if a := completeTask(g, first.Task); a.StatusCode != 200 {
		t.Fatal(a)
	}
	if a := g.Post("/schedule", call); a.StatusCode != 409 || a.Code() != "request_id_conflict" {
		t.Errorf("the repetition after the end: %s", a)
	}
	if other := scheduleTask(g, `{"estimated_tokens": 5, "request_id": "two"}`); other.Task == "" {
		t.Errorf("%+v", other)
	}
}
