package gateway

import (
	"context"
	"errors"
	"io"
	"sync/atomic"

	"github.com/sluice-gateway/sluice/admission/redis"
	"github.com/sluice-gateway/sluice/engines"
	"github.com/sluice-gateway/sluice/internal/dispatch"
	"github.com/sluice-gateway/sluice/internal/routesync"
	"github.com/sluice-gateway/sluice/internal/telemetry"
)

// remoteRouting shares placements and waiting tokens with the other gateways on the same Redis.
type remoteRouting struct {
	sync  *routesync.Sync
	redis io.Closer
	fleet *engines.Fleet
	// local is what private knows of the fleet.
	local atomic.Pointer[localReplicas]
}

// localReplicas are the ids of the replicas that the gateway runs itself, in one snapshot of the
// fleet.
type localReplicas struct {
	of  *engines.Snapshot
	ids map[string]bool
}

// onPlaced returns what the dispatcher calls for each placement; nil: the configuration names no
// Redis.
func (g *Gateway) onPlaced() func(dispatch.Placement) {
	if g.options.Config.Redis == "" {
		return nil
	}
	return func(p dispatch.Placement) { g.routing.sync.Placed(p) }
}

// makeRemoteRouting makes remoteRouting if the configuration names a Redis.
func (g *Gateway) makeRemoteRouting() error {
	c := g.options.Config
	if c.Redis == "" {
		return nil
	}
	client, err := redis.NewClient(c.Redis, 0)
	if err != nil {
		return err
	}
	r := &remoteRouting{redis: client, fleet: g.fleet}
	r.sync = routesync.New(routesync.Config{Redis: client, Router: g.dispatcher, Private: r.private, Log: g.log})
	g.routing = r
	return nil
}

// components lists what runs until its context ends.
func (r *remoteRouting) components() []func(context.Context) error {
	if r == nil {
		return nil
	}
	return []func(context.Context) error{func(ctx context.Context) error {
		return errors.Join(r.sync.Run(ctx), r.redis.Close())
	}}
}

// private reports whether the gateway runs the replica itself. Other gateways have replicas of the
// same id, which are other processes.
func (r *remoteRouting) private(replica string) bool {
	now := r.fleet.Snapshot()
	known := r.local.Load()
	if known == nil || known.of != now {
		known = &localReplicas{now, map[string]bool{}}
		for _, m := range now.Models {
			for i := range m.Replicas {
				if m.Replicas[i].Launcher == engines.Local {
					known.ids[m.Replicas[i].ID] = true
				}
			}
		}
		r.local.Store(known)
	}
	return known.ids[replica]
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
