package dispatch

import (
	"net/netip"
	"testing"

	"github.com/sluice-gateway/sluice/admission"
	"github.com/sluice-gateway/sluice/engines"
	"github.com/sluice-gateway/sluice/internal/openai"
)

// TestU1_WhereTheLimitComesFrom: what somebody has set counts first, then what the engine says,
// then what engines of its kind usually take. A server that nobody knows gets one request.
func TestU1_WhereTheLimitComesFrom(t *testing.T) {
	t.Parallel()
	upstream := engines.Replica{Launcher: engines.Upstream}
	slots := engines.Replica{Launcher: engines.Upstream, Slots: 64}
	told := &EngineNews{Engine: "llama-cpp", Slots: 8, UsualSlots: 4}
	for name, tt := range map[string]struct {
		policy  Policy
		replica engines.Replica
		news    *EngineNews
		most    int
		from    LimitFrom
	}{
		"max_per_replica":           {Policy{MaxPerReplica: 3}, slots, told, 3, LimitSet},
		"slots of the file":         {Policy{}, slots, told, 64, LimitSlots},
		"told":                      {Policy{}, upstream, told, 8, LimitEngine},
		"usual":                     {Policy{}, upstream, &EngineNews{Engine: "vllm", UsualSlots: 256}, 256, LimitUsual},
		"unknown":                   {Policy{}, upstream, &EngineNews{}, 1, LimitUnknown},
		"not asked yet":             {Policy{}, upstream, nil, 1, LimitUnknown},
		"launched, told":            {Policy{}, engines.Replica{Launcher: engines.Local}, told, 8, LimitEngine},
		"launched, without a limit": {Policy{}, engines.Replica{Launcher: engines.Local}, &EngineNews{UsualSlots: 128}, 0, LimitNone},
	} {
		if most, from := limit(tt.policy, &tt.replica, tt.news); most != tt.most || from != tt.from {
			t.Errorf("%s: %d from %q, want %d from %q", name, most, from, tt.most, tt.from)
		}
	}
}

// TestU1_SlotsAreTold: a server takes more requests as soon as its engine says so, also if it says
// so before Envoy knows the server. News of a server that is gone are forgotten.
func TestU1_SlotsAreTold(t *testing.T) {
	t.Parallel()
	s := newStage(Policy{})
	list := replicas("a", "b")
	for i := range list {
		list[i].Launcher = engines.Upstream
	}
	s.SetEngineNews("a", EngineNews{Engine: "vllm", UsualSlots: 256})
	s.SetEngineNews("gone", EngineNews{Engine: "vllm", UsualSlots: 256})
	s.put("m", list...)
	expect := func(id string, most int, from LimitFrom) {
		t.Helper()
		if v := s.Replica("m", id); v.Limit != most || v.LimitFrom != from {
			t.Errorf("%s takes %d requests from %q, want %d from %q", id, v.Limit, v.LimitFrom, most, from)
		}
	}
	expect("a", 256, LimitUsual)
	expect("b", 1, LimitUnknown)
	s.SetEngineNews("b", EngineNews{Engine: "llama-cpp", Slots: 4, UsualSlots: 4})
	expect("b", 4, LimitEngine)
	s.SetEngineNews("b", EngineNews{})
	expect("b", 1, LimitUnknown)
	if len(s.earlyNews) != 0 {
		t.Errorf("kept: %v", s.earlyNews)
	}
}

// grantsAll is a shared state that grants every claim and remembers the last one.
type grantsAll struct {
	admission.Shared
	last *admission.Claim
}

func (g grantsAll) Subscribe(admission.Subscriber)  {}
func (g grantsAll) Gateways() int                   { return 2 }
func (g grantsAll) Release(string, int64, bool)     {}
func (g grantsAll) Correct(_, _, _ string, _ int64) {}
func (g grantsAll) FirstToken(string)               {}
func (g grantsAll) Acquire(claims []admission.Claim, done func([]admission.Verdict)) {
	*g.last = claims[len(claims)-1]
	go done(make([]admission.Verdict, len(claims)))
}

// TestB1_ServersOfOneNameShareNoSlots: the first local replica of a model has the same id at every
// gateway, but is another process there. So have jobs on Ray whose names gateways choose, at other
// addresses, and upstreams at loopback addresses, on other hosts. Gateways share the slots of the
// other replicas.
func TestB1_ServersOfOneNameShareNoSlots(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		launcher      engines.Launcher
		host, address string
		want          string
	}{
		{engines.Local, "h1", "127.0.0.1:7000", ""},
		{engines.Kubernetes, "h1", "10.0.0.1:8000", "m-0"},
		{engines.Ray, "h1", "10.0.0.1:21000", "m-0@10.0.0.1:21000"},
		{engines.Ray, "h2", "10.0.0.9:21007", "m-0@10.0.0.9:21007"},
		{engines.Upstream, "h1", "10.0.0.1:8000", "m-0"},
		{engines.Upstream, "h2", "10.0.0.1:8000", "m-0"},
		{engines.Upstream, "h1", "127.0.0.1:8000", "m-0@h1"},
		{engines.Upstream, "h2", "[::1]:8000", "m-0@h2"},
	} {
		fleet, claim, placed := engines.NewFleet(), admission.Claim{}, ""
		s := stage{New(Config{
			Fleet: fleet, Shared: true, Host: c.host,
			OnPlaced:  func(p Placement) { placed = p.Replica },
			Admission: admission.New(admission.Config{Shared: grantsAll{last: &claim}}),
		}), fleet}
		s.put("m", engines.Replica{ID: "m-0", Launcher: c.launcher, Slots: 4, Address: netip.MustParseAddrPort(c.address)})
		ticket := s.must(t, newRequest("m", "k"))
		ticket.LearnResponse("resp_1")
		if claim.Replica != c.want || (claim.ReplicaLimit == 4) != (c.want != "") {
			t.Errorf("%+v: it asks for a slot of %q, of %d", c, claim.Replica, claim.ReplicaLimit)
		}
		if placed != c.want {
			t.Errorf("%+v: other gateways are told of %q", c, placed)
		}
		for replica := range s.WaitingTokens() {
			if replica != c.want {
				t.Errorf("%+v: other gateways are told what waits at %q", c, replica)
			}
		}
		ticket.Release()
	}
}

// TestB1_APlacementAtAnotherServerOfTheSameID: what another gateway tells of its own server says
// nothing of the server of this gateway.
func TestB1_APlacementAtAnotherServerOfTheSameID(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		launcher  engines.Launcher
		told      string
		isTheSame bool
	}{
		{engines.Local, "m-0", false}, {engines.Local, "", false}, {engines.Ray, "m-0", false},
		{engines.Ray, "m-0@127.0.0.1:8000", true}, {engines.Upstream, "m-0", false},
		{engines.Upstream, "m-0@other", false}, {engines.Upstream, "m-0@here", true},
	} {
		fleet := engines.NewFleet()
		s := stage{New(Config{Fleet: fleet, Host: "here", Admission: admission.New(admission.Config{})}), fleet}
		s.put("m", engines.Replica{ID: "m-0", Launcher: c.launcher, Address: netip.MustParseAddrPort("127.0.0.1:8000")})
		id := responseOf("acme", openai.ResponseSession("resp_1"))
		s.Place(Placement{Model: "m", Replica: c.told, Session: id.key, Owner: id.owner})
		if _, _, known := s.Holder("acme", "resp_1"); known != c.isTheSame {
			t.Errorf("%+v: the response is known: %v", c, known)
		}
	}
}
