package extproc

import (
	"net/netip"
	"testing"
	"time"

	"github.com/sluice-gateway/sluice/internal/dispatch"
	"github.com/sluice-gateway/sluice/internal/headers"
	"github.com/sluice-gateway/sluice/internal/relay"
)

// newRelayed is newServer with a relay and this policy of streams for the model m.
func newRelayed(t *testing.T, p relay.Policy) (*Server, *dispatch.Dispatcher) {
	s, d := newServer(t, nil)
	s.Relay = relay.New(relay.Config{Dispatcher: d})
	s.Relay.SetRules(&relay.Rules{Models: map[string]relay.Policy{"m": p}})
	t.Cleanup(func() { s.Relay.Close(t.Context()) })
	return s, d
}

// Which way a request goes.
func TestWay(t *testing.T) {
	for name, c := range map[string]struct {
		policy  relay.Policy
		body    string
		managed bool
	}{
		"plain":           {relay.Policy{}, `{"model":"m","messages":[]}`, false},
		"stream":          {relay.Policy{}, `{"model":"m","stream":true,"messages":[]}`, false},
		"managed":         {relay.Policy{Mode: relay.Managed}, `{"model":"m","stream":true,"messages":[]}`, true},
		"not streamed":    {relay.Policy{Mode: relay.Managed}, `{"model":"m","messages":[]}`, false},
		"named":           {relay.Policy{}, `{"model":"m","request_id":"a","messages":[]}`, true},
		"timeout":         {relay.Policy{}, `{"model":"m","stream":true,"timeout_ms":1000,"messages":[]}`, true},
		"native timeout":  {relay.Policy{Mode: relay.Native}, `{"model":"m","stream":true,"timeout_ms":1000,"messages":[]}`, false},
		"timeout of all":  {relay.Policy{}, `{"model":"m","timeout_ms":1000,"messages":[]}`, false},
		"first token":     {relay.Policy{TTFTTimeout: time.Second}, `{"model":"m","stream":true,"messages":[]}`, true},
		"grpc":            {relay.Policy{GRPC: true}, `{"model":"m","messages":[]}`, true},
		"every is sample": {relay.Policy{Sample: 1}, `{"model":"m","stream":true,"messages":[]}`, true},
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

// A request that has waited for its replica to come does not depend on Envoy's workers knowing it; the next one may.
func TestWhoWaitedForTheReplicaGoesByTheRelay(t *testing.T) {
	s, d := newRelayed(t, relay.Policy{})
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
	for d.Replica("m", "m-0").Load > 0 { // the ticket that nobody came with is taken back
		time.Sleep(time.Millisecond)
	}
	e = open(t, s)
	e.headers(key)
	if got := set(e.body(`{"model":"m","messages":[]}`).GetRequestBody().GetResponse().GetHeaderMutation()); got[headers.Cluster] == "" {
		t.Errorf("one that came later does not go by Envoy: %v", got)
	}
}
