package gateway

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.uber.org/zap"

	"github.com/sluice-gateway/sluice/internal/beat"
	"github.com/sluice-gateway/sluice/internal/condition"
	"github.com/sluice-gateway/sluice/internal/dispatch"
	"github.com/sluice-gateway/sluice/internal/headers"
)

// recoverRequests counts the requests of an earlier run that Envoy still serves, so that they count
// for their replicas and for the limits of their models. The access log reports the end of each
// one. If Envoy does not answer, the log counts them too: it names each running request every 10 s.
func (g *Gateway) recoverRequests(ctx context.Context) {
	active, err := g.envoy.activeRequests(ctx)
	if err != nil && g.envoy.runsAlready() {
		g.uncounted.Store(true)
		g.log.Warn("requests of the earlier run not counted yet, Envoy did not answer", zap.Error(err))
	}
	g.dispatcher.Recover(active)
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
	last := g.started.Add(maxDuration(g.config()) + time.Minute)
	var before map[dispatch.Location]int
	idle := false // Envoy had no request a second ago
	answers := 0  // how often Envoy has said how many requests it has
	for {
		if answers >= roundOfLog && g.uncounted.CompareAndSwap(true, false) {
			g.log.Info("requests of the earlier run counted from the access log")
		}
		if counted, unplaced := g.dispatcher.RecoveredCount(); counted+unplaced == 0 && !g.uncounted.Load() {
			return nil
		}
		select {
		case <-ctx.Done():
			return nil
		case <-beat.After(time.Second):
		}
		if before != nil {
			g.dispatcher.LimitRecovered(before)
		}
		if idle || time.Now().After(last) {
			g.dispatcher.LimitRecovered(nil)
		}
		var err error
		if before, err = g.envoy.activeRequests(ctx); err == nil {
			answers++
		} else {
			before = nil // it is no upper bound
		}
		idle = g.envoy.isIdle(ctx)
	}
}

// roundOfLog is after how many answers of Envoy, one each second, the access log has named every
// request that ran when Envoy answered again. Envoy logs a running request every 10 s.
const roundOfLog = 12

// recoveryConditions tells of requests of the earlier run that count against no limit.
func (g *Gateway) recoveryConditions() []condition.Condition {
	_, unplaced := g.dispatcher.RecoveredCount()
	switch {
	case g.uncounted.Load():
		return []condition.Condition{condition.Fault(condition.RequestsUncounted, "", "EnvoySilent",
			"Envoy did not say which requests of the earlier run it still carries. Each of them counts as soon as the access log names it.")}
	case unplaced > 0:
		return []condition.Condition{condition.Fault(condition.RequestsUncounted, "", "ReplicaUnknown",
			fmt.Sprintf("Requests of the earlier run at replicas that this gateway does not know: %d. They take no slot there.", unplaced))}
	}
	return nil
}

// envoyTimeout is the timeout of a request to Envoy's admin interface.
const envoyTimeout = 2 * time.Second

// isIdle reports whether no Envoy of this host has a request of any client. It is false when
// one does not answer.
func (e *envoyLink) isIdle(ctx context.Context) bool {
	for _, a := range e.admins() {
		ctx, cancel := context.WithTimeout(ctx, envoyTimeout)
		n, err := a.InFlight(ctx)
		cancel()
		if err != nil || n > 0 {
			return false
		}
	}
	return true
}

// activeRequests counts the requests of the Envoys of this host at each replica. The error is that
// of an Envoy that does not answer, whose requests are not counted.
func (e *envoyLink) activeRequests(ctx context.Context) (counts map[dispatch.Location]int, err error) {
	counts = map[dispatch.Location]int{}
	for _, a := range e.admins() {
		ctx, cancel := context.WithTimeout(ctx, envoyTimeout)
		clusters, failed := a.ActiveRequests(ctx)
		cancel()
		err = errors.Join(err, failed)
		for cluster, endpoints := range clusters {
			if model, ok := headers.ClusterModel(cluster); ok {
				for address, n := range endpoints {
					counts[dispatch.Location{Model: model, Address: address, Cluster: cluster}] += n
				}
			}
		}
	}
	return counts, err
}
