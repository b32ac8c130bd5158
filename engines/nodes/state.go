package nodes

import (
	"time"

	"github.com/sluice-gateway/sluice/engines"
	"github.com/sluice-gateway/sluice/engines/local"
	"github.com/sluice-gateway/sluice/engines/placement"
)

const (
	// localNode is the key of the gateway's own machine, whose name is not known at first. The key
	// of another node is its name.
	localNode = ""
	// unusable begins the key of a node that must get no replicas. No name begins with it.
	unusable = "\x00"
)

// member is a node as a plan sees it.
type member struct {
	key string
	engines.Node
	// known: the node has reported its resources.
	known bool
	// nameTaken: another node has the same name, so this one must get no replicas.
	nameTaken bool
}

// location is a replica on a node. After a node was lost, two nodes may have a replica with the
// same id for a while.
type location struct{ id, node string }

// replica is what the fleet shows of a replica on a node.
type replica struct {
	location
	model string
	// index is the number in the id, or -1 if the id is not one that the controller gives.
	index int
	state engines.State
	// reason says why it is in its state. A pending replica without one is about to be placed.
	reason    string
	pid       int
	resources engines.Resources
	gpus      string
}

// isStopping reports whether the replica drains or has stopped.
func (r replica) isStopping() bool { return r.state == engines.Draining || r.state == engines.Stopped }

// assignment returns the assignment that the replica belongs to.
func (r replica) assignment() assignment { return assignment{r.location, r.model, r.index} }

// assignment says that a node shall run a replica.
type assignment struct {
	location
	model string
	index int
}

// release is an assignment that has ended and whose replica may still run.
type release struct {
	model string
	// spec is the revision of the model that was assigned. The replica may be assigned again only
	// if the model still has this revision.
	spec uint64
	// at is when the assignment ended.
	at time.Time
	// seen: the fleet has shown the replica.
	seen bool
}

// planState is what one plan leaves to the next.
type planState struct {
	// assignments are in the order in which they were made.
	assignments []assignment
	// released are assignments that have ended and whose replicas may still run.
	released map[location]release
	// evicting are the replicas that were chosen for eviction, and when.
	evicting map[location]time.Time
	// refused are assigned replicas that wait for resources although there should be some on their
	// node, and since when they wait.
	refused map[location]time.Time
}

// observation is what a plan is computed from, beside the state that the previous plan left.
type observation struct {
	now       time.Time
	models    []local.Model
	revisions map[string]*revision
	// removed are the last revisions of models that are gone and whose replicas may still run.
	removed map[string]*revision
	// members are the nodes, the gateway's own machine first.
	members  []member
	shown    []replica
	inFlight func(replica string) int
	// bindingPaused: some nodes have not said yet what an earlier run of the gateway left there, so
	// the plan assigns no new replica.
	bindingPaused bool
	// shrinkingPaused: it is not known yet how many replicas there were, so the plan stops no
	// surplus.
	shrinkingPaused bool
}

// wantOf returns what a replica of the model asks for.
func wantOf(m *revision) placement.Want {
	w := placement.Want{Model: m.Name, Policy: m.Placement}
	if m.Resources != nil {
		w.Resources = *m.Resources
	}
	return w
}

// selectNodes returns the nodes at these indices. If the indices are all, it returns nodes itself.
func selectNodes(nodes []placement.Node, indices []int) []placement.Node {
	if len(indices) == len(nodes) {
		return nodes
	}
	some := make([]placement.Node, len(indices))
	for i, at := range indices {
		some[i] = nodes[at]
	}
	return some
}
