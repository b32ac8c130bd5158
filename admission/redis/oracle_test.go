package redis

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-gateway/sluice/admission"
	"github.com/sluice-gateway/sluice/internal/redistest"
)

// oracle does what the scripts do, in the plainest way: whole numbers, one step at a time, at the
// time that Redis has reported.
type oracle struct {
	now     int64 // microseconds
	lease   int64 // ms
	leases  map[string]oracleLease
	buckets map[bucketName]*oracleBucket
}

type oracleLease struct {
	claim   admission.Claim
	expires int64 // ms
}

// oracleBucket counts 60-millionths of a token. debt is the largest one, in buckets.
type oracleBucket struct{ size, units, at, debt int64 }

const oracleUnit = 60_000_000

func (o *oracle) bucket(kind byte, name string, size int64) *oracleBucket {
	b := o.buckets[bucketName{kind, name}]
	if b == nil {
		if size <= 0 {
			return nil
		}
		b = &oracleBucket{size, size * oracleUnit, o.now, 1}
		if kind == 't' {
			b.debt = 60
		}
		o.buckets[bucketName{kind, name}] = b
	}
	if elapsed := o.now - b.at; elapsed > 0 {
		b.units = min(b.size*oracleUnit, b.units+elapsed*b.size)
		b.at = o.now
	}
	if size > 0 {
		b.size = size
		b.units = max(min(b.units, size*oracleUnit), -b.debt*size*oracleUnit)
	}
	return b
}

func (b *oracleBucket) give(tokens int64) {
	if b != nil {
		b.units = max(min(b.units+tokens*oracleUnit, b.size*oracleUnit), -b.debt*b.size*oracleUnit)
	}
}

// wait tries whole microseconds, beginning with a guess that is too early.
func (b *oracleBucket) wait(tokens int64) time.Duration {
	if b == nil || b.units >= tokens*oracleUnit {
		return 0
	}
	missing := tokens*oracleUnit - b.units
	n := missing / b.size
	for n*b.size < missing {
		n++
	}
	return micros(n)
}

// Expired leases do not count. An expired lease that is released still gives back its tokens.
func (o *oracle) expired(l oracleLease) bool { return l.expires <= o.now/1000 }

func (o *oracle) count(matches func(admission.Claim) bool) int {
	n := 0
	for _, l := range o.leases {
		if !o.expired(l) && matches(l.claim) {
			n++
		}
	}
	return n
}

func (o *oracle) change(c change) {
	claim, id := c.claim, c.claim.ID
	_, there := o.leases[id]
	all := func(tokens, requests int64) {
		o.bucket('m', claim.Model, 0).give(tokens)
		o.bucket('t', claim.Tenant, 0).give(tokens)
		o.bucket('r', claim.Tenant, 0).give(requests)
	}
	owed, requests := c.owed(time.Now())
	switch c.kind {
	case leaseEnded:
		delete(o.leases, id)
		if there {
			all(c.tokens, c.requests)
		} else if requests > 0 {
			all(c.tokens-owed, c.requests-requests)
		}
	case firstToken:
		if there {
			l := o.leases[id]
			l.claim.Prefill = false
			o.leases[id] = l
		}
	case bucketsCorrected:
		all(c.tokens, 0)
	case leaseAlive:
		o.leases[id] = oracleLease{claim, o.now/1000 + o.lease}
		if !there {
			all(-owed, -requests)
		}
	}
}

func (o *oracle) decide(c admission.Claim) (admission.Reason, time.Duration) {
	l, t := c.Limits, c.TenantLimits
	model := o.bucket('m', c.Model, int64(l.TokensPerMinute))
	requests, tokens := o.bucket('r', c.Tenant, int64(t.RequestsPerMinute)), o.bucket('t', c.Tenant, int64(t.TokensPerMinute))
	full := func(limit int, matches func(admission.Claim) bool) bool {
		return limit > 0 && o.count(matches) >= limit
	}
	switch {
	case t.RequestsPerMinute > 0 && requests.wait(1) > 0:
		return admission.TenantRequests, requests.wait(1)
	case t.TokensPerMinute > 0 && tokens.wait(c.Tokens) > 0:
		return admission.TenantTokens, tokens.wait(c.Tokens)
	case full(t.MaxConcurrent, func(x admission.Claim) bool { return x.Tenant == c.Tenant }):
		return admission.TenantStreams, 0
	case c.Prefill && full(t.MaxPrefill, func(x admission.Claim) bool { return x.Tenant == c.Tenant && x.Prefill }):
		return admission.TenantPrefill, 0
	case full(l.MaxConcurrent, func(x admission.Claim) bool { return x.Model == c.Model }):
		return admission.ModelConcurrency, 0
	case c.Replica != "" && full(c.ReplicaLimit, func(x admission.Claim) bool { return x.Replica == c.Replica }):
		return admission.ReplicaFull, 0
	case l.TokensPerMinute > 0 && model.wait(c.Tokens) > 0:
		return admission.ModelTokens, model.wait(c.Tokens)
	}
	o.leases[c.ID] = oracleLease{c, o.now/1000 + o.lease}
	if l.TokensPerMinute > 0 {
		model.give(-c.Tokens)
	}
	if t.RequestsPerMinute > 0 {
		requests.give(-1)
	}
	if t.TokensPerMinute > 0 {
		tokens.give(-c.Tokens)
	}
	return admission.Granted, 0
}

func (o *oracle) call(claims []admission.Claim) []admission.Verdict {
	var out []admission.Verdict
	blocked := map[string]admission.Verdict{}
	for _, c := range claims {
		o.bucket('m', c.Model, int64(c.Limits.TokensPerMinute))
		o.bucket('t', c.Tenant, int64(c.TenantLimits.TokensPerMinute))
		o.bucket('r', c.Tenant, int64(c.TenantLimits.RequestsPerMinute))
		v, stop := blocked[c.Model]
		if l, known := o.leases[c.ID]; known && !o.expired(l) {
			v.Reason, v.Wait = admission.Granted, 0
		} else if !stop {
			v.Reason, v.Wait = o.decide(c)
		}
		v.ModelInUse = o.count(func(x admission.Claim) bool { return x.Model == c.Model })
		t := c.TenantLimits
		v.Quota.Requests = o.allowance('r', c.Tenant, t.RequestsPerMinute)
		v.Quota.Tokens = o.allowance('t', c.Tenant, t.TokensPerMinute)
		if v.Reason == admission.ModelConcurrency || v.Reason == admission.ModelTokens {
			blocked[c.Model] = v
		}
		out = append(out, v)
	}
	return out
}

func (o *oracle) allowance(kind byte, tenant string, size int) admission.Allowance {
	b := o.bucket(kind, tenant, int64(size))
	if size <= 0 {
		return admission.Allowance{}
	}
	units := b.units
	if units < 0 { // integer division must round down, also below zero
		units = 0
	}
	return admission.Allowance{Limit: int64(size), Remaining: units / oracleUnit, Reset: b.wait(b.size)}
}

// TestOracle runs random syncs, one at a time, on a single Redis and on a cluster.
func TestOracle(t *testing.T) {
	t.Parallel()
	for name, start := range servers(t) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			url, seen := redistest.URL(start(t)...), map[admission.Reason]int{}
			for seed := range uint64(3) {
				cfg := Config{Server: Server{URL: url}, Gateway: fmt.Sprint("oracle", seed), Deployment: fmt.Sprint("d", seed),
					Lease: 300 * time.Millisecond, Timeout: time.Second}
				s, err := New(cfg)
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() { s.redis.Close() })
				if wait, err := s.join(t.Context()); err != nil || wait != 0 {
					t.Fatal(wait, err)
				}
				d := &randomTurns{Rand: rand.New(rand.NewPCG(seed, 7)), seen: seen, oracle: &oracle{lease: 300,
					leases: map[string]oracleLease{}, buckets: map[bucketName]*oracleBucket{}}}
				for i := range 300 {
					d.sync(t, s, i)
				}
			}
			t.Log(seen)
			for r := admission.Granted; r <= admission.ReplicaFull; r++ {
				if seen[r] < 5 {
					t.Errorf("only %d claims ended with reason %d", seen[r], r)
				}
			}
		})
	}
}

// servers are the ways to run Redis.
func servers(t *testing.T) map[string]func(testing.TB) []*redistest.Server {
	ways := map[string]func(testing.TB) []*redistest.Server{
		"single": func(t testing.TB) []*redistest.Server { return []*redistest.Server{redistest.Start(t)} },
	}
	if !testing.Short() {
		ways["cluster"] = redistest.Cluster
	}
	return ways
}

// randomTurns makes random syncs and compares their replies.
type randomTurns struct {
	*rand.Rand
	oracle *oracle
	limits map[string]admission.Limits
	tenant map[string]admission.TenantLimits
	known  []admission.Claim
	next   int
	seen   map[admission.Reason]int
}

func pick[T any](d *randomTurns, from ...T) T { return from[d.IntN(len(from))] }

func (d *randomTurns) changeLimits() {
	d.limits, d.tenant = map[string]admission.Limits{}, map[string]admission.TenantLimits{}
	for i := range 3 {
		name := fmt.Sprint("n", i)
		d.limits[name] = admission.Limits{MaxConcurrent: pick(d, 0, 3, 12, 30), TokensPerMinute: pick(d, 0, 0, 60_000, 7_777, 1_000_003)}
		d.tenant[name] = admission.TenantLimits{RequestsPerMinute: pick(d, 0, 5, 60, 600), TokensPerMinute: pick(d, 0, 3_000, 33_333),
			MaxConcurrent: pick(d, 0, 9, 20), MaxPrefill: pick(d, 0, 3, 6)}
	}
}

func (d *randomTurns) claim() admission.Claim {
	if len(d.known) > 0 && d.IntN(10) == 0 {
		return pick(d, d.known...)
	}
	d.next++
	model, tenant := fmt.Sprint("n", d.IntN(3)), fmt.Sprint("n", d.IntN(3))
	c := admission.Claim{ID: fmt.Sprint(d.next), Model: model, Tenant: tenant, Limits: d.limits[model], TenantLimits: d.tenant[tenant],
		Tokens: pick[int64](d, 0, 1, 5, 50, 500, 5000), Prefill: d.IntN(2) == 0}
	if d.IntN(3) > 0 {
		c.Replica, c.ReplicaLimit = fmt.Sprint("r", d.IntN(3)), pick(d, 0, 2, 5)
	}
	return c
}

func (d *randomTurns) change() change {
	c := change{kind: pick(d, leaseEnded, leaseEnded, leaseEnded, leaseEnded, firstToken, bucketsCorrected, leaseAlive), claim: d.claim()}
	if len(d.known) > 0 && d.IntN(4) > 0 {
		c.claim = pick(d, d.known...)
	}
	switch c.kind {
	case leaseEnded:
		c.tokens, c.requests = d.Int64N(400)-200, d.Int64N(2)
		if d.IntN(3) == 0 {
			c.grantedAloneAt = time.Now()
		}
	case bucketsCorrected:
		c.tokens = d.Int64N(20_000) - 8_000
	case leaseAlive:
		if d.IntN(2) == 0 {
			c.grantedAloneAt = time.Now()
		}
	}
	return c
}

func (d *randomTurns) sync(t *testing.T, s *Store, i int) {
	t.Helper()
	if i%50 == 0 {
		d.changeLimits()
	}
	if d.IntN(4) == 0 {
		time.Sleep(time.Duration(d.IntN(20)) * time.Millisecond) // Redis has only a real clock
	}
	var b batch
	for range d.IntN(4) {
		b.changes = append(b.changes, d.change())
	}
	if len(b.changes) > 0 {
		s.batchSeq++
		b.seq = s.batchSeq
	}
	var parts []callPart
	for range d.IntN(4) {
		p := callPart{call: &call{}}
		for range 1 + d.IntN(5) {
			p.claims = append(p.claims, d.claim())
		}
		parts = append(parts, p)
	}
	form := newClaimTable(parts)
	r, err := s.sendSync(t.Context(), b, form, time.Second)
	if err != nil || r.status != "ok" {
		t.Fatal(r, err)
	}
	d.compare(t, i, r, b, parts)
}

func (d *randomTurns) compare(t *testing.T, i int, r reply, b batch, parts []callPart) {
	t.Helper()
	o := d.oracle
	o.now = r.now
	for _, c := range b.changes {
		o.change(c)
		d.remember(c.claim)
	}
	answers := r.numbers()
	if r.err != nil && len(parts) > 0 {
		t.Fatal(r.err)
	}
	for _, p := range parts {
		want := o.call(p.claims)
		for j, c := range p.claims {
			got := verdict(c, answers)
			answers = answers[verdictSize:]
			if diff := cmp.Diff(want[j], got); diff != "" {
				t.Fatalf("turn %d, claim %+v: want -, got +\n%s", i, c, diff)
			}
			d.seen[got.Reason]++
			d.remember(c)
		}
	}
}

// remember keeps some recent claims to use again.
func (d *randomTurns) remember(c admission.Claim) {
	if d.known = append(d.known, c); len(d.known) > 30 {
		d.known = slices.Delete(d.known, 0, 1)
	}
}
