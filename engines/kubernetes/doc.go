// Package kubernetes launches replicas as pods of Deployments. The gateway runs its Launcher if the
// configuration file has a section "kubernetes".
//
// In every namespace that a model names, each gateway watches the Deployments, pods and leases that
// carry the installation's labels. Each gateway reports the pods as replicas. One gateway is
// elected leader by a lease and also writes: it plans the difference between the wanted and the
// existing objects (plan.go, pure) and applies the plan. The API server holds all state, so any
// gateway can become the leader.
//
// The leader removes a pod in steps that survive a change of the leader:
//
//   - The leader annotates the pod as draining.
//   - Every gateway stops sending requests to the pod. When it has no requests left there, it says
//     so in its own lease.
//   - The leader marks the pod: it gives the pod the lowest deletion cost, so that the ReplicaSet
//     deletes this pod first.
//   - The leader lowers the replicas of the Deployment by one.
//
// Until the last step the leader can undo the removal. A Deployment's pod template never changes:
// another template is another Deployment, which grows while the old one shrinks.
//
// Others may delete a pod, too, for example by an eviction. A deleted pod serves for up to an hour
// more, but the gateways stop sending requests to it. When no gateway has requests there, the
// leader shortens the pod's grace period (ending.go). A PodDisruptionBudget for each model lets one
// pod be evicted at a time (budget.go). What somebody changes or deletes is put back (repair.go).
//
// Weights of a model may be fetched by a Job before its pods are made (weights.go). The loader's
// pod is reported as a replica that starts, with what it says of its progress (loader.go).
//
// A replica that spreads over several hosts is a group of pods of a LeaderWorkerSet (groups.go).
// Only its leader is a replica. The pods of a LeaderWorkerSet are removed from the highest index
// (plan_ordered.go).
//
// While the API server is unreachable, the gateways keep the replicas that they know.
package kubernetes
