package admission

import (
	"cmp"
	"container/heap"
	"context"
	"crypto/rand"
	"encoding/base32"
	"errors"
	"slices"
	"strings"
	"sync"
	"time"
)

// The defaults of TaskRequest.
const (
	defaultTaskLease    = 15 * time.Minute
	defaultTaskLifetime = 4 * time.Hour
)

const (
	// endedKeyMemory is how long the key of a completed task is remembered. A late repetition of
	// its call so is not admitted again.
	endedKeyMemory = 15 * time.Minute
	// maxEndedKeys bounds the remembered keys. Beyond it the oldest is forgotten.
	maxEndedKeys = 100_000
)

// task is a task that this gateway admitted.
type task struct {
	Task
	key   string
	lease *Lease
	index int
}

type taskKey struct{ tenant, key string }

// endedTask is a completed task whose key is remembered.
type endedTask struct {
	id string
	at time.Time
}

// tasks are those of this process that have neither ended nor expired.
type tasks struct {
	byID  map[string]*task
	byKey map[taskKey]*task
	// ended has the tasks of these keys that were completed. endedOrder has the keys in that order.
	ended      map[taskKey]endedTask
	endedOrder []taskKey
	// expiring is a heap; the task that expires first is first.
	expiring byExpiry
	timer    *time.Timer
	// closed says that CloseTasks was called. calls are the running calls that may write to the
	// journal; none begins after CloseTasks.
	closed bool
	calls  sync.WaitGroup
}

func newTasks() tasks {
	return tasks{byID: map[string]*task{}, byKey: map[taskKey]*task{}, ended: map[taskKey]endedTask{}}
}

type byExpiry []*task

func (h byExpiry) Len() int           { return len(h) }
func (h byExpiry) Less(i, j int) bool { return h[i].Expires.Before(h[j].Expires) }
func (h byExpiry) Swap(i, j int)      { h[i], h[j] = h[j], h[i]; h[i].index, h[j].index = i, j }

func (h *byExpiry) Push(x any) { t := x.(*task); t.index = len(*h); *h = append(*h, t) }

func (h *byExpiry) Pop() any {
	last := (*h)[len(*h)-1]
	(*h)[len(*h)-1] = nil
	*h = (*h)[:len(*h)-1]
	return last
}

func (ts *tasks) add(t *task) {
	ts.byID[t.ID] = t
	if t.key != "" {
		ts.byKey[taskKey{t.Tenant, t.key}] = t
	}
	heap.Push(&ts.expiring, t)
}

func (ts *tasks) remove(t *task) {
	delete(ts.byID, t.ID)
	if at := (taskKey{t.Tenant, t.key}); ts.byKey[at] == t {
		delete(ts.byKey, at)
	}
	heap.Remove(&ts.expiring, t.index)
}

// find returns the tenant's live task with this id, or nil.
func (ts *tasks) find(tenant, id string, now time.Time) *task {
	if t := ts.byID[id]; t != nil && t.Tenant == tenant && now.Before(t.Expires) {
		return t
	}
	return nil
}

func (ts *tasks) findByKey(tenant, key string, now time.Time) *task {
	if t := ts.byKey[taskKey{tenant, key}]; key != "" && t != nil && now.Before(t.Expires) {
		return t
	}
	return nil
}

// rememberEnd remembers that the task of a key was completed.
func (ts *tasks) rememberEnd(k taskKey, id string, now time.Time) {
	if k.key == "" {
		return
	}
	for len(ts.endedOrder) > 0 {
		oldest := ts.endedOrder[0]
		if len(ts.endedOrder) < maxEndedKeys && now.Sub(ts.ended[oldest].at) < endedKeyMemory {
			break
		}
		delete(ts.ended, oldest)
		ts.endedOrder = ts.endedOrder[1:]
	}
	if _, known := ts.ended[k]; !known {
		ts.endedOrder = append(ts.endedOrder, k)
	}
	ts.ended[k] = endedTask{id, now}
}

// hasEnded reports whether the task of a key was completed a short time ago.
func (ts *tasks) hasEnded(tenant, key string, now time.Time) bool {
	t, known := ts.ended[taskKey{tenant, key}]
	return known && now.Sub(t.at) < endedKeyMemory
}

// taskPrefix begins the id of a task.
const taskPrefix = "tsk_"

// newTaskID returns an id that nobody can guess.
func newTaskID() string {
	var bits [16]byte
	rand.Read(bits[:]) // it never fails
	return taskPrefix + strings.ToLower(base32.StdEncoding.WithPadding(base32.NoPadding).EncodeToString(bits[:]))
}

// CloseTasks ends all changes of tasks in this process, because another process is about to read
// the journal. Calls of Schedule that wait are told to call again. CloseTasks returns when all
// calls that may write to the journal have ended. After it, Schedule admits nothing, and Complete
// and Renew fail with ErrNotRecorded. Tasks keep their leases.
func (c *Controller) CloseTasks() {
	c.mu.Lock()
	c.tasks.closed = true
	var queues []*queue
	for _, w := range c.allWaiters() {
		if w.task != nil {
			queues = append(queues, w.queue)
			c.refuse(w, ErrClosed)
		}
	}
	now := time.Now()
	for _, q := range queues { // those behind may be admitted now
		c.admitFromQueue(q, now)
	}
	c.unlockAndRun()
	c.tasks.calls.Wait()
}

// beginTaskCall counts a call that may write to the journal. The caller ends it by calls.Done. It
// returns false after CloseTasks.
func (c *Controller) beginTaskCall() bool {
	c.mu.Lock()
	defer c.unlockAndRun()
	if c.tasks.closed {
		return false
	}
	c.tasks.calls.Add(1)
	return true
}

// Schedule admits a task, which is work that the caller does outside Sluice and then reports with
// Complete. It returns the task, how long to wait before the next call (never 0), or an error. The
// error is ErrNeverFits, ErrUnknownModel, ErrRemoved, ErrTaskEnded, or one of the context or of the
// journal. A call that may wait (MaxWait) is in the same order as all requests. A call that may not
// is answered at once, and does not pass waiters.
func (c *Controller) Schedule(ctx context.Context, r TaskRequest) (Task, time.Duration, error) {
	if !c.beginTaskCall() {
		return Task{}, slotBackoff(), nil
	}
	defer c.tasks.calls.Done()
	id, limited := c.taskIDOf(&r)
	if !limited {
		return c.schedule(ctx, r, id)
	}
	twin, wait, err := c.scheduleTwin(ctx, r, id)
	if err != nil || wait > 0 {
		return Task{}, wait, err
	}
	made := twin.ID == id+twinOfTask
	id, _ = strings.CutSuffix(twin.ID, twinOfTask) // an earlier call with the key has made the twin
	t, wait, err := c.schedule(ctx, r, id)
	switch admitted := t.ID == id; {
	case made && !admitted:
		c.cancelTask(twin.ID)
	case admitted && r.Key != "": // an earlier call may have made the twin
		_, _ = c.renew(ctx, twin.Tenant, twin.ID, r.Lease) // if it fails, the twin ends earlier
	}
	return t, wait, err
}

// schedule is Schedule of a task with this id, without the limits of its key.
func (c *Controller) schedule(ctx context.Context, r TaskRequest, id string) (Task, time.Duration, error) {
	if err := ctx.Err(); err != nil {
		return Task{}, 0, err
	}
	if r.Lease <= 0 {
		r.Lease = defaultTaskLease
	}
	if r.Lifetime <= 0 {
		r.Lifetime = defaultTaskLifetime
	}
	r.Lease = min(r.Lease, r.Lifetime)
	if t, ok, err := c.findTaskByKey(r.Tenant, r.Key); ok || err != nil {
		return t, 0, err
	}
	a := newArrival(Request{
		Model: r.Model, Pool: r.Pool, Locked: LockedHooks{Allowed: r.Allowed}, Tenant: r.Tenant, Priority: r.Priority, Tokens: r.Tokens, Timeout: r.MaxWait,
	})
	a.task, a.leaseID, a.noWait = &TaskClaim{Key: r.Key, Lease: r.Lease, Lifetime: r.Lifetime}, id, r.MaxWait <= 0
	lease, w, err := c.admitOrEnqueue(&a)
	if w != nil {
		lease, err = c.await(ctx, w)
	}
	var refused *Refused
	switch {
	case errors.As(err, &refused):
		return c.findOrWait(ctx, r, max(refused.RetryAfter, time.Millisecond))
	case errors.Is(err, ErrTimeout), errors.Is(err, ErrClosed):
		return c.findOrWait(ctx, r, c.retryAfterTimeout(&a))
	case errors.Is(err, ErrUnknownTask): // the shared state remembers the key
		return Task{}, 0, ErrTaskEnded
	case err != nil:
		return Task{}, 0, err
	case lease == nil:
		return *w.foundTask, 0, nil
	}
	now := time.Now()
	t := &task{key: r.Key, lease: lease}
	t.Task = Task{ID: id, Model: lease.Model(), Tenant: r.Tenant, Tokens: int64(lease.tokens), Expires: now.Add(r.Lease), Until: now.Add(r.Lifetime)}
	return c.registerTask(t)
}

// findOrWait answers a call that was not admitted. It returns the task of an earlier call with its
// key, which may hold what this call waits for. Otherwise it returns how long to wait.
func (c *Controller) findOrWait(ctx context.Context, r TaskRequest, wait time.Duration) (Task, time.Duration, error) {
	t, ok, err := c.findTaskByKey(r.Tenant, r.Key)
	if ok || err != nil {
		return t, 0, err
	}
	if c.shared == nil || r.Key == "" {
		return Task{}, wait, nil
	}
	t, err = c.shared.FindTask(ctx, r.Tenant, r.Key)
	switch {
	case err == nil:
		return t, 0, nil
	case errors.Is(err, ErrTaskEnded):
		return Task{}, 0, err
	}
	return Task{}, wait, nil
}

// findTaskByKey finds a task by its key. It fails with ErrTaskEnded if that task was completed a
// short time ago. With shared state, only that knows all keys.
func (c *Controller) findTaskByKey(tenant, key string) (Task, bool, error) {
	c.mu.Lock()
	defer c.unlockAndRun()
	now := time.Now()
	t := c.tasks.findByKey(tenant, key, now)
	switch {
	case t == nil && c.tasks.hasEnded(tenant, key, now):
		return Task{}, false, ErrTaskEnded
	case t == nil || c.shared != nil && !t.lease.grantedAlone:
		return Task{}, false, nil
	}
	return t.Task, true, nil
}

// retryAfterTimeout is how long a call that has waited in vain should stay away.
func (c *Controller) retryAfterTimeout(a *arrival) time.Duration {
	c.mu.Lock()
	defer c.unlockAndRun()
	q, err := c.queueOf(a)
	if err != nil {
		return slotBackoff()
	}
	return c.postponement(q, a, time.Now())
}

// registerTask makes a task of a lease. If the key has found another task meanwhile, that one is
// returned and the lease is released. If that one was completed meanwhile, registerTask fails with
// ErrTaskEnded.
func (c *Controller) registerTask(t *task) (Task, time.Duration, error) {
	if other, err := c.addTask(t); other.ID != "" || err != nil {
		return other, 0, err
	}
	if err := c.taskJournal.append(c, journalEntry{Op: opAdd, Task: t.Task, Key: t.key}); err != nil {
		c.mu.Lock()
		defer c.unlockAndRun()
		if c.tasks.byID[t.ID] == t {
			c.tasks.remove(t)
			c.endLease(t.lease, false)
		}
		return Task{}, 0, err
	}
	return c.answerCallsOfKey(t), 0, nil
}

// addTask adds a task, or releases its lease and returns what registerTask returns then.
func (c *Controller) addTask(t *task) (other Task, err error) {
	c.mu.Lock()
	defer c.unlockAndRun()
	now := time.Now()
	found, same := c.tasks.findByKey(t.Tenant, t.key, now), c.tasks.byID[t.ID]
	switch {
	case c.tasks.hasEnded(t.Tenant, t.key, now):
		err = ErrTaskEnded
	case found != nil && (c.shared == nil || found.lease.grantedAlone || t.lease.grantedAlone):
		other = found.Task
	case same != nil: // a repeated call of a key with limits has its id
		t.lease.unknownToShared = true
		other = same.Task
	default:
		c.tasks.add(t)
		c.setExpiryTimer()
		return Task{}, nil
	}
	c.endLease(t.lease, false)
	return other, err
}

// answerCallsOfKey gives a new task to the calls with its key that wait, and returns the task. With
// shared state, verdicts answer such calls.
func (c *Controller) answerCallsOfKey(t *task) Task {
	c.mu.Lock()
	defer c.unlockAndRun()
	found := t.Task
	if c.shared != nil || t.key == "" || c.tasks.byID[t.ID] != t {
		return found
	}
	var queues []*queue
	for _, w := range c.waitersOfKey(taskKey{t.Tenant, t.key}) {
		queues = append(queues, w.queue)
		c.dequeue(w, false)
		w.foundTask = &found
		w.decide(nil, nil)
	}
	now := time.Now()
	for _, q := range queues { // those behind may be admitted now
		c.admitFromQueue(q, now)
	}
	return found
}

// waitersOfKey returns the calls of Schedule with a key that wait for any model or pool.
func (c *Controller) waitersOfKey(k taskKey) []*waiter {
	t := c.tenants[k.tenant]
	if t == nil || t.waiters == 0 {
		return nil
	}
	return slices.DeleteFunc(c.waitersOf(t), func(w *waiter) bool { return w.task == nil || w.task.Key != k.key })
}

// setExpiryTimer sets the timer for the task that expires first.
func (c *Controller) setExpiryTimer() {
	ts := &c.tasks
	if len(ts.expiring) == 0 {
		if ts.timer != nil {
			ts.timer.Stop()
		}
		return
	}
	wait := max(time.Until(ts.expiring[0].Expires), 0)
	if ts.timer == nil {
		ts.timer = time.AfterFunc(wait, c.expireTasks)
	} else {
		ts.timer.Reset(wait)
	}
}

// expireTasks ends the tasks that nobody has renewed.
func (c *Controller) expireTasks() {
	c.mu.Lock()
	defer c.unlockAndRun()
	now := time.Now()
	for len(c.tasks.expiring) > 0 && !now.Before(c.tasks.expiring[0].Expires) {
		t := c.tasks.expiring[0]
		c.tasks.remove(t)
		c.endAccount(t.lease.account)
		t.lease.unknownToShared = true // the shared state ends it itself: another gateway may have renewed it
		c.endLease(t.lease, true)
	}
	c.setExpiryTimer()
}

// Task finds a task by its id. It fails with ErrUnknownTask, also for a task of another tenant, or
// with ErrUnavailable.
func (c *Controller) Task(ctx context.Context, tenant, id string) (Task, error) {
	c.mu.Lock()
	t := c.tasks.find(tenant, id, time.Now())
	var own Task
	alone := c.shared == nil
	if t != nil {
		own, alone = t.Task, alone || t.lease.grantedAlone
	}
	c.unlockAndRun()
	if alone {
		if t == nil {
			return Task{}, ErrUnknownTask
		}
		return own, nil
	}
	found, err := c.shared.Task(ctx, tenant, id)
	if errors.Is(err, ErrUnavailable) && t != nil {
		return own, nil
	}
	return found, err
}

// Complete ends a task, once. declared is what it has cost by its caller's word, which corrects the
// buckets like Lease.Correct; below 0 it is unknown. A task costs no less than its requests have
// used. Requests of the task that wait fail with ErrUnknownTask. One that runs keeps the lease
// until it ends. Complete fails with ErrUnknownTask, also the second time and for a task of another
// tenant, with ErrUnavailable, or after CloseTasks with ErrNotRecorded.
func (c *Controller) Complete(ctx context.Context, tenant, id string, declared int) error {
	if !c.beginTaskCall() {
		return notRecorded(ErrClosed)
	}
	defer c.tasks.calls.Done()
	err := c.complete(ctx, tenant, id, declared)
	if key, ok := keyOfTask(tenant, id); ok && err == nil {
		_ = c.complete(ctx, KeyTenant(key), id+twinOfTask, declared) // else the twin expires by itself
	}
	return err
}

// complete is Complete without the twin of the task.
func (c *Controller) complete(ctx context.Context, tenant, id string, declared int) error {
	c.mu.Lock()
	t := c.tasks.find(tenant, id, time.Now())
	alone := c.shared == nil || t != nil && t.lease.grantedAlone
	c.unlockAndRun()
	var err error
	if !alone {
		err = c.shared.EndTask(ctx, tenant, id, int64(min(declared, maxTokens)))
		alone = errors.Is(err, ErrUnavailable)
	}
	if alone {
		if c.endLocalTask(tenant, id, declared, false) {
			err = nil
		} else if err == nil {
			err = ErrUnknownTask
		}
	} else if err == nil || errors.Is(err, ErrUnknownTask) {
		c.endLocalTask(tenant, id, declared, true)
	}
	if err == nil {
		end := journalEntry{Op: opEnd, Task: Task{ID: id}}
		if t != nil {
			end = endOf(taskKey{tenant, t.key}, endedTask{id, time.Now()})
		}
		_ = c.taskJournal.append(c, end) // if it fails, a restart brings the task back until its lease expires
	}
	return err
}

// endLocalTask ends a task of this process. silent says that the shared state has ended it already.
func (c *Controller) endLocalTask(tenant, id string, declared int, silent bool) bool {
	c.mu.Lock()
	defer c.unlockAndRun()
	t := c.tasks.find(tenant, id, time.Now())
	if t == nil {
		return false
	}
	c.tasks.remove(t)
	c.tasks.rememberEnd(taskKey{t.Tenant, t.key}, id, time.Now())
	c.setExpiryTimer()
	t.lease.unknownToShared = silent
	c.correctLease(t.lease, declared)
	c.endAccount(t.lease.account)
	c.endLease(t.lease, true)
	return true
}

// Renew makes a task last for the time lease from now on, but not beyond its lifetime; 0 or less
// means 15 minutes. Errors are those of Task, and ErrNotRecorded. With ErrNotRecorded the task is
// returned too. After CloseTasks it is not renewed.
func (c *Controller) Renew(ctx context.Context, tenant, id string, lease time.Duration) (Task, error) {
	if !c.beginTaskCall() {
		t, err := c.Task(ctx, tenant, id)
		return t, cmp.Or(err, notRecorded(ErrClosed))
	}
	defer c.tasks.calls.Done()
	t, err := c.renew(ctx, tenant, id, lease)
	if key, ok := keyOfTask(tenant, id); ok && err == nil {
		_, _ = c.renew(ctx, KeyTenant(key), id+twinOfTask, lease) // the limits of the key may be gone
	}
	return t, err
}

// renew is Renew without the twin of the task.
func (c *Controller) renew(ctx context.Context, tenant, id string, lease time.Duration) (Task, error) {
	if lease <= 0 {
		lease = defaultTaskLease
	}
	if c.shared == nil {
		t, ok := c.renewLocalTask(tenant, id, lease)
		if !ok {
			return Task{}, ErrUnknownTask
		}
		return t, c.taskJournal.append(c, journalEntry{Op: opRenew, Task: t})
	}
	renewed, err := c.shared.RenewTask(ctx, tenant, id, lease)
	c.mu.Lock()
	t := c.tasks.find(tenant, id, time.Now())
	own := t != nil && (err == nil || t.lease.grantedAlone || errors.Is(err, ErrUnavailable))
	c.unlockAndRun()
	if own {
		if t, ok := c.renewLocalTask(tenant, id, lease); ok {
			return t, c.taskJournal.append(c, journalEntry{Op: opRenew, Task: t})
		}
	}
	return renewed, err
}

func (c *Controller) renewLocalTask(tenant, id string, lease time.Duration) (Task, bool) {
	c.mu.Lock()
	defer c.unlockAndRun()
	now := time.Now()
	t := c.tasks.find(tenant, id, now)
	if t == nil {
		return Task{}, false
	}
	if t.Expires = now.Add(lease); t.Expires.After(t.Until) {
		t.Expires = t.Until
	}
	heap.Fix(&c.tasks.expiring, t.index)
	c.setExpiryTimer()
	return t.Task, true
}
