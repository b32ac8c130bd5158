// Command bench compares Sluice with a plain Envoy with static clusters, on one machine. Developers
// run it by make bench.
//
// It measures the CPU time of small and large requests and of events of streams, and the times to
// the first token. It measures a plain Envoy, a gateway that decides by ext_proc, and one that
// decides by the filter inside Envoy (decision 112). The gateways have all their functions on.
// Streams are native, native with their usage read, and managed.
//
// All proxies run all the time and are measured in turn, so that a machine whose speed drifts
// drifts for all of them. Each round begins with another one. bench reports the medians of the
// rounds and of the ratios within a round, with the least and the greatest. Absolute numbers depend
// on the machine; ratios can be compared. Clients and engines cost little (package wire) and are
// not counted.
//
// By -only it also measures memory, what one slow client does to others, and what all that observes
// requests costs. It also measures what it costs that somebody watches 1,000 models, and how many
// instructions requests cost Envoy.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/sluice-gateway/sluice/internal/bench/report"
)

// options are the flags of the command.
type options struct {
	rounds  int
	seconds time.Duration
	quick   bool
	sluice  string
	envoy   string
	only    string
	// json, svg and docs name what is written, from a file of an earlier run.
	json, svg, docs, from string
	// idle is the number of idle streams, longMiB the size of the longest stream in MiB.
	idle, longMiB int
	// filter is what decides in the gateways of observability: module or ext_proc.
	filter string
}

func main() {
	var o options
	flag.IntVar(&o.rounds, "rounds", 5, "number of rounds")
	flag.DurationVar(&o.seconds, "time", 1500*time.Millisecond,
		"duration of one measurement, at most 30s, and at least 3s for streams with pauses; "+
			"all rows take rounds times about two minutes and 40 times this")
	flag.BoolVar(&o.quick, "quick", false, "the same as -rounds 3 -time 500ms: eight minutes for all rows")
	flag.StringVar(&o.sluice, "sluice", "bin/sluice", "path of the sluice binary; make module build makes one with the filter inside Envoy")
	flag.StringVar(&o.envoy, "envoy", ".tools/envoy", "path of the Envoy binary")
	flag.StringVar(&o.only, "only", "", usageOfOnly())
	flag.StringVar(&o.json, "json", "", "file for the raw figures of all rounds; empty: none")
	flag.StringVar(&o.svg, "svg", "", "file for a plot; empty: none")
	flag.StringVar(&o.docs, "docs", "", "folder whose performance.md gets the tables, and performance.svg the plot; it needs all rows; "+
		"with -only observability its costs.md gets the table")
	flag.StringVar(&o.from, "from", "", "file that -json has written: nothing is measured, its tables are written")
	flag.IntVar(&o.idle, "idle", 10_000, "number of idle streams of memory, as far as the limit of open files allows")
	flag.IntVar(&o.longMiB, "long", 1024, "size of the longest stream of memory, in MiB")
	flag.StringVar(&o.filter, "filter", "module", "what decides in the gateways of observability: module or ext_proc")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := bench(ctx, o)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

// usageOfOnly describes -only.
func usageOfOnly() string {
	var names []string
	for _, r := range allRows() {
		names = append(names, r.name)
	}
	return "what to measure, with commas: rows of the comparison by their names or the beginnings of them (" + strings.Join(names, ", ") +
		"; so prompt-64,stream-32 is four rows), or parts besides: memory, slow, observability, watching, instructions; empty: all rows"
}

// check refuses flags that contradict each other.
func (o *options) check() error {
	if o.quick {
		o.rounds, o.seconds = 3, 500*time.Millisecond
	}
	switch {
	case o.rounds < 1:
		return fmt.Errorf("-rounds is %d, and must be at least 1", o.rounds)
	case o.seconds < 100*time.Millisecond || o.seconds > 30*time.Second:
		return fmt.Errorf("-time is %v, and must be from 100ms to 30s", o.seconds)
	case o.docs != "" && o.only != "" && o.only != "observability":
		return errors.New("-docs needs all rows: leave -only out, or have observability alone")
	case o.from != "" && o.only != "":
		return errors.New("-from measures nothing: leave -only out")
	}
	return nil
}

// bench measures what the flags select.
func bench(ctx context.Context, o options) error {
	if err := o.check(); err != nil {
		return err
	}
	if o.from != "" {
		res, err := readResult(o.from)
		if err != nil {
			return err
		}
		return res.report(o)
	}
	bed, err := newTestbed(o)
	if err != nil {
		return err
	}
	defer bed.close()
	parts := map[string]func(context.Context) error{
		"memory": bed.memory, "slow": bed.slow, "observability": bed.observability, "watching": bed.watching, "instructions": bed.instructions,
	}
	rows, others := selectRows(o.only)
	for _, name := range others {
		if parts[name] == nil {
			return fmt.Errorf("-only: there is no row or part %q", name)
		}
	}
	if len(rows) > 0 {
		if err := bed.compare(ctx, rows); err != nil {
			return err
		}
	}
	for _, name := range others {
		if err := parts[name](ctx); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	return nil
}

func each(costs []cpuCost, figure func(cpuCost) float64) []float64 {
	all := make([]float64, len(costs))
	for i, c := range costs {
		all[i] = figure(c)
	}
	return all
}

// printTimes prints times in milliseconds, and how much they exceed those of the first variant.
func printTimes(variants []variant, p50, p99 [][]float64) {
	for i, v := range variants {
		fmt.Printf("  %-20s p50 %7.2f ms   p99 %7.2f ms   added %6.2f and %6.2f\n", v.name, report.Median(p50[i]), report.Median(p99[i]),
			report.Median(p50[i])-report.Median(p50[0]), report.Median(p99[i])-report.Median(p99[0]))
	}
	fmt.Println()
}
