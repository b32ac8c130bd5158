package dispatch

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluice-gateway/sluice/admission"
	"github.com/sluice-gateway/sluice/engines"
)

// preemptible is a request that may be preempted, and does what the relay does then.
type preemptible struct {
	asked  Request
	ticket atomic.Pointer[Ticket]
	// preempted counts.
	preempted atomic.Int64
	done      chan struct{}
}

// send dispatches the request until it is preempted no more, or ended.
func (s stage) send(ctx context.Context, priority admission.Priority) *preemptible {
	m := &preemptible{asked: *newRequest("m", "k"), done: make(chan struct{})}
	m.asked.Priority = priority
	go func() {
		defer close(m.done)
		for {
			asked := m.asked
			asked.Preempted = int(m.preempted.Load())
			again := make(chan struct{})
			asked.Preempt = func() { close(again) }
			ticket, fault := s.Dispatch(ctx, &asked)
			if fault != nil {
				return
			}
			m.ticket.Store(ticket)
			select {
			case <-again:
				m.preempted.Add(1)
				m.ticket.Store(nil)
				ticket.Release()
			case <-ctx.Done():
				ticket.Release()
				return
			}
		}
	}()
	return m
}

// state says where it is, and how often it was preempted.
func (m *preemptible) state() string {
	where := "waits"
	if t := m.ticket.Load(); t != nil {
		where = t.Replica()
	}
	return fmt.Sprint(where, " ", m.preempted.Load())
}

func inStage(t *testing.T, policy Policy, test func(t *testing.T, s stage, ctx context.Context)) {
	t.Helper()
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newStage(policy)
		s.put("m", replicas("a", "b")...)
		ctx, cancel := context.WithCancel(t.Context())
		test(t, s, ctx)
		cancel()
		synctest.Wait()
		if v, _ := s.View("m"); v.InFlight != 0 || v.Queued != 0 || v.Loads["a"] != 0 || v.Loads["b"] != 0 {
			t.Errorf("left over: %+v", v)
		}
	})
}

func expect(t *testing.T, what string, all []*preemptible, want ...string) {
	t.Helper()
	synctest.Wait()
	var got []string
	for _, m := range all {
		got = append(got, m.state())
	}
	if !slices.Equal(got, want) {
		t.Fatalf("%s: %q, want %q", what, got, want)
	}
}

// The slots of two replicas are taken. One of a higher band gets that of the youngest of the lowest
// band, which waits and comes back.
func TestPreemption(t *testing.T) {
	inStage(t, Policy{Strategy: LeastConnections, MaxPerReplica: 1}, func(t *testing.T, s stage, ctx context.Context) {
		var all []*preemptible
		send := func(ctx context.Context, p admission.Priority) {
			all = append(all, s.send(ctx, p))
			synctest.Wait()
		}
		send(ctx, admission.Batch)
		send(ctx, admission.Batch)
		expect(t, "two run", all, "a 0", "b 0")
		send(ctx, admission.Batch)
		expect(t, "of equals none makes way", all, "a 0", "b 0", "waits 0")
		urgent, leave := context.WithCancel(ctx)
		send(urgent, admission.Interactive)
		expect(t, "one is urgent", all, "a 0", "waits 1", "waits 0", "b 0")
		leave()
		expect(t, "the urgent one has gone", all, "a 0", "b 1", "waits 0", "b 0")
		if !all[0].ticket.Load().FirstToken() || !all[1].ticket.Load().FirstToken() {
			t.Error("a first token came too late")
		}
		all = slices.Delete(all, 3, 4)
		send(ctx, admission.Interactive)
		expect(t, "all have had their first token", all, "a 0", "b 1", "waits 0", "waits 0")
	})
}

// A request whose replica has begun to work on its response in the background is not preempted,
// although it has no token. It stays in prefill.
func TestPreemptsNoResponseInTheBackground(t *testing.T) {
	inStage(t, Policy{Strategy: LeastConnections, MaxPerReplica: 1, MaxPrefillPerReplica: 1}, func(t *testing.T, s stage, ctx context.Context) {
		all := []*preemptible{s.send(ctx, admission.Batch)}
		synctest.Wait()
		all = append(all, s.send(ctx, admission.Batch))
		synctest.Wait()
		ticket := all[0].ticket.Load()
		if !ticket.Keep() || !all[1].ticket.Load().Keep() {
			t.Error("a request was preempted")
		}
		if !ticket.prefill {
			t.Error("the request has left prefill without a token")
		}
		all = append(all, s.send(ctx, admission.Interactive))
		synctest.Wait()
		expect(t, "both are kept", all, "a 0", "b 0", "waits 0")
		if !ticket.FirstToken() || ticket.prefill {
			t.Error("the first token came too late, or has not ended prefill")
		}
	})
}

// One request is preempted three times and no more.
func TestPreemptedThreeTimes(t *testing.T) {
	inStage(t, Policy{Limits: admission.Limits{MaxConcurrent: 1}}, func(t *testing.T, s stage, ctx context.Context) {
		batch := s.send(ctx, admission.Batch)
		for n := range 5 {
			synctest.Wait()
			urgent, leave := context.WithCancel(ctx)
			m := s.send(urgent, admission.Interactive)
			synctest.Wait()
			if in := m.ticket.Load() != nil; in != (n < MaxPreempted) || batch.preempted.Load() != int64(min(n+1, MaxPreempted)) {
				t.Fatalf("urgent request %d: let in: %v, preempted %d times", n, in, batch.preempted.Load())
			}
			leave()
		}
	})
}

// The slot of a replica that may not be picked any more is of no use.
func TestNobodyMakesWayOnAReplicaThatLeaves(t *testing.T) {
	inStage(t, Policy{Strategy: LeastConnections, MaxPerReplica: 1}, func(t *testing.T, s stage, ctx context.Context) {
		onA := s.send(ctx, admission.Batch)
		synctest.Wait()
		onB := s.send(ctx, admission.Batch)
		synctest.Wait()
		list := replicas("a", "b")
		list[1].State = engines.Draining
		s.put("m", list...)
		s.rebuild()
		expect(t, "b leaves", []*preemptible{onA, onB, s.send(ctx, admission.Interactive)}, "waits 1", "b 0", "a 0")
	})
}

// A replica that two models share: who was made way for goes before the other model's, whose turn
// it would be.
func TestTheSlotIsForWhomItWasMade(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newStage(Policy{MaxPerReplica: 1})
		shared := engines.Part{}
		for _, name := range []string{"m", "n"} {
			shared.Models = append(shared.Models, engines.Model{Name: name, Launcher: engines.Upstream})
			shared.Replicas = append(shared.Replicas, engines.Replica{ID: "u", Model: name, State: engines.Ready, Address: netip.MustParseAddrPort("127.0.0.1:9000")})
		}
		s.fleet.Set("up", shared)
		s.acknowledge("m", shared.Replicas[0])
		s.acknowledge("n", shared.Replicas[1])
		s.rebuild()
		ctx, cancel := context.WithCancel(t.Context())
		batch := s.send(ctx, admission.Batch)
		synctest.Wait()
		other := s.queue("n")
		expect(t, "the urgent one came last", []*preemptible{batch, s.send(ctx, admission.Interactive)}, "waits 1", "u 0")
		cancel()
		(<-other).Release()
		synctest.Wait()
	})
}

// TestPreemptionInACrowd has callers come and go on virtual time. Every request is served in the
// end. No request is preempted more than three times or after its first token. No slot is lost.
// Requests of the lowest band come against a crowd of the highest, and are not starved.
func TestPreemptionInACrowd(t *testing.T) {
	t.Parallel()
	const callers = 1000
	synctest.Test(t, func(t *testing.T) {
		s := newStage(Policy{MaxPerReplica: 3, LoadFloor: 2, Limits: admission.Limits{MaxConcurrent: 7, MaxQueue: callers, QueueTimeout: time.Hour}})
		s.put("m", replicas("a", "b", "c")...)
		var wg sync.WaitGroup
		var served [3]atomic.Int64
		var preempted atomic.Int64
		var inside atomic.Int64
		for i := range uint64(callers) {
			random := rand.New(rand.NewPCG(i, 1))
			if i%4 == 0 {
				time.Sleep(time.Duration(random.IntN(100)) * ms)
			}
			wg.Go(func() {
				p := admission.Priority(random.IntN(3) - 1)
				if random.IntN(2) == 0 {
					p = admission.Interactive
				}
				for n := 0; !s.served(t, random, p, n, &inside); n++ {
					if preempted.Add(1); n >= MaxPreempted {
						t.Errorf("preempted for the %dth time", n+1)
					}
				}
				served[p+1].Add(1)
			})
		}
		wg.Wait()
		if v, _ := s.View("m"); v.InFlight != 0 || v.Queued != 0 || v.Loads["a"]+v.Loads["b"]+v.Loads["c"] != 0 {
			t.Errorf("left over: %+v", v)
		}
		if n := served[0].Load() + served[1].Load() + served[2].Load(); n != callers || preempted.Load() == 0 {
			t.Errorf("%d of %d were served, %d preempted", n, callers, preempted.Load())
		}
	})
}

// served is one attempt of a request; false when it was preempted.
func (s stage) served(t *testing.T, random *rand.Rand, p admission.Priority, n int, inside *atomic.Int64) bool {
	r := newRequest("m", fmt.Sprint(random.IntN(50)))
	r.Priority, r.Preempted = p, n
	out := make(chan struct{})
	r.Preempt = func() { close(out) } // twice would panic
	ticket, fault := s.Dispatch(t.Context(), r)
	if fault != nil {
		t.Error(fault)
		return true
	}
	if now := inside.Add(1); now > 7 {
		t.Errorf("%d at once", now)
	}
	defer ticket.Release()
	defer inside.Add(-1)
	select {
	case <-time.After(time.Duration(random.IntN(300)) * ms):
	case <-out:
	}
	if !ticket.FirstToken() {
		<-out // it was called, or is about to be
		return false
	}
	time.Sleep(time.Duration(random.IntN(300)) * ms)
	select {
	case <-out:
		t.Error("preempted after its first token")
	default:
	}
	return true
}

// Ageing still lets a lower band in while a higher one never ceases, and what it let in is not
// preempted.
func TestAgeingAgainstPreemption(t *testing.T) {
	inStage(t, Policy{Limits: admission.Limits{MaxConcurrent: 1, QueueTimeout: time.Hour}}, func(t *testing.T, s stage, ctx context.Context) {
		var last context.CancelFunc
		next := func() { // two urgent ones are always there
			urgent, leave := context.WithCancel(ctx)
			s.send(urgent, admission.Interactive)
			synctest.Wait()
			if last != nil {
				last()
				synctest.Wait()
			}
			last = leave
		}
		next()
		batch := s.send(ctx, admission.Batch)
		for began := time.Now(); batch.ticket.Load() == nil; time.Sleep(time.Second) {
			if next(); time.Since(began) > time.Minute {
				t.Fatal("the batch request starves")
			}
		}
		s.send(ctx, admission.Interactive)
		synctest.Wait()
		if got := batch.state(); batch.ticket.Load() == nil || batch.preempted.Load() != 0 {
			t.Error(got)
		}
	})
}
