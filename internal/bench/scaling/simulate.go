package main

import (
	"container/heap"
	"time"

	"github.com/sluice-gateway/sluice/internal/bench/trace"
	"github.com/sluice-gateway/sluice/internal/predict"
	"github.com/sluice-gateway/sluice/internal/scale"
)

// rule is a configuration of a model's scaling.
type rule struct {
	name string
	scale.Model
	// slots is how many requests a replica works on at once. Others wait in the gateway.
	slots int
}

// event is something that happens at a moment. order keeps events of one moment in their order.
type event struct {
	at    time.Time
	order int
	do    func()
}

// events is a heap, the earliest first.
type events []event

func (e events) Len() int { return len(e) }
func (e events) Less(a, b int) bool {
	return e[a].at.Before(e[b].at) || e[a].at.Equal(e[b].at) && e[a].order < e[b].order
}
func (e events) Swap(a, b int) { e[a], e[b] = e[b], e[a] }
func (e *events) Push(x any)   { *e = append(*e, x.(event)) }
func (e *events) Pop() any {
	last := (*e)[len(*e)-1]
	*e = (*e)[:len(*e)-1]
	return last
}

// arrival is a request that waits or is served.
type arrival struct {
	*trace.Request
	at time.Time
	// ttft is its time to the first token, of which the wait in the gateway is a part.
	ttft time.Duration
}

// simulation replays requests over the replicas of one model, in virtual time. The scaler and the
// predictions are those of the gateway.
type simulation struct {
	rule
	now     time.Time
	pending events
	order   int

	scaler *scale.Scaler
	// update is when the scaler wants its next update.
	update   time.Time
	predict  *predict.Model
	recent   predict.Recent
	replicas []*replica
	queue    []*arrival
	running  int
	admitted uint64
	arrivals []arrival

	// spent is the time of all replicas that have gone. changes counts changes of the number.
	spent time.Duration
	// turns counts how often the number fell after it had risen.
	changes, turns int
	rising         bool
}

const model = "m"

// simulate replays the requests under the rule.
func simulate(requests []trace.Request, r rule) outcome {
	s := &simulation{rule: r, now: time.Unix(0, 0), predict: predict.NewModel(predict.DefaultRates), arrivals: make([]arrival, len(requests))}
	s.scaler = scale.New(scale.Config{Load: func(string) scale.Load { return s.load() }, Apply: func() {}})
	s.scaler.Set(map[string]scale.Model{model: r.Model})
	for range r.Min { // they run when the first request comes
		s.replicas = append(s.replicas, s.newReplica(s.now))
	}
	start := s.now
	for i := range requests {
		s.arrivals[i] = arrival{Request: &requests[i], at: start.Add(requests[i].At)}
		s.after(requests[i].At, func() { s.arrive(&s.arrivals[i]) })
	}
	end := start.Add(requests[len(requests)-1].At)
	for len(s.pending) > 0 {
		if next := s.pending[0].at; s.update.Before(next) {
			s.advance(s.update)
			s.scale()
			continue
		}
		e := heap.Pop(&s.pending).(event)
		s.advance(e.at)
		e.do()
	}
	return s.outcome(end)
}

func (s *simulation) advance(to time.Time) {
	if to.After(s.now) {
		s.now = to
	}
}

// after has something happen after a time.
func (s *simulation) after(d time.Duration, do func()) {
	s.order++
	heap.Push(&s.pending, event{s.now.Add(d), s.order, do})
}

// load is what the gateway would tell the scaler.
func (s *simulation) load() scale.Load {
	l := scale.Load{Running: s.running, Queued: len(s.queue), Admitted: s.admitted, PerReplica: s.slots, Predicted: s.recent.Flow(s.now)}
	for _, r := range s.replicas {
		if !r.draining && !r.ready.After(s.now) {
			l.Ready++
		}
	}
	return l
}

// scale updates the scaler and starts and drains replicas.
func (s *simulation) scale() {
	changed, next := s.scaler.Update(s.now)
	s.update = next
	if !changed {
		return
	}
	s.changes++
	var live []*replica
	for _, r := range s.replicas {
		if !r.draining {
			live = append(live, r)
		}
	}
	n := s.scaler.Desired(model)
	if s.rising && n < len(live) {
		s.turns++
	}
	s.rising = n > len(live)
	for i := len(live); i < n; i++ {
		s.replicas = append(s.replicas, s.newReplica(s.now.Add(coldStart)))
		s.after(coldStart, s.dequeue)
	}
	for i := n; i < len(live); i++ { // the highest numbers go, as they do in the launchers
		live[i].draining = true
		s.leave(live[i])
	}
}

func (s *simulation) newReplica(ready time.Time) *replica {
	return &replica{born: s.now, ready: ready, cache: newCache(), queue: predict.NewReplica(s.predict)}
}

// leave removes a replica that drains and has no request.
func (s *simulation) leave(gone *replica) {
	if !gone.draining || gone.running > 0 {
		return
	}
	for i, r := range s.replicas {
		if r == gone {
			s.spent += s.now.Sub(r.born)
			s.replicas = append(s.replicas[:i], s.replicas[i+1:]...)
			return
		}
	}
}

// arrive admits a request or lets it wait.
func (s *simulation) arrive(a *arrival) {
	s.queue = append(s.queue, a)
	s.dequeue()
	if len(s.queue) > 0 {
		s.scaler.ReportDemand(model)
		s.scale()
	}
}

// dequeue gives requests that wait to replicas, in their order, while there is a free slot.
func (s *simulation) dequeue() {
	for len(s.queue) > 0 {
		r := s.pick(s.queue[0])
		if r == nil {
			return
		}
		s.serve(r, s.queue[0])
		s.queue = s.queue[1:]
	}
}

// pick returns the replica with the least predicted time to the first token; nil if none is free.
func (s *simulation) pick(a *arrival) *replica {
	var best *replica
	var least time.Duration
	for _, r := range s.replicas {
		if r.draining || r.ready.After(s.now) || r.running >= s.slots {
			continue
		}
		if t := r.queue.Predict(s.now, r.running, float64(r.uncached(a.Request))).TTFT; best == nil || t < least {
			best, least = r, t
		}
	}
	return best
}

// serve gives a request to a replica.
func (s *simulation) serve(r *replica, a *arrival) {
	w := r.queue.Begin(s.now, r.running, float64(r.uncached(a.Request)))
	s.recent.Add(s.now, w.TTFT, w.Own)
	s.running++
	s.admitted++
	first := r.serve(s.now, a.Request)
	a.ttft = first.Sub(a.at)
	s.after(first.Sub(s.now), func() { w.FirstToken(s.now) })
	s.after(first.Sub(s.now)+time.Duration(a.Output)*tokenTime, func() {
		w.End(s.now, predict.Outcome{Uncached: -1})
		s.running--
		r.running--
		s.leave(r)
		s.dequeue()
	})
}
