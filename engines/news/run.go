package news

import (
	"container/heap"
	"context"
	"math/rand/v2"
	"net/http"
	"time"

	"github.com/sluice-gateway/sluice/engines"
)

// rounds decides when which replica is asked. One goroutine owns it. Each question has a goroutine
// of its own, of which there are at most AtOnce.
type rounds struct {
	*Reader
	targets map[string]*target
	queue   dueQueue
	// clients are the clients by transport; nil is plain HTTP.
	clients map[*engines.Transport]*http.Client
	// done receives a target after its question. asking counts the questions under way.
	done   chan *target
	asking int
}

type target struct {
	asked
	due time.Time
	// index is the place in the queue. It is -1 while the replica is asked.
	index int
	// gone says that the replica has left while it was asked.
	gone bool
}

func newRounds(r *Reader) *rounds {
	return &rounds{Reader: r, targets: map[string]*target{}, clients: map[*engines.Transport]*http.Client{},
		done: make(chan *target, r.AtOnce)}
}

func (r *rounds) run(ctx context.Context) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	snapshot, changed := r.Fleet.Watch()
	r.follow(snapshot)
	for ctx.Err() == nil {
		r.askDue(ctx)
		var wake <-chan time.Time // nil blocks for ever
		if r.asking < r.AtOnce && len(r.queue) > 0 {
			timer.Reset(time.Until(r.queue[0].due))
			wake = timer.C
		}
		select {
		case <-ctx.Done():
		case <-wake:
		case <-changed:
			snapshot, changed = r.Fleet.Watch()
			r.follow(snapshot)
		case t := <-r.done:
			r.finish(t)
		}
	}
	for ; r.asking > 0; r.asking-- {
		<-r.done
	}
	for _, client := range r.clients {
		client.CloseIdleConnections()
	}
}

// askDue begins the questions that are due, as far as AtOnce allows.
func (r *rounds) askDue(ctx context.Context) {
	now := time.Now()
	for r.asking < r.AtOnce && len(r.queue) > 0 && !r.queue[0].due.After(now) {
		t := heap.Pop(&r.queue).(*target)
		t.index = -1
		r.asking++
		go func() {
			r.ask(ctx, &t.asked)
			r.done <- t
		}()
	}
}

// finish publishes what a question has brought, and says when the next one is due.
func (r *rounds) finish(t *target) {
	r.asking--
	if t.gone {
		return
	}
	r.publish(&t.asked)
	r.enqueue(t, time.Now().Add(r.wait(t)))
}

// enqueue makes a target due at a time. If all targets can be asked at once, it is asked together
// with another one that is due up to a fifth of Interval earlier or later. Jitter spreads targets
// as far as that. One wake-up of an idle process then serves both.
func (r *rounds) enqueue(t *target, due time.Time) {
	t.due = due
	if len(r.targets) <= r.AtOnce {
		for _, other := range r.queue {
			if other.due.Sub(due).Abs() <= r.Interval/5 {
				t.due = other.due
				break
			}
		}
	}
	heap.Push(&r.queue, t)
}

// wait returns the time until the next question. It doubles with each failure up to Pause.
func (r *rounds) wait(t *target) time.Duration {
	wait := r.Interval
	switch {
	case t.absent || t.bySign && t.failures == 0: // documents alone are not read more often
		wait = r.Pause
	case t.failures > 0:
		wait = min(r.Interval<<min(t.failures, 10), r.Pause)
	}
	return jitter(wait)
}

// jitter varies a time by a tenth of it, so that replicas that came together are not asked together
// for ever.
func jitter(d time.Duration) time.Duration {
	return time.Duration(float64(d) * (0.9 + 0.2*rand.Float64()))
}

// follow makes the ready replicas of the fleet the targets. A replica that has several models is
// one target. A replica that has started again is a new target.
func (r *rounds) follow(s *engines.Snapshot) {
	ready := map[string]bool{}
	clients := map[*engines.Transport]*http.Client{}
	for _, m := range s.Models {
		for i := range m.Replicas {
			replica := &m.Replicas[i]
			if replica.State != engines.Ready || ready[replica.ID] {
				continue
			}
			ready[replica.ID] = true
			if clients[replica.Transport] = r.clients[replica.Transport]; clients[replica.Transport] == nil {
				clients[replica.Transport] = r.newClient(replica.Transport)
				r.clients[replica.Transport] = clients[replica.Transport]
			}
			r.add(replica, clients[replica.Transport])
		}
	}
	for id, t := range r.targets {
		if !ready[id] {
			r.remove(t)
		}
	}
	for transport, client := range r.clients {
		if clients[transport] == nil {
			client.CloseIdleConnections()
		}
	}
	r.clients = clients
}

// add makes a replica a target, which is due within a tenth of Interval.
func (r *rounds) add(replica *engines.Replica, client *http.Client) {
	if t := r.targets[replica.ID]; t != nil {
		if isSameTarget(&t.replica, replica) {
			return
		}
		r.remove(t)
	}
	soon := time.Duration(rand.Float64() * float64(r.Interval) / 10)
	t := &target{}
	t.replica, t.client, t.news = *replica, client, silence()
	r.targets[replica.ID] = t
	r.enqueue(t, time.Now().Add(soon))
}

// isSameTarget reports whether both are the same run of the same server, as far as Sluice can know.
// Since says nothing of the run of a server that someone else runs: each of its models has its own.
func isSameTarget(a, b *engines.Replica) bool {
	return a.Address == b.Address && a.Transport == b.Transport && a.Launcher == b.Launcher &&
		(a.Launcher == engines.Upstream || a.Since.Equal(b.Since))
}

// remove drops a target.
func (r *rounds) remove(t *target) {
	if t.index >= 0 {
		heap.Remove(&r.queue, t.index)
	}
	t.gone = true
	delete(r.targets, t.replica.ID)
	r.forget(t.replica.ID)
}

// dueQueue is a heap of targets, the one that is due first at its top.
type dueQueue []*target

func (q dueQueue) Len() int { return len(q) }

func (q dueQueue) Less(i, j int) bool { return q[i].due.Before(q[j].due) }

func (q dueQueue) Swap(i, j int) {
	q[i], q[j] = q[j], q[i]
	q[i].index, q[j].index = i, j
}

func (q *dueQueue) Push(t any) {
	t.(*target).index = len(*q)
	*q = append(*q, t.(*target))
}

func (q *dueQueue) Pop() any {
	last := len(*q) - 1
	t := (*q)[last]
	(*q)[last] = nil
	*q = (*q)[:last]
	return t
}
