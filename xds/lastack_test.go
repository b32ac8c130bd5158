package xds

import (
	"net/netip"
	"testing"
)

// TestB11_AnEnvoyThatComesAndGoesTakesNoReplicas: an Envoy of another host that connects for a
// moment, and ends after all others have gone, has acknowledged nothing. The replicas that the
// others had may still be picked for their requests.
func TestB11_AnEnvoyThatComesAndGoesTakesNoReplicas(t *testing.T) {
	t.Parallel()
	a, at := newAcks(), netip.MustParseAddrPort("192.0.2.1:80")
	open := func(address string) *stream {
		st := newStream(nil, nil)
		st.remote = &remote{peer: address}
		a.add(st)
		return st
	}
	first := open("198.51.100.1:1")
	first.counts = true
	first.acked["model/m"] = &Resource{Name: "model/m", replicas: map[string]netip.AddrPort{"r": at}}
	check := func(when string) {
		t.Helper()
		if got := a.common("model/m"); got["r"] != at {
			t.Errorf("%s: the replicas that may be picked are %v", when, got)
		}
	}
	short := open("198.51.100.2:1")
	a.end(first)
	check("while another Envoy has told nothing yet")
	a.end(short)
	check("after its end")
	short = open("198.51.100.1:2") // it knows the cluster in a version of another gateway
	short.acked["model/m"] = &Resource{Name: "model/m", Version: "other"}
	check("while an Envoy is back")
	a.end(short)
	check("after it has gone again")
}
