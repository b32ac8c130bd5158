// Command scaling compares rules of scaling on a recorded hour of a chat service, in virtual time.
// `make bench-scaling` runs it and writes the tables of docs/scaling.md. The scaler is
// internal/scale and the predictions are internal/predict, as in the gateway. The replicas are
// simulated, and take a minute to start.
package main

import (
	"flag"
	"fmt"
	"math"
	"os"
	"strings"
	"time"

	"github.com/sluice-gateway/sluice/internal/bench/report"
	"github.com/sluice-gateway/sluice/internal/bench/trace"
	"github.com/sluice-gateway/sluice/internal/scale"
)

func main() {
	path := flag.String("trace", "", "a trace in Mooncake's form, with or without gzip (default: the recorded hour)")
	out := flag.String("out", "", "the document with the section `scaling` that gets the tables (default: standard output)")
	flag.Parse()
	if err := run(*path, *out); err != nil {
		fmt.Fprintln(os.Stderr, "scaling:", err)
		os.Exit(1)
	}
}

func run(path, out string) error {
	requests, err := trace.Open(path)
	if err != nil {
		return err
	}
	text := tables(requests)
	if out != "" {
		return report.WriteSection(out, "scaling", text)
	}
	fmt.Print(text)
	return nil
}

// workload is a way in which the requests arrive.
type workload struct {
	name string
	// speed is how much faster than recorded they arrive, at a time after the beginning.
	speed func(at time.Duration) float64
}

// workloads are the recorded hour, waves and steps.
func workloads() []workload {
	return []workload{
		{"as recorded", func(time.Duration) float64 { return 1 }},
		{"in waves of 45 minutes, 0.1 to 1.2 times as fast", func(at time.Duration) float64 {
			return 0.65 - 0.55*math.Cos(2*math.Pi*at.Minutes()/45)
		}},
		{"in steps, 40 minutes 0.25 times and 20 minutes 1.2 times as fast", func(at time.Duration) float64 {
			if minute := math.Mod(at.Minutes(), 60); minute >= 20 && minute < 40 {
				return 1.2
			}
			return 0.25
		}},
	}
}

// arrive returns the requests with the times at which they arrive.
func (w workload) arrive(recorded []trace.Request) []trace.Request {
	all := make([]trace.Request, len(recorded))
	var at, before time.Duration
	for i, q := range recorded {
		at += time.Duration(float64(q.At-before) / w.speed(at))
		before = q.At
		all[i] = q
		all[i].At = at
	}
	return all
}

// rules are the rules that the table compares.
func rules() []rule {
	elastic := func(name string, slots int, t scale.Target) rule {
		return rule{name, scale.Model{Min: 2, Max: 16, Cooldown: 5 * time.Minute, Target: t}, slots}
	}
	fixed := func(n int) rule {
		return rule{fmt.Sprintf("always %d replicas", n), scale.Model{Min: n, Max: n}, engineSlots}
	}
	return []rule{
		elastic("queue alone, 256 slots", engineSlots, scale.Target{}),
		elastic("queue alone, 32 slots", 32, scale.Target{}),
		elastic("`running: 16`", engineSlots, scale.Target{Running: 16}),
		elastic("`running: 8`", engineSlots, scale.Target{Running: 8}),
		elastic("`ttft: 6s`", engineSlots, scale.Target{TTFT: target}),
		fixed(8), fixed(16),
	}
}

// engineSlots is how many requests an engine such as vLLM works on at once, unless it is told
// otherwise.
const engineSlots = 256

// tables returns the outcomes of all rules as tables in Markdown.
func tables(recorded []trace.Request) string {
	var b strings.Builder
	for _, w := range workloads() {
		requests := w.arrive(recorded)
		fmt.Fprintf(&b, "\n**%s** (%.0f minutes)\n\n", strings.ToUpper(w.name[:1])+w.name[1:], requests[len(requests)-1].At.Minutes())
		b.WriteString("| rule | time above 6 s | mean ttft, s | p90 ttft, s | replica-hours | replicas, mean | changes |\n")
		b.WriteString("| --- | --- | --- | --- | --- | --- | --- |\n")
		for _, r := range rules() {
			o := simulate(requests, r)
			fmt.Fprintf(&b, "| %s | %.1f %% | %.1f | %.1f | %.1f | %.1f | %d |\n", r.name, 100*o.above, o.mean.Seconds(), o.p90.Seconds(), o.hours,
				o.replicas, o.changes)
		}
	}
	return strings.TrimPrefix(b.String(), "\n")
}
