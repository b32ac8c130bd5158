// Package placement computes which node and which GPUs a replica gets, and which replicas must be
// evicted for it. The packages engines/nodes and engines/local use it.
//
// All functions are pure: equal arguments give equal results, and nothing is kept between calls.
package placement

import "github.com/sluice-gateway/sluice/engines"

// Policy says which of several nodes and GPUs with room a replica gets. The zero value means
// Spread.
type Policy string

// The policies.
const (
	// Spread prefers the node with the fewest replicas of the same model, then the least used node.
	// It prefers GPUs in the same way.
	Spread Policy = "spread"
	// Pack prefers the most used node and GPU.
	Pack Policy = "pack"
)

// Node is a node with the claims of its replicas.
type Node struct {
	engines.Node
	Claims []Claim
}

// Claim is what one replica holds of its node.
type Claim struct {
	// ID is the replica's, Model the name of its model.
	ID, Model string
	engines.Resources
	// Devices are the UUIDs of its GPUs or MIG devices.
	Devices []string
}

// Want is what a replica that has no node asks for.
type Want struct {
	// Model is the name of the replica's model.
	Model string
	engines.Resources
	// Policy picks among several nodes and GPUs with room.
	Policy Policy
}
