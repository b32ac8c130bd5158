package dispatch

import (
	"testing"

	"github.com/sluice-gateway/sluice/admission"
	"github.com/sluice-gateway/sluice/engines"
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

// TestLocalReplicasShareNoSlots: the first local replica of a model has the same id at every
// gateway, but is another process there. Gateways share the slots of the other replicas.
func TestLocalReplicasShareNoSlots(t *testing.T) {
	t.Parallel()
	for launcher, want := range map[engines.Launcher]admission.Claim{
		engines.Local:      {},
		engines.Kubernetes: {Replica: "m-0", ReplicaLimit: 4},
		engines.Ray:        {Replica: "m-0", ReplicaLimit: 4},
		engines.Upstream:   {Replica: "m-0", ReplicaLimit: 4},
	} {
		fleet, claim := engines.NewFleet(), admission.Claim{}
		s := stage{New(Config{Fleet: fleet, Shared: true, Admission: admission.New(admission.Config{Shared: grantsAll{last: &claim}})}), fleet}
		s.put("m", engines.Replica{ID: "m-0", Launcher: launcher, Slots: 4})
		s.must(t, newRequest("m", "k")).Release()
		if claim.Replica != want.Replica || claim.ReplicaLimit != want.ReplicaLimit {
			t.Errorf("%s: it asks for a slot of %q, of %d, want %q, of %d", launcher, claim.Replica, claim.ReplicaLimit, want.Replica, want.ReplicaLimit)
		}
	}
}
