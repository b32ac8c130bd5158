package gateway

import (
	"slices"

	"github.com/sluice-gateway/sluice/internal/carry"
	"github.com/sluice-gateway/sluice/internal/request"
)

// listRequests returns the requests of this process and those that earlier processes carry, as
// request.Store.List does.
func (g *Gateway) listRequests(limit int) (all []request.Summary, running int) {
	own, running := g.requests.List(limit)
	carried, more := g.carried.Requests(limit)
	if len(carried) == 0 {
		return own, running + more
	}
	known := make(map[string]bool, len(carried))
	for i := range carried {
		known[carried[i].ID] = true
	}
	first := slices.IndexFunc(own, func(q request.Summary) bool { return q.State == request.Done })
	if first < 0 {
		first = len(own)
	}
	// Envoy's log may tell this process, too, of a request that an earlier process carries.
	mine := slices.DeleteFunc(slices.Clone(own[:first]), func(q request.Summary) bool { return known[q.ID] })
	running += more - (first - len(mine))
	all = slices.Concat(mine, carried)
	slices.SortStableFunc(all, func(a, b request.Summary) int { return b.Started.Compare(a.Started) })
	if limit > 0 && len(all) > limit {
		all = all[:limit]
	}
	return append(all, own[first:]...), running
}

// findRequest returns a request of this process, or of an earlier one that carries it.
func (g *Gateway) findRequest(id string) (request.Detail, bool) {
	if found, ok := g.requests.Find(id); ok {
		return found, true
	}
	return g.carried.Request(id)
}

// tellEnded tells the successor of the last requests that have ended, and of each that ends from
// now on.
func (g *Gateway) tellEnded(to *carry.Link) {
	g.succession.link.Store(to)
	all, _ := g.requests.List(0)
	for _, q := range slices.Backward(all) { // the oldest first
		if q.State == request.Done {
			to.Ended(q, false)
		}
	}
}

// addEnded adds a request that has ended at an earlier process. counts says that the metrics and
// the history of this process are to count it.
func (g *Gateway) addEnded(q request.Summary, counts bool) {
	g.requests.AddEnded(q)
	if counts {
		g.finished(q)
		g.traffic.Finished(q)
	}
}

// addUsed counts tokens that are counted apart from the end of their request in the metrics and the
// history of this process.
func (g *Gateway) addUsed(q request.Summary) {
	g.metrics.Used(&q)
	g.traffic.Used(&q)
}

// retried counts an attempt that was repeated, also at the successor if there is one.
func (g *Gateway) retried(model, tenant, reason string) {
	g.metrics.Retried(model, tenant, reason)
	g.succession.link.Load().Retried(model, tenant, reason)
}
