// Package join lets further hosts run replicas for a gateway: the Server in the gateway and the Agent in `sluice node`.
//
// A node connects to the gateway, never the other way round. It joins once, with a token: that has the hash of the gateway's authority,
// by which the node knows the gateway, and a secret, by which the gateway knows the node. What it gets is a certificate for its name. From then
// on both sides prove who they are by mTLS, and one gRPC stream carries everything, level-triggered: the node tells its inventory and
// its replicas as a whole, the gateway tells which replicas there shall be, as a whole, and how many requests they have.
//
// A node's replicas are processes of a local.Launcher in the agent and belong to the agent's state directory: they outlive the agent and the
// gateway. Either side may go away and come back:
//
//   - A node that is silent for LostAfter is lost. Its replicas are Failed in the fleet, so that others take over. What it still has
//     when it comes back is ended, unless it is wanted again; the fleet does not hear of it.
//   - A node that comes back earlier, as after a restart of the agent, has changed nothing.
//   - A gateway that is away for longer than the agent's OrphanGrace has no replicas there any more.
//
// A replica leaves only when the gateway has seen that it leaves and has said that it has no requests, or its time is over.
package join

import "time"

const (
	lostAfter    = 5 * time.Second
	drainTimeout = 30 * time.Second
	// keepAlive is the pause between the pings that find a dead connection below the stream.
	keepAlive        = 10 * time.Second
	keepAliveTimeout = 5 * time.Second
)

// beat is the pause between signs of life: some may be late.
func beat(lostAfter time.Duration) time.Duration { return lostAfter / 5 }

// orStandard fills in what zero stands for.
func orStandard(d *time.Duration, standard time.Duration) {
	if *d <= 0 {
		*d = standard
	}
}
