package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"path/filepath"
	"slices"
	"time"
)

// observability compares the CPU time of requests and streams with all on that observes them, and
// with all off: access log, ledger, metrics, history, stream of events, and the sample that Envoy
// reads. The third gateway has all of it on except the sample.
func (b *testbed) observability(ctx context.Context) error {
	variants, end, err := b.observed(ctx)
	defer end()
	if err != nil {
		return err
	}
	for _, l := range []workload{
		{name: "small requests, one after the other on 16 connections", unit: "request", workers: 16, tokens: 1, eventPause: 5 * time.Millisecond},
		{name: "streams of 100 tokens, one per 5 ms, 32 streams at a time", unit: "token", workers: 32, tokens: 100, stream: true,
			eventPause: 5 * time.Millisecond},
	} {
		costs, err := b.measureCPU(func(v variant) (cpuCost, error) { return v.measureObserved(ctx, l, b.seconds) }, variants)
		if err != nil {
			return err
		}
		printCPU(l, variants, costs)
		sample := ratiosOf(costs[1], costs[2], cpuCost.ofEnvoy)
		fmt.Printf("  of the sample alone: CPU of Envoy with it, against Envoy without it: %.3f   (%.3f to %.3f)\n\n", median(sample),
			slices.Min(sample), slices.Max(sample))
	}
	return nil
}

// observed starts the three gateways that observability compares, the one without all of it first.
// Those with all of it have a client of their stream of events until end is called.
func (b *testbed) observed(ctx context.Context) (variants []variant, end func(), err error) {
	ctx, end = context.WithCancel(ctx)
	for _, g := range []struct{ file, name, observe string }{
		{"off", "all off", "off"}, {"on", "all on", ""}, {"unsampled", "on without the sample", "unsampled"},
	} {
		log := "access_log: {to: off}\n"
		if g.observe != "off" {
			log = fmt.Sprintf("access_log: {to: file, path: %s}\n", filepath.Join(b.dir, g.file+".access.log"))
		}
		p, err := b.startGateway("observed-"+g.file, []string{"SLUICE_OBSERVE=" + g.observe}, modelsOf(b.addresses)+log)
		if err != nil {
			return nil, end, err
		}
		if g.observe != "off" {
			p.scraped = true
			if err := p.watch(ctx); err != nil {
				return nil, end, err
			}
		}
		variants = append(variants, variant{p, g.name, "native"})
	}
	return variants, end, nil
}

// watch reads the gateway's stream of events until ctx ends. It returns when the stream has begun.
func (p *proxy) watch(ctx context.Context) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, p.admin+"/api/v1/events", nil)
	if err != nil {
		return err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	if resp.StatusCode != http.StatusOK {
		resp.Body.Close()
		return fmt.Errorf("the stream of events: %s", resp.Status)
	}
	go func() {
		defer resp.Body.Close()
		_, _ = io.Copy(io.Discard, resp.Body) // ends with an error when ctx does
	}()
	return nil
}

// measureObserved is measure. The metrics are scraped once meanwhile if anything observes.
func (v variant) measureObserved(ctx context.Context, l workload, d time.Duration) (cpuCost, error) {
	if !v.scraped {
		return v.measure(ctx, l, d)
	}
	scraped := make(chan error, 1)
	time.AfterFunc(d/2, func() { // in the warm-up, or in the measurement
		resp, err := http.Get(v.admin + "/metrics")
		if err == nil {
			_, err = io.Copy(io.Discard, resp.Body)
			resp.Body.Close()
		}
		scraped <- err
	})
	cost, err := v.measure(ctx, l, d)
	if err == nil {
		err = <-scraped
	}
	return cost, err
}
