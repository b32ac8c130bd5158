package routesync

import (
	"context"
	"time"
)

// sender is the state of the goroutine that sends.
type sender struct {
	*Sync
	// known are the waiting tokens that the others know.
	known map[string]int64
	// looks is how often to look for changed waiting tokens until they stay at none.
	looks int
	// heartbeatAt, lookAt and placementsAt are when the next message of each kind may be sent.
	// responsesAt replaces placementsAt if a placement is of a stored response.
	heartbeatAt, lookAt, placementsAt, responsesAt time.Time
	// batch is used for one message after the other.
	batch *batch
}

// looksAfterPlacement is how often the sender looks for waiting tokens after a placement. The first
// look may come before the dispatcher counts the request.
const looksAfterPlacement = 4

// send tells the others what this gateway does, until ctx ends. Then it tells them that it leaves.
func (s *Sync) send(ctx context.Context) {
	w := &sender{Sync: s, heartbeatAt: time.Now(), batch: newBatch(s.cfg.Gateway)}
	timer := time.NewTimer(0)
	defer timer.Stop()
	for ctx.Err() == nil {
		wake := s.wake
		if w.looks > 0 {
			wake = nil // the timer is early enough
		}
		select {
		case <-ctx.Done():
		case <-s.hello:
			w.heartbeatAt = time.Now()
		case <-wake:
			w.looks = looksAfterPlacement
		case <-s.hurry:
			w.placementsAt = w.responsesAt
		case <-timer.C:
		}
		w.sendDue(ctx, time.Now())
		timer.Reset(time.Until(w.nextDue()))
	}
	leaving, cancel := context.WithTimeout(context.WithoutCancel(ctx), publishTimeout)
	defer cancel()
	if s.subscribed.Load() {
		s.publish(leaving, appendHead(nil, s.cfg.Gateway, kindLeaving))
	}
}

// sendDue sends what is due.
func (w *sender) sendDue(ctx context.Context, now time.Time) {
	if !now.Before(w.heartbeatAt) {
		w.heartbeatAt = now.Add(heartbeatInterval)
		w.forgetSilent(now)
		if w.subscribed.Load() {
			w.sendAll(ctx)
		}
	}
	if !w.subscribed.Load() || w.others.count() == 0 {
		w.looks = 0
		return
	}
	if w.looks > 0 && !now.Before(w.lookAt) {
		w.lookAt = now.Add(waitingInterval)
		w.sendChanged(ctx)
	}
	if w.outbox.waits() && !now.Before(w.placementsAt) {
		w.placementsAt, w.responsesAt = now.Add(placementsInterval), now.Add(responsesInterval)
		w.sendPlacements(ctx, now)
	}
}

// nextDue returns when sendDue has to be called next.
func (w *sender) nextDue() time.Time {
	next := w.heartbeatAt
	earlier := func(t time.Time) {
		if t.Before(next) {
			next = t
		}
	}
	if w.looks > 0 {
		earlier(w.lookAt)
	}
	if w.subscribed.Load() && w.outbox.waits() {
		earlier(w.placementsAt)
	}
	return next
}

// waiting returns the waiting tokens that the others may know.
func (w *sender) waiting() map[string]int64 {
	all := map[string]int64{}
	for replica, n := range w.cfg.Router.WaitingTokens() {
		if n > 0 && len(all) < maxReplicas && len(replica) <= maxText {
			all[replica] = n
		}
	}
	return all
}

// sendAll sends all waiting tokens, so that the others also know that this gateway lives.
func (w *sender) sendAll(ctx context.Context) {
	now := w.waiting()
	if len(now) > 0 {
		w.looks = looksAfterPlacement
	}
	if w.publish(ctx, appendWaiting(appendHead(nil, w.cfg.Gateway, kindAll), now)) {
		w.known = now
	}
}

// sendChanged sends the waiting tokens that have changed.
func (w *sender) sendChanged(ctx context.Context) {
	now := w.waiting()
	if w.looks--; len(now) > 0 {
		w.looks = looksAfterPlacement
	}
	changed := map[string]int64{}
	for replica, n := range now {
		if w.known[replica] != n {
			changed[replica] = n
		}
	}
	for replica := range w.known {
		if now[replica] == 0 && len(changed) < maxReplicas {
			changed[replica] = 0
		}
	}
	if len(changed) == 0 {
		return
	}
	if w.publish(ctx, appendWaiting(appendHead(nil, w.cfg.Gateway, kindChanged), changed)) {
		w.known = now
	}
}

// sendPlacements sends the placements of the outbox. Those of a message that fails are sent again.
func (w *sender) sendPlacements(ctx context.Context, now time.Time) {
	b := w.batch
	for {
		from := w.outbox.position()
		b.reset(w.cfg.Gateway)
		for !b.full() && w.outbox.take(func(e *entry) {
			if now.Sub(e.at) <= placementAge {
				b.add(&e.Placement)
			}
		}) {
		}
		if b.count == 0 {
			return
		}
		if !w.publish(ctx, b.data) {
			w.outbox.goBack(from)
			return
		}
		w.told.Add(uint64(b.count))
	}
}

// publish sends a message. It returns false if Redis has not taken it.
func (s *Sync) publish(ctx context.Context, message []byte) bool {
	ctx, cancel := context.WithTimeout(ctx, publishTimeout)
	defer cancel()
	if s.cfg.Redis.Publish(ctx, s.channel, message).Err() != nil {
		s.failed.Add(1)
		return false
	}
	s.sent.Add(1)
	s.sentBytes.Add(uint64(len(message)))
	return true
}
