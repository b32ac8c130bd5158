// Command chaos runs faults against a whole gateway under load and says what clients lost.
// Developers run it by make chaos; make soak-hour uses its mode -soak.
//
// A world is a gateway with a real Envoy, a real Redis and simulated engines (world.go). The load
// is streams whose text is compared byte by byte with that of an engine that nobody disturbs, and
// small requests at a steady rate (load.go, stream.go). Each fault of the table in faults.go has a
// world of its own. The report is a Markdown table (report.go). The mode -soak runs mixed traffic
// for a long time and plots what the processes hold (soak.go, plot.go).
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"
)

// options are the flags of the command.
type options struct {
	// sluice and envoy are the paths of the programs.
	sluice, envoy string
	// streams is the number of live streams, of all kinds together.
	streams int
	// rate is the number of small requests that are sent per second.
	rate int
	// hold is how long a fault lasts that ends by itself.
	hold time.Duration
	// only are the names of the faults to run, separated by commas. Empty: all.
	only string
	// out is the file to which the table or the plot is written. Empty: only the terminal.
	out string
	// soak is the duration of the mode -soak. 0: the faults are run.
	soak time.Duration
	// keep keeps the files of each world.
	keep bool
}

func main() {
	var o options
	flag.StringVar(&o.sluice, "sluice", "bin/sluice", "path of the sluice binary")
	flag.StringVar(&o.envoy, "envoy", ".tools/envoy", "path of the Envoy binary")
	flag.IntVar(&o.streams, "streams", 300, "live streams: a third native, a third managed, a third resumable")
	flag.IntVar(&o.rate, "rate", 40, "small requests per second")
	flag.DurationVar(&o.hold, "hold", 10*time.Second, "duration of a fault that ends by itself")
	flag.StringVar(&o.only, "only", "", "faults to run, separated by commas ("+strings.Join(faultNames(), ", ")+"); empty: all")
	flag.StringVar(&o.out, "out", "", "file for the table (a soak writes its plot there)")
	flag.DurationVar(&o.soak, "soak", 0, "run mixed traffic without faults for that long instead, and plot the resources")
	flag.BoolVar(&o.keep, "keep", false, "keep the files of each world")
	flag.Parse()
	if err := run(o); err != nil {
		fmt.Fprintln(os.Stderr, "chaos:", err)
		os.Exit(1)
	}
}

// run runs what the options say until it is done or the program is interrupted.
func run(o options) error {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if o.soak > 0 {
		return soak(ctx, o)
	}
	return chaos(ctx, o)
}

// chaos runs the selected faults, one world after the other, and prints and writes the table. It
// fails when a world cannot be made or a fault cannot be brought about.
func chaos(ctx context.Context, o options) error {
	chosen, err := choose(o.only)
	if err != nil {
		return err
	}
	texts, err := newTexts(o)
	if err != nil {
		return err
	}
	fmt.Println(tableHead)
	var rows []string
	for _, f := range chosen {
		r, err := runFault(ctx, o, texts, f)
		if err != nil {
			return fmt.Errorf("%s: %w", f.name, err)
		}
		fmt.Println(r.row())
		rows = append(rows, r.row())
	}
	if o.out == "" {
		return nil
	}
	return writeReport(o, rows)
}

// choose returns the faults with these names, separated by commas, in the order of the table. Empty
// means all. A name that no fault has is an error: else a slip would leave the table empty.
func choose(only string) ([]fault, error) {
	if only == "" {
		return faults, nil
	}
	wanted := strings.Split(only, ",")
	var chosen []fault
	for _, f := range faults {
		if slices.Contains(wanted, f.name) {
			chosen = append(chosen, f)
		}
	}
	for _, name := range wanted {
		if !slices.Contains(faultNames(), name) {
			return nil, fmt.Errorf("-only: no fault is called %q: use those of %v", name, faultNames())
		}
	}
	return chosen, nil
}

func faultNames() []string {
	var names []string
	for _, f := range faults {
		names = append(names, f.name)
	}
	return names
}

// runFault makes a world, puts it under load, brings the fault about, and waits until all is as
// before or recoveryLimit is over.
func runFault(ctx context.Context, o options, texts *texts, f fault) (*result, error) {
	w, err := newWorld(o, f)
	if w != nil {
		defer w.close()
	}
	if err != nil {
		return nil, err
	}
	l := newLoad(w, texts)
	l.start(ctx)
	watch := newWatch(w)
	defer watch.stop()
	if err := l.awaitSteady(ctx); err != nil {
		l.stop()
		return nil, err
	}
	from := time.Now()
	l.mark(from)
	watch.mark(from)
	if err := f.run(ctx, w); err != nil {
		l.stop()
		return nil, err
	}
	recovered := l.awaitRecovery(ctx)
	l.stop()
	r := l.result(f, from, recovered)
	r.conditions, r.left = watch.seen(), w.leftBehind(ctx)
	return r, ctx.Err()
}
