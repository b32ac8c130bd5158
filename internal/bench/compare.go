package main

import (
	"context"
	"fmt"
	"os"
	"time"

	"github.com/sluice-gateway/sluice/internal/bench/wire"
)

// column is a way of the comparison: a proxy, and the model that selects how a stream passes it.
type column struct {
	*proxy
	// by is plain, ext_proc or module: what decides about requests. way is native, usage (native,
	// and Envoy reads the usage of each answer) or managed.
	by, way string
	model   string
}

// comparison measures the rows with all columns. The proxies run all the time.
type comparison struct {
	*testbed
	engines *wire.Engines
	// plain is plain Envoy; gateways are those of ext_proc and, if the program has it, of the
	// filter.
	plain    *proxy
	gateways []gatewayBy
}

// gatewayBy is a gateway and what decides in it.
type gatewayBy struct {
	*proxy
	by string
}

// newComparison starts the engines and all proxies.
func newComparison(b *testbed) (*comparison, error) {
	c := &comparison{testbed: b}
	var err error
	if c.engines, err = wire.Start(engineCount); err != nil {
		return nil, err
	}
	addresses := c.engines.Addresses()
	if c.plain, err = b.startPlainEnvoy(addresses, workersOfEach()); err != nil {
		return nil, fmt.Errorf("plain Envoy: %w", err)
	}
	for _, by := range []string{"ext_proc", "module"} {
		p, err := b.startGateway(by, nil, comparedModels(by, workersOfEach(), addresses))
		if err != nil {
			return nil, fmt.Errorf("the gateway with %s: %w", by, err)
		}
		fault, err := p.filterFault()
		if err != nil {
			return nil, err
		}
		if fault != "" {
			fmt.Printf("No column for the filter inside Envoy, because %s does not use it: %s\n\n", b.options.sluice, fault)
			continue
		}
		c.gateways = append(c.gateways, gatewayBy{p, by})
	}
	return c, nil
}

// proxies returns plain Envoy and the gateways.
func (c *comparison) proxies() []gatewayBy {
	return append([]gatewayBy{{c.plain, "plain"}}, c.gateways...)
}

// measureIdle measures what the proxies take while they have no requests, all at the same time.
func (c *comparison) measureIdle(ctx context.Context, res *result) error {
	var before []reading
	none := &load{}
	for _, p := range c.proxies() {
		now, err := c.read(column{proxy: p.proxy}, none)
		if err != nil {
			return err
		}
		before = append(before, now)
	}
	sleep(ctx, max(c.seconds, 2*time.Second))
	for i, p := range c.proxies() {
		after, err := c.read(column{proxy: p.proxy}, none)
		if err != nil {
			return err
		}
		after.units = before[i].units + after.at.Sub(before[i].at).Milliseconds()
		s, err := newSample(before[i], after, nil)
		if err != nil {
			return err
		}
		res.Idle[i].Rounds = append(res.Idle[i].Rounds, s)
	}
	return ctx.Err()
}

// columns returns the columns of a row, plain Envoy first.
func (c *comparison) columns(r row) []column {
	all := []column{{c.plain, "plain", "native", "native"}}
	for _, g := range c.gateways {
		if r.stream() {
			all = append(all, column{g.proxy, g.by, "native", "native"}, column{g.proxy, g.by, "usage", "limited"}, column{g.proxy, g.by, "managed", "managed"})
		} else {
			all = append(all, column{g.proxy, g.by, "usage", "limited"})
		}
	}
	return all
}

// run measures all rows in rounds. In each round it begins a row with another column, so that no
// column always follows the same one.
func (c *comparison) run(ctx context.Context, rows []row) (*result, error) {
	res, err := newResult(ctx, c.options)
	if err != nil {
		return nil, err
	}
	for _, r := range rows {
		res.addRow(r, c.columns(r))
	}
	for _, p := range c.proxies() {
		res.Idle = append(res.Idle, resultColumn{By: p.by})
	}
	direct := column{&proxy{address: c.engines.Addresses()[0]}, "direct", "", "native"}
	for round := range c.rounds {
		begun := time.Now()
		s, err := c.measure(ctx, allRows()[0], direct)
		if err != nil {
			return nil, fmt.Errorf("without a proxy: %w", err)
		}
		res.Direct = append(res.Direct, s)
		if err := c.measureIdle(ctx, res); err != nil {
			return nil, fmt.Errorf("without requests: %w", err)
		}
		for i, r := range rows {
			columns := c.columns(r)
			for k := range columns {
				k = (k + round) % len(columns)
				s, err := c.measure(ctx, r, columns[k])
				if err != nil {
					return nil, fmt.Errorf("%s: %s %s: %w", r.name, columns[k].by, columns[k].way, err)
				}
				res.Rows[i].Columns[k].Rounds = append(res.Rows[i].Columns[k].Rounds, s)
			}
		}
		fmt.Fprintf(os.Stderr, "round %d of %d: %v\n", round+1, c.rounds, time.Since(begun).Round(time.Second))
	}
	return res, nil
}

// measure puts a column under the load of a row, waits until the load is steady, and measures while
// it goes on.
func (c *comparison) measure(ctx context.Context, r row, col column) (sample, error) {
	c.engines.Begin(r.plan())
	l, err := startLoad(ctx, r, col)
	if err != nil {
		return sample{}, err
	}
	d := r.duration(c.seconds)
	sleep(ctx, spreadOfBegins+max(d/4, 200*time.Millisecond))
	before, err := c.read(col, l)
	l.counting.Store(true)
	if err == nil {
		sleep(ctx, d)
	}
	l.counting.Store(false)
	after, errAfter := c.read(col, l)
	c.engines.Hurry()
	times, errLoad := l.stop()
	for _, err := range []error{errLoad, err, errAfter, ctx.Err()} {
		if err != nil {
			return sample{}, err
		}
	}
	// What a gateway still does for the requests before must not count for the next column.
	sleep(ctx, 100*time.Millisecond)
	return newSample(before, after, times)
}

// sleep waits for d, or until ctx ends.
func sleep(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

// compare measures the rows, prints their tables, and writes what the flags ask for.
func (b *testbed) compare(ctx context.Context, rows []row) error {
	c, err := newComparison(b)
	if err != nil {
		return err
	}
	defer c.engines.Close()
	res, err := c.run(ctx, rows)
	if err != nil {
		return err
	}
	return res.report(b.options)
}
