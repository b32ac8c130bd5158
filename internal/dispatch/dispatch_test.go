package dispatch

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/sluice-gateway/sluice/admission"
	"github.com/sluice-gateway/sluice/engines"
	"github.com/sluice-gateway/sluice/internal/headers"
	"github.com/sluice-gateway/sluice/internal/openai"
	"github.com/sluice-gateway/sluice/ringhash"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// stage is a dispatcher over a fleet that the test sets by hand.
type stage struct {
	*Dispatcher
	fleet *engines.Fleet
}

func newStage(policy Policy) stage {
	fleet := engines.NewFleet()
	s := stage{New(Config{Fleet: fleet, Admission: admission.New(admission.Config{})}), fleet}
	s.SetRules(Rules{Default: policy})
	return s
}

// put makes the model have these replicas, all ready, and Envoy know them. Those without an address
// get one.
func (s stage) put(model string, replicas ...engines.Replica) {
	m := engines.Model{Name: model, Aliases: []string{model + "-alias"}, Launcher: engines.Local, Desired: len(replicas)}
	for i := range replicas {
		r := &replicas[i]
		if r.Model = model; !r.Address.IsValid() {
			r.Address = netip.MustParseAddrPort(fmt.Sprintf("127.0.0.1:%d", 9000+i))
		}
		r.State = cmp.Or(r.State, engines.Ready)
	}
	s.fleet.Set("test-"+model, engines.Part{Models: []engines.Model{m}, Replicas: slices.Clone(replicas)}) // the fleet keeps it
	s.acknowledge(model, replicas...)
}

// acknowledge makes Envoy know these replicas of the model and no others, each in its cluster.
func (s stage) acknowledge(model string, replicas ...engines.Replica) {
	clusters := map[string]map[string]netip.AddrPort{headers.ModelCluster(model): {}}
	for _, r := range replicas {
		name := headers.GroupCluster(model, r.Group())
		if clusters[name] == nil {
			clusters[name] = map[string]netip.AddrPort{}
		}
		clusters[name][r.ID] = r.Address
	}
	for name, known := range clusters {
		s.SetRoutable(name, known)
	}
}

func replicas(ids ...string) []engines.Replica {
	var list []engines.Replica
	for _, id := range ids {
		list = append(list, engines.Replica{ID: id})
	}
	return list
}

func newRequest(model, key string) *Request {
	return &Request{Model: model, Tenant: "t", Key: func(int) uint64 { return ringhash.Key([]byte(key)) }}
}

func (s stage) must(t *testing.T, r *Request) *Ticket {
	t.Helper()
	ticket, fault := s.Dispatch(t.Context(), r)
	if fault != nil {
		t.Fatal(fault)
	}
	return ticket
}

// queue sends a request that has to wait; the ticket comes when it is let go. It is for use in a
// synctest bubble.
func (s stage) queue(model string) <-chan *Ticket {
	got := make(chan *Ticket)
	go func() {
		ticket, _ := s.Dispatch(context.Background(), newRequest(model, "k"))
		got <- ticket
	}()
	synctest.Wait()
	return got
}

func TestConversationsStay(t *testing.T) {
	s := newStage(Policy{LoadFloor: 8})
	s.put("m", replicas("a", "b", "c", "d")...)
	affinities := map[string]int{}
	for key := range 40 {
		first := s.must(t, newRequest("m", fmt.Sprint(key)))
		second := s.must(t, newRequest("m-alias", fmt.Sprint(key)))
		if first.Replica() != second.Replica() || second.Model != "m" || second.Cluster() != "model/m" {
			t.Errorf("key %d: %s, then %s of %s", key, first.Replica(), second.Replica(), second.Model)
		}
		affinities[first.Replica()]++
		first.Release()
		second.Release()
	}
	if len(affinities) != 4 {
		t.Errorf("40 keys went to %v", affinities)
	}
}

func TestEndpointsListThePickFirst(t *testing.T) {
	s := newStage(Policy{})
	s.put("m", replicas("a", "b", "c", "d", "e", "f")...)
	for key := range 20 {
		ticket := s.must(t, newRequest("m", fmt.Sprint(key)))
		list := strings.Split(ticket.Endpoints(), ",")
		if len(list) != 1+fallbacks || list[0] != ticket.route.replicas[ticket.replicaIndex].address {
			t.Fatalf("picked %s, list %v", ticket.Replica(), list)
		}
		seen := map[string]bool{}
		for _, a := range list {
			if seen[a] {
				t.Fatalf("%s twice in %v", a, list)
			}
			seen[a] = true
		}
		ticket.Release()
	}
}

func TestStrategies(t *testing.T) {
	const requests = 12
	for _, c := range []struct {
		strategy Strategy
		want     string // loads of a, b, c after 12 requests with one key, none released
	}{
		{RoundRobin, "4 4 4"},
		{LeastConnections, "4 4 4"},
		{CHWBL, "spread"},
	} {
		t.Run(string(c.strategy), func(t *testing.T) {
			s := newStage(Policy{Strategy: c.strategy})
			s.put("m", replicas("a", "b", "c")...)
			for range requests {
				s.must(t, newRequest("m", "one key"))
			}
			v, _ := s.View("m")
			got := fmt.Sprint(v.Loads["a"], v.Loads["b"], v.Loads["c"])
			if c.want == "spread" {
				for id, load := range v.Loads {
					if load > 5 || load == 0 { // 1.25 × 12/3
						t.Errorf("%s has %d", id, load)
					}
				}
			} else if got != c.want {
				t.Errorf("loads %s, want %s", got, c.want)
			}
		})
	}
}

func TestLeastConnectionsPrefersTheLeastServed(t *testing.T) {
	s := newStage(Policy{Strategy: LeastConnections})
	s.put("m", replicas("a", "b", "c")...)
	served := map[string]int{}
	for range 9 { // one at a time: always a tie
		ticket := s.must(t, newRequest("m", "k"))
		served[ticket.Replica()]++
		ticket.Release()
	}
	if served["a"] != 3 || served["b"] != 3 || served["c"] != 3 {
		t.Errorf("served %v", served)
	}
}

func TestLimitsPerReplica(t *testing.T) {
	known := engines.Replica{ID: "known", Slots: 2}
	unknownUpstream := engines.Replica{ID: "up", Launcher: engines.Upstream}
	for _, c := range []struct {
		name   string
		policy Policy
		engines.Replica
		want int
	}{
		{"what the engine says", Policy{}, known, 2},
		{"an unknown upstream", Policy{}, unknownUpstream, 1},
		{"what the file says", Policy{MaxPerReplica: 3}, unknownUpstream, 3},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c.policy.Limits.QueueTimeout = time.Second
				s := newStage(c.policy)
				s.put("m", c.Replica)
				var held []*Ticket
				for range c.want {
					held = append(held, s.must(t, newRequest("m", "k")))
				}
				if _, fault := s.Dispatch(t.Context(), newRequest("m", "k")); fault == nil || fault.Code != openai.CodeQueueTimeout {
					t.Errorf("one more than %d: %v", c.want, fault)
				}
				held[0].Release()
				held[0].Release() // only the first counts
				s.must(t, newRequest("m", "k"))
				if v, _ := s.View("m"); v.InFlight != c.want || v.Loads[c.Replica.ID] != c.want {
					t.Errorf("in flight %d, load %d", v.InFlight, v.Loads[c.Replica.ID])
				}
			})
		})
	}
}

func TestOnlyWhatEnvoyKnowsIsPicked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStage(Policy{})
		all := replicas("a", "b")
		s.put("m", all...)
		s.acknowledge("m")
		got := make(chan *Ticket)
		go func() {
			ticket, fault := s.Dispatch(context.Background(), newRequest("m", "k"))
			if fault != nil {
				t.Error(fault)
			}
			got <- ticket
		}()
		synctest.Wait()
		if v, _ := s.View("m"); v.Queued != 1 {
			t.Fatalf("queued: %d", v.Queued)
		}
		s.acknowledge("m", all[1])
		if ticket := <-got; ticket.Replica() != "b" || ticket.Endpoints() != "127.0.0.1:9001,127.0.0.1:9001" {
			t.Errorf("picked %s %s", ticket.Replica(), ticket.Endpoints())
		}
	})
}

func TestFaults(t *testing.T) {
	forbid := func(string) bool { return false }
	for _, c := range []struct {
		name    string
		state   engines.State // of the one replica; empty: there is none
		request Request
		want    openai.Code
		after   time.Duration
	}{
		{"unknown model", engines.Ready, Request{Model: "x"}, openai.CodeModelNotFound, 0},
		{"forbidden model", engines.Ready, Request{Model: "m", Allowed: forbid}, openai.CodeModelNotFound, 0},
		{"unknown before forbidden", engines.Ready, Request{Model: "x", Allowed: forbid}, openai.CodeModelNotFound, 0},
		{"no replica at all", "", Request{Model: "m"}, openai.CodeNoReplica, 0},
		{"starting and never ready", engines.Starting, Request{Model: "m"}, openai.CodeColdStartTimeout, 10 * time.Minute},
		{"failed", engines.Failed, Request{Model: "m"}, openai.CodeNoReplica, time.Minute},
		{"the client's own timeout", engines.Starting, Request{Model: "m", Timeout: time.Second}, openai.CodeRequestTimeout, time.Second},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newStage(Policy{})
				if c.state == "" {
					s.put("m")
				} else {
					s.put("m", engines.Replica{ID: "a", State: c.state})
				}
				r := c.request
				r.Key = func(int) uint64 { return 0 }
				began := time.Now()
				_, fault := s.Dispatch(t.Context(), &r)
				if fault == nil || fault.Code != c.want {
					t.Fatalf("got %v, want %s", fault, c.want)
				}
				if took := time.Since(began); took != c.after {
					t.Errorf("after %v, want %v", took, c.after)
				}
			})
		})
	}
}

func TestRequestIDs(t *testing.T) {
	s := newStage(Policy{})
	s.put("m", replicas("a")...)
	r := newRequest("m", "k")
	r.ID = "one"
	first := s.must(t, r)
	if _, fault := s.Dispatch(t.Context(), r); fault == nil || fault.Code != openai.CodeRequestIDConflict {
		t.Errorf("the same id twice: %v", fault)
	}
	other := *r
	other.Tenant = "u"
	s.must(t, &other).Release() // ids belong to tenants
	first.Release()
	s.must(t, r).Release()
	bad := *r
	bad.Model = "x"
	for range 2 { // a refused request leaves its id free
		if _, fault := s.Dispatch(t.Context(), &bad); fault.Code != openai.CodeModelNotFound {
			t.Error(fault)
		}
	}
}

func TestASharedUpstreamHasOneLoad(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStage(Policy{})
		shared := engines.Replica{ID: "up:80", Launcher: engines.Upstream}
		s.put("x", shared)
		s.put("y", shared)
		first := s.must(t, newRequest("x", "k"))
		got := s.queue("y")
		if v, _ := s.View("y"); v.Queued != 1 {
			t.Fatal("two requests at once on a server that takes one")
		}
		first.Release()
		(<-got).Release()
		if n := s.Load("up:80"); n != 0 {
			t.Errorf("load %d", n)
		}
	})
}

func TestAModelThatGoesLetsItsNeighbourIn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStage(Policy{})
		shared := engines.Replica{ID: "up:80", Launcher: engines.Upstream}
		s.put("x", shared)
		s.put("y", shared)
		first := s.must(t, newRequest("x", "k"))
		got := s.queue("y")
		s.fleet.Set("test-x", engines.Part{}) // the server no longer lists x
		s.rebuild()
		began := time.Now()
		first.Release()
		(<-got).Release()
		if waited := time.Since(began); waited != 0 {
			t.Errorf("y waited %v for a slot that was free", waited)
		}
	})
}

// A request that waits for a model is refused at once when the model goes.
func TestAModelThatGoesLeavesNoWaiter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStage(Policy{Limits: admission.Limits{MaxConcurrent: 1}})
		s.put("m", replicas("a")...)
		first := s.must(t, newRequest("m", "k"))
		faults := make(chan *openai.Error)
		go func() {
			_, fault := s.Dispatch(t.Context(), newRequest("m", "k"))
			faults <- fault
		}()
		synctest.Wait()
		began := time.Now()
		s.fleet.Set("test-m", engines.Part{})
		s.rebuild()
		if fault := <-faults; fault == nil || fault.Code != openai.CodeNoReplica || time.Since(began) != 0 {
			t.Errorf("after %v: %+v", time.Since(began), fault)
		}
		first.Release()
		s.put("m", replicas("a")...)
		s.must(t, newRequest("m", "k")).Release()
	})
}

// inherited counts those of both kinds.
func (s *stage) recoveredRequest() int {
	counted, unlocated := s.RecoveredCount()
	return counted + unlocated
}

// A launcher may tell of a replica late. A pod is known only when Kubernetes has been read.
func TestRecoveredWhereNoReplicaIsKnownYet(t *testing.T) {
	s := newStage(Policy{})
	at := Location{Model: "m", Address: "127.0.0.1:9000"}
	s.Recover(map[Location]int{at: 3, {Model: "m", Address: "127.0.0.1:1"}: 2})
	s.EndRecovered(RecoveredRequest{Location: at, Request: "1"})
	if counted, unlocated := s.RecoveredCount(); counted != 0 || unlocated != 4 {
		t.Fatalf("%d and %d", counted, unlocated)
	}
	s.put("m", replicas("a")...)
	if v, _ := s.View("m"); v.Loads["a"] != 2 || v.InFlight != 2 {
		t.Errorf("%+v", v)
	}
	s.LimitRecovered(map[Location]int{at: 1})
	if counted, unlocated := s.RecoveredCount(); counted != 1 || unlocated != 2 {
		t.Errorf("%d and %d", counted, unlocated)
	}
	if s.LimitRecovered(nil); s.recoveredRequest() != 0 {
		t.Error("some are left")
	}
}

func TestInheritBeforeTheFleetIsFollowed(t *testing.T) {
	s := newStage(Policy{})
	s.fleet.Set("test", engines.Part{
		Models: []engines.Model{{Name: "m"}},
		Replicas: []engines.Replica{{ID: "a", Model: "m", State: engines.Ready, Launcher: engines.Upstream,
			Address: netip.MustParseAddrPort("127.0.0.1:9000")}},
	})
	s.Recover(map[Location]int{{Model: "m", Address: "127.0.0.1:9000"}: 3})
	if n, _ := s.RecoveredCount(); n != 3 {
		t.Errorf("recoveredRequest %d of 3", n)
	}
	s.LimitRecovered(map[Location]int{{Model: "m", Address: "127.0.0.1:1"}: 0})
	if n, _ := s.RecoveredCount(); n != 3 {
		t.Errorf("%d of 3 are left, and Envoy has said nothing of their place", n)
	}
	s.LimitRecovered(nil)
	if v, _ := s.View("m"); v.InFlight != 0 {
		t.Errorf("in flight: %d", v.InFlight)
	}
}

func TestTheSlotFollowsARetry(t *testing.T) {
	s := newStage(Policy{})
	s.put("m", replicas("a", "b")...)
	ticket := s.must(t, newRequest("m", "k"))
	from, to := ticket.Replica(), "a"
	if from == "a" {
		to = "b"
	}
	address := map[string]string{"a": "127.0.0.1:9000", "b": "127.0.0.1:9001"}
	ticket.Moved("10.0.0.1:1") // nobody's
	ticket.Moved(address[to])
	if ticket.Replica() != to || s.Load(from) != 0 || s.Load(to) != 1 {
		t.Errorf("at %s, loads %d %d", ticket.Replica(), s.Load(from), s.Load(to))
	}
	ticket.Release()
	ticket.Moved(address[from])
	if s.Load("a") != 0 || s.Load("b") != 0 {
		t.Error("a slot is left")
	}
}

func TestARetryThatLeavesLetsTheNextIn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStage(Policy{MaxPerReplica: 1})
		s.put("m", replicas("a", "b")...)
		first, second := s.must(t, newRequest("m", "k")), s.must(t, newRequest("m", "k"))
		defer second.Release()
		got := s.queue("m")
		from := first.Replica()
		first.Moved(second.route.replicas[second.replicaIndex].address) // onto the other, past its limit: Envoy has decided so
		ticket := <-got
		if ticket.Replica() != from {
			t.Errorf("at %s, want %s", ticket.Replica(), from)
		}
		ticket.Release()
		first.Release()
	})
}

func TestRequestsOfBeforeARestart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStage(Policy{Limits: admission.Limits{MaxConcurrent: 3, QueueTimeout: time.Second}})
		s.put("m", replicas("a", "b")...)
		at := Location{Model: "m", Address: "127.0.0.1:9000"}
		s.Recover(map[Location]int{at: 3, {Model: "m", Address: "10.0.0.1:1"}: 5}) // the latter is nobody's
		if v, _ := s.View("m"); v.InFlight != 3 || v.Loads["a"] != 3 || s.recoveredRequest() != 8 {
			t.Errorf("%+v", v)
		}
		if _, fault := s.Dispatch(t.Context(), newRequest("m", "k")); fault == nil {
			t.Error("the limit of 3 was exceeded")
		}
		s.LimitRecovered(map[Location]int{at: 1})
		s.LimitRecovered(map[Location]int{at: 2}) // they do not come back
		s.must(t, newRequest("m", "k"))
		s.must(t, newRequest("m", "k"))
		if _, fault := s.Dispatch(t.Context(), newRequest("m", "k")); fault == nil {
			t.Error("the limit of 3 was exceeded")
		}
		s.EndRecovered(RecoveredRequest{Location: at, Request: "1"})
		s.EndRecovered(RecoveredRequest{Location: at, Request: "1"})
		if v, _ := s.View("m"); v.InFlight != 2 || v.Loads["a"]+v.Loads["b"] != 2 {
			t.Errorf("%+v", v)
		}
	})
}

func TestNothingLeaksWhileTheWorldChanges(t *testing.T) {
	s := newStage(Policy{MaxPerReplica: 2})
	all := replicas("a", "b", "c", "d")
	s.put("m", all...)
	ctx, cancel := context.WithCancel(t.Context())
	var follower, clients sync.WaitGroup
	follower.Go(func() { s.Run(ctx) })
	for i := range 32 {
		clients.Go(func() {
			for n := range 200 {
				ctx, leave := context.WithTimeout(context.Background(), time.Duration(n%3)*time.Millisecond)
				if ticket, fault := s.Dispatch(ctx, newRequest("m", fmt.Sprint(i))); fault == nil {
					ticket.Moved("127.0.0.1:9002")
					ticket.Release()
				}
				leave()
			}
		})
	}
	for n := range 200 {
		s.put("m", replicas("a", "b", "c", "d")[n%3:]...)
	}
	clients.Wait()
	cancel()
	follower.Wait()
	v, _ := s.View("m")
	if v.InFlight != 0 || v.Queued != 0 {
		t.Errorf("%+v", v)
	}
	for _, r := range all {
		if n := s.Load(r.ID); n != 0 {
			t.Errorf("%s has a load of %d", r.ID, n)
		}
	}
}

func TestExplain(t *testing.T) {
	s := newStage(Policy{})
	s.put("m", replicas("a", "b", "c")...)
	for key := range 10 {
		r := newRequest("m", fmt.Sprint(key))
		told, ok := s.Explain("m-alias", Question{Key: r.Key(0)})
		ticket := s.must(t, r)
		if !ok || told.Picked != ticket.Replica() || told.Order[0].ID != told.Picked || len(told.Order) != 3 {
			t.Errorf("told %+v, got %s", told, ticket.Replica())
		}
		ticket.Release()
	}
	if _, ok := s.Explain("x", Question{}); ok {
		t.Error("explained a model that is not")
	}
}

func BenchmarkDispatch(b *testing.B) {
	s := newStage(Policy{LoadFloor: 8})
	s.put("m", replicas("a", "b", "c", "d", "e", "f", "g", "h")...)
	r := newRequest("m", "k")
	b.ReportAllocs()
	for b.Loop() {
		ticket, _ := s.Dispatch(context.Background(), r)
		ticket.Release()
	}
}
