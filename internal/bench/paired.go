package main

import (
	"fmt"
	"math/rand/v2"
	"slices"
)

// consumption is what a gateway has used and done in some time. CPU times are in nanoseconds.
type consumption struct{ envoy, gateway, units float64 }

func (c consumption) add(o consumption) consumption {
	return consumption{c.envoy + o.envoy, c.gateway + o.gateway, c.units + o.units}
}

// The figures of a consumption, in microseconds for each unit.
func (c consumption) perUnitOfEnvoy() float64 { return c.envoy / c.units / 1000 }
func (c consumption) perUnitOfGo() float64    { return c.gateway / c.units / 1000 }
func (c consumption) perUnit() float64        { return (c.envoy + c.gateway) / c.units / 1000 }

// block is what each gateway has used in the same time, by its place: allOff to bothOff.
type block []consumption

// observedRow is the blocks of a row, by rounds.
type observedRow [][]block

// sum returns what each gateway has used in all blocks.
func (m observedRow) sum() block {
	all := make(block, len(m[0][0]))
	for _, round := range m {
		for _, b := range round {
			for i, c := range b {
				all[i] = all[i].add(c)
			}
		}
	}
	return all
}

// resample returns a row of as many rounds, each drawn from the rounds of m, with blocks drawn from
// its blocks.
func (m observedRow) resample(r *rand.Rand) observedRow {
	drawn := make(observedRow, len(m))
	for i := range drawn {
		from := m[r.IntN(len(m))]
		drawn[i] = make([]block, len(from))
		for k := range from {
			drawn[i][k] = from[r.IntN(len(from))]
		}
	}
	return drawn
}

// estimate is a figure with its interval of 95 %.
type estimate struct{ value, low, high float64 }

// text returns the estimate as a cell of a table, with some digits after the point.
func (e estimate) text(digits int) string {
	return fmt.Sprintf("**%.*f** (%.*f to %.*f)", digits, e.value, digits, e.low, digits, e.high)
}

// resamples is how often estimateOf draws.
const resamples = 2000

// estimateOf returns a figure of the sums of a row, with the interval that the bootstrap gives it.
// Sums, and no medians of blocks, because what is done once in many blocks must count its share.
func estimateOf(m observedRow, figure func(block) float64) estimate {
	r := rand.New(rand.NewPCG(1, 2)) //nolint:gosec // draws for a statistic
	drawn := make([]float64, resamples)
	for i := range drawn {
		drawn[i] = figure(m.resample(r).sum())
	}
	slices.Sort(drawn)
	return estimate{figure(m.sum()), drawn[resamples*25/1000], drawn[resamples*975/1000-1]}
}

// observedPair is a comparison of two gateways of observability.
type observedPair struct {
	title    string
	of, base int
	// aims are for the ratio of Envoy and Go together, of Envoy, and of Go; empty: none.
	aims [3]string
}

// observedPairs returns what the table of observability compares.
func observedPairs() []observedPair {
	return []observedPair{
		{"all on, against all off", allOn, bothOff, [3]string{"1.05"}},
		{"on without the sample, against all off", unsampled, bothOff, [3]string{}},
		{"all on, against on without the sample", allOn, unsampled, [3]string{"", "1.04"}},
		{"all off, against another gateway with all off", allOffAgain, allOff, [3]string{"interval within 0.98 to 1.02, with 1 in it"}},
	}
}

func observedTable(rows []row, measured []observedRow) string {
	t := table{head: []string{"load", "compared", "CPU of", "µs", "against, µs", "difference, µs", "ratio", "aim"}}
	for i, r := range rows {
		sum := measured[i].sum()
		for n, p := range observedPairs() {
			for k, of := range []struct {
				name   string
				figure func(consumption) float64
			}{{"Envoy + Go", consumption.perUnit}, {"Envoy", consumption.perUnitOfEnvoy}, {"Go", consumption.perUnitOfGo}} {
				load, title := "", ""
				if k == 0 {
					title = p.title
				}
				if k == 0 && n == 0 {
					load = r.title
				}
				more := estimateOf(measured[i], func(b block) float64 { return of.figure(b[p.of]) - of.figure(b[p.base]) })
				ratio := estimateOf(measured[i], func(b block) float64 { return of.figure(b[p.of]) / of.figure(b[p.base]) })
				t.add(load, title, of.name, fmt.Sprintf("%.1f", of.figure(sum[p.of])), fmt.Sprintf("%.1f", of.figure(sum[p.base])),
					more.text(1), ratio.text(3), p.aims[k])
			}
		}
	}
	return t.String()
}
