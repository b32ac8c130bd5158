package placement

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/sluice-gateway/sluice/engines"
)

// mostWords is of how many hosts Choose says what is missing there; of the rest it says how many they are.
const mostWords = 4

// Host is a node with what is taken of it.
type Host struct {
	engines.Node
	Claims []Claim
}

// Choose picks the host for one more replica, or says why none fits; then host is -1. Lost hosts are no candidates.
//
// Spread takes the host with the fewest replicas of the model, then the one of which the smallest share is taken: of its GPUs when GPUs are
// wanted, then of its processors, then of its memory; then the first of those given. Pack takes the one of which the largest share is taken;
// for a replica that names no resources, the one with the most replicas of the model.
//
// With several hosts, each one's name stands before what is missing there.
func Choose(hosts []Host, w Want) (host int, missing string) {
	if host = Find(hosts, w); host < 0 {
		missing = lackOfAll(hosts, w)
	}
	return host, missing
}

// Find is Choose without the words, which take longer than the choice; -1: none fits.
func Find(hosts []Host, w Want) int {
	ranks := make([]rank, 0, len(hosts))
	for i := range hosts {
		if !hosts[i].Lost {
			ranks = append(ranks, rankOf(&hosts[i], i, w))
		}
	}
	slices.SortStableFunc(ranks, func(a, b rank) int { return a.compare(b, w) })
	for _, r := range ranks {
		if Fits(hosts[r.host].Node, hosts[r.host].Claims, w) {
			return r.host
		}
	}
	return -1
}

// rank is what Choose goes by.
type rank struct {
	host     int
	replicas int // of the model
	// used is the share that is taken of the GPUs, of the processors and of the memory, in millionths: sums of fractions differ in their last digits.
	used [3]int
}

func rankOf(h *Host, index int, w Want) rank {
	r := rank{host: index}
	gpu := 0.0
	for i := range h.Claims {
		gpu += h.Claims[i].GPU
		if h.Claims[i].Model == w.Model {
			r.replicas++
		}
	}
	cpu, memory := left(h.Node, h.Claims)
	r.used = [3]int{0, share(h.CPUs-cpu, h.CPUs), share(float64(h.Memory-memory), float64(h.Memory))}
	if w.GPU > 0 {
		r.used[0] = share(gpu, float64(len(h.GPUs)))
	}
	return r
}

// share is in millionths; of something of which the host does not say how much it has, nothing is taken.
func share(taken, all float64) int {
	if all <= 0 {
		return 0
	}
	return int(math.Round(taken / all * 1e6))
}

// compare is negative when a is the better host.
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

func lackOfAll(hosts []Host, w Want) string {
	if len(hosts) == 0 {
		return "there is no host"
	}
	var lacks []string
	for i, h := range hosts {
		if i == mostWords && len(hosts) > mostWords+1 {
			lacks = append(lacks, fmt.Sprintf("and nothing on %d more hosts", len(hosts)-i))
			break
		}
		missing := "does not answer"
		if !h.Lost {
			_, missing = Place(h.Node, h.Claims, w)
		}
		if len(hosts) > 1 {
			missing = h.Name + ": " + missing
		}
		lacks = append(lacks, missing)
	}
	return strings.Join(lacks, "; ")
}
