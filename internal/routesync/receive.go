package routesync

import (
	"context"
	"maps"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
	"go.uber.org/zap"
)

// receive applies what other gateways publish, until ctx ends.
func (s *Sync) receive(ctx context.Context) {
	for ctx.Err() == nil {
		s.listen(ctx)
		s.subscribed.Store(false)
		select {
		case <-ctx.Done():
		case <-time.After(retryInterval):
		}
	}
}

// listen subscribes and applies messages until the subscription is broken or silent.
func (s *Sync) listen(ctx context.Context) {
	subscription := s.cfg.Redis.Subscribe(ctx, s.channel)
	defer subscription.Close() //nolint:errcheck // it is broken or no longer needed
	// A read that waits ignores its context.
	defer context.AfterFunc(ctx, func() { _ = subscription.Close() })()
	var d decoder
	for {
		received, err := subscription.ReceiveTimeout(ctx, silence)
		if err != nil {
			return
		}
		switch m := received.(type) {
		case *redis.Subscription:
			s.subscribed.Store(true)
			signal(s.hello)
		case *redis.Message:
			s.apply(&d, []byte(m.Payload))
		}
	}
}

// apply applies one message.
func (s *Sync) apply(d *decoder, data []byte) {
	m, err := d.decode(data)
	if err == nil && m.sender == s.cfg.Gateway {
		return
	}
	s.received.Add(1)
	if err != nil || !s.hear(&m, time.Now()) {
		s.ignored.Add(1)
		return
	}
	for _, p := range m.placements {
		s.cfg.Router.Place(p)
	}
	s.heard.Add(uint64(len(m.placements)))
}

// audience is the other gateways that are heard.
type audience struct {
	// mu is held while the Router is told of waiting tokens, so that it never learns of an older
	// state last. It is taken before the mutex of the outbox.
	mu       sync.Mutex
	gateways map[string]*remoteGateway
}

// remoteGateway is what is known of another gateway.
type remoteGateway struct {
	waiting map[string]int64
	// at is when it was heard last.
	at time.Time
}

// count returns how many other gateways are heard.
func (a *audience) count() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return len(a.gateways)
}

// hear records that a gateway lives, and its waiting tokens. It returns false if there are too many
// gateways.
func (s *Sync) hear(m *message, now time.Time) bool {
	s.others.mu.Lock()
	defer s.others.mu.Unlock()
	g := s.others.gateways[m.sender]
	switch {
	case m.kind == kindLeaving:
		if g != nil {
			s.forgetLocked(m.sender)
		}
		return true
	case g == nil && len(s.others.gateways) >= maxGateways:
		return false
	case g == nil:
		g = &remoteGateway{}
		s.others.gateways[m.sender] = g
		s.outbox.setListeners(len(s.others.gateways), true)
		signal(s.hello)
		s.cfg.Log.Info("gateway heard, placements shared with it", zap.String("gateway", m.sender))
	}
	g.at = now
	if m.waiting != nil {
		s.setWaitingLocked(m, g)
	}
	return true
}

// setWaitingLocked tells the Router of waiting tokens. The Router may keep its map.
func (s *Sync) setWaitingLocked(m *message, g *remoteGateway) {
	if m.kind == kindAll {
		if len(g.waiting) == 0 && len(m.waiting) == 0 {
			return
		}
		g.waiting = m.waiting
	} else {
		if g.waiting == nil {
			g.waiting = map[string]int64{}
		}
		maps.Copy(g.waiting, m.waiting)
	}
	maps.DeleteFunc(g.waiting, func(_ string, n int64) bool { return n == 0 })
	if len(g.waiting) > maxReplicas {
		g.waiting = map[string]int64{} // only a faulty sender; its next heartbeat has all
	}
	s.cfg.Router.SetRemoteWaiting(m.sender, maps.Clone(g.waiting))
}

// forgetSilent forgets the gateways of which nothing was heard for long.
func (s *Sync) forgetSilent(now time.Time) {
	s.others.mu.Lock()
	defer s.others.mu.Unlock()
	for name, g := range s.others.gateways {
		if now.Sub(g.at) > silence {
			s.forgetLocked(name)
		}
	}
}

func (s *Sync) forgetAll() {
	s.others.mu.Lock()
	defer s.others.mu.Unlock()
	for name := range s.others.gateways {
		s.forgetLocked(name)
	}
}

// forgetLocked forgets a gateway and its waiting tokens.
func (s *Sync) forgetLocked(name string) {
	delete(s.others.gateways, name)
	s.outbox.setListeners(len(s.others.gateways), false)
	s.cfg.Router.SetRemoteWaiting(name, nil)
	s.cfg.Log.Info("gateway gone, its waiting tokens forgotten", zap.String("gateway", name))
}
