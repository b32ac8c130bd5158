package local

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"github.com/sluice-gateway/sluice/engines"
	"github.com/sluice-gateway/sluice/engines/placement"
)

// Placement says which of several nodes and GPUs with room a replica gets.
type Placement = placement.Policy

// The placements.
const (
	Spread = placement.Spread
	Pack   = placement.Pack
)

// allocateAll allocates resources to every replica that has none yet, in the order of the models
// and of the replicas' numbers. A replica that does not fit does not delay the ones behind it. It
// returns whether a replica waits for a new reading of the inventory.
func (t *table) allocateAll(wanted []desiredModel) (waits bool) {
	for _, m := range wanted {
		for _, i := range m.Numbers() {
			if s, ok := t.entries[engines.ReplicaID(m.Name, i)]; ok && !s.allocated && !s.draining {
				waits = t.allocate(s, m.Model) || waits
			}
		}
	}
	return waits
}

// allocate allocates the resources of one replica, or sets the reason why it has none. The runner
// of the replica has not started. It returns whether the replica waits for a new reading of the
// inventory.
func (t *table) allocate(s *entry, m Model) (waits bool) {
	if m.Resources == nil {
		s.allocated = true
		return false
	}
	if t.node == nil {
		s.replica.Reason = "waits until the resources of this node are known"
		return false
	}
	devices, missing := placement.PickDevices(t.node.Node, t.claims(), placement.Want{Model: m.Name, Resources: *m.Resources, Policy: m.Placement})
	waits = m.Resources.GPU > 0 && !t.node.tells(s.created)
	if s.replica.Reason = missing; waits || missing != "" {
		return waits // a replica without a reason is about to be placed
	}
	s.allocated = true
	s.replica.Resources, s.replica.GPUs = *m.Resources, strings.Join(devices, ",")
	s.runner.replica.Resources, s.runner.replica.GPUs = s.replica.Resources, s.replica.GPUs
	return false
}

// claims returns what the replicas hold, in the order of their ids. A draining replica holds its
// resources until its process has ended.
func (t *table) claims() []placement.Claim {
	var all []placement.Claim
	for _, s := range t.entries {
		if r := s.replica; s.allocated && r.Resources != (engines.Resources{}) {
			all = append(all, placement.Claim{ID: r.ID, Model: r.Model, Resources: r.Resources, Devices: r.Devices()})
		}
	}
	slices.SortFunc(all, func(a, b placement.Claim) int { return cmp.Compare(a.ID, b.ID) })
	return all
}

// missingDevices says which devices of the replica the node does not have any more. It returns ""
// if there are none, or if the driver did not answer: silence of the driver does not prove that a
// device is gone.
func (t *table) missingDevices(r engines.Replica) string {
	if t.node == nil || t.node.driver != driverAnswered {
		return ""
	}
	var gone []string
	for _, uuid := range r.Devices() {
		if !slices.ContainsFunc(t.node.GPUs, func(gpu engines.GPU) bool { return gpu.UUID == uuid }) {
			gone = append(gone, uuid)
		}
	}
	if len(gone) == 0 {
		return ""
	}
	return "its GPU is missing: " + strings.Join(gone, ", ")
}

func (t *table) name() string {
	if t.node != nil && t.node.Name != "" {
		return t.node.Name
	}
	return t.host
}

// report returns the replica as the fleet shows it.
func (t *table) report(s *entry) engines.Replica {
	r := s.replica
	r.Node = t.name()
	if lost := t.missingDevices(r); lost != "" && r.Reason != "" {
		r.Reason = lost + "; " + r.Reason
	} else if lost != "" {
		r.Reason = lost
	}
	return r
}

// loaded returns the ids of the replicas that had loaded their model when a reading began.
func (t *table) loaded(begun time.Time) map[string]bool {
	ids := map[string]bool{}
	for id, s := range t.entries {
		ids[id] = s.draining && s.wasReady || s.replica.State == engines.Ready && s.replica.Since.Before(begun)
	}
	return ids
}
