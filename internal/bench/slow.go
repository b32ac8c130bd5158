package main

import (
	"context"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/sluice-gateway/sluice/internal/bench/report"
)

// slow measures what a client that reads 1 kB per second does to 500 other streams on the same
// engines.
func (b *testbed) slow(ctx context.Context) error {
	if err := b.startSimulated(); err != nil {
		return err
	}
	l := workload{workers: 500, tokens: 4000, stream: true, eventPause: 100 * time.Millisecond}
	managed := variant{b.sluice, "managed", "managed"}
	var p50, p99 [2][]float64
	var before float64
	for range b.rounds {
		for i, withSlow := range []bool{false, true} {
			r, err := managed.measureBeside(ctx, l, withSlow, b.seconds)
			if err != nil {
				return err
			}
			if before == 0 { // with 500 streams and no slow client yet
				if before, err = memoryOf(b.sluice.gatewayPID, "VmRSS"); err != nil {
					return err
				}
			}
			p50[i], p99[i] = append(p50[i], report.Quantile(r.gaps, 0.5)), append(p99[i], report.Quantile(r.gaps, 0.99))
		}
	}
	after, err := memoryOf(b.sluice.gatewayPID, "VmRSS")
	if err != nil {
		return err
	}
	fmt.Println("time between tokens of 500 managed streams at 10 tokens per second")
	printTimes([]variant{{name: "alone"}, {name: "beside a slow client"}}, p50[:], p99[:])
	fmt.Printf("  the gateway grew by %.1f MB after the first measurement without a slow client\n\n", (after-before)/1e6)
	return nil
}

// measureBeside is measureRunning, with or without a slow client. The engine sends 1,000 tokens per
// second to the slow client.
func (v variant) measureBeside(ctx context.Context, l workload, withSlow bool, d time.Duration) (measurement, error) {
	ctx, cancel := context.WithCancel(ctx)
	var client sync.WaitGroup
	defer client.Wait()
	defer cancel()
	if withSlow {
		resp, err := v.open(ctx, workload{tokens: 50_000, stream: true}.requestBody(v.model, 0, 0), time.Millisecond)
		if err != nil {
			return measurement{}, err
		}
		client.Go(func() {
			defer resp.Body.Close()
			readSlowly(ctx, resp.Body)
		})
	}
	return v.measureRunning(ctx, l, d)
}

// readSlowly reads 1 kB per second until ctx is done.
func readSlowly(ctx context.Context, body io.Reader) {
	second := time.NewTicker(time.Second)
	defer second.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-second.C:
		}
		if _, err := io.CopyN(io.Discard, body, 1000); err != nil {
			return
		}
	}
}
