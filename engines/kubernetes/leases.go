package kubernetes

import (
	"context"
	"encoding/json"
	"maps"
	"math"
	"slices"
	"sync"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	coordination "k8s.io/client-go/kubernetes/typed/coordination/v1"

	"github.com/sluice-gateway/sluice/engines"
)

const (
	roleGateway = "gateway"
	// missedRenewals is how many renewals in a row a gateway may miss before it counts as dead.
	missedRenewals = 3
	// minPublishInterval is the shortest time between two writes of a gateway's lease.
	minPublishInterval = 200 * time.Millisecond
	// expiredAtStart is the age of a lease, by the clock of its writer, at which it counts as dead
	// when it is first seen. The clocks of machines differ by less.
	expiredAtStart = 5 * time.Minute
	// retryDelay is the pause after a failure.
	retryDelay = 2 * time.Second
	// callTimeout bounds one call of the API. An admission webhook may take up to 30 s, and only
	// the answer of the API names it.
	callTimeout = 35 * time.Second
	// leaseTimeout bounds one call about a lease, which must be renewed in time.
	leaseTimeout = 10 * time.Second
	// maxRecord is the length of the longest record in a lease. The API refuses an object with
	// annotations of more than 256 KiB.
	maxRecord = 240 << 10
)

// leaseRecord is what a gateway publishes in its lease.
type leaseRecord struct {
	// Models holds the gateway's load by model.
	Models map[string]engines.Load `json:"models,omitempty"`
	// Pods holds the gateway's requests by pod. Pods without requests are missing.
	Pods map[string]int `json:"pods,omitempty"`
	// Drained lists the draining pods that the gateway is done with: it has no requests there and
	// will send none. The value is the draining annotation that it has seen, so that a pod that was
	// undrained and drained again is not confused.
	Drained map[string]string `json:"drained,omitempty"`
}

// text returns the record as JSON that the API accepts. If it would be too long, the record lacks
// Pods, which only decide the order in which pods drain. If it still is, it has the first half of
// Drained, or the first quarter and so on. The next pods take the place of those that are gone.
func (r leaseRecord) text() string {
	// The record has only strings and numbers, so Marshal cannot fail.
	data, _ := json.Marshal(r)
	if len(data) > maxRecord {
		r.Pods = nil
		data, _ = json.Marshal(r)
	}
	for drained := slices.Sorted(maps.Keys(r.Drained)); len(data) > maxRecord && len(drained) > 0; {
		drained = drained[:len(drained)/2]
		all := r.Drained
		r.Drained = make(map[string]string, len(drained))
		for _, pod := range drained {
			r.Drained[pod] = all[pod]
		}
		data, _ = json.Marshal(r)
	}
	return string(data)
}

// peer is another gateway of the installation.
type peer struct {
	identity string
	// version is the resource version of its lease.
	version string
	// lastChanged is when version changed, by this gateway's clock. The clocks of other gateways
	// are not used.
	lastChanged time.Time
	record      leaseRecord
}

// peers are the other gateways of the namespace. Their silence counts only while this gateway's own
// lease is seen to be renewed. While the watch, the API server or this process stands still, no
// gateway becomes dead.
type peers struct {
	lifetime time.Duration

	mu sync.Mutex
	// known holds the gateways by the name of their lease. Guarded by mu.
	known map[string]peer
	// ownVersion is the version of this gateway's own lease. ownSeen is when it last changed.
	// heardSince is since when it has changed regularly. Guarded by mu.
	ownVersion          string
	ownSeen, heardSince time.Time
}

// update applies the current leases. own is the name of this gateway's lease. It returns the models
// for which a gateway reports more waiting requests than before.
func (p *peers) update(leases []*coordinationv1.Lease, own string, now time.Time) (waiting []string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	known := map[string]peer{}
	for _, l := range leases {
		if l.Name == own {
			p.observeOwn(l.ResourceVersion, now)
			continue
		}
		if l.Spec.RenewTime == nil {
			continue
		}
		before, seen := p.known[l.Name]
		renewed := l.ResourceVersion
		if seen && before.version == renewed {
			known[l.Name] = before
			continue
		}
		next := peer{version: renewed, lastChanged: now}
		if l.Spec.HolderIdentity != nil {
			next.identity = *l.Spec.HolderIdentity
		}
		if !seen && now.Sub(l.Spec.RenewTime.Time) > expiredAtStart {
			next.lastChanged = time.Time{}
		}
		// An unreadable record is empty.
		_ = json.Unmarshal([]byte(l.Annotations[annotationLoad]), &next.record)
		known[l.Name] = next
		for model, load := range next.record.Models {
			if load.Queued > before.record.Models[model].Queued {
				waiting = append(waiting, model)
			}
		}
	}
	p.known = known
	return waiting
}

// observeOwn applies the current version of this gateway's own lease. p.mu must be held.
func (p *peers) observeOwn(version string, now time.Time) {
	if p.ownVersion == version {
		return
	}
	if now.Sub(p.ownSeen) >= p.lifetime/2 { // The lease is renewed three times per lifetime.
		p.heardSince = now
	}
	p.ownVersion, p.ownSeen = version, now
}

// silence returns how long a gateway has not been heard although it could have been. p.mu must be
// held.
func (p *peers) silence(known peer) time.Duration {
	if known.lastChanged.IsZero() {
		return math.MaxInt64 // It was dead when this gateway started.
	}
	last := known.lastChanged
	if last.Before(p.heardSince) {
		last = p.heardSince
	}
	return p.ownSeen.Sub(last)
}

// live returns the gateways that have renewed their leases within lifetime.
func (p *peers) live() []peer {
	p.mu.Lock()
	defer p.mu.Unlock()
	var live []peer
	for _, known := range p.known {
		if p.silence(known) < p.lifetime {
			live = append(live, known)
		}
	}
	return live
}

// expired returns the names of leases that were not renewed for ten lifetimes.
func (p *peers) expired() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	var dead []string
	for name, known := range p.known {
		if known.lastChanged.IsZero() {
			known.lastChanged = p.heardSince
		}
		if p.silence(known) > 10*p.lifetime {
			dead = append(dead, name)
		}
	}
	return dead
}

// load returns the sum of the loads of the live gateways for the model.
func (p *peers) load(model string) engines.Load {
	var sum engines.Load
	for _, other := range p.live() {
		sum = sum.Add(other.record.Models[model])
	}
	return sum
}

// refused returns the Refused of each live gateway for the model, by its identity.
func (p *peers) refused(model string) map[string]uint64 {
	refused := map[string]uint64{}
	for _, other := range p.live() {
		refused[other.identity] = other.record.Models[model].Refused
	}
	return refused
}

// gatewayLease maintains this gateway's own lease.
type gatewayLease struct {
	client   coordination.LeaseInterface
	identity string
	name     string
	labels   map[string]string
	interval time.Duration
	// content returns the record to write.
	content func() leaseRecord
	// onWritten is called after each write with its result.
	onWritten func(error)
	// writeSignal asks for a write soon. Its capacity is 1.
	writeSignal chan struct{}
}

// run writes the lease every interval and after each writeSignal, until ctx ends. It then deletes
// the lease, unless requests are still running.
func (m *gatewayLease) run(ctx context.Context) {
	var held *coordinationv1.Lease
	for ctx.Err() == nil {
		written, err := m.write(ctx, held)
		pause := m.interval
		if err != nil {
			written, pause = nil, min(retryDelay, m.interval)
		}
		held = written
		if ctx.Err() == nil {
			m.onWritten(err)
		}
		m.waitNext(ctx, pause, err == nil)
	}
	if len(m.content().Pods) > 0 {
		// A successor of this process may continue these requests. Other gateways respect them
		// until the lease expires.
		return
	}
	last, cancel := context.WithTimeout(context.WithoutCancel(ctx), leaseTimeout/2)
	defer cancel()
	_ = m.client.Delete(last, m.name, metav1.DeleteOptions{}) // If the lease stays, it expires.
}

// waitNext waits until the next write is due: after pause or at a signal, but at least
// minPublishInterval.
func (m *gatewayLease) waitNext(ctx context.Context, pause time.Duration, wakeable bool) {
	select {
	case <-ctx.Done():
		return
	case <-time.After(minPublishInterval):
	}
	wake := m.writeSignal
	if !wakeable {
		wake = nil
	}
	select {
	case <-ctx.Done():
	case <-time.After(pause - minPublishInterval):
	case <-wake:
	}
}

// write renews the held lease. If held is nil, it looks up the lease or creates it.
func (m *gatewayLease) write(ctx context.Context, held *coordinationv1.Lease) (*coordinationv1.Lease, error) {
	ctx, cancel := context.WithTimeout(ctx, leaseTimeout)
	defer cancel()
	if held == nil {
		found, err := m.client.Get(ctx, m.name, metav1.GetOptions{})
		switch {
		case apierrors.IsNotFound(err):
			fresh := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: m.name}}
			m.fill(fresh)
			return m.client.Create(ctx, fresh, metav1.CreateOptions{})
		case err != nil:
			return nil, err
		}
		held = found
	}
	next := held.DeepCopy()
	m.fill(next)
	written, err := m.client.Update(ctx, next, metav1.UpdateOptions{})
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		return m.write(ctx, nil)
	}
	return written, err
}

func (m *gatewayLease) fill(l *coordinationv1.Lease) {
	labels := maps.Clone(m.labels)
	labels[labelRole] = roleGateway
	mergeInto(&l.Labels, labels)
	mergeInto(&l.Annotations, map[string]string{annotationLoad: m.content().text()})
	now := metav1.NowMicro()
	l.Spec.HolderIdentity = &m.identity
	l.Spec.LeaseDurationSeconds = new(int32(max(1, (missedRenewals * m.interval).Seconds())))
	l.Spec.RenewTime = &now
	if l.Spec.AcquireTime == nil {
		l.Spec.AcquireTime = &now
	}
}

func signal(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
