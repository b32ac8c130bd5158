package dispatch

import (
	"maps"
	"slices"

	"github.com/sluice-gateway/sluice/engines"
	"github.com/sluice-gateway/sluice/internal/request"
)

// Some engines end a response by closing its connection, as HTTP/1.0 does. Nobody can tell a cut
// of such a response from its end by HTTP alone: Envoy passes both on as a success. The relay reads
// what is inside and notices. So all requests of a model are managed once one of its replicas is
// known to answer in this way.

// ClosesOf reports whether an entry of Envoy's access log says that the replica has answered with a
// response that only the end of its connection ends.
func ClosesOf(e *request.Entry) bool { return e.CloseDelimited && e.Model != "" && e.Replica != "" }

// LearnCloseDelimited records that the replica ends responses by closing their connections. The
// record belongs to one run of the replica's process. That of an upstream, whose process nobody
// knows, lasts as long as the upstream keeps its address.
func (d *Dispatcher) LearnCloseDelimited(model, replica string) {
	t := d.table.Load().routes[model]
	if known := t.replica(replica); t == nil || known != nil && known.closeDelimited {
		return // the relay comes here for each response
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	r, _ := d.pickableLocked(replica)
	if r == nil {
		return
	}
	maps.DeleteFunc(d.closeDelimited, func(id string, _ process) bool { return d.counters[id] == nil })
	d.closeDelimited[replica] = processOf(r)
	for _, user := range d.counters[replica].models() {
		d.dirty[user] = struct{}{}
	}
	d.rebuildLocked()
}

// CloseDelimited returns the replicas that are known to answer in this way, by id, with their
// models in order.
func (d *Dispatcher) CloseDelimited() map[string][]string {
	all := map[string][]string{}
	for name, t := range d.table.Load().routes {
		for _, r := range t.replicas {
			if r.closeDelimited {
				all[r.id] = append(all[r.id], name)
			}
		}
	}
	for _, models := range all {
		slices.Sort(models)
	}
	return all
}

// isCloseDelimitedLocked reports whether the replica is known to answer in this way: its launcher
// has seen it, or a response has told it since the replica's process started.
func (d *Dispatcher) isCloseDelimitedLocked(r *engines.Replica) bool {
	known, ok := d.closeDelimited[r.ID]
	return r.CloseDelimited || ok && known == processOf(r)
}
