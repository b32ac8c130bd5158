// Command bench compares Sluice with a plain Envoy with static clusters, on one machine. Developers
// run it by make bench.
//
// It measures CPU time per request, CPU time per token of a stream (native, native with its usage
// read, managed), the times to the first token and between tokens, what one slow client does to
// others, and memory. The simulated engines are the same for all and are not counted.
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
	flag.StringVar(&o.only, "only", "", "measurements to run, of requests,streams,latency,slow,memory; empty: all")
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
		name string
		run  func(context.Context) error
	}{{"requests", bed.requests}, {"streams", bed.streams}, {"latency", bed.latency}, {"slow", bed.slow}, {"memory", bed.memory}} {
		if o.only != "" && !slices.Contains(strings.Split(o.only, ","), part.name) {
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
	envoyShare, goShare, ratio := make([][]float64, len(variants)), make([][]float64, len(variants)), make([][]float64, len(variants))
	for range b.rounds {
		var plain float64
		for i, v := range variants {
			c, err := measure(v)
			if err != nil {
				return fmt.Errorf("%s: %w", v.name, err)
			}
			if i == 0 {
				plain = c.envoy
			}
			envoyShare[i], goShare[i] = append(envoyShare[i], c.envoy), append(goShare[i], c.gateway)
			ratio[i] = append(ratio[i], (c.envoy+c.gateway)/plain)
		}
	}
	fmt.Printf("%s: CPU per %s\n", l.name, l.unit)
	for i, v := range variants {
		fmt.Printf("  %-20s %7.1f µs Envoy + %6.1f µs Go   ratio %5.2f   (%.2f to %.2f)\n", v.name, median(envoyShare[i]), median(goShare[i]),
			median(ratio[i]), slices.Min(ratio[i]), slices.Max(ratio[i]))
	}
	fmt.Println()
	return nil
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
