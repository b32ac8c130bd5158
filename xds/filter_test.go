package xds

import (
	"errors"
	"maps"
	"slices"
	"strings"
	"testing"

	listener "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	route "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	httpmodules "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/dynamic_modules/v3"
	hcm "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	earlymutation "github.com/envoyproxy/go-control-plane/envoy/extensions/http/early_header_mutation/header_mutation/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/sluice-gateway/sluice/internal/headers"
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

// routesIn lists the routes of a configuration.
func routesIn(rc *route.RouteConfiguration) (all []*route.Route) {
	m := rc.GetVirtualHosts()[0].GetMatcher()
	continues := slices.Collect(maps.Values(m.GetMatcherTree().GetExactMatchMap().GetMap()))
	for _, next := range append(continues, m.GetOnNoMatch()) {
		list := new(route.RouteList)
		if err := next.GetAction().GetTypedConfig().UnmarshalTo(list); err != nil {
			panic(err) // takeRoutes makes lists
		}
		all = append(all, list.GetRoutes()...)
	}
	return all
}

// offOn returns which of the two filters are off on a route.
func offOn(r *route.RouteConfiguration, name string) (own, extProc bool) {
	for _, one := range routesIn(r) {
		if one.GetName() == name {
			_, own = one.GetTypedPerFilterConfig()[filterName]
			_, extProc = one.GetTypedPerFilterConfig()[extProcName]
		}
	}
	return own, extProc
}

// removedFrom returns how many headers a route removes from requests and from responses, and how
// many it sets on responses from the metadata of the request.
func removedFrom(rc *route.RouteConfiguration, name string) (request, response, set int) {
	response = len(rc.GetResponseHeadersToRemove())
	for _, r := range routesIn(rc) {
		if r.GetName() != name {
			continue
		}
		for _, h := range r.GetResponseHeadersToAdd() {
			if strings.Contains(h.GetHeader().GetValue(), "DYNAMIC_METADATA") {
				set++
			}
		}
		return len(r.GetRequestHeadersToRemove()), response + len(r.GetResponseHeadersToRemove()), set
	}
	return -1, -1, -1
}

// Headers that do not cross the gateway are removed once, whatever asks the gateway. The listener
// and the routes remove them, or the filter does for the requests that it decides.
func TestB6_X14_HeadersAreRemovedOnce(t *testing.T) {
	unread, late, engines, limits := len(headers.Unread()), len(headers.Late()), len(headers.StrippedFromRelay()), len(headers.OfDecision())
	plain := Config{Listen: "127.0.0.1:8080", RelaySocket: "/relay.sock"}
	beside, decides, elsewhere := plain, plain, plain
	beside.Filter = Filter{Path: "/filter.so", Socket: "/filter.sock"}
	decides.Filter = Filter{Path: "/filter.so", Socket: "/filter.sock", Decides: true}
	elsewhere.Filter, elsewhere.node = decides.Filter, node{certificate: "x"}
	for _, tt := range []struct {
		name                   string
		config                 Config
		early                  int
		request, response, set int // of a request that is decided
		tables                 int // of the request to a handler of ours
	}{
		{"no filter", plain, len(headers.Early()), late, engines, limits, 0},
		{"ext_proc decides", beside, len(headers.Internal()), unread + late, engines, limits, unread},
		{"the filter decides", decides, len(headers.Internal()), late, 0, 0, unread},
		{"another host", elsewhere, len(headers.Early()), late, engines, limits, 0},
	} {
		c := tt.config.withDefaults()
		rc := routeConfiguration(c)
		for _, name := range []string{routes.Engine, routes.Stream, routes.Relay, routes.RelayStream} {
			want := tt.response
			if name == routes.Engine || name == routes.Stream { // an engine tells no limits, and the relay does
				want += tt.set
			}
			if request, response, set := removedFrom(rc, name); request != tt.request || response != want || set != tt.set {
				t.Errorf("%s: route %s removes %d and %d headers and sets %d, want %d, %d and %d", tt.name, name, request, response, set,
					tt.request, want, tt.set)
			}
		}
		for _, r := range routesIn(rc) {
			byRoute := len(r.GetResponseHeadersToAdd()) > 0
			if (r.GetName() == routes.Engine || r.GetName() == routes.Stream) && r.GetRoute().GetRetryPolicy() != nil && byRoute == c.Filter.strips(c) {
				t.Errorf("%s: route %s says in responses who has answered: %v", tt.name, r.GetName(), byRoute)
			}
		}
		for _, name := range []string{routes.Models, routes.StoredResponses, routes.Realtime} {
			if request, response, _ := removedFrom(rc, name); request != tt.tables || name != routes.Models && response != engines {
				t.Errorf("%s: route %s removes %d and %d headers", tt.name, name, request, response)
			}
		}
		m := new(hcm.HttpConnectionManager)
		setIdentity(m, c)
		mutations := new(earlymutation.HeaderMutation)
		if err := m.GetEarlyHeaderMutationExtensions()[0].GetTypedConfig().UnmarshalTo(mutations); err != nil {
			t.Fatal(err)
		}
		if n := len(mutations.GetMutations()) - 1; n != tt.early { // one is a prefix
			t.Errorf("%s: the listener removes %d headers, want %d", tt.name, n, tt.early)
		}
	}
}

// Whether the filter or ext_proc asks the gateway is in the routes alone, so that a change cuts no
// stream. Envoys of other hosts do not have the filter.
func TestB6_RoutesChooseWhatAsksTheGateway(t *testing.T) {
	c := Config{Listen: "127.0.0.1:8080", RelaySocket: "/relay.sock"}.withDefaults()
	without := newListener(c)
	if names := filtersOf(t, without); names[0] != corsName || names[1] != extProcName {
		t.Errorf("without the filter: %v", names)
	}
	c.Filter = Filter{Path: "/filter.so", Socket: "/filter.sock"}
	idle := newListener(c)
	if names := filtersOf(t, idle); names[1] != filterName || names[2] != extProcName {
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
	if names := filtersOf(t, newListener(c)); names[1] != extProcName {
		t.Errorf("an Envoy of another host: %v", names)
	}
}

// A filter of an earlier version is told the name of its socket alone.
func TestB6_X20_AnEarlierFilterIsToldItsSocketAlone(t *testing.T) {
	told := func(f Filter) string {
		var m httpmodules.DynamicModuleFilter
		var text wrapperspb.StringValue
		if err := errors.Join(ownFilter(Config{Filter: f})[0].GetTypedConfig().UnmarshalTo(&m), m.GetFilterConfig().UnmarshalTo(&text)); err != nil {
			t.Fatal(err)
		}
		return text.GetValue()
	}
	f := Filter{Path: "/filter.so", Socket: "/filter.sock", Bare: true}
	if got := told(f); got != f.Socket {
		t.Errorf("it is told %q", got)
	}
	if f.Bare = false; strings.Count(told(f), "\n") != 2 {
		t.Errorf("the filter of this version is told %q", told(f))
	}
}
