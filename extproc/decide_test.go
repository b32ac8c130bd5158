package extproc

import (
	"net/netip"
	"testing"
	"time"

	"github.com/sluice-gateway/sluice/internal/dispatch"
	"github.com/sluice-gateway/sluice/internal/headers"
)

// newRelayed returns a newServer with a relay, and this policy for the model m.
func newRelayed(t testing.TB, p dispatch.WayPolicy) (*Server, *dispatch.Dispatcher) {
	s, d := newServer(t, nil)
	s.Handoff = new(dispatch.Handoff)
	d.SetRules(dispatch.Rules{Models: map[string]dispatch.Policy{"m": {MaxDuration: time.Minute, Way: p}}})
	return s, d
}

// TestWay checks which way a request takes.
func TestWay(t *testing.T) {
	for name, c := range map[string]struct {
		policy  dispatch.WayPolicy
		body    string
		managed bool
	}{
		"plain":           {dispatch.WayPolicy{}, `{"model":"m","messages":[]}`, false},
		"stream":          {dispatch.WayPolicy{}, `{"model":"m","stream":true,"messages":[]}`, false},
		"managed":         {dispatch.WayPolicy{Mode: dispatch.ModeManaged}, `{"model":"m","stream":true,"messages":[]}`, true},
		"not streamed":    {dispatch.WayPolicy{Mode: dispatch.ModeManaged}, `{"model":"m","messages":[]}`, false},
		"named":           {dispatch.WayPolicy{}, `{"model":"m","request_id":"a","messages":[]}`, true},
		"timeout":         {dispatch.WayPolicy{}, `{"model":"m","stream":true,"timeout_ms":1000,"messages":[]}`, true},
		"native timeout":  {dispatch.WayPolicy{Mode: dispatch.ModeNative}, `{"model":"m","stream":true,"timeout_ms":1000,"messages":[]}`, false},
		"timeout of all":  {dispatch.WayPolicy{}, `{"model":"m","timeout_ms":1000,"messages":[]}`, false},
		"first token":     {dispatch.WayPolicy{Supervised: true}, `{"model":"m","stream":true,"messages":[]}`, true},
		"grpc":            {dispatch.WayPolicy{GRPC: true}, `{"model":"m","messages":[]}`, true},
		"every is sample": {dispatch.WayPolicy{Sample: 1}, `{"model":"m","stream":true,"messages":[]}`, true},
	} {
		s, _ := newRelayed(t, c.policy)
		e := open(t, s)
		e.headers(key)
		got := set(e.body(c.body).GetRequestBody().GetResponse().GetHeaderMutation())
		if _, managed := got[headers.Handoff]; managed != c.managed || (got[headers.Cluster] == "") != c.managed {
			t.Errorf("%s: %v", name, got)
		}
	}
}

// A request that has waited for a new replica goes to the relay, because Envoy's workers may not
// know the replica yet. The next request is native.
func TestWhoWaitedForTheReplicaGoesByTheRelay(t *testing.T) {
	s, d := newRelayed(t, dispatch.WayPolicy{})
	known := map[string]netip.AddrPort{"m-0": netip.MustParseAddrPort("127.0.0.1:9000")}
	d.SetRoutable("model/m", nil)
	e := open(t, s)
	e.headers(key)
	if first := e.body(`{"model":"m","messages":[]}`); first.GetOverrideMessageTimeout() == nil {
		t.Fatalf("it was not held: %v", first)
	}
	d.SetRoutable("model/m", known)
	if got := set((<-e.toEnvoy).GetRequestBody().GetResponse().GetHeaderMutation()); got[headers.Handoff] == "" {
		t.Errorf("it goes by Envoy: %v", got)
	}
	e.reset()
	for d.Replica("m", "m-0").Load > 0 { // the ticket of the unclaimed offer is released
		time.Sleep(time.Millisecond)
	}
	e = open(t, s)
	e.headers(key)
	if got := set(e.body(`{"model":"m","messages":[]}`).GetRequestBody().GetResponse().GetHeaderMutation()); got[headers.Cluster] == "" {
		t.Errorf("one that came later does not go by Envoy: %v", got)
	}
}
