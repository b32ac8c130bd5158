package gateway

import (
	"context"
	"time"

	"go.uber.org/zap"

	"github.com/sluice-gateway/sluice/envoy"
	"github.com/sluice-gateway/sluice/internal/dispatch"
	"github.com/sluice-gateway/sluice/internal/headers"
)

// inherit counts the requests that an Envoy of before a restart still carries, so that they weigh on their replicas and on the
// limits of their models. Each is freed when Envoy's access log tells of its end.
func (g *gateway) inherit(ctx context.Context) {
	g.dispatcher.Inherit(g.active(ctx))
	if counted, unplaced := g.dispatcher.Inherited(); counted+unplaced > 0 {
		g.log.Info("requests of before the restart still run", zap.Int("requests", counted), zap.Int("at_replicas_not_known_yet", unplaced))
	}
}

// settle frees what the access log did not tell of: entries are lost while nobody listens to them. Envoy's own count is an upper
// bound of what is left. It is the count of a second ago that is taken, so that the entries of what has ended before it have come:
// the end of one request must not count twice. Envoy lists no replica that leaves; what is there ends when the log says so, when Envoy has no
// request at all, or when no response may last any longer.
func (g *gateway) settle(ctx context.Context) error {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	last := g.started.Add(longest(g.current()) + time.Minute)
	var before map[dispatch.Place]int
	none := false // nothing ran a second ago
	for {
		if counted, unplaced := g.dispatcher.Inherited(); counted+unplaced == 0 {
			return nil
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		if before != nil {
			g.dispatcher.Settle(before)
		}
		if none || time.Now().After(last) {
			g.dispatcher.Settle(nil)
		}
		before, none = g.active(ctx), g.nothingRuns(ctx)
	}
}

// nothingRuns tells whether Envoy has no request of any client.
func (g *gateway) nothingRuns(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	n, err := envoy.Admin{Socket: bootstrap(g.dir).AdminSocket}.InFlight(ctx)
	return err == nil && n == 0
}

// active is what Envoy says of the requests that it has at replicas; nothing when there is no Envoy.
func (g *gateway) active(ctx context.Context) map[dispatch.Place]int {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	clusters, err := envoy.Admin{Socket: bootstrap(g.dir).AdminSocket}.ActiveRequests(ctx)
	if err != nil {
		return nil
	}
	counts := map[dispatch.Place]int{}
	for cluster, hosts := range clusters {
		if model, ok := headers.ClusterModel(cluster); ok {
			for address, n := range hosts {
				counts[dispatch.Place{Model: model, Address: address}] += n // a server that is called in several ways is in several clusters
			}
		}
	}
	return counts
}
