// Command bench measures what the whole chain costs beside a plain Envoy with static clusters, in one run on one machine: CPU per
// request, CPU per chunk of a stream, and latency. The simulated engines are the same for both and are not counted.
//
// Both chains are up all the time and take turns, so that a machine whose speed drifts drifts for both; what is reported is the
// median of the rounds and of their ratios. Absolute figures are this machine's, ratios are worth comparing.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"slices"
	"time"
)

type options struct {
	rounds  int
	seconds time.Duration
	sluice  string
	envoy   string
}

func main() {
	var o options
	flag.IntVar(&o.rounds, "rounds", 5, "how often each chain is measured")
	flag.DurationVar(&o.seconds, "time", 3*time.Second, "how long one measurement takes")
	flag.StringVar(&o.sluice, "sluice", "bin/sluice", "the program")
	flag.StringVar(&o.envoy, "envoy", ".tools/envoy", "the Envoy binary")
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
	for _, load := range []load{
		{name: "small requests, one after the other on 16 connections", per: "request", workers: 16, tokens: 1},
		{name: "streams of 400 tokens, one each 5 ms, 32 at a time", per: "chunk", workers: 32, tokens: 400, stream: true},
	} {
		if err := stage.compare(ctx, o, load); err != nil {
			return err
		}
	}
	return stage.compareLatency(ctx, o)
}

// compare measures CPU per unit of the load on both chains.
func (s *stage) compare(ctx context.Context, o options, l load) error {
	var plain, envoyShare, goShare, ratio []float64
	for range o.rounds {
		a, err := s.plain.measure(ctx, l, o.seconds)
		if err != nil {
			return err
		}
		b, err := s.sluice.measure(ctx, l, o.seconds)
		if err != nil {
			return err
		}
		plain = append(plain, a.envoy)
		envoyShare, goShare = append(envoyShare, b.envoy), append(goShare, b.gateway)
		ratio = append(ratio, (b.envoy+b.gateway)/a.envoy)
	}
	fmt.Printf("%s: CPU per %s\n", l.name, l.per)
	fmt.Printf("  plain Envoy   %7.1f µs\n", median(plain))
	fmt.Printf("  Sluice        %7.1f µs Envoy + %.1f µs Go\n", median(envoyShare), median(goShare))
	fmt.Printf("  ratio         %7.2f   (%.2f to %.2f)\n\n", median(ratio), slices.Min(ratio), slices.Max(ratio))
	return nil
}

// compareLatency measures small requests that come at a slow, fixed pace, so that nothing queues.
func (s *stage) compareLatency(ctx context.Context, o options) error {
	var plain50, plain99, ours50, ours99 []float64
	for range o.rounds {
		a, err := s.plain.pace(ctx, 200, o.seconds)
		if err != nil {
			return err
		}
		b, err := s.sluice.pace(ctx, 200, o.seconds)
		if err != nil {
			return err
		}
		plain50, plain99 = append(plain50, quantile(a, 0.5)), append(plain99, quantile(a, 0.99))
		ours50, ours99 = append(ours50, quantile(b, 0.5)), append(ours99, quantile(b, 0.99))
	}
	fmt.Println("small requests at 200 a second: latency, client to client")
	fmt.Printf("  plain Envoy   p50 %6.2f ms   p99 %6.2f ms\n", median(plain50), median(plain99))
	fmt.Printf("  Sluice        p50 %6.2f ms   p99 %6.2f ms\n", median(ours50), median(ours99))
	fmt.Printf("  added         p50 %6.2f ms   p99 %6.2f ms\n", median(ours50)-median(plain50), median(ours99)-median(plain99))
	return nil
}

func median(x []float64) float64 { return quantile(x, 0.5) }

func quantile(x []float64, q float64) float64 {
	sorted := slices.Sorted(slices.Values(x))
	return sorted[int(q*float64(len(sorted)-1))]
}
