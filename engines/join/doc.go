// Package join lets further machines, called nodes, run replicas for a gateway. The gateway runs a
// Server, whose nodes engines/nodes uses, and the command `sluice node` runs an Agent on each node.
//
// A node always connects to the gateway, never the other way round. A node joins once, with a
// token. The token contains a hash of the gateway's authority, by which the node recognises the
// gateway, and a secret, by which the gateway accepts the node. A token admits one machine by one
// name, once, and expires. The gateway signs a certificate for the node's name and key, and from
// then on the name belongs to that key.
//
// After that both sides authenticate by mTLS, and one gRPC stream carries all messages. Every
// message replaces the state before it. The node reports its whole inventory and all its replicas.
// The gateway sends the whole assignment and the requests of all replicas. The gateway believes a
// node only the replicas that it has assigned to the node. Their address must be the one that the
// node connects from, or one that the configuration lists.
//
// The agent's local.Launcher runs the replicas as processes. They belong to the agent's state
// directory and keep running while the agent or the gateway restarts:
//
//   - A node that is silent for LostAfter is lost. The fleet shows its replicas as failed, so other
//     nodes replace them. When the node comes back, it stops the replicas that are no longer
//     assigned to it. The fleet does not show these.
//   - A node that comes back within LostAfter, for example after a restart of the agent, has
//     changed nothing.
//   - If the gateway is unreachable for the agent's OrphanGrace, the agent stops all replicas.
//
// An operator's actions need no other connection. A restart is part of the assignment, so that it
// survives a broken stream. A log is a stream of its own, which the node opens when it is asked. A
// node of a release before these messages says so by its revision, and the gateway refuses the
// action.
//
// A replica that drains stops when the gateway has seen that it drains and has reported that it has
// no requests left. It also stops when its drain timeout is over.
package join

import "time"

const (
	// lostAfter and drainTimeout are the defaults of LostAfter and DrainTimeout.
	lostAfter    = 5 * time.Second
	drainTimeout = 30 * time.Second
	// keepAliveInterval is the time between the HTTP/2 pings that detect a dead connection.
	keepAliveInterval = 10 * time.Second
	keepAliveTimeout  = 5 * time.Second
)

// heartbeatInterval is how often each side sends a message. Some heartbeats may be late without the
// sender being lost.
func heartbeatInterval(lostAfter time.Duration) time.Duration { return lostAfter / 5 }

// setDefault sets d to standard if d is zero or negative.
func setDefault(d *time.Duration, standard time.Duration) {
	if *d <= 0 {
		*d = standard
	}
}
