package admission_test

import (
	"context"
	"math"
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
	buckets  map[string]*fakeBucket
	gateways []*fakeShared
	reported int
}

// fakeBucket is a bucket in fractions of a token.
type fakeBucket struct {
	size, left float64
	at         time.Time
}

func newFakeStore() *fakeStore {
	return &fakeStore{leases: map[string]admission.Claim{}, expires: map[string]time.Time{}, prefill: map[string]bool{}, buckets: map[string]*fakeBucket{}}
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
		b = &fakeBucket{size: float64(perMinute), left: float64(perMinute), at: time.Now()}
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
		b.left = math.Max(math.Min(b.left-n, b.size), -b.size)
	}
}

func (s *fakeStore) countLocked(of func(admission.Claim) bool) int {
	n := 0
	for id, c := range s.leases {
		if at, ok := s.expires[id]; ok && !time.Now().Before(at) {
			delete(s.leases, id)
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
	ofModel := func(o admission.Claim) bool { return o.Model == c.Model }
	ofTenant := func(o admission.Claim) bool { return o.Tenant == c.Tenant }
	model, replica := s.countLocked(ofModel), s.countLocked(func(o admission.Claim) bool { return o.Replica == c.Replica })
	if c.Task != nil && c.Task.Key != "" {
		for id, o := range s.leases {
			if o.Task != nil && o.Task.Key == c.Task.Key && o.Tenant == c.Tenant {
				t := s.taskLocked(id)
				return admission.Verdict{Task: &t, ModelInUse: model}
			}
		}
	}
	tokens := s.bucketLocked("model "+c.Model, c.Limits.TokensPerMinute)
	own := s.bucketLocked("tenant "+c.Tenant, c.TenantLimits.TokensPerMinute)
	requests := s.bucketLocked("requests "+c.Tenant, c.TenantLimits.RequestsPerMinute)
	v := admission.Verdict{ModelInUse: model, ReplicaInUse: replica}
	switch {
	case requests.wait(1) > 0:
		v.Reason, v.Wait = admission.TenantRequests, requests.wait(1)
	case own.wait(float64(c.Tokens)) > 0:
		v.Reason, v.Wait = admission.TenantTokens, own.wait(float64(c.Tokens))
	case reached(s.countLocked(ofTenant), c.TenantLimits.MaxConcurrent):
		v.Reason = admission.TenantStreams
	case c.Prefill && reached(s.countLocked(func(o admission.Claim) bool { return ofTenant(o) && s.prefill[o.ID] }), c.TenantLimits.MaxPrefill):
		v.Reason = admission.TenantPrefill
	case reached(model, c.Limits.MaxConcurrent):
		v.Reason = admission.ModelConcurrency
	case c.Replica != "" && reached(replica, c.ReplicaLimit):
		v.Reason = admission.ReplicaFull
	case tokens.wait(float64(c.Tokens)) > 0:
		v.Reason, v.Wait = admission.ModelTokens, tokens.wait(float64(c.Tokens))
	default:
		s.addLeaseLocked(c)
		tokens.charge(float64(c.Tokens))
		own.charge(float64(c.Tokens))
		requests.charge(1)
		v.ModelInUse++
	}
	v.Quota = admission.Quota{Requests: requests.allowance(), Tokens: own.allowance()}
	return v
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
		g.correctLocked(c.Model, c.Tenant, tokens)
		if b := g.buckets["requests "+c.Tenant]; unused && b != nil {
			b.charge(-1)
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

func (g *fakeShared) correctLocked(model, tenant string, tokens int64) {
	for _, name := range []string{"model " + model, "tenant " + tenant} {
		if b := g.buckets[name]; b != nil {
			b.charge(-float64(tokens))
		}
	}
}

// FirstToken implements admission.Shared.
func (g *fakeShared) FirstToken(id string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.prefill, id)
}

// Correct implements admission.Shared.
func (g *fakeShared) Correct(model, tenant string, tokens int64) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.correctLocked(model, tenant, tokens)
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
	if c, ok := g.leases[id]; !ok || c.Tenant != tenant || c.Task == nil {
		return admission.Task{}, admission.ErrUnknownTask
	}
	return g.taskLocked(id), nil
}

// EndTask implements admission.Shared.
func (g *fakeShared) EndTask(ctx context.Context, tenant, id string, tokens func(admission.Task) int64) error {
	t, err := g.Task(ctx, tenant, id)
	if err != nil {
		return err
	}
	g.mu.Lock()
	_, ok := g.leases[id]
	if ok {
		delete(g.leases, id)
		g.correctLocked(t.Model, t.Tenant, tokens(t))
	}
	g.mu.Unlock()
	if !ok {
		return admission.ErrUnknownTask
	}
	return nil
}

// RenewTask implements admission.Shared.
func (g *fakeShared) RenewTask(ctx context.Context, tenant, id string, lease time.Duration) error {
	if _, err := g.Task(ctx, tenant, id); err != nil {
		return err
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.expires[id] = time.Now().Add(lease)
	return nil
}

// Subscribe implements admission.Shared.
func (g *fakeShared) Subscribe(l admission.Subscriber) { g.subscriber = l }

// leaseCount is the number of leases in the store.
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
