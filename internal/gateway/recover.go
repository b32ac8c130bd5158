package gateway

import (
	"context"
	"time"

	"go.uber.org/zap"

	"github.com/sluice-gateway/sluice/envoy"
	"github.com/sluice-gateway/sluice/internal/dispatch"
	"github.com/sluice-gateway/sluice/internal/headers"
)

// recoverRequests counts the requests of an earlier run that Envoy still serves, so that they count
// for their replicas and for the limits of their models. The access log reports the end of each
// one.
func (g *Gateway) recoverRequests(ctx context.Context) {
	g.dispatcher.Recover(g.activeRequests(ctx))
	if counted, unplaced := g.dispatcher.RecoveredCount(); counted+unplaced > 0 {
		g.log.Info("requests of the earlier run recovered",
			zap.Int("requests", counted), zap.Int("at_replicas_not_known_yet", unplaced))
	}
}

// freeRecovered frees the recovered requests whose end the access log did not report. Entries are
// lost while no gateway receives them. freeRecovered returns when no recovered request is left, or
// when ctx ends.
//
// Each second it asks Envoy for the number of active requests at each replica, which is an upper
// bound of the recovered requests that still run. It applies the answer a second later, when the
// entries of all requests that have ended by then have arrived. Otherwise the end of one request
// could count twice. Envoy does not list a removed replica. Its requests are freed when the log
// reports their end, when Envoy has no request at all, or when the longest allowed response has
// passed.
func (g *Gateway) freeRecovered(ctx context.Context) error {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	last := g.started.Add(maxDuration(g.config()) + time.Minute)
	var before map[dispatch.Location]int
	idle := false // Envoy had no request a second ago
	for {
		if counted, unplaced := g.dispatcher.RecoveredCount(); counted+unplaced == 0 {
			return nil
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		if before != nil {
			g.dispatcher.LimitRecovered(before)
		}
		if idle || time.Now().After(last) {
			g.dispatcher.LimitRecovered(nil)
		}
		before, idle = g.activeRequests(ctx), g.envoyIsIdle(ctx)
	}
}

// envoyTimeout is the timeout of a request to Envoy's admin interface.
const envoyTimeout = 2 * time.Second

// envoyIsIdle reports whether Envoy has no request of any client. It is false when Envoy does not
// answer.
func (g *Gateway) envoyIsIdle(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, envoyTimeout)
	defer cancel()
	n, err := envoy.Admin{Socket: bootstrap(g.dir).AdminSocket}.InFlight(ctx)
	return err == nil && n == 0
}

// activeRequests counts the requests of Envoy at each replica. It returns nil when Envoy does not
// answer.
func (g *Gateway) activeRequests(ctx context.Context) map[dispatch.Location]int {
	ctx, cancel := context.WithTimeout(ctx, envoyTimeout)
	defer cancel()
	clusters, err := envoy.Admin{Socket: bootstrap(g.dir).AdminSocket}.ActiveRequests(ctx)
	if err != nil {
		return nil
	}
	counts := map[dispatch.Location]int{}
	for cluster, endpoints := range clusters {
		if model, ok := headers.ClusterModel(cluster); ok {
			for address, n := range endpoints {
				// A server that is called in several ways is in several clusters.
				counts[dispatch.Location{Model: model, Address: address}] += n
			}
		}
	}
	return counts
}
