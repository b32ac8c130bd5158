package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"time"

	"github.com/sluice-gateway/sluice/internal/bench/report"
	"github.com/sluice-gateway/sluice/internal/bench/wire"
)

const (
	// scrapeInterval is how often the metrics of a gateway are read, as Prometheus does by default.
	scrapeInterval = 15 * time.Second
	// observedTime is the least time that a row is measured in a round. It is a whole multiple of
	// all periods in which a gateway observes. These are 15 s of scrapes, 10 s of the history, 5 s
	// of the ledger and 1 s of the events.
	observedTime = 60 * time.Second
	// observedWarmUp is how long the load of a row goes on before it is measured.
	observedWarmUp = 4 * time.Second
)

// observedGateway is one of the gateways that observability compares, with engines of its own.
type observedGateway struct {
	*proxy
	// observe is the value of SLUICE_OBSERVE.
	name, observe string
	engines       *wire.Engines
}

// The places of the gateways in a list of them. The second gateway with all off tells what the
// measure itself cannot tell apart.
const (
	allOff = iota
	allOffAgain
	allOn
	unsampled
	// bothOff is no gateway: a block has there what the two with all off have used.
	bothOff
)

// observedGateways returns the gateways, none of which runs yet.
func observedGateways() []*observedGateway {
	return []*observedGateway{
		allOff: {name: "off", observe: "off"}, allOffAgain: {name: "off-again", observe: "off"},
		allOn: {name: "on"}, unsampled: {name: "unsampled", observe: "unsampled"},
	}
}

// observedRows returns the loads that observability measures. Each gateway has its own, at the same
// time.
func observedRows() []row {
	return []row{
		{name: "requests", title: "small request, 150 a second", clients: clients, prompt: 40, rate: 150, random: true},
		{name: "tokens", title: fmt.Sprintf("100 events, 50 live, one each %v", eventPause),
			clients: 50, prompt: 40, events: 100, pause: eventPause, random: true},
	}
}

// observability compares the CPU time of requests and of events of streams with all on that
// observes them, and with all off. That is access log, ledger, metrics, history, stream of events,
// and the sample that Envoy reads. One more gateway has all of it on except the sample.
//
// All gateways have the same load at the same time, and their clocks are read at the same moments.
// So a change of the machine's speed is the same for all. A round starts all gateways anew, because
// two equal processes differ by the places of their memory.
func (b *testbed) observability(ctx context.Context) error {
	rows := observedRows()
	measured := make([]observedRow, len(rows))
	for round := range b.rounds {
		begun := time.Now()
		if err := b.observeRound(ctx, round, rows, measured); err != nil {
			return err
		}
		fmt.Fprintf(os.Stderr, "round %d of %d: %v\n", round+1, b.rounds, time.Since(begun).Round(time.Second))
	}
	about, err := newResult(ctx, b.options)
	if err != nil {
		return err
	}
	text := fmt.Sprintf("Measured on %s, on %d cores of %s, Linux %s, with Envoy %s (%s) and Sluice %s: %d rounds, %d blocks of %v each for each load.\n\n%s",
		about.Begun.Format("2 January 2006"), about.Cores, orUnknown(about.CPU), about.Kernel, about.Envoy, b.filter, about.Sluice, b.rounds,
		len(measured[0][0]), b.seconds, observedTable(rows, measured))
	fmt.Print(text)
	if b.docs == "" {
		return nil
	}
	return report.WriteSection(filepath.Join(b.docs, "costs.md"), "observability", text)
}

// observeRound starts the gateways, measures all rows, and stops the gateways.
func (b *testbed) observeRound(ctx context.Context, round int, rows []row, measured []observedRow) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	gateways := observedGateways()
	defer b.stopProcesses()
	for i := range gateways {
		// Each round begins with another gateway.
		g := gateways[(i+round)%len(gateways)]
		if err := b.startObserved(ctx, g, round); err != nil {
			return fmt.Errorf("the gateway %s: %w", g.name, err)
		}
		defer g.engines.Close()
	}
	for i, r := range rows {
		blocks, err := b.measureTogether(ctx, r, gateways)
		if err != nil {
			return fmt.Errorf("%s: %w", r.name, err)
		}
		measured[i] = append(measured[i], blocks)
	}
	return nil
}

// startObserved starts a gateway with its engines. If it observes, a client reads its stream of
// events and its metrics are scraped until ctx ends.
func (b *testbed) startObserved(ctx context.Context, g *observedGateway, round int) error {
	var err error
	if g.engines, err = wire.Start(engineCount); err != nil {
		return err
	}
	name := fmt.Sprintf("observed-%s-%d", g.name, round)
	log := "access_log: {to: off}\n"
	if g.observe != "off" {
		log = fmt.Sprintf("access_log: {to: file, path: %s}\n", filepath.Join(b.dir, name+".access.log"))
	}
	rest := comparedModels(b.filter, workersOfEach(), g.engines.Addresses()) + log
	if g.proxy, err = b.startGateway(name, []string{"SLUICE_OBSERVE=" + g.observe}, rest); err != nil {
		return err
	}
	fault, err := g.filterFault()
	switch {
	case err != nil:
		return err
	case fault != "":
		return errors.New(fault)
	case g.observe == "off":
		return nil
	}
	go g.scrapeUntil(ctx)
	return g.watch(ctx)
}

// measureTogether puts all gateways under the load of a row and returns what each has used in each
// block of time.
func (b *testbed) measureTogether(ctx context.Context, r row, gateways []*observedGateway) ([]block, error) {
	var loads []*load
	var errs []error
	for _, g := range gateways {
		g.engines.Begin(r.plan())
		l, err := startLoad(ctx, r, column{proxy: g.proxy, model: "native"})
		if err != nil {
			errs = append(errs, err)
			break
		}
		loads = append(loads, l)
	}
	var blocks []block
	if len(errs) == 0 {
		var err error
		blocks, err = b.measureBlocks(ctx, gateways, loads)
		errs = append(errs, err)
	}
	for i, l := range loads {
		gateways[i].engines.Hurry()
		_, err := l.stop()
		errs = append(errs, err)
	}
	return blocks, errors.Join(append(errs, ctx.Err())...)
}

// measureBlocks reads the clocks of all gateways between blocks of time, while their loads go on.
func (b *testbed) measureBlocks(ctx context.Context, gateways []*observedGateway, loads []*load) ([]block, error) {
	sleep(ctx, observedWarmUp)
	read := func() ([]reading, error) {
		all := make([]reading, len(gateways))
		for i, g := range gateways {
			c := comparison{engines: g.engines}
			var err error
			if all[i], err = c.read(column{proxy: g.proxy}, loads[i]); err != nil {
				return nil, err
			}
		}
		return all, nil
	}
	before, err := read()
	if err != nil {
		return nil, err
	}
	blocks := make([]block, (observedTime+b.seconds-1)/b.seconds)
	next := time.Now()
	for i := range blocks {
		next = next.Add(b.seconds)
		sleep(ctx, time.Until(next))
		after, err := read()
		if err != nil {
			return nil, err
		}
		for k := range gateways {
			used := consumption{float64(after[k].envoy - before[k].envoy), float64(after[k].gateway - before[k].gateway),
				float64(after[k].units - before[k].units)}
			blocks[i] = append(blocks[i], used)
		}
		blocks[i] = append(blocks[i], blocks[i][allOff].add(blocks[i][allOffAgain]))
		before = after
	}
	return blocks, nil
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

// scrapeUntil reads the metrics of a gateway each scrapeInterval until ctx ends.
func (p *proxy) scrapeUntil(ctx context.Context) {
	tick := time.NewTicker(scrapeInterval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			p.scrape()
		}
	}
}

// scrape reads the metrics of a gateway. A gateway that ends meanwhile is no fault.
func (p *proxy) scrape() {
	resp, err := http.Get(p.admin + "/metrics")
	if err != nil {
		return
	}
	defer resp.Body.Close()
	_, _ = io.Copy(io.Discard, resp.Body)
}
