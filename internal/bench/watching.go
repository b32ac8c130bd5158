package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sluice-gateway/sluice/internal/bench/local"
	"github.com/sluice-gateway/sluice/internal/bench/report"
)

const (
	watchedModels = 1000
	// watchedRate is the number of requests a second, which reach all models in turn.
	watchedRate = 500
	// watchSettles is the time between the coming of a watcher and the measurement.
	watchSettles = 2 * time.Second
	// maxUnanswered is how many requests may run at most.
	maxUnanswered = 2000
)

// watching measures what it costs that somebody watches a gateway with 1,000 models and 500
// requests a second. It measures the CPU of the gateway while nobody watches, while a client reads
// the stream of events, and while Chromium shows the page. It also measures the CPU of the page. A
// measurement is ten times as long as others, because events come each second.
func (b *testbed) watching(ctx context.Context) error {
	p, err := b.startWatched()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	load := p.steady(ctx)
	defer load.end(cancel)
	var views map[string][]float64
	watchers := []watcher{{"nobody", nil}, {"a client of the events", p.measureEvents}}
	if page, why := newPageWatcher(p); why == "" {
		watchers = append(watchers, watcher{"the page in Chromium", page.measure})
		views = page.views
	} else {
		fmt.Print("without the page in Chromium: ", why, "\n\n")
	}
	shares := make([][]cpuCost, len(watchers))
	for range b.rounds {
		for i, w := range watchers {
			share, err := p.measureWatched(ctx, w, 10*b.seconds)
			if err == nil {
				err = load.fault()
			}
			if err != nil {
				return fmt.Errorf("%s: %w", w.name, err)
			}
			shares[i] = append(shares[i], share)
		}
	}
	printWatching(watchers, shares)
	printViews(views)
	fmt.Println()
	return nil
}

// startWatched starts an engine with 1,000 models and a gateway that discovers them.
func (b *testbed) startWatched() (*proxy, error) {
	port, err := local.FreePort()
	if err != nil {
		return nil, err
	}
	names := make([]string, watchedModels)
	for i := range names {
		names[i] = watchedModel(i)
	}
	if _, err := b.start("sim-watched", nil, b.options.sluice, "sim", "--port", fmt.Sprint(port), "--served-model-name", strings.Join(names, ","),
		"--prefill-rate", "0", "--token-interval", "0", "--batch-slowdown", "0", "--max-num-seqs", "20000", "--keep-requests", "0"); err != nil {
		return nil, err
	}
	url := fmt.Sprint("http://127.0.0.1:", port)
	if err := local.WaitForOK(url + "/health"); err != nil {
		return nil, err
	}
	p, err := b.startGateway("watched", nil, "upstreams: ["+url+"]\n")
	if err != nil {
		return nil, err
	}
	return p, p.awaitModels(watchedModels)
}

func watchedModel(i int) string { return fmt.Sprintf("model-%04d", i) }

// awaitModels waits until so many models are ready, up to 30 s.
func (p *proxy) awaitModels(n int) error {
	ready := 0
	for end := time.Now().Add(30 * time.Second); time.Now().Before(end); time.Sleep(200 * time.Millisecond) {
		resp, err := http.Get(p.admin + "/api/v1/models")
		if err != nil {
			return err
		}
		var all struct{ Models []struct{ Ready int } }
		err = json.NewDecoder(resp.Body).Decode(&all)
		resp.Body.Close()
		if err != nil {
			return err
		}
		ready = 0
		for _, m := range all.Models {
			ready += min(m.Ready, 1)
		}
		if ready >= n {
			return nil
		}
	}
	return fmt.Errorf("%d of %d models are ready after 30 s", ready, n)
}

// steadyLoad is requests at a fixed rate, however long their answers take.
type steadyLoad struct {
	running sync.WaitGroup
	// unanswered counts the running requests.
	unanswered atomic.Int64
	// failed is the first error; nil if there was none.
	failed atomic.Pointer[error]
}

// steady sends requests to all models in turn until ctx ends.
func (p *proxy) steady(ctx context.Context) *steadyLoad {
	load := new(steadyLoad)
	load.running.Go(func() {
		const perTick = 5
		tick := time.NewTicker(time.Second * perTick / watchedRate)
		defer tick.Stop()
		for n := 0; ; n += perTick {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
			for i := range perTick {
				load.running.Go(func() { load.send(ctx, variant{proxy: p, model: watchedModel((n + i) % watchedModels)}, n+i) })
			}
		}
	})
	return load
}

func (s *steadyLoad) send(ctx context.Context, v variant, n int) {
	defer s.unanswered.Add(-1)
	err := errors.New("the gateway answers too slowly")
	if s.unanswered.Add(1) <= maxUnanswered {
		l := workload{tokens: 1}
		_, err = v.send(ctx, l, l.requestBody(v.model, 0, n))
	}
	if err != nil && ctx.Err() == nil {
		s.failed.CompareAndSwap(nil, &err)
	}
}

func (s *steadyLoad) fault() error {
	if err := s.failed.Load(); err != nil {
		return *err
	}
	return nil
}

func (s *steadyLoad) end(cancel func()) {
	cancel()
	s.running.Wait()
}

// watcher is somebody who watches. measure runs between while somebody watches; nil: nobody does.
type watcher struct {
	name    string
	measure func(ctx context.Context, d time.Duration, between func() error) error
}

// measureWatched returns the CPU of the processes for d while somebody watches, as a share of a
// core.
func (p *proxy) measureWatched(ctx context.Context, w watcher, d time.Duration) (share cpuCost, err error) {
	measure := func() error {
		before, err := p.cpuTime()
		if err != nil {
			return err
		}
		began := time.Now()
		time.Sleep(d)
		after, err := p.cpuTime()
		took := float64(time.Since(began))
		share = cpuCost{float64(after.envoy-before.envoy) / took, float64(after.gateway-before.gateway) / took}
		return err
	}
	if w.measure != nil {
		return share, w.measure(ctx, d, measure)
	}
	time.Sleep(watchSettles)
	return share, measure()
}

// measureEvents runs between while a client reads the stream of events.
func (p *proxy) measureEvents(ctx context.Context, _ time.Duration, between func() error) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	if err := p.watch(ctx); err != nil {
		return err
	}
	time.Sleep(watchSettles)
	return between()
}

// printWatching prints the shares of a core by rounds, and how much more they are than while nobody
// watches.
func printWatching(watchers []watcher, shares [][]cpuCost) {
	fmt.Printf("%d models, %d requests a second: CPU in percent of a core\n", watchedModels, watchedRate)
	for i, w := range watchers {
		gateway := each(shares[i], cpuCost.ofGateway)
		more := make([]float64, len(gateway))
		for round := range gateway {
			more[round] = gateway[round] - shares[0][round].gateway
		}
		fmt.Printf("  %-24s gateway %5.1f %% (%.1f to %.1f), Envoy %5.1f %%   more than while nobody watches %5.2f %% (%.2f to %.2f)\n", w.name,
			100*report.Median(gateway), 100*slices.Min(gateway), 100*slices.Max(gateway), 100*report.Median(each(shares[i], cpuCost.ofEnvoy)),
			100*report.Median(more), 100*slices.Min(more), 100*slices.Max(more))
	}
}

// pageWatcher opens the page of a gateway in Chromium, by tests/clients/pagewatch.mjs.
type pageWatcher struct {
	proxy *proxy
	// views are the shares of a core that the page took, by view and round.
	views map[string][]float64
}

// newPageWatcher says in why what is missing; empty: nothing.
func newPageWatcher(p *proxy) (w *pageWatcher, why string) {
	if _, err := exec.LookPath("node"); err != nil {
		return nil, "node is not installed"
	}
	for _, file := range []string{".tools/node/node_modules/playwright-core", ".tools/node/node_modules/axe-core", chromium()} {
		if _, err := os.Stat(file); err != nil {
			return nil, file + " is missing (make tools)"
		}
	}
	return &pageWatcher{p, map[string][]float64{}}, ""
}

func chromium() string {
	if path := os.Getenv("CHROMIUM"); path != "" {
		return path
	}
	return "/usr/bin/chromium"
}

// measure runs between while the page shows the overview, and then the requests, each for half of
// d.
func (w *pageWatcher) measure(ctx context.Context, d time.Duration, between func() error) error {
	cmd := exec.CommandContext(ctx, "node", filepath.Join("tests", "clients", "pagewatch.mjs"))
	cmd.Env = append(os.Environ(), "ADMIN_URL="+w.proxy.admin, fmt.Sprint("SECONDS=", d.Seconds()))
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	lines := bufio.NewScanner(out)
	if !lines.Scan() || lines.Text() != "watching" {
		return errors.Join(errors.New("the page was not opened: "+lines.Text()), cmd.Wait())
	}
	err = between()
	for lines.Scan() {
		var seen struct {
			View  string
			Share float64
		}
		if json.Unmarshal(lines.Bytes(), &seen) == nil {
			w.views[seen.View] = append(w.views[seen.View], seen.Share)
		}
	}
	return errors.Join(err, cmd.Wait())
}

// printViews prints the CPU of the page's process by view.
func printViews(views map[string][]float64) {
	for _, view := range []string{"Overview", "Requests"} {
		if shares := views[view]; len(shares) > 0 {
			fmt.Printf("  the page's own process, %s: %.0f %% of a core (%.0f to %.0f)\n",
				view, 100*report.Median(shares), 100*slices.Min(shares), 100*slices.Max(shares))
		}
	}
}
