// Package ray launches replicas as jobs of a Ray cluster, by Ray's Jobs API. The gateway
// (internal/gateway) runs its Launcher if the configuration file has a section "ray".
//
// Ray picks the node, gives the replica its CPUs, memory and GPUs, starts it, and keeps the job
// when Sluice is gone. The metadata of a job say which replica it is, so that a gateway that starts
// adopts what runs. Metadata of a job cannot change. What changes later, such as that a replica
// drains, the launcher keeps in memory, and tells the other gateways.
//
// One goroutine, Launcher.Run, reads the jobs and nodes of the cluster again and again. It plans
// the difference between the wanted and the existing replicas (plan.go, pure) and submits and stops
// jobs. A further goroutine for each running job probes its server (watch.go). So the launcher also
// learns of a dead server while Ray does not answer. It then keeps all replicas that answer.
//
// Gateways of one installation that have a Redis share the jobs (group.go, share.go). One of them
// holds a lease in Redis and writes: it starts, drains and stops replicas. All of them read the
// jobs and probe the servers. Each tells the others its load and its requests, so that the writer
// scales for all, and stops a replica when nobody uses it. A gateway that becomes the writer first
// reads the jobs again and keeps what there is.
//
// A job gets its port before it is submitted, from a range of the configuration. No two jobs of the
// installation have the same port, so that any two of them can run on one node. A replica whose
// port another program has is started again on another port.
package ray
