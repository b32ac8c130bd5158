package admission

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"testing/synctest"
	"time"
)

// tenantModel is what a tenant has and owes, written a second time and as plainly as possible. Its
// waiters and its running requests are counted anew each time.
type tenantModel struct {
	limits           TenantLimits
	requests, tokens levelModel
}

// levelModel is a bucket in units of bucket.level.
type levelModel struct{ perMinute, level, floor int64 }

func (l *levelModel) resize(perMinute int, floor int64) {
	was := l.perMinute
	l.perMinute, l.floor = int64(perMinute), -floor*int64(perMinute)*unitsPerToken
	if was == 0 {
		l.level = l.perMinute * unitsPerToken
	}
	l.add(0)
}

// add adds units, up to the size, down to the floor.
func (l *levelModel) add(units int64) {
	l.level = min(max(l.level+units, l.floor), l.perMinute*unitsPerToken)
}

func (l *levelModel) pass(d time.Duration) { l.add(d.Microseconds() * l.perMinute) }

// lacks reports whether the bucket has less than so many tokens.
func (l *levelModel) lacks(tokens int64) bool {
	return l.perMinute > 0 && l.level/unitsPerToken < tokens
}

// taskModel is a task and what its requests have used.
type taskModel struct {
	id                      string
	tenant                  *tenantModel
	name                    string
	lease                   *randomLease
	charged, used, requests int64
	ended                   bool
}

// spend adds what a request uses, and returns what its tenant is charged.
func (a *taskModel) spend(tokens, requests int64) (chargedTokens, chargedRequests int64) {
	before, beforeRequests := max(a.charged, a.used), max(1, a.requests)
	a.used, a.requests = a.used+tokens, a.requests+requests
	return max(a.charged, a.used) - before, max(1, a.requests) - beforeRequests
}

// randomLease is a request, or the lease of a task.
type randomLease struct {
	id          int
	name        string
	tenant      *tenantModel
	call        *admitCall
	lease       *Lease
	cancel      context.CancelFunc
	r           Request
	deadline    time.Time
	task        *taskModel // of which it is a request
	isTask      bool
	counted     bool // as admitted
	over        bool
	prefill     bool
	corrected   bool
	cost        int64
	needTokens  int64 // what is reserved for it while it waits
	needRequest int64
}

func (l *randomLease) waits() bool { return !l.over && l.lease == nil && !l.call.state().ended }

// tenantsRun runs a Controller and the model of its tenants side by side.
type tenantsRun struct {
	testController
	random  *rand.Rand
	tenants map[string]*tenantModel
	// most is MaxConcurrent of each model, pool the models of the pool auto.
	most  map[string]int
	pool  []string
	all   []*randomLease
	tasks []*taskModel
	log   []string
}

func (w *tenantsRun) logf(format string, args ...any) {
	w.log = append(w.log, fmt.Sprintf(format, args...))
}

func (w *tenantsRun) fail(format string, args ...any) {
	w.t.Helper()
	for _, line := range w.log[max(0, len(w.log)-40):] {
		w.t.Log(line)
	}
	for _, l := range w.all {
		if l.cancel != nil {
			l.cancel()
		}
	}
	w.t.Fatalf(format, args...)
}

func (w *tenantsRun) setTenants() {
	limits := map[string]TenantLimits{}
	one := func(of ...int) int { return of[w.random.IntN(len(of))] }
	var order []string
	for i := range 4 {
		name := fmt.Sprint("t", i)
		order = append(order, name)
		l := TenantLimits{Weight: 1 + w.random.IntN(20), MaxConcurrent: one(0, 0, 6, 10), MaxPrefill: one(0, 1, 1, 2), MaxQueueBytes: int64(one(0, 0, 0, 1000)),
			RequestsPerMinute: one(0, 0, 6, 60), TokensPerMinute: one(0, 0, 1000, 6000)}
		if w.tenants[name] != nil && w.random.IntN(3) == 0 {
			l = w.tenants[name].limits
		}
		limits[name] = l
	}
	w.logf("tenants %+v", limits)
	for _, name := range order {
		m := w.tenants[name]
		if m == nil {
			m = &tenantModel{}
			w.tenants[name] = m
		}
		if m.limits == limits[name] {
			continue
		}
		m.limits = limits[name]
		m.requests.resize(m.limits.RequestsPerMinute, 1)
		m.tokens.resize(m.limits.TokensPerMinute, maxDebtMinutes)
		w.refuseOverLimits(m)
	}
	w.SetTenants(limits)
	synctest.Wait()
}

// refuseOverLimits says whom a change of limits refuses: the youngest first.
func (w *tenantsRun) refuseOverLimits(m *tenantModel) {
	for _, l := range slices.Backward(w.all) {
		if l.tenant != m || !l.waits() {
			continue
		}
		s := w.sums(m)
		per := int64(m.limits.TokensPerMinute)
		switch {
		case per > 0 && l.needTokens > per,
			m.limits.MaxQueueBytes > 0 && s.bytes > m.limits.MaxQueueBytes && l.r.Bytes > 0,
			l.task == nil && m.limits.MaxConcurrent > 0 && s.running+s.needLease > m.limits.MaxConcurrent,
			l.task == nil && (m.requests.lacks(s.needRequests) || m.tokens.lacks(s.needTokens)):
			l.over = true
			w.logf("%d is to be refused", l.id)
		}
	}
}

type tenantSums struct {
	running, prefill, waiting, needLease int
	bytes, needRequests, needTokens      int64
}

func (w *tenantsRun) sums(m *tenantModel) (s tenantSums) {
	for _, l := range w.all {
		switch {
		case l.tenant != m || l.over:
		case l.counted:
			if l.task == nil {
				s.running++
			}
			if l.prefill {
				s.prefill++
			}
		default:
			s.waiting++
			if l.task == nil {
				s.needLease++
			}
			s.bytes, s.needRequests, s.needTokens = s.bytes+int64(l.r.Bytes), s.needRequests+l.needRequest, s.needTokens+l.needTokens
		}
	}
	return s
}

// arrive starts a request, which belongs to a task or to none, and checks that it is refused where
// the limits of its tenant refuse it.
func (w *tenantsRun) arrive(task *taskModel) {
	l := &randomLease{id: len(w.all), name: fmt.Sprint("t", w.random.IntN(4)), task: task, needRequest: 1}
	if task != nil {
		l.name = task.name
	}
	m := w.tenants[l.name]
	l.tenant = m
	l.r = Request{Tenant: l.name, Priority: Priority(w.random.IntN(3) - 1), Tokens: 1 + w.random.IntN(60),
		Bytes: w.random.IntN(400), Prefill: w.random.IntN(2) == 0,
		Timeout: time.Duration(1+w.random.IntN(60)) * time.Second}
	if w.random.IntN(10) == 0 {
		l.r.Tokens = w.random.IntN(4000) + 1
	}
	l.needTokens = int64(l.r.Tokens)
	switch n := w.random.IntN(4); {
	case task != nil:
		l.r.Model = task.lease.lease.Model()
	case n == 0 && len(w.pool) > 0:
		l.r.Pool = "auto"
	default:
		l.r.Model = w.anyModel()
	}
	if task != nil {
		l.r.UnderTask = task.id
		trial := *task
		l.needTokens, l.needRequest = trial.spend(l.needTokens, 1)
	}
	s := w.sums(m)
	want := Granted
	never := m.limits.TokensPerMinute > 0 && l.needTokens > int64(m.limits.TokensPerMinute)
	switch {
	case never:
	case task == nil && isReached(s.running+s.needLease, m.limits.MaxConcurrent):
		want = TenantStreams
	case l.needRequest > 0 && m.requests.lacks(s.needRequests+l.needRequest):
		want = TenantRequests
	case (task == nil || l.needTokens > 0) && m.tokens.lacks(s.needTokens+l.needTokens):
		want = TenantTokens
	}
	w.logf("%d of %s arrives for %s%s: priority %d, %d tokens, %d bytes, prefill %v, under %s",
		l.id, l.name, l.r.Model, l.r.Pool, l.r.Priority, l.r.Tokens, l.r.Bytes, l.r.Prefill, l.r.UnderTask)
	var ctx context.Context
	ctx, l.cancel = context.WithCancel(w.t.Context())
	l.deadline = time.Now().Add(l.r.Timeout)
	l.call = w.start(ctx, l.r)
	got := l.call.state()
	reason := Granted
	var refused *Refused
	if errors.As(got.err, &refused) {
		reason = refused.Reason
	}
	byBytes := m.limits.MaxQueueBytes > 0 && s.bytes+int64(l.r.Bytes) > m.limits.MaxQueueBytes
	switch {
	case never != errors.Is(got.err, ErrNeverFits):
		w.fail("request %d: %v, never fits: %v", l.id, got.err, never)
	case never:
	case reason == TenantBytes && !byBytes, reason != TenantBytes && reason != want, byBytes && want == Granted && !got.ended:
		w.fail("request %d: %v, want %v; %+v", l.id, got.err, want, s)
	}
	l.over = got.err != nil
	w.all = append(w.all, l)
}

// schedule asks for a task that does not wait.
func (w *tenantsRun) schedule() {
	l := &randomLease{id: len(w.all), name: fmt.Sprint("t", w.random.IntN(4)), isTask: true, call: &admitCall{}}
	l.tenant = w.tenants[l.name]
	l.r = Request{Tokens: 1 + w.random.IntN(100), Model: w.anyModel()}
	task, wait, err := w.Schedule(w.t.Context(), TaskRequest{Model: l.r.Model, Tenant: l.name, Tokens: l.r.Tokens,
		Lease: 1000 * time.Hour, Lifetime: 1000 * time.Hour})
	w.logf("%d is a task of %s with %d tokens: %v %v %v", l.id, l.name, l.r.Tokens, task.ID, wait, err)
	if err != nil && !errors.Is(err, ErrNeverFits) || err == nil && task.ID == "" && wait <= 0 {
		w.fail("task: %v, %v", wait, err)
	}
	if task.ID == "" {
		return
	}
	w.mu.Lock()
	l.lease = w.Controller.tasks.byID[task.ID].lease
	w.mu.Unlock()
	w.all = append(w.all, l)
	w.tasks = append(w.tasks, &taskModel{id: task.ID, tenant: l.tenant, name: l.name, lease: l, charged: int64(l.r.Tokens)})
	w.count(l)
}

// count charges a request that was admitted.
func (w *tenantsRun) count(l *randomLease) {
	l.counted, l.prefill = true, l.r.Prefill
	tokens, requests := int64(l.r.Tokens), int64(1)
	if l.task != nil {
		tokens, requests = l.task.spend(tokens, requests)
	}
	l.tenant.tokens.add(-tokens * unitsPerToken)
	l.tenant.requests.add(-requests * unitsPerToken)
}

// settle counts what has happened since the last step.
func (w *tenantsRun) settle() {
	for _, l := range w.all {
		if l.over || l.counted || l.isTask {
			continue
		}
		switch got := l.call.state(); {
		case got.lease != nil:
			w.logf("%d is admitted", l.id)
			l.lease = got.lease
			w.count(l)
		case got.err != nil:
			w.logf("%d ends: %v", l.id, got.err)
			l.over = true
		}
	}
}

func (w *tenantsRun) running(of func(*randomLease) bool) (all []*randomLease) {
	for _, l := range w.all {
		if l.counted && of(l) {
			all = append(all, l)
		}
	}
	return all
}

// correct tells a request's cost, for the first time or again.
func (w *tenantsRun) correct(l *randomLease) {
	cost := int64(w.random.IntN(200)) - 20
	if w.random.IntN(20) == 0 {
		cost *= 1000
	}
	w.logf("%d has cost %d", l.id, cost)
	before := int64(l.r.Tokens)
	if !l.corrected {
		l.lease.Correct(int(cost))
	} else {
		before = l.cost
		l.lease.CorrectAgain(int(cost))
	}
	if cost < 0 {
		return
	}
	l.corrected, l.cost = true, cost
	more := cost - before
	if l.task != nil {
		more, _ = l.task.spend(more, 0)
	}
	l.tenant.tokens.add(-more * unitsPerToken)
}

func (w *tenantsRun) complete(a *taskModel) {
	declared := w.random.IntN(200) - 20
	w.logf("task %d ends with %d", a.lease.id, declared)
	if err := w.Complete(w.t.Context(), a.name, a.id, declared); err != nil {
		w.fail("%v", err)
	}
	a.ended = true
	if declared >= 0 {
		before := max(a.charged, a.used)
		a.charged = int64(declared)
		a.tenant.tokens.add((before - max(a.charged, a.used)) * unitsPerToken)
	}
	for _, l := range w.all {
		if l.task == a && l.waits() {
			l.over = true // refused by now
		}
	}
	w.endTask(a)
}

// endTask ends the lease of an ended task without requests.
func (w *tenantsRun) endTask(a *taskModel) {
	left := w.running(func(l *randomLease) bool { return l.task == a && !l.over })
	if a.ended && len(left) == 0 {
		a.lease.over = true
	}
}

// pass lets time pass, and stops at each deadline of a waiter.
func (w *tenantsRun) pass(d time.Duration) {
	for until := time.Now().Add(d); time.Now().Before(until); w.settle() {
		next := until
		for _, l := range w.all {
			if l.waits() && l.deadline.Before(next) {
				next = l.deadline
			}
		}
		step := time.Until(next)
		time.Sleep(step)
		synctest.Wait()
		for _, m := range w.tenants {
			m.requests.pass(step)
			m.tokens.pass(step)
		}
	}
}

func (w *tenantsRun) step() {
	live := func(l *randomLease) bool { return !l.over && !l.isTask }
	pick := func(all []*randomLease) *randomLease {
		if len(all) == 0 {
			return nil
		}
		return all[w.random.IntN(len(all))]
	}
	switch n := w.random.IntN(100); {
	case n < 35:
		w.arrive(nil)
	case n < 41:
		w.schedule()
	case n < 55:
		if len(w.tasks) > 0 {
			if a := w.tasks[len(w.tasks)-1-w.random.IntN(min(len(w.tasks), 3))]; !a.ended {
				w.arrive(a)
			}
		}
	case n < 58:
		if len(w.tasks) > 0 {
			if a := w.tasks[w.random.IntN(len(w.tasks))]; !a.ended {
				w.complete(a)
			}
		}
	case n < 67:
		if l := pick(w.running(live)); l != nil {
			w.logf("%d is released", l.id)
			l.over, l.prefill = true, false
			l.lease.Release()
			if l.task != nil {
				w.endTask(l.task)
			}
		}
	case n < 72:
		if l := pick(w.running(live)); l != nil {
			w.logf("%d has its first token", l.id)
			l.prefill = false
			l.lease.FirstToken()
		}
	case n < 78:
		if l := pick(w.running(func(l *randomLease) bool { return !l.isTask })); l != nil {
			w.correct(l)
		}
	case n < 82:
		var waiting []*randomLease
		for _, l := range w.all {
			if l.waits() {
				waiting = append(waiting, l)
			}
		}
		if l := pick(waiting); l != nil {
			w.logf("%d leaves", l.id)
			l.over = true
			l.cancel()
		}
	case n < 86:
		w.setTenants()
	case n < 88:
		w.setLimits(w.anyModel())
	case n < 90:
		w.setPools()
	case n < 91:
		m := w.anyModel()
		w.logf("%s is removed and back", m)
		w.Remove(m)
		w.SetLimits(m, Limits{MaxConcurrent: w.most[m]})
	default:
		d := time.Duration(w.random.IntN(1<<w.random.IntN(25)+1)) * time.Microsecond
		w.logf("%v pass", d)
		w.pass(d)
	}
	synctest.Wait()
	w.settle()
	w.pass(time.Microsecond) // no two requests come at the same time
}

var tenantModels = []string{"chat", "embed"}

func (w *tenantsRun) anyModel() string { return tenantModels[w.random.IntN(len(tenantModels))] }

func (w *tenantsRun) setLimits(model string) {
	w.most[model] = []int{0, 1, 2, 3, 5, 8}[w.random.IntN(6)]
	w.logf("%d at once for %s", w.most[model], model)
	w.SetLimits(model, Limits{MaxConcurrent: w.most[model], Weight: w.random.IntN(5)})
}

func (w *tenantsRun) setPools() {
	w.pool = [][]string{nil, {"chat"}, {"embed"}, {"chat", "embed"}, {"embed", "chat"}}[w.random.IntN(5)]
	w.logf("pool of %v", w.pool)
	pools := map[string][]string{}
	if w.pool != nil {
		pools["auto"] = w.pool
	}
	w.SetPools(pools)
}

func (w *tenantsRun) compare() {
	w.t.Helper()
	for name, m := range w.tenants {
		s := w.sums(m)
		allowance := func(l *levelModel, reserved int64) (limit, remaining int64) {
			if l.perMinute == 0 {
				return 0, 0
			}
			return l.perMinute, max(l.level/unitsPerToken-reserved, 0)
		}
		got := w.Tenant(name)
		limit, remaining := allowance(&m.requests, s.needRequests)
		if a := got.Quota.Requests; a.Limit != limit || a.Remaining != remaining {
			w.fail("%s may send %+v requests, want %d of %d", name, a, remaining, limit)
		}
		limit, remaining = allowance(&m.tokens, s.needTokens)
		if a := got.Quota.Tokens; a.Limit != limit || a.Remaining != remaining {
			w.fail("%s may use %+v tokens, want %d of %d, level %d", name, a, remaining, limit, m.tokens.level)
		}
		if got.Running != s.running || got.Prefill != s.prefill || got.Queued != s.waiting || got.QueuedBytes != s.bytes {
			w.fail("%s: %+v, want %+v", name, got, s)
		}
	}
	inFlight, queued := map[string]int{}, map[string]int{}
	for _, l := range w.all {
		switch {
		case l.over:
		case l.counted && l.task == nil:
			inFlight[l.lease.Model()]++
		case !l.counted:
			queued[l.r.Model]++
		}
	}
	for _, m := range tenantModels {
		if got := w.Stats(m); got.InFlight != inFlight[m] || got.Queued != queued[m] {
			w.fail("%s: %+v, want %d in flight, %d queued", m, got, inFlight[m], queued[m])
		}
	}
	if got := w.PoolStats("auto"); got.Queued != queued[""] {
		w.fail("pool: %+v, want %d queued", got, queued[""])
	}
	w.compareWaiting(inFlight)
}

// compareWaiting checks that nobody waits who could go: the first of each flow waits for a lease,
// or for the first tokens of its tenant.
func (w *tenantsRun) compareWaiting(inFlight map[string]int) {
	w.t.Helper()
	first := map[string]bool{}
	for _, l := range w.all {
		flow := fmt.Sprint(l.name, l.r.Priority, l.r.Model)
		if !l.waits() || first[flow] {
			continue
		}
		first[flow] = true
		if l.r.Prefill && isReached(w.sums(l.tenant).prefill, l.tenant.limits.MaxPrefill) {
			continue
		}
		models := w.pool
		if l.r.Pool == "" {
			models = []string{l.r.Model}
		}
		for _, m := range models {
			if l.task != nil || !isReached(inFlight[m], w.most[m]) {
				w.fail("request %d waits for nothing: %v run", l.id, inFlight)
			}
		}
	}
}

// TestTenantsAgainstTheirModel makes random requests of several tenants, with and without tasks,
// and changes of limits and of weights. After each step the counts and the quotas of each tenant
// must be those of the model.
func TestTenantsAgainstTheirModel(t *testing.T) {
	t.Parallel()
	const runs, steps = 200, 150
	for seed := range uint64(runs) {
		synctest.Test(t, func(t *testing.T) {
			w := &tenantsRun{random: rand.New(rand.NewPCG(seed, 7)), tenants: map[string]*tenantModel{}, most: map[string]int{},
				testController: testController{New(Config{}), t}}
			for _, m := range tenantModels {
				w.setLimits(m)
			}
			w.setPools()
			w.setTenants()
			for range steps {
				w.step()
				w.compare()
			}
			for _, l := range w.all {
				if l.cancel != nil {
					l.cancel()
				}
			}
			synctest.Wait()
			for _, l := range w.all {
				if l.lease != nil {
					l.lease.Release()
				}
			}
		})
	}
}
