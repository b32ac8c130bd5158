package placement

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/sluice-gateway/sluice/engines"
)

// maxExplained is how many nodes PickNodeOrExplain explains. It only counts the others.
const maxExplained = 4

// PickNodeOrExplain picks the node for one more replica and returns its index. If no node has room,
// the index is -1 and missing says why. A lost node is no candidate.
//
// Spread prefers the node with the fewest replicas of the model. Among equals it prefers the node
// of which the smallest share is used. It compares the shares of the GPUs if the replica needs
// GPUs, then of the CPUs, then of the memory. Pack prefers the node of which the largest share is
// used. For a replica without resources Pack prefers the node with the most replicas of the model.
// Among equal nodes the first is picked.
//
// If there are several nodes, missing names each of them before its reason.
func PickNodeOrExplain(nodes []Node, w Want) (index int, missing string) {
	if index = PickNode(nodes, w); index < 0 {
		missing = explain(nodes, w)
	}
	return index, missing
}

// PickNode is PickNodeOrExplain without the reason, which takes longer to compose than the choice.
// It returns -1 if no node has room.
func PickNode(nodes []Node, w Want) int {
	ranks := make([]rank, 0, len(nodes))
	for i := range nodes {
		if !nodes[i].Lost {
			ranks = append(ranks, rankOf(&nodes[i], i, w))
		}
	}
	slices.SortStableFunc(ranks, func(a, b rank) int { return a.compare(b, w) })
	for _, r := range ranks {
		if Fits(nodes[r.index].Node, nodes[r.index].Claims, w) {
			return r.index
		}
	}
	return -1
}

// rank is what nodes are compared by.
type rank struct {
	index int
	// replicas counts the replicas of the wanted model.
	replicas int
	// used are the shares of the GPUs, CPUs and memory in use, in millionths. They are integers
	// because sums of fractions differ in their last digits.
	used [3]int
}

func rankOf(n *Node, index int, w Want) rank {
	r := rank{index: index}
	gpu := 0.0
	for i := range n.Claims {
		gpu += n.Claims[i].GPU
		if n.Claims[i].Model == w.Model {
			r.replicas++
		}
	}
	cpu, memory := free(n.Node, n.Claims)
	r.used = [3]int{0, share(n.CPUs-cpu, n.CPUs), share(float64(n.Memory-memory), float64(n.Memory))}
	if w.GPU > 0 {
		r.used[0] = share(gpu, float64(len(n.GPUs)))
	}
	return r
}

// share returns used of total in millionths. It is 0 if the node does not report the total.
func share(used, total float64) int {
	if total <= 0 {
		return 0
	}
	return int(math.Round(used / total * 1e6))
}

// compare is negative if r is the better node for the replica.
func (r rank) compare(o rank, w Want) int {
	replicas, used := cmp.Compare(r.replicas, o.replicas), slices.Compare(r.used[:], o.used[:])
	switch {
	case w.Policy != Pack:
		return cmp.Or(replicas, used)
	case w.Resources == engines.Resources{}:
		return cmp.Or(-replicas, -used)
	default:
		return cmp.Or(-used, -replicas)
	}
}

// explain says of each node why the replica does not fit.
func explain(nodes []Node, w Want) string {
	if len(nodes) == 0 {
		return "there is no node"
	}
	var lacks []string
	for i, n := range nodes {
		if i == maxExplained && len(nodes) > maxExplained+1 {
			lacks = append(lacks, fmt.Sprintf("and nothing on %d more nodes", len(nodes)-i))
			break
		}
		var missing string
		switch {
		case n.Left:
			missing = "has left"
		case n.Lost:
			missing = "does not answer"
		default:
			_, missing = PickDevices(n.Node, n.Claims, w)
		}
		if len(nodes) > 1 || n.Lost {
			missing = n.Name + ": " + missing
		}
		lacks = append(lacks, missing)
	}
	return strings.Join(lacks, "; ")
}
