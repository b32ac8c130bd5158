// Command bench compares Sluice with a plain Envoy with static clusters, on one machine. Developers
// run it by make bench.
//
// It measures CPU time per request, CPU time per token of a stream (native, native with its usage
// read, managed), the times to the first token and between tokens, what one slow client does to
// others, and memory. By -only it also measures what all that observes requests costs, and what it
// costs that somebody watches 1,000 models. The simulated engines are the same for all and are not
// counted.
//
// All proxies run all the time and are measured in turn, so that a machine whose speed drifts
// drifts for all of them. bench reports the medians of the rounds and of the ratios within a round.
// Absolute numbers depend on the machine; ratios can be compared.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"
)

// options are the flags of the command.
type options struct {
	rounds  int
	seconds time.Duration
	sluice  string
	envoy   string
	only    string
	// idle is the number of idle streams, longMiB the size of the longest stream in MiB.
	idle, longMiB int
}

func main() {
	var o options
	flag.IntVar(&o.rounds, "rounds", 3, "number of rounds")
	flag.DurationVar(&o.seconds, "time", time.Second, "duration of one measurement")
	flag.StringVar(&o.sluice, "sluice", "bin/sluice", "path of the sluice binary")
	flag.StringVar(&o.envoy, "envoy", ".tools/envoy", "path of the Envoy binary")
	flag.IntVar(&o.idle, "idle", 10_000, "number of idle streams, as far as the limit of open files allows")
	flag.IntVar(&o.longMiB, "long", 1024, "size of the longest stream, in MiB")
	flag.StringVar(&o.only, "only", "", "measurements to run, of requests,streams,latency,slow,memory,observability,watching; empty: the first five")
	flag.Parse()
	if err := bench(context.Background(), o); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

// bench starts the testbed and runs the selected measurements.
func bench(ctx context.Context, o options) error {
	bed, err := newTestbed(o)
	defer bed.close()
	if err != nil {
		return err
	}
	fmt.Printf("%d rounds of %v each, medians\n\n", o.rounds, o.seconds)
	for _, part := range []struct {
		name  string
		usual bool
		run   func(context.Context) error
	}{
		{"requests", true, bed.requests}, {"streams", true, bed.streams}, {"latency", true, bed.latency}, {"slow", true, bed.slow},
		{"memory", true, bed.memory},
		{"observability", false, bed.observability}, {"watching", false, bed.watching},
	} {
		if o.only == "" && !part.usual || o.only != "" && !slices.Contains(strings.Split(o.only, ","), part.name) {
			continue
		}
		if err := part.run(ctx); err != nil {
			return fmt.Errorf("%s: %w", part.name, err)
		}
	}
	return nil
}

// requests compares the CPU time of a request.
func (b *testbed) requests(ctx context.Context) error {
	l := workload{name: "small requests, one after the other on 16 connections", unit: "request", workers: 16, tokens: 1, eventPause: 5 * time.Millisecond}
	return b.compareCPU(l, func(c variant) (cpuCost, error) { return c.measure(ctx, l, b.seconds) }, b.variants()[:2])
}

// variants returns all ways for a stream, plain Envoy first.
func (b *testbed) variants() []variant {
	return []variant{
		{b.plainEnvoy, "plain Envoy", "native"},
		{b.sluice, "native, with usage", "sim"},
		{b.sluice, "native", "native"},
		{b.sluice, "managed", "managed"},
	}
}

// compareCPU measures and prints the CPU time per unit of the workload for several variants, in
// turn.
func (b *testbed) compareCPU(l workload, measure func(variant) (cpuCost, error), variants []variant) error {
	costs, err := b.measureCPU(measure, variants)
	if err == nil {
		printCPU(l, variants, costs)
	}
	return err
}

// measureCPU measures several variants in turn, and returns the costs of each by rounds.
func (b *testbed) measureCPU(measure func(variant) (cpuCost, error), variants []variant) ([][]cpuCost, error) {
	costs := make([][]cpuCost, len(variants))
	for range b.rounds {
		for i, v := range variants {
			c, err := measure(v)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", v.name, err)
			}
			costs[i] = append(costs[i], c)
		}
	}
	return costs, nil
}

// printCPU prints the costs of variants by rounds, and their ratios to those of the first variant.
func printCPU(l workload, variants []variant, costs [][]cpuCost) {
	fmt.Printf("%s: CPU per %s\n", l.name, l.unit)
	for i, v := range variants {
		ratios := ratiosOf(costs[i], costs[0], cpuCost.total)
		fmt.Printf("  %-22s %7.1f µs Envoy + %6.1f µs Go   ratio %6.3f   (%.3f to %.3f)\n", v.name, median(each(costs[i], cpuCost.ofEnvoy)),
			median(each(costs[i], cpuCost.ofGateway)), median(ratios), slices.Min(ratios), slices.Max(ratios))
	}
	fmt.Println()
}

// each returns a figure of all costs.
func each(costs []cpuCost, figure func(cpuCost) float64) []float64 {
	all := make([]float64, len(costs))
	for i, c := range costs {
		all[i] = figure(c)
	}
	return all
}

// ratiosOf returns round by round the ratio of a figure of two variants.
func ratiosOf(costs, to []cpuCost, figure func(cpuCost) float64) []float64 {
	all := make([]float64, len(costs))
	for i := range costs {
		all[i] = figure(costs[i]) / figure(to[i])
	}
	return all
}

// latency measures requests and first tokens at a slow, fixed rate, so that nothing queues.
func (b *testbed) latency(ctx context.Context) error {
	if err := b.compareLatency(ctx, "small requests, client to client", workload{tokens: 1, eventPause: 5 * time.Millisecond}, b.variants()[:2]); err != nil {
		return err
	}
	return b.compareLatency(ctx, "first token of a stream", workload{tokens: 2, stream: true}, b.variants())
}

// compareLatency measures and prints the times of a workload for several variants.
func (b *testbed) compareLatency(ctx context.Context, name string, l workload, variants []variant) error {
	const rate = 100
	p50, p99 := make([][]float64, len(variants)), make([][]float64, len(variants))
	for range b.rounds {
		for i, v := range variants {
			took, err := v.paced(ctx, l, rate, b.seconds)
			if err != nil {
				return fmt.Errorf("%s: %w", v.name, err)
			}
			p50[i], p99[i] = append(p50[i], quantile(took, 0.5)), append(p99[i], quantile(took, 0.99))
		}
	}
	fmt.Printf("%s, %d per second\n", name, rate)
	printTimes(variants, p50, p99)
	return nil
}

// printTimes prints times in milliseconds, and how much they exceed those of the first variant.
func printTimes(variants []variant, p50, p99 [][]float64) {
	for i, v := range variants {
		fmt.Printf("  %-20s p50 %7.2f ms   p99 %7.2f ms   added %6.2f and %6.2f\n", v.name, median(p50[i]), median(p99[i]),
			median(p50[i])-median(p50[0]), median(p99[i])-median(p99[0]))
	}
	fmt.Println()
}

// median returns the median of x.
func median(x []float64) float64 { return quantile(x, 0.5) }

// quantile returns the q-quantile of x, which must not be empty.
func quantile(x []float64, q float64) float64 {
	sorted := slices.Sorted(slices.Values(x))
	return sorted[int(q*float64(len(sorted)-1))]
}
