package gateway

import (
	"context"
	"errors"
	"io"
	"time"

	"github.com/sluice-gateway/sluice/admission/redis"
	"github.com/sluice-gateway/sluice/internal/dispatch"
	"github.com/sluice-gateway/sluice/internal/routesync"
	"github.com/sluice-gateway/sluice/internal/telemetry"
)

// remoteRouting shares placements and waiting tokens with the other gateways on the same Redis.
type remoteRouting struct {
	sync  *routesync.Sync
	redis io.Closer
	// pickable reports whether the replicas may be picked.
	pickable func() bool
}

// onPlaced returns what the dispatcher calls for each placement; nil: the configuration names no
// Redis.
func (g *Gateway) onPlaced() func(dispatch.Placement) {
	if g.redis == nil {
		return nil
	}
	return func(p dispatch.Placement) { g.routing.sync.Placed(p) }
}

// makeRemoteRouting makes remoteRouting if the configuration names a Redis.
func (g *Gateway) makeRemoteRouting() error {
	if g.redis == nil {
		return nil
	}
	client, err := redis.NewClient(*g.redis, g.options.Config.RedisTimeout)
	if err != nil {
		return err
	}
	r := &remoteRouting{redis: client, pickable: g.allPickable}
	r.sync = routesync.New(routesync.Config{Redis: client, Router: g.dispatcher, Log: g.log})
	g.routing = r
	return nil
}

// components lists what runs until its context ends.
func (r *remoteRouting) components() []func(context.Context) error {
	if r == nil {
		return nil
	}
	return []func(context.Context) error{r.run}
}

const (
	// pickableInterval is how often run looks whether replicas may be picked. pickableLimit is how
	// long it waits for that.
	pickableInterval = 50 * time.Millisecond
	pickableLimit    = 10 * time.Second
)

// run shares until ctx ends. It begins when the replicas may be picked. The other gateways tell
// their latest placements as soon as they hear this one, and the dispatcher ignores placements on
// replicas that it may not pick.
func (r *remoteRouting) run(ctx context.Context) error {
	waiting, cancel := context.WithTimeout(ctx, pickableLimit)
	defer cancel()
	awaitUntil(waiting, pickableInterval, r.pickable)
	return errors.Join(r.sync.Run(ctx), r.redis.Close())
}

// allPickable reports whether Envoy has its configuration, and the dispatcher may pick each replica
// that the fleet calls ready.
func (g *Gateway) allPickable() bool {
	if !g.envoy.server.Status().Configured {
		return false
	}
	for name, m := range g.fleet.Snapshot().Models {
		if v, _ := g.dispatcher.View(name); v.Ready < readyReplicas(m.Replicas) {
			return false
		}
	}
	return true
}

// gauges returns what is shared, for the metrics; nil without Redis.
func (r *remoteRouting) gauges() *telemetry.RoutingGauges {
	if r == nil {
		return nil
	}
	s := r.sync.Stats()
	return &telemetry.RoutingGauges{
		Messages:   map[string]uint64{"sent": s.Sent, "failed": s.Failed, "received": s.Received, "ignored": s.Ignored},
		Placements: map[string]uint64{"sent": s.Told, "received": s.Heard, "dropped": s.Dropped},
		SentBytes:  s.SentBytes,
	}
}
