package admission

import (
	"context"
	"errors"
	"strings"
	"time"
)

// A key with limits of its own is a tenant with the name of KeyTenant. Before a request asks for
// its model, it takes a lease of that tenant at keyGate, which has no limits. So a key has the
// buckets, the counts and the shared state of a tenant. The lease of the request holds the lease of
// the key: both are corrected and released together. A request that is refused after it has the
// lease of its key gives back everything.
//
// A task of such a key has a twin: a task of the key's tenant at keyGate, which is completed and
// renewed with it. The id of the task names the key, so every gateway finds the twin.

// keyGate is the gate of the leases of keys. No model has its name.
const keyGate = "#keys"

// KeyTenant returns the name under which SetTenants takes the limits of a key. No tenant of a file
// has such a name.
func KeyTenant(key string) string { return "#" + key }

// leaseOfKey and twinOfTask end the id of a lease that follows the lease of a key, and the id of
// the twin of a task.
const (
	leaseOfKey = ".m"
	twinOfTask = ".k"
)

// keyHasLimits reports whether the key has limits of its own now.
func (c *Controller) keyHasLimits(key string) bool {
	if key == "" {
		return false
	}
	c.mu.Lock()
	defer c.unlockAndRun()
	t := c.tenants[KeyTenant(key)]
	return t != nil && t.limits != (TenantLimits{}) && c.gates[keyGate] != nil
}

// acquireKey takes the lease of the request's key. nil without an error means that the key has no
// limits of its own. With shared state it waits for the verdict, which takes some round trips. It
// fails with ErrNeverFits, ErrTaskBusy or *Refused, at once.
func (c *Controller) acquireKey(r *Request) (*Lease, error) {
	ask, ok := c.askOfKey(r)
	if !ok {
		return nil, nil
	}
	a := newArrival(ask)
	if r.Preempted && ask.UnderTask == "" {
		return c.grantKey(&a), nil
	}
	a.noWait = true
	lease, w, err := c.admitOrEnqueue(&a)
	if w != nil {
		lease, err = c.await(context.Background(), w)
	}
	var refused *Refused
	switch {
	case errors.As(err, &refused):
		refused.Key = r.APIKey
	case errors.Is(err, ErrUnknownTask), errors.Is(err, ErrUnknownModel):
		return nil, nil // the verdict about the request's own task, or its model, says why
	}
	return lease, err
}

// askOfKey returns what a request asks of the limits of a key. A request of a task uses up what the
// key of the task was charged. It returns false if there are no such limits.
func (c *Controller) askOfKey(r *Request) (Request, bool) {
	ask := Request{Model: keyGate, Tokens: r.Tokens, Guessed: r.Guessed, Priority: r.Priority,
		Unlocked: UnlockedHooks{OnBlock: r.Unlocked.OnBlock, OnWait: r.Unlocked.OnWait}}
	if r.UnderTask != "" {
		if key, ok := keyOfTask(r.Tenant, r.UnderTask); ok {
			ask.Tenant, ask.UnderTask = KeyTenant(key), r.UnderTask+twinOfTask
			return ask, c.keyHasLimits(key)
		}
	}
	ask.Tenant = KeyTenant(r.APIKey)
	return ask, c.keyHasLimits(r.APIKey)
}

// grantKey takes the lease of a key without asking, for a request that was preempted: its key has
// admitted it before.
func (c *Controller) grantKey(a *arrival) *Lease {
	c.mu.Lock()
	defer c.unlockAndRun()
	l := c.acquireLease(c.findOrCreateGate(keyGate), c.tenant(a.Tenant), a, time.Now())
	if c.shared != nil {
		l.id = c.newLeaseID()
		c.shared.ReportLease(c.claimForLease(l, nil, l.tokens))
	}
	return l
}

// followKey makes a request hold the lease of its key. With shared state, the ids of both leases
// are related, so that a restarted gateway that learns one from the access log knows the other.
func (a *arrival) followKey(key *Lease) {
	a.key = key
	if key != nil && key.id != "" && a.leaseID == "" {
		a.leaseID = key.id + leaseOfKey
	}
}

// undoKey gives back the lease of a key, with its charge.
func (c *Controller) undoKey(key *Lease) {
	if key == nil {
		return
	}
	c.mu.Lock()
	defer c.unlockAndRun()
	c.endLease(key, false)
}

// recoverKey recovers the lease of the key of a request that runs already; nil means that the key
// is not known, or has no limits. mu is held.
func (c *Controller) recoverKey(r RecoveredRequest, now time.Time) *Lease {
	id, follows := strings.CutSuffix(r.ID, leaseOfKey)
	if r.APIKey == "" || c.shared != nil && !follows {
		return nil
	}
	own := RecoveredRequest{Tenant: KeyTenant(r.APIKey), Tokens: r.Tokens}
	if key, ok := keyOfTask(r.Tenant, r.UnderTask); ok {
		own.Tenant, own.UnderTask = KeyTenant(key), r.UnderTask+twinOfTask
	}
	if follows {
		own.ID = id
	}
	l := c.recoverLease(c.findOrCreateGate(keyGate), own, now)
	if c.shared != nil {
		c.shared.ReportLease(c.claimForLease(l, nil, 0))
	}
	return l
}

// forgetKey forgets the tenant of a key that has no limits any more, after its last lease.
func (c *Controller) forgetKey(l *Lease, now time.Time) {
	if l.gate.model == keyGate && c.tenants[l.tenant.name] == l.tenant && l.tenant.isIdle(now) {
		delete(c.tenants, l.tenant.name)
	}
}

// tighter returns, of each allowance, the one that has less left.
func tighter(a, b Quota) Quota {
	return Quota{Requests: tighterAllowance(a.Requests, b.Requests), Tokens: tighterAllowance(a.Tokens, b.Tokens)}
}

func tighterAllowance(a, b Allowance) Allowance {
	if a.Limit == 0 || b.Limit > 0 && b.Remaining < a.Remaining {
		return b
	}
	return a
}

// taskIDOf returns the id of a new task. It names the key if the key has limits of its own.
func (c *Controller) taskIDOf(r *TaskRequest) (id string, limited bool) {
	id = newTaskID()
	key, ok := strings.CutPrefix(r.APIKey, r.Tenant+"/")
	if !ok || !c.keyHasLimits(r.APIKey) {
		return id, false
	}
	return id + "_" + key, true
}

// keyOfTask returns the key that the id of a tenant's task names.
func keyOfTask(tenant, id string) (key string, ok bool) {
	id, ok = strings.CutPrefix(id, taskPrefix)
	if !ok {
		return "", false
	}
	_, key, ok = strings.Cut(id, "_")
	return tenant + "/" + key, ok && key != "" && !strings.HasSuffix(key, twinOfTask)
}

// scheduleTwin admits the twin of a task that is about to be scheduled. Results are those of
// Schedule.
func (c *Controller) scheduleTwin(ctx context.Context, r TaskRequest, id string) (Task, time.Duration, error) {
	r.Model, r.Pool, r.Allowed, r.Tenant, r.MaxWait = keyGate, "", nil, KeyTenant(r.APIKey), 0
	return c.schedule(ctx, r, id+twinOfTask)
}

// cancelTask takes back a task that was just admitted by this gateway, with its charge.
func (c *Controller) cancelTask(id string) {
	c.mu.Lock()
	if t := c.tasks.byID[id]; t != nil {
		c.tasks.remove(t)
		c.setExpiryTimer()
		c.endLease(t.lease, false)
	}
	c.unlockAndRun()
	// If this fails, a restart brings the twin back until its lease expires.
	_ = c.taskJournal.append(c, journalEntry{Op: opEnd, Task: Task{ID: id}})
}
