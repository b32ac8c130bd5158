package xds

import (
	"testing"

	listener "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	route "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	hcm "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	"google.golang.org/protobuf/proto"

	"github.com/sluice-gateway/sluice/internal/routes"
)

// filtersOf returns the names of the HTTP filters of a listener, in order.
func filtersOf(t *testing.T, l *listener.Listener) (names []string) {
	t.Helper()
	chain := l.GetFilterChains()[0].GetFilters()
	m := new(hcm.HttpConnectionManager)
	if err := chain[len(chain)-1].GetTypedConfig().UnmarshalTo(m); err != nil {
		t.Fatal(err)
	}
	for _, f := range m.GetHttpFilters() {
		names = append(names, f.GetName())
	}
	return names
}

// offOn returns which of the two filters are off on a route.
func offOn(r *route.RouteConfiguration, name string) (own, extProc bool) {
	for _, one := range r.GetVirtualHosts()[0].GetRoutes() {
		if one.GetName() == name {
			_, own = one.GetTypedPerFilterConfig()[filterName]
			_, extProc = one.GetTypedPerFilterConfig()[extProcName]
		}
	}
	return own, extProc
}

// Whether the filter or ext_proc asks the gateway is in the routes alone, so that a change cuts no
// stream. Envoys of other hosts do not have the filter.
func TestB6_RoutesChooseWhatAsksTheGateway(t *testing.T) {
	c := Config{Listen: "127.0.0.1:8080", RelaySocket: "/relay.sock"}.withDefaults()
	without := newListener(c)
	if names := filtersOf(t, without); names[0] != extProcName {
		t.Errorf("without the filter: %v", names)
	}
	c.Filter = Filter{Path: "/filter.so", Socket: "/filter.sock"}
	idle := newListener(c)
	if names := filtersOf(t, idle); names[0] != filterName || names[1] != extProcName {
		t.Errorf("with the filter: %v", names)
	}
	if own, extProc := offOn(routeConfiguration(c), routes.Undecided); !own || extProc {
		t.Errorf("ext_proc is to ask: the filter is off: %v, ext_proc: %v", own, extProc)
	}
	c.Filter.Decides = true
	if own, extProc := offOn(routeConfiguration(c), routes.Undecided); own || !extProc {
		t.Errorf("the filter is to ask: it is off: %v, ext_proc: %v", own, extProc)
	}
	for _, name := range []string{routes.Models, routes.Connect} {
		if own, extProc := offOn(routeConfiguration(c), name); !own || !extProc {
			t.Errorf("%s: the filter is off: %v, ext_proc: %v", name, own, extProc)
		}
	}
	if !proto.Equal(idle, newListener(c)) {
		t.Error("the listener depends on which of them asks")
	}
	c.node = node{certificate: "x"}
	if names := filtersOf(t, newListener(c)); names[0] != extProcName {
		t.Errorf("an Envoy of another host: %v", names)
	}
}
