package main

import (
	"context"
	"time"

	"go.uber.org/zap"

	"github.com/sluice-gateway/sluice/envoy"
	"github.com/sluice-gateway/sluice/internal/headers"
)

// inherit counts the requests that an Envoy of before a restart still carries, so that they weigh on their replicas and on the
// limits of their models. Each is freed when Envoy's access log tells of its end.
func (g *gateway) inherit(ctx context.Context) {
	for at, n := range g.active(ctx) {
		if n > 0 {
			g.dispatcher.Inherit(at.model, at.address, n)
		}
	}
	if n := g.dispatcher.Inherited(); n > 0 {
		g.log.Info("requests of before the restart still run", zap.Int("requests", n))
	}
}

// settle frees what the access log did not tell of: entries are lost while nobody listens to them. Envoy's own count is an upper
// bound of what is left. It is the count of a second ago that is taken, so that the entries of what has ended before it have come:
// the end of one request must not count twice.
func (g *gateway) settle(ctx context.Context) error {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	var before map[place]int
	for g.dispatcher.Inherited() > 0 {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		if before != nil {
			g.dispatcher.Settle(func(model, address string) int { return before[place{model, address}] })
		}
		before = g.active(ctx)
	}
	return nil
}

// place is a replica as Envoy names it.
type place struct{ model, address string }

// active is what Envoy says of the requests that it has at replicas; nothing when there is no Envoy.
func (g *gateway) active(ctx context.Context) map[place]int {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	clusters, err := envoy.Admin{Socket: bootstrap(g.dir).AdminSocket}.ActiveRequests(ctx)
	if err != nil {
		return nil
	}
	counts := map[place]int{}
	for cluster, hosts := range clusters {
		if model, ok := headers.ClusterModel(cluster); ok {
			for address, n := range hosts {
				counts[place{model, address}] = n
			}
		}
	}
	return counts
}
