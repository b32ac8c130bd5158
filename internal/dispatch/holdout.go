package dispatch

import (
	"sync/atomic"
	"time"
)

// A replica with a free slot is not always worth having: a full one may have the prompt in its
// cache and soon a free slot. With Strategy Prefix a request holds out for such a replica when its
// first token is expected there sooner, the wait for the slot included. Others pass it meanwhile.

const (
	// maxHold bounds how long a request holds out, and holdPatience how many times the expected
	// wait for a slot it does.
	maxHold      = 10 * time.Second
	holdPatience = 2
)

// usualTime is a decayed mean of times. The zero value has no times.
type usualTime struct{ nanoseconds atomic.Int64 }

func (u *usualTime) observe(d time.Duration) {
	before := u.nanoseconds.Load()
	if before == 0 {
		before = int64(d)
	}
	u.nanoseconds.Store(before + (int64(d)-before)/16) // that another update may be lost does not matter
}

// slotWait returns how long a full replica usually has no free slot; 0 means not known.
func (r *replica) slotWait() time.Duration {
	if r.limit <= 0 {
		return 0
	}
	return time.Duration(r.slotTime.nanoseconds.Load()) / time.Duration(r.limit)
}

// holdOut reports whether the request shall wait for a full replica instead of going to replica i.
// The first time it sets the time until which the request holds out, and a timer that makes the
// request retry then.
func (t *modelRoute) holdOut(p *pickInput, i int, ticket *Ticket, now time.Time) bool {
	if !t.strategy.cacheAware || !ticket.holdUntil.IsZero() && !now.Before(ticket.holdUntil) {
		return false
	}
	f := p.forecasts
	for j := range t.replicas {
		r := &t.replicas[j]
		wait := r.slotWait()
		if p.loads[j] >= 0 || wait <= 0 || r.load.Load() < int64(r.limit) || f.predictions[j].TTFT+wait >= f.predictions[i].TTFT {
			continue
		}
		if ticket.holdUntil.IsZero() {
			hold := min(holdPatience*wait, maxHold)
			ticket.holdUntil = now.Add(hold)
			d, model := ticket.dispatcher, t.Name
			time.AfterFunc(hold+time.Millisecond, func() { d.config.Admission.RetryWaiters(model) })
		}
		return true
	}
	return false
}
