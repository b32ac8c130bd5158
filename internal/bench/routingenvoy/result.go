package main

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/sluice-gateway/sluice/internal/bench/report"
)

// result is what one strategy has done. Times are seconds of the service.
type result struct {
	strategy string
	// first are the times to the first token, in ascending order.
	first []float64
	mean  float64
	// late is how late the sender was at the 99th percentile.
	late float64
	// cached is the share of the prompts' tokens that the engines had in their caches.
	cached float64
	// elsewhere is the share of requests that could have continued what a replica had seen, but
	// were served by another replica.
	elsewhere float64
	// busiest is the number of requests at the busiest replica, divided by the average.
	busiest float64
	predictions
}

// predictions are medians of what the gateway predicted, and of the same times as they were.
// They are 0 for a strategy that predicts nothing.
type predictions struct{ predicted, real, ratio float64 }

// replayed are the requests of a replay with their answers.
type replayed struct {
	work    []request
	answers []answer
}

// summarise returns the result of a replay.
func summarise(o options, strategy string, done replayed, p predictions) result {
	work, answers := done.work, done.answers
	p.predicted, p.real = p.predicted*o.speed, p.real*o.speed
	r := result{strategy: strategy, predictions: p}
	var late []float64
	prompt, cached, sum := 0, 0, 0.0
	at := map[string]int{}
	for _, a := range answers {
		seconds := a.first.Seconds() * o.speed
		r.first, sum = append(r.first, seconds), sum+seconds
		late = append(late, a.late.Seconds()*o.speed)
		prompt, cached = prompt+a.prompt, cached+a.cached
		at[a.replica]++
	}
	slices.Sort(r.first)
	most := 0
	for _, n := range at {
		most = max(most, n)
	}
	r.mean, r.late = sum/float64(len(answers)), report.Quantile(late, 0.99)
	r.cached, r.busiest = float64(cached)/float64(prompt), float64(most*engines)/float64(len(answers))
	r.elsewhere = movedShare(work, answers)
	return r
}

// movedShare returns the share of follow-up requests that went where their longest beginning was
// not. A beginning of one block is common to nearly all requests, and does not count.
func movedShare(work []request, answers []answer) float64 {
	seen := map[int32]map[string]bool{} // the replicas that have served a prompt with the block
	follow, moved := 0, 0
	for i, q := range work {
		n := 0
		for n < len(q.blocks) && seen[q.blocks[n]] != nil {
			n++
		}
		if n > 1 {
			follow++
			if !seen[q.blocks[n-1]][answers[i].replica] {
				moved++
			}
		}
		for _, id := range q.blocks {
			if seen[id] == nil {
				seen[id] = map[string]bool{}
			}
			seen[id][answers[i].replica] = true
		}
	}
	return float64(moved) / float64(max(follow, 1))
}

// line returns the result as a row of the table.
func (r *result) line() string {
	prediction := "| – | – | – |"
	if r.ratio > 0 {
		prediction = fmt.Sprintf("| %.2f | %.2f | %.2f |", r.predicted, r.real, r.ratio)
	}
	return fmt.Sprintf("| `%s` | %.2f | %.2f | %.1f | %.1f | %.1f %% | %.0f %% | %.2f | %.2f %s", r.strategy, r.mean, report.Quantile(r.first, 0.5),
		report.Quantile(r.first, 0.9), report.Quantile(r.first, 0.99), 100*r.cached, 100*r.elsewhere, r.busiest, r.late, prediction)
}

// document returns the section of docs/routing.md.
func document(o options, requests int, all []result) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%d requests of the trace through one gateway with its Envoy, %d simulated engines, each with a cache of %d tokens. "+
		"All tokens are divided by %d, and time runs %g times as fast; the times of the table are multiplied by that again.\n\n", requests,
		engines, o.cache, tokenScale, o.speed)
	b.WriteString("| strategy | first token: mean, s | p50 | p90 | p99 | cached | follow-ups moved | busiest / average | " +
		"sender late, p99 | predicted p50 | real p50 | real / predicted, p50 |\n")
	b.WriteString("| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |\n")
	for i := range all {
		b.WriteString(all[i].line() + "\n")
	}
	fmt.Fprintf(&b, "\nMeasured by `%s`.", command(o))
	if o.plot != "" {
		b.WriteString(" The plot shows the share of requests that had their first token after so many seconds.\n\n" +
			"![first tokens through Envoy](routing-envoy.svg)")
	}
	b.WriteString("\n")
	return b.String()
}

// command returns the command that measures the same.
func command(o options) string {
	c := fmt.Sprintf("go run ./internal/bench/routingenvoy -speed %g -load %g -cache %d", o.speed, o.load, o.cache)
	if o.requests > 0 {
		c += fmt.Sprintf(" -requests %d", o.requests)
	}
	return c
}

// panels returns the plot: for each strategy the share of requests with a first token, over time.
func panels(all []result) []report.Panel {
	end := 0.0
	for i := range all {
		end = max(end, report.Quantile(all[i].first, 0.95))
	}
	p := report.Panel{Title: "requests with their first token, %", End: fmt.Sprintf("%.0f s", end), Top: 100}
	for i := range all {
		l := report.Line{Name: all[i].strategy}
		const points = 200
		for n := range points + 1 {
			x := end * float64(n) / points
			had, _ := slices.BinarySearch(all[i].first, x)
			l.X, l.Y = append(l.X, x), append(l.Y, 100*float64(had)/float64(len(all[i].first)))
		}
		p.Lines = append(p.Lines, l)
	}
	return []report.Panel{p}
}

// The bounds of check.
const (
	// wantShare is the largest mean of prefix, as a share of that of least_connections.
	wantShare = 0.6
	// wantError is how far the median of real divided by predicted may be from 1.
	wantError = 0.25
)

// check returns an error unless prefix is fast and its predictions come true.
func check(all []result) error {
	by := map[string]*result{}
	var faults []error
	for i := range all {
		by[all[i].strategy] = &all[i]
	}
	prefix, least := by["prefix"], by["least_connections"]
	if prefix == nil || least == nil {
		return errors.New("a check needs the strategies prefix and least_connections")
	}
	if share := prefix.mean / least.mean; share > wantShare {
		faults = append(faults, fmt.Errorf("the mean of prefix is %.2f of least_connections', want %.2f", share, wantShare))
	}
	if prefix.ratio < 1-wantError || prefix.ratio > 1+wantError {
		faults = append(faults, fmt.Errorf("the median of real divided by predicted is %.2f, want it within %.0f %%", prefix.ratio, 100*wantError))
	}
	return errors.Join(faults...)
}
