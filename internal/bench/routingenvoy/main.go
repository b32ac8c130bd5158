// Command routingenvoy replays a recorded hour of a chat service (internal/bench/trace) through a
// whole gateway: a real Envoy and eight simulated engines, once for each strategy of routing.
// Developers run it by make bench-routing. It writes a section of docs/routing.md and a plot.
//
// The hour is made smaller for one machine: lengths, caches and rates are divided by tokenScale,
// and time runs faster. Reported times are those of the machine multiplied by the speed, so that
// they can be compared with those of the virtual hour. Client, gateway, Envoy and engines share
// the machine. So a table is only good if the sender was on time, which the table says.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/sluice-gateway/sluice/internal/bench/report"
	"github.com/sluice-gateway/sluice/internal/bench/trace"
)

// options are the flags of the command.
type options struct {
	sluice, envoy string
	strategies    string
	out, plot     string
	// speed is how many times faster than the service's clock the trace is replayed.
	speed float64
	// load multiplies the rate of requests, with engines of the same rate.
	load float64
	// requests is the number of requests that are replayed. 0: all.
	requests int
	// cache is the size of each engine's memory in tokens of the service.
	cache int
	check bool
}

func main() {
	var o options
	flag.StringVar(&o.sluice, "sluice", "bin/sluice", "path of the sluice binary")
	flag.StringVar(&o.envoy, "envoy", ".tools/envoy", "path of the Envoy binary")
	flag.StringVar(&o.strategies, "strategies", "round_robin,least_connections,chwbl,prefix", "strategies to measure, in this order")
	flag.StringVar(&o.out, "out", "", "document whose section \"through Envoy\" is replaced; empty: only standard output")
	flag.StringVar(&o.plot, "plot", "", "file of the plot; empty: none")
	flag.Float64Var(&o.speed, "speed", 20, "how many times faster than the service's clock the trace is replayed")
	flag.Float64Var(&o.load, "load", 1, "factor on the rate of requests")
	flag.IntVar(&o.requests, "requests", 0, "number of requests to replay; 0 is all")
	flag.IntVar(&o.cache, "cache", 307_200, "memory of each engine, in tokens of the service")
	flag.BoolVar(&o.check, "check", false, "fail unless prefix is as much better as docs/routing.md says")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, o)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "routingenvoy:", err)
		os.Exit(1)
	}
}

// run measures each strategy with a gateway and engines of its own, and writes the results.
func run(ctx context.Context, o options) error {
	recorded, err := trace.Conversation()
	if err != nil {
		return err
	}
	if o.requests > 0 {
		recorded = recorded[:min(o.requests, len(recorded))]
	}
	work := scaled(recorded, o.speed*o.load)
	var all []result
	for _, strategy := range strings.Split(o.strategies, ",") {
		r, err := measure(ctx, o, strategy, work)
		if err != nil {
			return fmt.Errorf("%s: %w", strategy, err)
		}
		fmt.Println(r.line())
		all = append(all, r)
	}
	section := document(o, len(work), all)
	fmt.Print("\n", section)
	if o.plot != "" {
		if err := report.Write(o.plot, report.SVG(panels(all))); err != nil {
			return err
		}
	}
	if o.out != "" {
		err = report.WriteSection(o.out, "through Envoy", section)
	}
	if o.check {
		err = errors.Join(err, check(all))
	}
	return err
}

// measure replays the work through a new gateway.
func measure(ctx context.Context, o options, strategy string, work []request) (result, error) {
	g, err := startGateway(o, strategy)
	defer g.stop()
	if err != nil {
		return result{}, err
	}
	answers, err := g.replay(ctx, work)
	if err != nil {
		return result{}, err
	}
	predicted, err := g.predictions(ctx)
	if err != nil {
		return result{}, err
	}
	return summarise(o, strategy, replayed{work, answers}, predicted), nil
}
