package main

import (
	"fmt"
	"slices"
	"strings"

	"github.com/sluice-gateway/sluice/internal/bench/report"
)

// section is a part of docs/performance.md.
type section struct{ name, text string }

// The columns of tables, and the ways of streams.
var (
	bys  = []string{"ext_proc", "module"}
	ways = []string{"native", "usage", "managed"}
)

// wayNames are the names of ways in tables.
var wayNames = map[string]string{"native": "native", "usage": "native, with usage", "managed": "managed"}

// aims are what we have set ourselves for ratios and times, by row or by row and way: for ext_proc,
// and for the filter.
var aims = map[string][2]string{
	"saturated":                        {"4.5", "2.8"},
	"prompt-64":                        {"5", "2.5"},
	"prompt-400":                       {"5", "2.5"},
	"stream-32-1 native":               {"–", "1.6"},
	"stream-32-50 native":              {"–", "1.6"},
	"stream-32-200 native":             {"–", "1.6"},
	"first token stream-32-200 native": {"–", "0.7 and 3 ms"},
	"stream-400-50 native":             {"–", "1.1"},
	"stream-400-200 native":            {"–", "1.1"},
}

// aim returns the cell of the aims of a row, or of one of its ways.
func aim(name string) string {
	a, found := aims[name]
	switch {
	case !found:
		return ""
	case a[0] == "–":
		return a[1] + " (module)"
	}
	return a[0] + "; " + a[1] + " (module)"
}

// sections returns the tables, each under the name of its section. A section whose rows were not
// measured is absent.
func (res *result) sections() []section {
	var all []section
	for _, s := range []section{{"machine", res.machine()}, {"requests", res.requests()}, {"streams", res.streams()}, {"times", res.times()}} {
		if s.text != "" {
			all = append(all, s)
		}
	}
	return all
}

// machine tells where and how the result was measured.
func (res *result) machine() string {
	var others, ofClients, plain []float64
	for _, r := range res.Rows {
		for _, c := range r.Columns {
			for _, s := range c.Rounds {
				others = append(others, s.Others)
			}
		}
		if r.Name == "saturated" {
			plain = r.Columns[0].of(perSecond)
			ofClients = r.Columns[0].of(func(s sample) float64 { return s.Own })
		}
	}
	direct := (&resultColumn{Rounds: res.Direct}).of(perSecond)
	text := fmt.Sprintf("Measured on %s, on %d cores of %s, Linux %s, with Envoy %s and Sluice %s: %d rounds, %g s for each figure of a round.\n",
		res.Begun.Format("2 January 2006"), res.Cores, orUnknown(res.CPU), res.Kernel, res.Envoy, res.Sluice, res.Rounds, res.Seconds)
	text += fmt.Sprintf("All other processes of the machine, with the proxies that were not measured just then, took %.2f cores (median; at most %.2f).\n",
		report.Median(others), slices.Max(append(others, 0)))
	text += fmt.Sprintf("Without a proxy the clients and engines make %.0f small requests a second", report.Median(direct))
	if plain != nil {
		text += fmt.Sprintf(", and through plain Envoy %.0f, of which each costs clients and engines %.0f µs", report.Median(plain), report.Median(ofClients))
	}
	return text + ".\n" + res.idle()
}

// idle tells what the proxies take without requests.
func (res *result) idle() string {
	var parts []string
	for _, c := range res.Idle {
		parts = append(parts, fmt.Sprintf("%s %.1f", c.By, report.Median(c.of(sample.total))))
	}
	if parts == nil {
		return ""
	}
	return "Without any request they take, in thousandths of a core: " + strings.Join(parts, ", ") + ". Nothing of that was subtracted.\n"
}

func perSecond(s sample) float64 { return float64(s.Units) / s.Seconds }

func orUnknown(name string) string {
	if name == "" {
		return "an unknown processor"
	}
	return name
}

// heads returns the heads of a table: the first ones, those of each gateway, and that of the aims.
func heads(first []string, each ...string) []string {
	for _, by := range bys {
		for _, h := range each {
			first = append(first, by+h)
		}
	}
	return append(first, "aim")
}

// requests returns the table of rows without streams.
func (res *result) requests() string {
	t := table{head: heads([]string{"request", "plain Envoy, µs"}, ": Envoy + Go, µs", " ÷ plain")}
	for _, r := range res.Rows {
		if r.Events == 0 {
			t.add(r.Title, figure(r.Columns[0].of(sample.total)), r.costs("usage"), aim(r.Name))
		}
	}
	return t.String()
}

func (res *result) streams() string {
	t := table{head: heads([]string{"streams", "way", "plain Envoy, µs"}, ": Envoy + Go, µs", " ÷ plain")}
	for _, r := range res.Rows {
		if r.Events == 0 {
			continue
		}
		for _, way := range ways {
			t.add(r.Title, wayNames[way], figure(r.Columns[0].of(sample.total)), r.costs(way), aim(r.Name+" "+way))
		}
	}
	return t.String()
}

// costs returns two cells for each gateway: the CPU of its processes, and that against plain Envoy.
func (r *resultRow) costs(way string) []string {
	var cells []string
	for _, by := range bys {
		c := r.column(by, way)
		if c == nil {
			cells = append(cells, "–", "–")
			continue
		}
		cells = append(cells, figure(c.of(sample.ofEnvoy))+" + "+figure(c.of(sample.ofGo)), spread(c.against(&r.Columns[0], sample.total, quotient), "%.2f"))
	}
	return cells
}

// timedEvents is the length of the streams whose first tokens are in the table. Too few of longer
// streams begin during a measurement.
const timedEvents = 32

// times returns the table of the times of paced requests and of first tokens.
func (res *result) times() string {
	t := table{head: heads([]string{"time of", "way", "plain Envoy: p50, p99"}, " adds to p50, ms", " adds to p99, ms")}
	for _, r := range res.Rows {
		switch {
		case r.Events == timedEvents:
			for _, way := range ways {
				t.add("first token: "+r.Title, wayNames[way], r.plainTimes(), r.added(way), aim("first token "+r.Name+" "+way))
			}
		case r.Rate > 0:
			t.add(r.Title, "", r.plainTimes(), r.added("usage"), "")
		}
	}
	return t.String()
}

// plainTimes returns the cell of plain Envoy's times.
func (r *resultRow) plainTimes() string {
	return fmt.Sprintf("%.2f, %.2f ms", report.Median(r.Columns[0].of(sample.p50)), report.Median(r.Columns[0].of(sample.p99)))
}

// added returns two cells for each gateway: what it adds to the median and to p99.
func (r *resultRow) added(way string) []string {
	var cells []string
	for _, by := range bys {
		c := r.column(by, way)
		if c == nil {
			cells = append(cells, "–", "–")
			continue
		}
		for _, of := range []func(sample) float64{sample.p50, sample.p99} {
			cells = append(cells, spread(c.against(&r.Columns[0], of, difference), "%.2f"))
		}
	}
	return cells
}

// figure returns the median of a CPU time by rounds.
func figure(x []float64) string {
	m := report.Median(x)
	if m < 10 {
		return fmt.Sprintf("%.1f", m)
	}
	return fmt.Sprintf("%.0f", m)
}

// spread returns the median of a figure by rounds, with its least and greatest value.
func spread(x []float64, format string) string {
	return fmt.Sprintf("**"+format+"** ("+format+" to "+format+")", report.Median(x), slices.Min(x), slices.Max(x))
}

// table is a table of Markdown.
type table struct {
	head []string
	rows strings.Builder
}

// add adds a row of cells, each a string or a list of strings.
func (t *table) add(cells ...any) {
	for _, c := range cells {
		switch c := c.(type) {
		case string:
			t.rows.WriteString("| " + c + " ")
		case []string:
			t.rows.WriteString("| " + strings.Join(c, " | ") + " ")
		}
	}
	t.rows.WriteString("|\n")
}

// String returns the table, or nothing if it has no rows.
func (t *table) String() string {
	if t.rows.Len() == 0 {
		return ""
	}
	return "| " + strings.Join(t.head, " | ") + " |\n" + strings.Repeat("| --- ", len(t.head)) + "|\n" + t.rows.String()
}
