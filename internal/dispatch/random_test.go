package dispatch

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluice-gateway/sluice/admission"
	"github.com/sluice-gateway/sluice/engines"
	"github.com/sluice-gateway/sluice/internal/openai"
)

// randomWorld is a Dispatcher to which anything happens, one step after the other, and what is
// known of its requests.
type randomWorld struct {
	stage
	t      *testing.T
	random *rand.Rand
	log    []string
	// servers are the servers of each model as the fleet has them.
	servers map[string][]engines.Replica
	policy  Policy
	calls   []*randomCall
	carried []carriedCall
	keys    int
}

// carriedCall is a request that an earlier process carries.
type carriedCall struct {
	*CarriedRequest
	HeldRequest
}

// randomCall is one request: it waits, runs or has ended.
type randomCall struct {
	id       int
	model    string
	deadline time.Time
	cancel   context.CancelFunc
	done     chan struct{}
	ticket   *Ticket
	fault    *openai.Error
	// granted says that the ticket is known, watched that the request is in prefill, and over that
	// the test is done with it.
	granted, watched, over, corrected bool
	// task is the task of the request. asksTask says that the call asks for a task.
	task     string
	asksTask bool
	tenant   string
	bytes    int
}

var randomModels = []string{"a", "b", "x", "y"}

// serversOf returns the servers of a model. The models x and y share theirs.
func serversOf(model string) []string {
	if model == "x" || model == "y" {
		return []string{"s-0", "s-1", "s-2"}
	}
	return []string{model + "-0", model + "-1", model + "-2"}
}

func newRandomWorld(t *testing.T, seed uint64) *randomWorld {
	w := &randomWorld{t: t, random: rand.New(rand.NewPCG(seed, 1)), servers: map[string][]engines.Replica{}}
	w.stage = newStage(Policy{})
	w.setRules()
	for _, m := range randomModels {
		w.setServers(m)
	}
	return w
}

func (w *randomWorld) logf(format string, args ...any) {
	w.log = append(w.log, fmt.Sprintf("%v: ", time.Since(time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)))+fmt.Sprintf(format, args...))
}

func (w *randomWorld) fail(format string, args ...any) {
	w.t.Helper()
	for _, line := range w.log[max(0, len(w.log)-40):] {
		w.t.Log(line)
	}
	for _, c := range w.calls {
		c.cancel()
	}
	w.t.Fatalf(format, args...)
}

func (w *randomWorld) chance(percent int) bool { return w.random.IntN(100) < percent }

func pickOf[T any](w *randomWorld, from []T) T { return from[w.random.IntN(len(from))] }

// setServers gives a model other servers, and has Envoy know some of them.
func (w *randomWorld) setServers(model string) {
	var all []engines.Replica
	shared, down := model == "x" || model == "y", w.chance(20)
	for i, id := range serversOf(model) {
		if w.chance(20) {
			continue
		}
		r := engines.Replica{ID: id, Model: model, State: engines.Ready, Launcher: engines.Local, PID: 1, Since: time.Now(),
			Address: netip.MustParseAddrPort(fmt.Sprintf("127.0.0.%d:%d", 1+int(model[0]), 9000+i))}
		if shared {
			r.Launcher, r.Address, r.PID, r.Slots = engines.Upstream, netip.MustParseAddrPort(fmt.Sprintf("127.0.0.9:%d", 9000+i)), 0, 3
		} else if w.chance(20) {
			r.PID, r.Restarts, r.Address = 2, 1, netip.MustParseAddrPort(fmt.Sprintf("127.0.1.%d:%d", 1+int(model[0]), 9000+i))
		}
		switch w.random.IntN(10) {
		case 0:
			r.State = engines.Starting
		case 1:
			r.State = engines.Failed
			r.FailedStarts = w.random.IntN(4)
		case 2:
			r.State = engines.Draining
		}
		if down {
			r.State, r.FailedStarts = engines.Failed, 3
		}
		all = append(all, r)
	}
	w.servers[model] = all
	launcher := engines.Local
	if shared {
		launcher = engines.Upstream
	}
	part := engines.Part{Replicas: slices.Clone(all), Models: []engines.Model{{Name: model, Launcher: launcher, Desired: len(all), MaxReplicas: w.random.IntN(4)}}}
	if len(all) == 0 && w.chance(30) {
		part = engines.Part{}
	}
	w.fleet.Set("test-"+model, part)
	w.logf("servers of %s: %v", model, describe(all))
	if w.chance(90) {
		w.rebuild() // as Run does
	}
	known := slices.DeleteFunc(slices.Clone(all), func(engines.Replica) bool { return w.chance(10) })
	if w.chance(90) {
		w.logf("acknowledged %v", describe(known))
		w.acknowledge(model, known...)
	}
}

func describe(all []engines.Replica) (s []string) {
	for _, r := range all {
		s = append(s, fmt.Sprint(r.ID, "@", r.Address, " ", r.State, r.FailedStarts))
	}
	return s
}

func (w *randomWorld) setRules() {
	w.policy = Policy{
		Strategy:             pickOf(w, []Strategy{Prefix, CHWBL, RoundRobin, LeastConnections}),
		MaxPerReplica:        1 + w.random.IntN(3),
		MaxPrefillPerReplica: w.random.IntN(3),
		ColdStart:            pickOf(w, []time.Duration{0, 0, time.Minute, NoWait}),
		SlowStart:            pickOf(w, []time.Duration{0, 30 * time.Second}),
		Limits: admission.Limits{MaxConcurrent: pickOf(w, []int{0, 0, 2, 5, 9}), MaxQueue: pickOf(w, []int{0, 3, 10}), Weight: w.random.IntN(4),
			TokensPerMinute: pickOf(w, []int{0, 0, 5000})},
	}
	r := Rules{Default: w.policy, Tenants: map[string]admission.TenantLimits{}, FirstPool: "p"}
	r.Pools = map[string][]string{"p": pickOf(w, [][]string{{"a", "b"}, {"a", "x"}, {"b", "x", "y"}}), "all": randomModels}
	for i := range 3 {
		r.Tenants[fmt.Sprint("t", i)] = admission.TenantLimits{Weight: w.random.IntN(10), MaxPrefill: w.random.IntN(4), MaxConcurrent: pickOf(w, []int{0, 0, 7}),
			TokensPerMinute: pickOf(w, []int{0, 0, 6000}), RequestsPerMinute: pickOf(w, []int{0, 0, 60})}
	}
	w.logf("rules %+v %+v %+v", w.policy.Limits, r.Pools["p"], r.Tenants)
	w.logf("  %s per replica %d prefill %d", w.policy.Strategy, w.policy.MaxPerReplica, w.policy.MaxPrefillPerReplica)
	w.SetRules(r)
}

func (w *randomWorld) arrive() {
	c := &randomCall{id: len(w.calls), model: pickOf(w, []string{"a", "a", "b", "x", "y", "p", "all"}), done: make(chan struct{})}
	r := newRequest(c.model, fmt.Sprint(w.random.IntN(20)))
	r.Tenant = fmt.Sprint("t", w.random.IntN(4))
	r.Priority = admission.Priority(w.random.IntN(3) - 1)
	r.Timeout = time.Duration(1+w.random.IntN(60)) * time.Second
	r.PromptBytes, r.MaxTokens, r.Bytes = w.random.IntN(4000), w.random.IntN(500), w.random.IntN(1000)
	if w.chance(40) {
		r.Preempt = func() {}
	}
	var ctx context.Context
	ctx, c.cancel = context.WithCancel(w.t.Context())
	c.deadline, c.tenant, c.bytes = time.Now().Add(r.Timeout), r.Tenant, r.Bytes
	w.logf("%d arrives for %s of %s, priority %d, timeout %v", c.id, c.model, r.Tenant, r.Priority, r.Timeout)
	w.start(ctx, c, r)
}

func (w *randomWorld) start(ctx context.Context, c *randomCall, r *Request) {
	w.calls = append(w.calls, c)
	go func() {
		defer close(c.done)
		c.ticket, c.fault = w.Dispatch(ctx, r)
	}()
}

// arriveUnderTask asks for a task and has a request under it.
func (w *randomWorld) arriveUnderTask() {
	w.keys++
	tenant := fmt.Sprint("t", w.random.IntN(4))
	pool := pickOf(w, []string{"p", "all"})
	task, _, fault := w.Schedule(w.t.Context(), TaskRequest{Tenant: tenant, Pool: pool, Tokens: w.random.IntN(400), Key: fmt.Sprint(w.keys)})
	w.logf("task of %s: %+v, %v", tenant, task.ID, fault)
	if fault != nil || task.ID == "" {
		return
	}
	c := &randomCall{id: len(w.calls), model: task.Model, done: make(chan struct{}), task: task.ID}
	r := newRequest(task.Model, "k")
	r.Tenant, r.Task, r.Timeout = tenant, task.ID, time.Duration(1+w.random.IntN(60))*time.Second
	var ctx context.Context
	ctx, c.cancel = context.WithCancel(w.t.Context())
	c.deadline, c.tenant = time.Now().Add(r.Timeout), tenant
	w.logf("%d arrives for %s of %s under %s", c.id, c.model, r.Tenant, r.Task)
	w.start(ctx, c, r)
	synctest.Wait()
	if w.chance(60) {
		w.logf("task %s ends", task.ID)
		w.Complete(w.t.Context(), tenant, task.ID, w.random.IntN(500)-1)
	}
}

// askTask has a call of Schedule wait.
func (w *randomWorld) askTask() {
	c := &randomCall{id: len(w.calls), model: pickOf(w, []string{"a", "b", "p", "all"}), done: make(chan struct{}), asksTask: true}
	c.tenant = fmt.Sprint("t", w.random.IntN(4))
	r := TaskRequest{Tenant: c.tenant, Tokens: w.random.IntN(400), Priority: admission.Priority(w.random.IntN(3) - 1),
		MaxWait: time.Duration(1+w.random.IntN(60)) * time.Second}
	if c.model == "a" || c.model == "b" {
		r.Model = c.model
	} else {
		r.Pool = c.model
	}
	var ctx context.Context
	ctx, c.cancel = context.WithCancel(w.t.Context())
	c.deadline = time.Now().Add(r.MaxWait)
	ends := time.Duration(w.random.IntN(100)) * time.Second
	w.logf("%d asks for a task of %s for %s", c.id, c.model, c.tenant)
	w.calls = append(w.calls, c)
	go func() {
		task, wait, fault := w.Schedule(ctx, r)
		if c.fault = fault; fault == nil && task.ID == "" && wait <= 0 {
			w.t.Error("a call has neither a task nor a time")
		}
		close(c.done)
		if task.ID != "" {
			time.AfterFunc(ends, func() { w.Complete(context.Background(), c.tenant, task.ID, 1) })
		}
	}()
}

func (c *randomCall) ended() bool {
	select {
	case <-c.done:
		return true
	default:
		return false
	}
}

// checkPools checks that no request of a tenant without limits waits where there is a free slot.
func (w *randomWorld) checkPools() {
	w.t.Helper()
	l := w.policy.Limits
	if l.TokensPerMinute > 0 {
		return
	}
	table := w.table.Load()
	for _, c := range w.waiting() {
		if c.tenant != "t3" || c.task != "" || c.asksTask {
			continue
		}
		names, isPool := table.pools[c.model]
		if !isPool {
			names = []string{c.model}
		}
		for _, m := range names {
			st := w.config.Admission.Stats(m)
			if l.MaxConcurrent > 0 && st.InFlight >= l.MaxConcurrent || isPool && table.drained[m] {
				continue
			}
			if id := w.free(m); id != "" && !w.holdsOut(m) {
				w.fail("request %d waits for %s, and %s of %s has a free slot: %+v", c.id, c.model, id, m, st)
			}
		}
	}
}

// holdsOut reports whether a request may hold out for a better replica of the model.
func (w *randomWorld) holdsOut(model string) bool {
	t := w.table.Load().routes[model]
	for i := range t.replicas {
		if r := &t.replicas[i]; t.strategy.cacheAware && r.slotWait() > 0 && r.full(r.load.Load()) {
			return true
		}
	}
	return false
}

func (w *randomWorld) those(which func(*randomCall) bool) (all []*randomCall) {
	for _, c := range w.calls {
		if !c.over && which(c) {
			all = append(all, c)
		}
	}
	return all
}

func (w *randomWorld) running() []*randomCall {
	return w.those(func(c *randomCall) bool { return c.ended() && c.ticket != nil })
}

func (w *randomWorld) waiting() []*randomCall {
	return w.those(func(c *randomCall) bool { return !c.ended() })
}

// act does something to one of the requests that run.
func (w *randomWorld) act() {
	all := w.running()
	if len(all) == 0 {
		return
	}
	c := pickOf(w, all)
	switch w.random.IntN(6) {
	case 0:
		w.logf("%d has its first token", c.id)
		if c.ticket.FirstToken() {
			c.watched = false
		} else {
			w.end(c)
		}
	case 1:
		id := pickOf(w, serversOf(c.ticket.Model))
		if r := c.ticket.route.replica(id); r != nil && r.counter == w.counter(id) { // else it has left the fleet meanwhile
			w.logf("%d moves to %s", c.id, id)
			c.ticket.MovedTo(id)
		}
	case 2:
		if !c.corrected {
			w.logf("%d is corrected", c.id)
			c.ticket.Correct(w.response())
			c.corrected = true
		}
	default:
		w.end(c)
	}
}

func (w *randomWorld) response() Response {
	if w.chance(30) {
		return Response{Failed: true, Abandoned: w.chance(50)}
	}
	return Response{Known: true, Prompt: w.random.Int64N(1000), Completion: w.random.Int64N(1000)}
}

func (w *randomWorld) end(c *randomCall) {
	w.logf("%d ends", c.id)
	if !c.corrected && w.chance(50) {
		c.ticket.Correct(w.response())
	}
	c.ticket.Release()
	c.over = true
	c.cancel()
	synctest.Wait()
	if w.chance(20) {
		c.ticket.Release()
		c.ticket.Correct(w.response())
	}
}

func (w *randomWorld) step() {
	switch n := w.random.IntN(100); {
	case n < 40:
		w.arrive()
	case n < 44:
		w.arriveUnderTask()
	case n < 47:
		w.askTask()
	case n < 65:
		w.act()
	case n < 70:
		if all := w.waiting(); len(all) > 0 {
			c := pickOf(w, all)
			w.logf("%d leaves", c.id)
			c.cancel()
		}
	case n < 76:
		w.setServers(pickOf(w, randomModels))
	case n < 78:
		w.setRules()
	case n < 80:
		m := pickOf(w, randomModels)
		id, drained := pickOf(w, serversOf(m)), w.chance(40)
		if w.chance(70) {
			w.logf("drain of %s: %v", id, drained)
			w.DrainReplica(id, drained)
		} else {
			w.logf("drain of %s: %v", m, drained)
			w.DrainModel(m, drained)
		}
	case n < 82:
		id := pickOf(w, serversOf(pickOf(w, randomModels)))
		w.logf("%s fails", id)
		w.Failed(id, Connect, "test")
	case n < 84:
		id := pickOf(w, serversOf(pickOf(w, randomModels)))
		w.logf("%s rests", id)
		w.Rest(id, time.Duration(w.random.IntN(3000))*time.Millisecond)
	case n < 86:
		m := pickOf(w, randomModels)
		h := HeldRequest{Model: m, Replica: pickOf(w, serversOf(m)), Tenant: fmt.Sprint("t", w.random.IntN(4)), SlotOnly: w.chance(30)}
		w.logf("carried: %+v", h)
		w.carried = append(w.carried, carriedCall{w.Carry(h), h})
	case n < 88:
		if n := len(w.carried); n > 0 {
			i := w.random.IntN(n)
			w.logf("carried no more: %+v", w.carried[i].HeldRequest)
			w.carried[i].Release()
			w.carried = slices.Delete(w.carried, i, i+1)
		}
	default:
		d := time.Duration(w.random.Int64N(int64(time.Second << w.random.IntN(7)))).Truncate(time.Millisecond)
		if w.chance(3) {
			d = 10 * time.Hour
		}
		w.logf("%v pass", d)
		time.Sleep(d)
	}
	synctest.Wait()
}

// check compares the counters with what runs and waits.
func (w *randomWorld) check() {
	w.t.Helper()
	w.current() // as Load does
	synctest.Wait()
	loads, prefill, leases := map[string]int{}, map[string]int{}, map[string]int{}
	tenants := map[string]*admission.TenantStats{}
	for i := range 4 {
		tenants[fmt.Sprint("t", i)] = new(admission.TenantStats)
	}
	for _, c := range w.calls {
		if c.over {
			continue
		}
		if !c.ended() {
			if late := time.Since(c.deadline); late > 0 {
				w.fail("request %d waits %v too long", c.id, late)
			}
			tenants[c.tenant].Queued++
			tenants[c.tenant].QueuedBytes += int64(c.bytes)
			continue
		}
		c.cancel()
		if c.asksTask {
			c.over = true
			continue
		}
		if c.ticket == nil {
			if c.fault == nil {
				w.fail("request %d has neither a ticket nor an error", c.id)
			}
			c.over = true
			continue
		}
		id := c.ticket.Replica()
		if !c.granted {
			c.granted, c.watched = true, c.ticket.Watched()
			w.logf("%d goes to %s of %s", c.id, id, c.ticket.Model)
		}
		loads[id]++
		if c.watched {
			prefill[id]++
			tenants[c.tenant].Prefill++
		}
		if c.task == "" {
			leases[c.ticket.Model]++
			tenants[c.tenant].Running++
		}
	}
	for _, h := range w.carried {
		loads[h.Replica]++
		if !h.SlotOnly {
			leases[h.Model]++
			tenants[h.Tenant].Running++
		}
	}
	for name, want := range tenants {
		got := w.config.Admission.Tenant(name)
		if got.Queued != want.Queued || got.QueuedBytes != want.QueuedBytes || got.Prefill != want.Prefill || got.Running < want.Running {
			w.fail("tenant %s: %+v, want %+v", name, got, want)
		}
	}
	for _, m := range randomModels {
		if st := w.config.Admission.Stats(m); st.InFlight < leases[m] && w.table.Load().routes[m] != nil {
			w.fail("model %s: %+v, want %d", m, st, leases[m])
		}
	}
	for _, id := range []string{"a-0", "a-1", "a-2", "b-0", "b-1", "b-2", "s-0", "s-1", "s-2"} {
		if got := w.Load(id); got != loads[id] {
			w.fail("%s has a load of %d, want %d", id, got, loads[id])
		}
		c := w.counter(id)
		if c == nil {
			if loads[id] != 0 {
				w.fail("%s has no counter", id)
			}
			continue
		}
		if got := int(c.prefill.Load()); got != prefill[id] {
			w.fail("%s has %d in prefill, want %d", id, got, prefill[id])
		}
		sum := int64(0)
		for _, n := range c.byAddress {
			sum += n.Load()
		}
		if sum != c.load.Load() {
			w.fail("%s has %d by address, %d in all", id, sum, c.load.Load())
		}
	}
}

func (w *randomWorld) counter(id string) *counter {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.counters[id]
}

// free returns a replica of a model that has a free slot for any request.
func (w *randomWorld) free(model string) string {
	t := w.table.Load().routes[model]
	if t == nil {
		return ""
	}
	for i := range t.replicas {
		if r := &t.replicas[i]; !r.full(r.load.Load()) {
			return r.id
		}
	}
	return ""
}

// checkNobodyWaits checks that no request waits for a model that has a free slot.
func (w *randomWorld) checkNobodyWaits() {
	w.t.Helper()
	for _, m := range randomModels {
		v, ok := w.View(m)
		if !ok {
			continue
		}
		st := w.config.Admission.Stats(m)
		l := w.policy.Limits
		if st.Queued > st.AtTenantLimits && (l.MaxConcurrent == 0 || st.InFlight < l.MaxConcurrent) && !st.LacksTokens && w.policy.Strategy != Prefix {
			if id := w.free(m); id != "" {
				w.fail("%d wait for %s, and %s has a free slot: %+v, %+v", st.Queued, m, id, v, st)
			}
		}
	}
}

// checkNobodyWaitsInVain checks that no request waits for a model or a pool that has no hope.
func (w *randomWorld) checkNobodyWaitsInVain() {
	w.t.Helper()
	table := w.table.Load()
	for _, c := range w.waiting() {
		if c.task != "" || c.asksTask {
			continue
		}
		names, isPool := table.pools[c.model]
		if !isPool {
			names = []string{c.model}
		}
		hopeless, waits := false, false
		for _, name := range names {
			t := table.routes[name]
			if t == nil || table.drained[name] && isPool || !t.serves() {
				continue
			}
			hopeless, waits = hopeless || t.hopeless(), waits || len(t.replicas) > 0 || !t.hopeless()
		}
		if hopeless && !waits {
			w.fail("request %d waits for %s, which has no hope", c.id, c.model)
		}
	}
}

func (w *randomWorld) finish() {
	w.logf("the end")
	for _, c := range w.carried {
		c.Release()
	}
	w.carried = nil
	for {
		synctest.Wait()
		w.check()
		all := w.running()
		for _, c := range all {
			w.end(c)
		}
		if len(all)+len(w.waiting()) == 0 {
			break
		}
		time.Sleep(time.Second)
		synctest.Wait()
	}
	time.Sleep(10 * time.Hour) // tasks expire, suspensions end
	synctest.Wait()
	for _, m := range randomModels {
		if st := w.config.Admission.Stats(m); st.InFlight != 0 || st.Queued != 0 || st.QueuedBytes != 0 {
			w.fail("%s: left over: %+v", m, st)
		}
		w.fleet.Set("test-"+m, engines.Part{})
	}
	w.rebuild()
	w.check()
	for i := range 4 {
		name := fmt.Sprint("t", i)
		got := w.config.Admission.Tenant(name)
		if got.Quota = (admission.Quota{}); got != (admission.TenantStats{}) {
			w.fail("tenant %s: left over: %+v", name, got)
		}
	}
	if len(w.counters)+len(w.unpickable)+len(w.estimators)+len(w.cursors) != 0 {
		w.fail("left over: %v, %v", w.counters, w.unpickable)
	}
	n := len(w.ids.held)
	w.ids.running.Range(func(any, any) bool { n++; return true })
	if n != 0 || w.held.first != nil {
		w.fail("%d ids left, or a ticket", n)
	}
}

// TestCountersWhileTheWorldChanges has requests come, move and end at random, while servers, rules,
// weights and drains change and hours pass. After each step the counters of replicas and tenants
// are those of the requests that are known, and no request waits where it could go or must be
// refused.
func TestCountersWhileTheWorldChanges(t *testing.T) {
	t.Parallel()
	const runs, steps = 80, 300
	for seed := range uint64(runs) {
		synctest.Test(t, func(t *testing.T) {
			w := newRandomWorld(t, seed)
			for range steps {
				w.step()
				w.check()
				w.checkNobodyWaits()
				w.checkNobodyWaitsInVain()
				w.checkPools()
			}
			w.finish()
		})
	}
}
