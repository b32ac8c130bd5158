package kubernetes

import (
	"context"
	"sync/atomic"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
)

// election is one candidacy of this gateway.
type election struct {
	elector *leaderelection.LeaderElector
	isWon   atomic.Bool
}

// elect runs for leader repeatedly until ctx ends, and then gives up the leadership.
func (c *cluster) elect(ctx context.Context) {
	for ctx.Err() == nil {
		e := new(election)
		elector, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
			Lock: &resourcelock.LeaseLock{
				LeaseMeta:  metav1.ObjectMeta{Name: "sluice-" + c.name, Namespace: c.location.namespace},
				Client:     c.client.CoordinationV1(),
				LockConfig: resourcelock.ResourceLockConfig{Identity: c.Identity},
			},
			LeaseDuration: c.Renew * 3 / 2, RenewDeadline: c.Renew, RetryPeriod: c.Renew / 5,
			ReleaseOnCancel: true,
			Callbacks: leaderelection.LeaderCallbacks{
				OnStartedLeading: func(context.Context) {
					e.isWon.Store(true)
					signal(c.reconcileSignal)
				},
				OnStoppedLeading: func() {},
			},
		})
		if err != nil {
			// The library rejects the durations only if they are too short, which
			// Config.withDefaults prevents.
			c.health.fail("stand for leader", err)
			return
		}
		e.elector = elector
		c.election.Store(e)
		elector.Run(ctx)
		c.election.Store(nil)
		pause(ctx, c.Renew/10)
	}
}

// otherLeader returns the identity of another gateway that leads, as far as this one knows. It is
// empty if this gateway leads or nobody is known to.
func (c *cluster) otherLeader() string {
	e := c.election.Load()
	if e == nil || c.isLeader() {
		return ""
	}
	if leader := e.elector.GetLeader(); leader != c.Identity {
		return leader
	}
	return ""
}

// isLeader reports whether this gateway may write. A process that was paused knows by its own clock
// that it has not renewed the lease in time, so that another gateway may be the leader.
func (c *cluster) isLeader() bool {
	e := c.election.Load()
	return e != nil && e.isWon.Load() && e.elector.IsLeader() && e.elector.Check(-c.Renew/3) == nil
}
