package main

import (
	"context"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"
	"time"
)

// result is what one fault has cost.
type result struct {
	fault fault
	// sent and lost are about small requests: lost ones have had no response, by reason. broken
	// counts those whose response broke off.
	sent, broken int
	lost         map[string]int
	slowest      time.Duration
	streams      map[string]*streamCount
	// recovery is the time from the beginning of the fault to the last lost request. recovered
	// tells whether all was well again before the limit.
	recovery  time.Duration
	recovered bool
	// conditions are those that needed attention, left is what was counted after all clients had
	// gone.
	conditions []string
	left       string
}

const tableHead = "| fault | small requests lost | streams: whole / cut / lost / wrong | last loss after | slowest request | conditions |\n" +
	"| --- | --- | --- | --- | --- | --- |"

// row writes the result as a row of the table.
func (r *result) row() string {
	lost := "0"
	if n := sum(r.lost); n > 0 {
		lost = fmt.Sprintf("%d (%s)", n, counts(r.lost))
	}
	if r.broken > 0 {
		lost += fmt.Sprintf(", %d broken off", r.broken)
	}
	recovery := "–"
	if r.recovery > 0 {
		recovery = fmt.Sprintf("%.1f s", r.recovery.Seconds())
	}
	conditions := strings.Join(r.conditions, ", ")
	if !r.recovered {
		conditions += " **not recovered**"
	}
	if r.left != "" {
		conditions += " **left: " + r.left + "**"
	}
	return fmt.Sprintf("| %s | %s of %d | %s | %s | %.1f s | %s |", r.fault.about, lost, r.sent, r.streamCells(), recovery, r.slowest.Seconds(), conditions)
}

// streamCells writes what became of the streams, by kind.
func (r *result) streamCells() string {
	var cells []string
	for _, k := range kinds {
		c := r.streams[k.name]
		cell := fmt.Sprintf("%s %d / %d / %d / %d", k.name, c.whole, c.cut, c.lost, c.wrong)
		if c.resumed > 0 {
			cell += fmt.Sprintf(" (%d resumed)", c.resumed)
		}
		if len(c.reasons) > 0 {
			cell += " (" + counts(c.reasons) + ")"
		}
		cells = append(cells, cell)
	}
	return strings.Join(cells, "<br>")
}

func sum(m map[string]int) int {
	n := 0
	for _, v := range m {
		n += v
	}
	return n
}

// writeReport replaces the table in the file between its two marks.
func writeReport(o options, rows []string) error {
	text, err := os.ReadFile(o.out)
	if err != nil {
		return err
	}
	const begin, end = "<!-- table -->\n", "<!-- end of the table -->"
	head, rest, ok := strings.Cut(string(text), begin)
	_, tail, ok2 := strings.Cut(rest, end)
	if !ok || !ok2 {
		return fmt.Errorf("%s lacks the marks of the table", o.out)
	}
	return os.WriteFile(o.out, []byte(head+begin+tableHead+"\n"+strings.Join(rows, "\n")+"\n"+end+tail), 0o600)
}

// watch records which conditions need attention.
type watch struct {
	world *world
	stop  context.CancelFunc

	mu   sync.Mutex
	from time.Time
	// first is when a type of condition was first seen after the fault began.
	first map[string]time.Duration
}

func newWatch(w *world) *watch {
	ctx, cancel := context.WithCancel(context.Background())
	watch := &watch{world: w, stop: cancel, first: map[string]time.Duration{}}
	go watch.run(ctx)
	return watch
}

func (w *watch) run(ctx context.Context) {
	for sleep(ctx, 200*time.Millisecond) {
		all, err := w.world.attention(ctx)
		if err != nil {
			continue
		}
		w.mu.Lock()
		for _, c := range all {
			if _, known := w.first[c.Type]; !known && !w.from.IsZero() && !isEvil(c) {
				w.first[c.Type] = time.Since(w.from)
			}
		}
		w.mu.Unlock()
	}
}

// isEvil reports whether a condition is about the engine that misbehaves on purpose.
func isEvil(c conditionView) bool {
	return c.Subject == "evil" || strings.HasPrefix(c.Type, "Upstream") || strings.Contains(c.Message, "evil")
}

func (w *watch) mark(now time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.from = now
}

// seen lists the types of conditions with the time after which each was seen first.
func (w *watch) seen() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	var all []string
	for _, t := range slices.SortedFunc(maps.Keys(w.first), func(a, b string) int { return int(w.first[a] - w.first[b]) }) {
		all = append(all, fmt.Sprintf("`%s` after %.1f s", t, w.first[t].Seconds()))
	}
	return all
}
