// Command bench measures what the whole chain costs beside a plain Envoy with static clusters, in one run on one machine: CPU per
// request, CPU per chunk of a stream (native, native with its usage read, managed), the times to the first token and between tokens, what one
// slow client does to others, and memory. The simulated engines are the same for all and are not counted.
//
// All ways are up all the time and take turns, so that a machine whose speed drifts drifts for all; what is reported is the
// median of the rounds and of their ratios. Absolute figures are this machine's, ratios are worth comparing.
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

type options struct {
	rounds  int
	seconds time.Duration
	sluice  string
	envoy   string
	only    string
	// waiting is how many idle streams there are, mebibytes how long the longest one is.
	waiting, mebibytes int
}

func main() {
	var o options
	flag.IntVar(&o.rounds, "rounds", 3, "how often each chain is measured")
	flag.DurationVar(&o.seconds, "time", time.Second, "how long one measurement takes")
	flag.StringVar(&o.sluice, "sluice", "bin/sluice", "the program")
	flag.StringVar(&o.envoy, "envoy", ".tools/envoy", "the Envoy binary")
	flag.IntVar(&o.waiting, "idle", 10_000, "idle streams at once, where the limit of open files allows it")
	flag.IntVar(&o.mebibytes, "long", 1024, "size of the longest stream, in MiB")
	flag.StringVar(&o.only, "only", "", "parts to measure, of requests,streams,latency,slow,memory; empty: all")
	flag.Parse()
	if err := bench(context.Background(), o); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func bench(ctx context.Context, o options) error {
	stage, err := build(o)
	defer stage.close()
	if err != nil {
		return err
	}
	fmt.Printf("%d rounds of %v each, medians\n\n", o.rounds, o.seconds)
	for _, part := range []struct {
		name string
		run  func(context.Context) error
	}{{"requests", stage.requests}, {"streams", stage.streams}, {"latency", stage.latency}, {"slow", stage.slow}, {"memory", stage.memory}} {
		if o.only != "" && !slices.Contains(strings.Split(o.only, ","), part.name) {
			continue
		}
		if err := part.run(ctx); err != nil {
			return fmt.Errorf("%s: %w", part.name, err)
		}
	}
	return nil
}

// requests compares what a request costs.
func (s *stage) requests(ctx context.Context) error {
	l := load{name: "small requests, one after the other on 16 connections", per: "request", workers: 16, tokens: 1, pause: 5 * time.Millisecond}
	return s.compare(l, func(c lane) (cost, error) { return c.measure(ctx, l, s.seconds) }, s.lanes()[:2])
}

// lanes are all ways for a stream, plain Envoy first.
func (s *stage) lanes() []lane {
	return []lane{
		{s.plain, "plain Envoy", "native"},
		{s.sluice, "native, with usage", "sim"},
		{s.sluice, "native", "native"},
		{s.sluice, "managed", "managed"},
	}
}

// compare measures CPU per unit of the load on several lanes, which take turns.
func (s *stage) compare(l load, measure func(lane) (cost, error), lanes []lane) error {
	envoyShare, goShare, ratio := make([][]float64, len(lanes)), make([][]float64, len(lanes)), make([][]float64, len(lanes))
	for range s.rounds {
		var plain float64
		for i, lane := range lanes {
			c, err := measure(lane)
			if err != nil {
				return fmt.Errorf("%s: %w", lane.name, err)
			}
			if i == 0 {
				plain = c.envoy
			}
			envoyShare[i], goShare[i] = append(envoyShare[i], c.envoy), append(goShare[i], c.gateway)
			ratio[i] = append(ratio[i], (c.envoy+c.gateway)/plain)
		}
	}
	fmt.Printf("%s: CPU per %s\n", l.name, l.per)
	for i, lane := range lanes {
		fmt.Printf("  %-20s %7.1f µs Envoy + %6.1f µs Go   ratio %5.2f   (%.2f to %.2f)\n", lane.name, median(envoyShare[i]), median(goShare[i]),
			median(ratio[i]), slices.Min(ratio[i]), slices.Max(ratio[i]))
	}
	fmt.Println()
	return nil
}

// latency measures requests and first tokens that come at a slow, fixed pace, so that nothing queues.
func (s *stage) latency(ctx context.Context) error {
	if err := s.compareLatency(ctx, "small requests, client to client", load{tokens: 1, pause: 5 * time.Millisecond}, s.lanes()[:2]); err != nil {
		return err
	}
	return s.compareLatency(ctx, "first token of a stream", load{tokens: 2, stream: true}, s.lanes())
}

func (s *stage) compareLatency(ctx context.Context, name string, l load, lanes []lane) error {
	const rate = 100
	p50, p99 := make([][]float64, len(lanes)), make([][]float64, len(lanes))
	for range s.rounds {
		for i, lane := range lanes {
			took, err := lane.pace(ctx, l, rate, s.seconds)
			if err != nil {
				return fmt.Errorf("%s: %w", lane.name, err)
			}
			p50[i], p99[i] = append(p50[i], quantile(took, 0.5)), append(p99[i], quantile(took, 0.99))
		}
	}
	fmt.Printf("%s, %d a second\n", name, rate)
	printTimes(lanes, p50, p99)
	return nil
}

// printTimes prints times in milliseconds, each beside those of the first lane.
func printTimes(lanes []lane, p50, p99 [][]float64) {
	for i, lane := range lanes {
		fmt.Printf("  %-20s p50 %7.2f ms   p99 %7.2f ms   added %6.2f and %6.2f\n", lane.name, median(p50[i]), median(p99[i]),
			median(p50[i])-median(p50[0]), median(p99[i])-median(p99[0]))
	}
	fmt.Println()
}

func median(x []float64) float64 { return quantile(x, 0.5) }

func quantile(x []float64, q float64) float64 {
	sorted := slices.Sorted(slices.Values(x))
	return sorted[int(q*float64(len(sorted)-1))]
}
