package gateway

import (
	"testing"
	"time"
)

func TestDeparturesAreToldOnceInTheirOrder(t *testing.T) {
	t.Parallel()
	var d departures
	var told []int
	tell := func() { d.tell(func(one departure) { told = append(told, one.prefill) }) }
	for n := range maxDepartures {
		if full := d.add(departure{"chat", time.Second, n, 0}); full != (n == maxDepartures-1) {
			t.Errorf("after %d departures the metrics are to be told: %t", n+1, full)
		}
	}
	tell()
	tell()
	d.add(departure{"chat", time.Second, maxDepartures, 0})
	tell()
	if len(told) != maxDepartures+1 {
		t.Fatalf("%d departures were told of %d", len(told), maxDepartures+1)
	}
	for n, got := range told {
		if got != n {
			t.Fatalf("departure %d was told in the place of %d", got, n)
		}
	}
}
