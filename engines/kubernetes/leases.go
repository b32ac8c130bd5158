package kubernetes

import (
	"context"
	"encoding/json"
	"maps"
	"math"
	"sync"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	coordination "k8s.io/client-go/kubernetes/typed/coordination/v1"
)

const (
	roleGateway = "gateway"
	// leaseMisses is how many renewals in a row a gateway may miss before it is taken for dead.
	missedRenewals = 3
	// publishAtMost is the shortest pause between two writes of a gateway's lease.
	minPublishInterval = 200 * time.Millisecond
	// longDead is the age of a lease, by its writer's clock, that is not even waited for when it is first seen. Clocks differ by less.
	expiredAtStart = 5 * time.Minute
	// retryAfter is the pause after something failed.
	retryDelay = 2 * time.Second
	// callTimeout bounds one call of the API.
	callTimeout = 10 * time.Second
)

// record is what a gateway says of itself in its lease.
type leaseRecord struct {
	// Models are its loads, by name.
	Models map[string]Load `json:"models,omitempty"`
	// Pods are its requests on pods, where there are any.
	Pods map[string]int `json:"pods,omitempty"`
	// Drained are the pods that it will send nothing to any more and has no requests on, each with the mark that it has seen: a pod that was
	// taken back and given up again is another matter.
	Drained map[string]string `json:"drained,omitempty"`
}

// peer is another gateway.
type peer struct {
	identity, version string
	// changed is when its lease was last seen to be another, by our clock: others' clocks are not asked.
	lastChanged time.Time
	record      leaseRecord
}

// peers are the other gateways of the place. How long they have been silent is counted from one sight of our own lease to the next: while the
// watch, the API or this process stands still, nobody grows old, for nobody could have been heard.
type peers struct {
	lifetime time.Duration

	mu sync.Mutex
	// known by the names of their leases; guarded by mu
	known map[string]peer
	// own is the version of our own lease that was seen last, echo when that was, heard since when it has been seen again and again; guarded by mu
	ownVersion          string
	ownSeen, heardSince time.Time
}

// update takes the leases as they are now and returns the models for which some gateway has requests waiting that had none waiting before.
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
		_ = json.Unmarshal([]byte(l.Annotations[annotationLoad]), &next.record) // what cannot be read says nothing
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

// hear notes our own lease.
func (p *peers) observeOwn(version string, now time.Time) {
	if p.ownVersion == version {
		return
	}
	if now.Sub(p.ownSeen) >= p.lifetime/2 { // renewals come thrice in a lifetime
		p.heardSince = now
	}
	p.ownVersion, p.ownSeen = version, now
}

// silent is how long a gateway was not heard while it could have been.
func (p *peers) silence(known peer) time.Duration {
	if known.lastChanged.IsZero() {
		return math.MaxInt64 // it was dead when we came
	}
	last := known.lastChanged
	if last.Before(p.heardSince) {
		last = p.heardSince
	}
	return p.ownSeen.Sub(last)
}

// live lists the gateways whose leases were renewed lately.
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

// dead lists the leases that nobody has renewed for ten lifetimes.
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

// load is what the live ones have for the model.
func (p *peers) load(model string) Load {
	var sum Load
	for _, other := range p.live() {
		l := other.record.Models[model]
		sum.Running += l.Running
		sum.Queued += l.Queued
		sum.Admitted += l.Admitted
	}
	return sum
}

// membership keeps this gateway's lease.
type gatewayLease struct {
	client   coordination.LeaseInterface
	identity string
	name     string
	labels   map[string]string
	interval time.Duration
	// say makes what the lease tells.
	content func() leaseRecord
	// told is called after every write with its result.
	onWritten func(error)
	// wake has a token when the lease shall be written soon.
	writeSignal chan struct{}
}

// run writes the lease now and then, and whenever it is woken, until ctx ends. Then it takes the lease away, unless requests still run.
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
		return // another process may go on with these requests; the others wait for it as long as the lease lasts
	}
	last, cancel := context.WithTimeout(context.WithoutCancel(ctx), callTimeout/2)
	defer cancel()
	_ = m.client.Delete(last, m.name, metav1.DeleteOptions{}) // if it stays, the others forget it in time
}

// sleep waits for as long, or until it is woken, but not less than the shortest pause.
func (m *gatewayLease) waitNext(ctx context.Context, pause time.Duration, wakeable bool) {
	short := time.NewTimer(minPublishInterval)
	defer short.Stop()
	select {
	case <-ctx.Done():
		return
	case <-short.C:
	}
	long := time.NewTimer(pause - minPublishInterval)
	defer long.Stop()
	wake := m.writeSignal
	if !wakeable {
		wake = nil
	}
	select {
	case <-ctx.Done():
	case <-long.C:
	case <-wake:
	}
}

// write renews the lease that was written last, or finds or makes it.
func (m *gatewayLease) write(ctx context.Context, held *coordinationv1.Lease) (*coordinationv1.Lease, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
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
	data, _ := json.Marshal(m.content()) // strings and numbers: they always marshal
	labels := maps.Clone(m.labels)
	labels[labelRole] = roleGateway
	mergeInto(&l.Labels, labels)
	mergeInto(&l.Annotations, map[string]string{annotationLoad: string(data)})
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
