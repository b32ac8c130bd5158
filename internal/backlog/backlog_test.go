package backlog_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"text/tabwriter"
	"time"

	"github.com/sluice-gateway/sluice/internal/backlog"
)

// longest is the longest time of a task.
const longest = 2 * time.Minute

// profile is the limits of the models. The batches have up to 200 calls at once, whatever the
// limits.
type profile struct {
	name   string
	models []backlog.Model
	// tight says that tokens run out before concurrency does.
	tight bool
	// few and many are the least ratios that Scheduled must reach, against Batches and against
	// Obey, for 1,000 tasks and for more.
	few, many [2]float64
}

// profiles are ordered from the one that suits the batches best. With equal limits turns are as
// good as any choice, and with 200 places in all there is no parallelism but theirs. 1,000 tasks
// are then only five batches for a worker. What counts is the end, when there are no tasks left to
// fill the places beside a long one. No scheduler that does not know the times before is much
// better than ours there.
func profiles() []profile {
	mixed := []int{5, 5, 10, 10, 15, 20, 25, 30, 40, 40}
	twice := []int{10, 10, 20, 20, 30, 40, 50, 60, 80, 80}
	return []profile{
		{"equal, 200", backlog.Models(1.5, slices.Repeat([]int{20}, 10)...), false, [2]float64{2.2, 2.2}, [2]float64{3, 3}},
		{"mixed, 200", backlog.Models(1.5, mixed...), false, [2]float64{2.2, 2.3}, [2]float64{3, 3.5}},
		{"mixed, 200, few tokens", backlog.Models(0.8, mixed...), true, [2]float64{2, 2.3}, [2]float64{2.5, 3.5}},
		{"mixed, 400", backlog.Models(1.5, twice...), false, [2]float64{3, 3}, [2]float64{5, 5}},
	}
}

// figures are those of one backlog.
type figures struct {
	batches, obey, ours backlog.Result
	bound               time.Duration
}

func measure(t *testing.T, models []backlog.Model, tasks []backlog.Task) figures {
	t.Helper()
	f := figures{bound: backlog.Bound(models, tasks)}
	synctest.Test(t, func(*testing.T) { f.batches = backlog.Batches(models, tasks) })
	synctest.Test(t, func(*testing.T) { f.obey = backlog.Obey(models, tasks) })
	synctest.Test(t, func(t *testing.T) {
		var err error
		if f.ours, err = backlog.Scheduled(models, tasks); err != nil {
			t.Error(err)
		}
	})
	return f
}

// TestReport measures backlogs of several sizes with several limits, holds them against what they
// must reach, and prints the table: with -v also that of a larger backlog.
func TestReport(t *testing.T) {
	sizes := []int{1000, 5000}
	if testing.Verbose() {
		sizes = append(sizes, 20000)
	}
	var out strings.Builder
	table := tabwriter.NewWriter(&out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(table, "\t\t\tbatches\t\t\t\tbatches that obey\t\tSluice\t\t\tbound\tfaster than\t\t")
	fmt.Fprintln(table, "tasks\tlimits\tseed\ttime\tused\tover places\tover tokens\ttime\tused\ttime\tused\tover\ttime\tbatches\tobeying\t")
	for _, n := range sizes {
		for _, p := range profiles() {
			for seed := range uint64(3) {
				tasks := backlog.Tasks(n, seed)
				f := measure(t, p.models, tasks)
				check(t, p, tasks, f)
				seconds := func(d time.Duration) string { return fmt.Sprintf("%.0f s", d.Seconds()) }
				used := func(r backlog.Result) string { return fmt.Sprintf("%.0f %%", 100*r.Utilisation(p.models, tasks)) }
				fmt.Fprintf(table, "%d\t%s\t%d\t%s\t%s\t%d\t%d\t%s\t%s\t%s\t%s\t%d\t%s\t%.2f\t%.2f\t\n", n, p.name, seed,
					seconds(f.batches.Makespan), used(f.batches), f.batches.OverConcurrency, f.batches.OverTokens,
					seconds(f.obey.Makespan), used(f.obey), seconds(f.ours.Makespan), used(f.ours), f.ours.OverConcurrency+f.ours.OverTokens,
					seconds(f.bound), ratio(f.batches, f.ours), ratio(f.obey, f.ours))
			}
		}
	}
	table.Flush()
	t.Log("\n" + out.String())
}

func ratio(a, b backlog.Result) float64 { return a.Makespan.Seconds() / b.Makespan.Seconds() }

func check(t *testing.T, p profile, tasks []backlog.Task, f figures) {
	t.Helper()
	fail := func(format string, args ...any) {
		t.Helper()
		t.Errorf("%d tasks, %s: "+format, append([]any{len(tasks), p.name}, args...)...)
	}
	least := p.few
	if len(tasks) > 1000 {
		least = p.many
	}
	if r := ratio(f.batches, f.ours); r < least[0] {
		fail("only %.2f times faster than batches", r)
	}
	if r := ratio(f.obey, f.ours); r < least[1] {
		fail("only %.2f times faster than batches that obey", r)
	}
	for who, r := range map[string]backlog.Result{"Scheduled": f.ours, "Obey": f.obey} {
		if r.OverConcurrency+r.OverTokens > 0 {
			fail("%s exceeded limits: %+v", who, r)
		}
		if r.Makespan < f.bound {
			fail("%s took %v, less than is possible: %v", who, r.Makespan, f.bound)
		}
	}
	if f.ours.Calls != len(tasks) {
		fail("%d calls", f.ours.Calls)
	}
	// Graham's bound: who leaves no place empty while there is a task is never later than this. A
	// fiftieth is for waits for tokens.
	if most := backlog.Spread(p.models, tasks) + longest; !p.tight && f.ours.Makespan > most*51/50 {
		fail("places were left empty: %v; want at most %v", f.ours.Makespan, most)
	}
	if p.name != "equal, 200" && f.batches.OverConcurrency == 0 || p.tight && f.batches.OverTokens == 0 {
		fail("batches that know no limits exceeded none: %+v", f.batches)
	}
}

// TestBatches follows one backlog by hand: 20 parts of 20 tasks of 10 minutes make two batches
// each, and one more round for what the timeout cut off.
func TestBatches(t *testing.T) {
	models := backlog.Models(100, slices.Repeat([]int{20}, 10)...)
	for _, c := range []struct {
		tasks, calls int
		takes, want  time.Duration
	}{
		{400, 400, 10 * time.Minute, 20 * time.Minute},
		// 20 or 21 each: a third batch of one, which ends before the timeout and not with it
		{410, 410, 9 * time.Minute, 27 * time.Minute},
		// the second batch is lost
		{400, 400 + 200, 20 * time.Minute, 30*time.Minute + 20*time.Minute},
		{1, 1, time.Minute, time.Minute},
		{0, 0, time.Minute, 0},
	} {
		tasks := slices.Repeat([]backlog.Task{{Tokens: 1, Takes: c.takes}}, c.tasks)
		for name, run := range map[string]func([]backlog.Model, []backlog.Task) backlog.Result{"Batches": backlog.Batches, "Obey": backlog.Obey} {
			synctest.Test(t, func(t *testing.T) {
				if r := run(models, tasks); r != (backlog.Result{Makespan: c.want, Calls: c.calls}) {
					t.Errorf("%s, %d tasks of %v: %+v; want %v and %d calls", name, c.tasks, c.takes, r, c.want, c.calls)
				}
			})
		}
	}
}

// TestObserver: calls over a limit are counted, and waiting at the models avoids them.
func TestObserver(t *testing.T) {
	models := backlog.Models(1, 3, 20)
	size := models[0].TokensPerMinute
	tasks := slices.Repeat([]backlog.Task{{Tokens: size, Takes: 30 * time.Second}}, 20)
	synctest.Test(t, func(t *testing.T) {
		// One task for each worker, in turn. There are ten at once on a model that takes three and
		// one minute of tokens, and ten on one for six of them.
		if r := backlog.Batches(models, tasks); r.OverConcurrency != 7 || r.OverTokens != 9+4 || r.Makespan != 30*time.Second {
			t.Errorf("%+v", r)
		}
	})
	synctest.Test(t, func(t *testing.T) {
		if r := backlog.Obey(models, tasks); r.OverConcurrency+r.OverTokens != 0 || r.Makespan.Round(time.Second) != 9*time.Minute+30*time.Second {
			t.Errorf("%+v", r)
		}
	})
}

func TestBound(t *testing.T) {
	models := backlog.Models(1, 1, 3)
	perMinute := models[0].TokensPerMinute + models[1].TokensPerMinute
	for _, c := range []struct {
		tasks []backlog.Task
		want  time.Duration
	}{
		{slices.Repeat([]backlog.Task{{Tokens: 1, Takes: time.Minute}}, 8), 2 * time.Minute},
		{[]backlog.Task{{Tokens: 1, Takes: time.Minute}, {Tokens: 1, Takes: time.Second}}, time.Minute},
		{slices.Repeat([]backlog.Task{{Tokens: perMinute, Takes: time.Second}}, 8), 7 * time.Minute},
	} {
		if got := backlog.Bound(models, c.tasks); got != c.want {
			t.Errorf("%v: %v; want %v", c.tasks, got, c.want)
		}
	}
}
