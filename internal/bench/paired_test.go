package main

import (
	"math"
	"strings"
	"testing"
)

// uniform returns a row of two rounds with ten blocks each, in which the gateway of all on takes a
// tenth more of Go.
func uniform() observedRow {
	var m observedRow
	for range 2 {
		round := make([]block, 10)
		for i := range round {
			round[i] = make(block, bothOff+1)
			for k := range round[i] {
				round[i][k] = consumption{envoy: 60_000, gateway: 40_000, units: 1}
			}
			round[i][allOn].gateway = 44_000
		}
		m = append(m, round)
	}
	return m
}

func TestEstimatesOfEqualBlocksHaveNoWidth(t *testing.T) {
	ratio := func(b block) float64 { return b[allOn].perUnit() / b[allOff].perUnit() }
	e := estimateOf(uniform(), ratio)
	for _, got := range []float64{e.value, e.low, e.high} {
		if math.Abs(got-1.04) > 1e-9 {
			t.Errorf("%+v, want 1.04", e)
		}
	}
}

// What is done once in many blocks counts its share, and widens the interval.
func TestEstimatesCountWhatIsRare(t *testing.T) {
	m := uniform()
	for _, round := range m {
		round[3][allOn].gateway += 100_000
	}
	e := estimateOf(m, func(b block) float64 { return b[allOn].perUnitOfGo() - b[allOff].perUnitOfGo() })
	if math.Abs(e.value-14) > 1e-9 || e.low >= 14 || e.low < 4 || e.high <= 14 || e.high > 40 {
		t.Errorf("%+v, want 14 µs with an interval around it", e)
	}
}

func TestTableOfObservability(t *testing.T) {
	text := observedTable([]row{{title: "a load"}}, []observedRow{uniform()})
	for _, want := range []string{
		"| a load | all on, against all off | Envoy + Go | 104.0 | 100.0 | **4.0** (4.0 to 4.0) | **1.040** (1.040 to 1.040) | 1.05 |\n",
		"|  |  | Go | 44.0 | 40.0 | **4.0** (4.0 to 4.0) | **1.100** (1.100 to 1.100) |  |\n",
		"|  | all off, against another gateway with all off | Envoy + Go | 100.0 | 100.0 | **0.0** (0.0 to 0.0) | **1.000** (1.000 to 1.000) |",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("the table lacks %q:\n%s", want, text)
		}
	}
}
