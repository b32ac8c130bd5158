// Package kubernetes is the launcher whose replicas are pods of Deployments.
//
// In every namespace that a model names each gateway watches Deployments, pods and leases that bear the installation's labels, and reports the
// pods as replicas. One of the gateways, elected by a lease, also writes: it compares what is wanted with what is there (plan.go, pure) and does
// what brings the one nearer to the other. Nothing is kept but what the API keeps, so that any gateway can go on where another ended.
//
// A pod goes in steps, each of which any leader can see: it is annotated as draining; every gateway takes it out of rotation and says in a lease of
// its own when it has no requests there any more; it is given the lowest deletion cost; the Deployment is lowered by one. Until the last step it can be
// taken back. A pod template never changes: another template is another Deployment, which grows while the old one shrinks.
//
// An API server that is away changes nothing: what was known last stays in rotation.
package kubernetes
