package main

import (
	"context"
	"fmt"
	"io"
	"sync"
	"time"
)

// slow measures what a client that reads 1 kB a second does to 500 others on the same engines.
func (s *stage) slow(ctx context.Context) error {
	l := load{workers: 500, tokens: 4000, stream: true, pause: 100 * time.Millisecond}
	managed := lane{s.sluice, "managed", "managed"}
	var p50, p99 [2][]float64
	var before float64
	for range s.rounds {
		for i, beside := range []bool{false, true} {
			r, err := managed.beside(ctx, l, beside, s.seconds)
			if err != nil {
				return err
			}
			if before == 0 { // with 500 streams, and no slow one yet
				if before, err = memoryOf(s.sluice.gateway, "VmRSS"); err != nil {
					return err
				}
			}
			p50[i], p99[i] = append(p50[i], quantile(r.gaps, 0.5)), append(p99[i], quantile(r.gaps, 0.99))
		}
	}
	after, err := memoryOf(s.sluice.gateway, "VmRSS")
	if err != nil {
		return err
	}
	fmt.Println("between tokens of 500 managed streams at 10 a second")
	printTimes([]lane{{name: "alone"}, {name: "beside a slow client"}}, p50[:], p99[:])
	fmt.Printf("  the gateway grew by %.1f MB after the first time alone\n\n", (after-before)/1e6)
	return nil
}

// beside is midst, with a slow client that engines write 1,000 tokens a second for, where there is one.
func (c lane) beside(ctx context.Context, l load, one bool, d time.Duration) (reading, error) {
	ctx, cancel := context.WithCancel(ctx)
	var client sync.WaitGroup
	defer client.Wait()
	defer cancel()
	if one {
		resp, err := c.open(ctx, load{tokens: 50_000, stream: true}.body(c.model, 0, 0), time.Millisecond)
		if err != nil {
			return reading{}, err
		}
		client.Go(func() {
			defer resp.Body.Close()
			sip(ctx, resp.Body)
		})
	}
	return c.midst(ctx, l, d)
}

// sip reads 1 kB a second until ctx ends.
func sip(ctx context.Context, body io.Reader) {
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
