package local

import (
	"cmp"
	"slices"
	"strings"

	"github.com/sluice-gateway/sluice/engines"
	"github.com/sluice-gateway/sluice/engines/placement"
)

// Placement says which of several devices with room a replica gets.
type Placement = placement.Policy

// The placements.
const (
	Spread = placement.Spread
	Pack   = placement.Pack
)

// place gives a place to every replica that has none, in the order of the file and of their numbers. One that does not fit holds up
// nobody behind it.
func (t *table) place(wanted []wish) {
	for _, m := range wanted {
		for _, i := range m.Numbers() {
			if s, ok := t.slots[ReplicaID(m.Name, i)]; ok && !s.placed && !s.leaving {
				t.settle(s, m.Model)
			}
		}
	}
}

// settle gives one replica its place, or the reason why it has none. Its runner has not begun.
func (t *table) settle(s *slot, m Model) {
	if m.Resources == nil {
		s.placed = true
		return
	}
	if t.node == nil {
		s.replica.Reason = "waits until it is known what this host has"
		return
	}
	devices, missing := placement.PickDevices(t.node.Node, t.claims(), placement.Want{Model: m.Name, Resources: *m.Resources, Policy: m.Placement})
	if s.replica.Reason = missing; missing != "" {
		return
	}
	s.placed = true
	s.replica.Resources, s.replica.GPUs = *m.Resources, strings.Join(devices, ",")
	s.runner.replica.Resources, s.runner.replica.GPUs = s.replica.Resources, s.replica.GPUs
}

// claims is what the replicas have, in the order of their ids. One that leaves has it until it is gone.
func (t *table) claims() []placement.Claim {
	var all []placement.Claim
	for _, s := range t.slots {
		if r := s.replica; s.placed && r.Resources != (engines.Resources{}) {
			all = append(all, placement.Claim{ID: r.ID, Model: r.Model, Resources: r.Resources, Devices: r.Devices()})
		}
	}
	slices.SortFunc(all, func(a, b placement.Claim) int { return cmp.Compare(a.ID, b.ID) })
	return all
}

// lost names the replica's devices that are not there any more. What a driver does not answer is no loss.
func (t *table) lost(r engines.Replica) string {
	if t.node == nil || t.node.devices != heard {
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
	return "its GPU is not there any more: " + strings.Join(gone, ", ")
}

// name is this host's.
func (t *table) name() string {
	if t.node != nil && t.node.Name != "" {
		return t.node.Name
	}
	return t.host
}

// report is the replica as the fleet hears of it.
func (t *table) report(s *slot) engines.Replica {
	r := s.replica
	r.Node = t.name()
	if lost := t.lost(r); lost != "" && r.Reason != "" {
		r.Reason = lost + "; " + r.Reason
	} else if lost != "" {
		r.Reason = lost
	}
	return r
}
