package admission_test

import (
	"context"
	"math"
	"strings"
	"sync"
	"time"

	"github.com/sluice-gateway/sluice/admission"
)

// fakeStore is the state that gateways share, kept in memory.
type fakeStore struct {
	mu       sync.Mutex
	leases   map[string]admission.Claim
	expires  map[string]time.Time
	prefill  map[string]bool
	accounts map[string]*fakeAccount
	buckets  map[string]*fakeBucket
	gateways []*fakeShared
	reported int
}

// fakeAccount is what the requests of a task have used.
type fakeAccount struct {
	estimate, used, requests int64
	running                  map[string]bool
	ended                    bool
	until                    time.Time
}

// fakeBucket is a bucket in fractions of a token.
type fakeBucket struct {
	size, left, debt float64
	at               time.Time
}

func newFakeStore() *fakeStore {
	return &fakeStore{leases: map[string]admission.Claim{}, expires: map[string]time.Time{}, prefill: map[string]bool{}, accounts: map[string]*fakeAccount{}, buckets: map[string]*fakeBucket{}}
}

// fakeShared is the admission.Shared of one gateway.
type fakeShared struct {
	*fakeStore
	subscriber admission.Subscriber

	// The fields below are guarded by fakeStore.mu.

	delay time.Duration
	down  bool
	// stale is the number of next claims that are answered with Stale.
	stale int
	asked [][]admission.Claim
	// beforeAnswer runs during an inquiry.
	beforeAnswer func()
	live         int
}

func (s *fakeStore) newShared() *fakeShared {
	g := &fakeShared{fakeStore: s, delay: time.Millisecond}
	s.gateways = append(s.gateways, g)
	return g
}

func (s *fakeStore) bucketLocked(name string, perMinute int) *fakeBucket {
	b := s.buckets[name]
	if b == nil || b.size != float64(perMinute) {
		b = &fakeBucket{size: float64(perMinute), left: float64(perMinute), debt: 1, at: time.Now()}
		if strings.HasPrefix(name, "tenant ") {
			b.debt = 60
		}
		s.buckets[name] = b
	}
	now := time.Now()
	b.left = math.Min(b.size, b.left+b.size*now.Sub(b.at).Minutes())
	b.at = now
	return b
}

// wait is how long n tokens take to come.
func (b *fakeBucket) wait(n float64) time.Duration {
	if b.size <= 0 || b.left >= n-1e-6 {
		return 0
	}
	return time.Duration((n-b.left)/b.size*float64(time.Minute)) + 1
}

func (b *fakeBucket) charge(n float64) {
	if b.size > 0 {
		b.left = math.Max(math.Min(b.left-n, b.size), -b.debt*b.size)
	}
}

func (s *fakeStore) countLocked(of func(admission.Claim) bool) int {
	n := 0
	for id, c := range s.leases {
		if at, ok := s.expires[id]; ok && !time.Now().Before(at) {
			if a := s.accounts[id]; a == nil || len(a.running) == 0 {
				delete(s.leases, id)
			}
			if a := s.accounts[id]; a != nil {
				a.ended = true
			}
			continue
		}
		if of(c) {
			n++
		}
	}
	return n
}

func reached(n, limit int) bool { return limit > 0 && n >= limit }

// decideLocked returns one verdict, and adds the lease of a granted claim.
func (s *fakeStore) decideLocked(c admission.Claim) admission.Verdict {
	ofModel := func(o admission.Claim) bool { return o.Model == c.Model && o.UnderTask == "" }
	ofTenant := func(o admission.Claim) bool { return o.Tenant == c.Tenant && o.UnderTask == "" }
	model, replica := s.countLocked(ofModel), s.countLocked(func(o admission.Claim) bool { return o.Replica == c.Replica })
	if c.Task != nil && c.Task.Key != "" {
		for id, o := range s.leases {
			if o.Task != nil && !s.accounts[id].ended && o.Task.Key == c.Task.Key && o.Tenant == c.Tenant {
				t := s.taskLocked(id)
				return admission.Verdict{Task: &t, ModelInUse: model}
			}
		}
	}
	tokens := s.bucketLocked("model "+c.Model, c.Limits.TokensPerMinute)
	own := s.bucketLocked("tenant "+c.Tenant, c.TenantLimits.TokensPerMinute)
	requests := s.bucketLocked("requests "+c.Tenant, c.TenantLimits.RequestsPerMinute)
	v := admission.Verdict{ModelInUse: model}
	task, under := s.leases[c.UnderTask], c.UnderTask != ""
	account := s.accounts[c.UnderTask]
	needTokens, needRequests := s.excessLocked(c.UnderTask, c.Tokens, 1)
	switch {
	case under && (account == nil || account.ended || task.Tenant != c.Tenant || task.Model != c.Model):
		v.Reason = admission.TaskEnded
	case under && len(account.running) > 0:
		v.Reason = admission.TaskBusy
	case needRequests > 0 && requests.wait(1) > 0:
		v.Reason, v.Wait = admission.TenantRequests, requests.wait(1)
	case !(under && needTokens == 0) && own.wait(needTokens) > 0:
		v.Reason, v.Wait = admission.TenantTokens, own.wait(needTokens)
	case !under && reached(s.countLocked(ofTenant), c.TenantLimits.MaxConcurrent):
		v.Reason = admission.TenantStreams
	case c.Prefill && reached(s.countLocked(func(o admission.Claim) bool { return o.Tenant == c.Tenant && s.prefill[o.ID] }), c.TenantLimits.MaxPrefill):
		v.Reason = admission.TenantPrefill
	case !under && reached(model, c.Limits.MaxConcurrent):
		v.Reason = admission.ModelConcurrency
	case c.Replica != "" && reached(replica, c.ReplicaLimit):
		v.Reason = admission.ReplicaFull
	case !(under && needTokens == 0) && tokens.wait(needTokens) > 0:
		v.Reason, v.Wait = admission.ModelTokens, tokens.wait(needTokens)
	case under:
		s.addLeaseLocked(c)
		s.spendLocked(c, c.Tokens, 1)
	default:
		s.addLeaseLocked(c)
		s.spendLocked(c, c.Tokens, 1)
		v.ModelInUse++
	}
	v.Quota = admission.Quota{Requests: requests.allowance(), Tokens: own.allowance()}
	return v
}

// excessLocked returns what a task does not cover of so many tokens and requests.
func (s *fakeStore) excessLocked(task string, tokens, requests int64) (float64, float64) {
	a := s.accounts[task]
	if a == nil {
		return float64(tokens), float64(requests)
	}
	estimate := a.estimate
	return float64(max(estimate, a.used+tokens) - max(estimate, a.used)), float64(max(1, a.requests+requests) - max(1, a.requests))
}

// spendLocked charges what a claim uses.
func (s *fakeStore) spendLocked(c admission.Claim, tokens, requests int64) {
	more, moreRequests := s.excessLocked(c.UnderTask, tokens, requests)
	if a := s.accounts[c.UnderTask]; a != nil {
		a.used, a.requests = a.used+tokens, a.requests+requests
	}
	for name, n := range map[string]float64{"model " + c.Model: more, "tenant " + c.Tenant: more, "requests " + c.Tenant: moreRequests} {
		if b := s.buckets[name]; b != nil {
			b.charge(n)
		}
	}
}

func (b *fakeBucket) allowance() admission.Allowance {
	if b.size <= 0 {
		return admission.Allowance{}
	}
	return admission.Allowance{Limit: int64(b.size), Remaining: int64(math.Max(b.left, 0)), Reset: b.wait(b.size)}
}

func (s *fakeStore) addLeaseLocked(c admission.Claim) {
	s.leases[c.ID] = c
	s.prefill[c.ID] = c.Prefill
	if a := s.accounts[c.UnderTask]; a != nil {
		a.running[c.ID] = true
	}
	if c.Task != nil {
		s.accounts[c.ID] = &fakeAccount{estimate: c.Tokens, running: map[string]bool{}, until: time.Now().Add(c.Task.Lifetime)}
	}
	if c.Task != nil {
		s.expires[c.ID] = time.Now().Add(c.Task.Lease)
	}
}

func (s *fakeStore) taskLocked(id string) admission.Task {
	c := s.leases[id]
	return admission.Task{ID: id, Model: c.Model, Tenant: c.Tenant, Tokens: c.Tokens, Expires: s.expires[id]}
}

// Acquire implements admission.Shared.
func (g *fakeShared) Acquire(claims []admission.Claim, done func([]admission.Verdict)) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.asked = append(g.asked, claims)
	beforeAnswer := g.beforeAnswer
	verdicts := make([]admission.Verdict, len(claims))
	var stopped *admission.Verdict
	for i, c := range claims {
		switch {
		case g.down:
			verdicts[i] = admission.Verdict{Reason: admission.Unavailable}
		case g.stale > 0:
			g.stale--
			verdicts[i] = admission.Verdict{Reason: admission.Stale}
		case stopped != nil:
			verdicts[i] = *stopped
		default:
			verdicts[i] = g.decideLocked(c)
			if r := verdicts[i].Reason; r == admission.ModelConcurrency || r == admission.ModelTokens {
				stopped = &verdicts[i]
			}
		}
	}
	delay := g.delay
	go func() {
		if beforeAnswer != nil {
			beforeAnswer()
		}
		time.Sleep(delay)
		done(verdicts)
	}()
}

// ReportLease implements admission.Shared.
func (g *fakeShared) ReportLease(c admission.Claim) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.reported++
	g.addLeaseLocked(c)
}

// Release implements admission.Shared.
func (g *fakeShared) Release(id string, tokens int64, unused bool) {
	g.mu.Lock()
	c, ok := g.leases[id]
	if ok {
		delete(g.leases, id)
		delete(g.expires, id)
		delete(g.prefill, id)
		requests := int64(0)
		if unused {
			requests = 1
		}
		g.spendLocked(c, -tokens, -requests)
		if a := g.accounts[c.UnderTask]; a != nil {
			delete(a.running, id)
			if a.ended && len(a.running) == 0 {
				delete(g.leases, c.UnderTask)
			}
		}
	}
	g.mu.Unlock()
	for _, other := range g.gateways {
		if ok && other != g && other.subscriber != nil {
			other.subscriber.CapacityFreed(c.Model)
			other.subscriber.TokensServed(c.Model, c.Tenant, c.Tokens)
		}
	}
}

// MoveSlot implements admission.Shared.
func (g *fakeShared) MoveSlot(id, replica string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if c, ok := g.leases[id]; ok {
		c.Replica = replica
		g.leases[id] = c
	}
}

// FirstToken implements admission.Shared.
func (g *fakeShared) FirstToken(id string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.prefill, id)
}

// Correct implements admission.Shared.
func (g *fakeShared) Correct(model, tenant, underTask string, tokens int64) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.spendLocked(admission.Claim{Model: model, Tenant: tenant, UnderTask: underTask}, -tokens, 0)
}

// Gateways implements admission.Shared.
func (g *fakeShared) Gateways() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return max(g.live, 1)
}

// Task implements admission.Shared.
func (g *fakeShared) Task(_ context.Context, tenant, id string) (admission.Task, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.down {
		return admission.Task{}, admission.ErrUnavailable
	}
	g.countLocked(func(admission.Claim) bool { return false }) // removes expired leases
	if c, ok := g.leases[id]; !ok || c.Tenant != tenant || c.Task == nil || g.accounts[id].ended {
		return admission.Task{}, admission.ErrUnknownTask
	}
	return g.taskLocked(id), nil
}

// FindTask implements admission.Shared.
func (g *fakeShared) FindTask(ctx context.Context, tenant, key string) (admission.Task, error) {
	g.mu.Lock()
	id := ""
	for of, c := range g.leases {
		if c.Task != nil && c.Task.Key == key && c.Tenant == tenant {
			id = of
		}
	}
	g.mu.Unlock()
	return g.Task(ctx, tenant, id)
}

// EndTask implements admission.Shared.
func (g *fakeShared) EndTask(ctx context.Context, tenant, id string, declared int64) error {
	t, err := g.Task(ctx, tenant, id)
	if err != nil {
		return err
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	a := g.accounts[id]
	if a.ended {
		return admission.ErrUnknownTask
	}
	charged := max(t.Tokens, a.used)
	if declared >= 0 {
		a.estimate = declared
	}
	a.ended, declared = true, a.estimate
	g.spendLocked(admission.Claim{Model: t.Model, Tenant: t.Tenant}, max(declared, a.used)-charged, 0)
	if len(a.running) == 0 {
		delete(g.leases, id)
	}
	return nil
}

// RenewTask implements admission.Shared.
func (g *fakeShared) RenewTask(ctx context.Context, tenant, id string, lease time.Duration) (admission.Task, error) {
	t, err := g.Task(ctx, tenant, id)
	if err != nil {
		return t, err
	}
	g.mu.Lock()
	lease = min(lease, time.Until(g.accounts[id].until))
	g.expires[id] = time.Now().Add(lease)
	t = g.taskLocked(id)
	g.mu.Unlock()
	for _, other := range g.gateways {
		if other != g && other.subscriber != nil {
			other.subscriber.TaskRenewed(id, lease)
		}
	}
	return t, nil
}

// Subscribe implements admission.Shared.
func (g *fakeShared) Subscribe(l admission.Subscriber) { g.subscriber = l }

func (s *fakeStore) leaseCount() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.countLocked(func(admission.Claim) bool { return true })
}

func (g *fakeShared) change(change func()) {
	g.mu.Lock()
	defer g.mu.Unlock()
	change()
}
