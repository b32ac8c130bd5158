package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"math"
	"net/http"
	"os"
	"strconv"
	"strings"
	"time"
)

// sample is what the processes hold at one moment.
type sample struct {
	at time.Duration
	// values are those of the series, in their order.
	values []float64
}

// series are the quantities that a soak plots.
var series = []struct{ name, unit string }{
	{"gateway: resident memory", "MB"},
	{"gateway: heap in use", "MB"},
	{"Envoy: resident memory", "MB"},
	{"gateway: goroutines", ""},
	{"gateway: open descriptors", ""},
	{"Envoy: open descriptors", ""},
	{"requests that hold a lease or wait", ""},
}

// soak runs mixed traffic without faults, samples what the processes hold, and plots it. It fails
// when a request was lost, a stream was not right, or something is left at the end.
func soak(ctx context.Context, o options) error {
	texts, err := newTexts(o)
	if err != nil {
		return err
	}
	w, err := newWorld(o, fault{})
	if w != nil {
		defer w.close()
	}
	if err != nil {
		return err
	}
	l := newLoad(w, texts)
	l.start(ctx)
	l.startMixed()
	if err := l.awaitSteady(ctx); err != nil {
		l.stop()
		return err
	}
	from := time.Now()
	l.mark(from)
	var samples []sample
	every := max(o.soak/720, time.Second)
	for time.Since(from) < o.soak && sleep(ctx, every) {
		values, err := w.sample(ctx)
		if err != nil {
			l.stop()
			return err
		}
		samples = append(samples, sample{time.Since(from), values})
	}
	l.stop()
	r := l.result(fault{about: "none"}, from, true)
	r.left = w.leftBehind(ctx)
	fmt.Printf("%d small requests, lost %s; streams whole / cut / lost / wrong: %s; slowest small request %.2f s; left at the end: %q\n",
		r.sent, counts(r.lost), strings.ReplaceAll(r.streamCells(), "<br>", "; "), r.slowest.Seconds(), r.left)
	report := slopes(samples)
	fmt.Println(report)
	if o.out != "" {
		if err := os.WriteFile(o.out, []byte(plot(samples, report)), 0o600); err != nil {
			return err
		}
	}
	return r.failure()
}

// failure returns what a run without a fault must not have.
func (r *result) failure() error {
	var all []error
	if n := sum(r.lost) + r.broken; n > 0 {
		all = append(all, fmt.Errorf("%d small requests lost or broken", n))
	}
	for name, c := range r.streams {
		if n := c.cut + c.lost + c.wrong; n > 0 {
			all = append(all, fmt.Errorf("%d %s streams were not right", n, name))
		}
	}
	if r.left != "" {
		all = append(all, errors.New("left at the end: "+r.left))
	}
	return errors.Join(all...)
}

// sample reads what the processes hold now.
func (w *world) sample(ctx context.Context) ([]float64, error) {
	envoy, err := w.envoyPID(ctx)
	if err != nil {
		return nil, err
	}
	metrics, err := w.metrics(ctx)
	if err != nil {
		return nil, err
	}
	gatewayMemory, err := residentMemory(w.gateway.pid())
	if err != nil {
		return nil, err
	}
	envoyMemory, err := residentMemory(envoy)
	if err != nil {
		return nil, err
	}
	return []float64{
		gatewayMemory / 1e6, metrics["go_memstats_heap_inuse_bytes"] / 1e6, envoyMemory / 1e6, metrics["go_goroutines"],
		float64(descriptors(w.gateway.pid())), float64(descriptors(envoy)), metrics["sluice_in_flight"] + metrics["sluice_queued"],
	}, nil
}

// metrics reads the gateway's metrics, with the sum over all labels for each name.
func (w *world) metrics(ctx context.Context) (map[string]float64, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, w.admin+"/metrics", nil)
	if err != nil {
		return nil, err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	all := map[string]float64{}
	lines := bufio.NewScanner(resp.Body)
	for lines.Scan() {
		name, value, ok := cutLast(lines.Text(), " ")
		if v, err := strconv.ParseFloat(value, 64); ok && err == nil {
			name, _, _ = strings.Cut(name, "{")
			all[name] += v
		}
	}
	return all, lines.Err()
}

func cutLast(s, sep string) (before, after string, ok bool) {
	i := strings.LastIndex(s, sep)
	if i < 0 {
		return s, "", false
	}
	return s[:i], s[i+len(sep):], true
}

// residentMemory returns the resident memory of a process in bytes.
func residentMemory(pid int) (float64, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/statm", pid))
	if err != nil {
		return 0, err
	}
	fields := strings.Fields(string(text))
	if len(fields) < 2 {
		return 0, fmt.Errorf("/proc/%d/statm has no resident size", pid)
	}
	pages, err := strconv.ParseFloat(fields[1], 64)
	return pages * float64(os.Getpagesize()), err
}

// descriptors counts the open descriptors of a process.
func descriptors(pid int) int {
	open, _ := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid)) // a process that has ended has none
	return len(open)
}

// slopes writes for each series its mean and its slope per hour with the standard error. The first
// tenth does not count, because caches fill then.
func slopes(samples []sample) string {
	samples = samples[len(samples)/10:]
	var b strings.Builder
	for i, s := range series {
		mean, slope, deviation := fit(samples, i)
		fmt.Fprintf(&b, "%-36s mean %9.1f %-2s  slope %+8.2f ± %.2f %s per hour\n", s.name, mean, s.unit, slope, 2*deviation, s.unit)
	}
	return strings.TrimSuffix(b.String(), "\n")
}

// fit returns the mean of a series, its slope per hour by least squares, and the standard error of
// the slope.
func fit(samples []sample, i int) (mean, slope, deviation float64) {
	n := float64(len(samples))
	if n < 3 {
		return 0, 0, math.Inf(1)
	}
	var meanTime float64
	for _, s := range samples {
		mean += s.values[i] / n
		meanTime += s.at.Hours() / n
	}
	var xx, xy float64
	for _, s := range samples {
		dx := s.at.Hours() - meanTime
		xx += dx * dx
		xy += dx * (s.values[i] - mean)
	}
	slope = xy / xx
	var residual float64
	for _, s := range samples {
		d := s.values[i] - mean - slope*(s.at.Hours()-meanTime)
		residual += d * d
	}
	return mean, slope, math.Sqrt(residual / (n - 2) / xx)
}
