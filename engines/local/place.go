package local

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/sluice-gateway/sluice/engines"
)

// Placement says which of several devices with room a replica gets.
type Placement string

// The placements.
const (
	// Spread takes the GPU with the fewest replicas of the same model, then the one of which least is taken.
	Spread Placement = "spread"
	// Pack takes the device of which most is taken.
	Pack Placement = "pack"
)

// claim is what one replica has of the host.
type claim struct {
	id, model string
	engines.Resources
	devices []string
}

// want is what a replica without a place asks for.
type want struct {
	model string
	engines.Resources
	placement Placement
}

// grain is what sums of fractions may be off by.
const grain = 1e-9

// room is a device with what is taken of it.
type room struct {
	engines.GPU
	holders []claim
	taken   float64
	// onGPU is what is taken of the whole GPU that it is a part of, siblings how many replicas of the same model are there.
	onGPU    float64
	siblings int
}

// place finds devices for a replica beside those that have theirs, or says what is missing. The same question has the same answer.
func place(node engines.Node, claims []claim, w want) (devices []string, missing string) {
	var lacks []string
	cpu, memory := node.CPUs, node.Memory
	for _, c := range claims {
		cpu -= c.CPU
		memory -= c.Memory
	}
	if w.CPU > 0 && node.CPUs > 0 && w.CPU > cpu+grain {
		lacks = append(lacks, fmt.Sprintf("needs %s CPUs, %s of %s are free", number(w.CPU), number(max(cpu, 0)), number(node.CPUs)))
	}
	if w.Memory > 0 && node.Memory > 0 && w.Memory > memory {
		lacks = append(lacks, fmt.Sprintf("needs %s of memory, %s of %s is free", gibibytes(w.Memory), gibibytes(max(memory, 0)), gibibytes(node.Memory)))
	}
	if w.GPU > 0 {
		found, lack := placeGPUs(node, claims, w)
		if lack != "" {
			lacks = append(lacks, lack)
		}
		devices = found
	}
	if len(lacks) > 0 {
		return nil, strings.Join(lacks, "; ")
	}
	return devices, ""
}

func placeGPUs(node engines.Node, claims []claim, w want) (devices []string, missing string) {
	rooms := roomsOf(node, claims, w)
	var fit []room
	for _, r := range rooms {
		if r.fits(w) {
			fit = append(fit, r)
		}
	}
	if len(fit) < w.Devices() {
		return nil, lackOf(node, rooms, len(fit), w)
	}
	slices.SortStableFunc(fit, func(a, b room) int {
		if w.placement == Pack {
			return cmp.Or(cmp.Compare(b.taken, a.taken), cmp.Compare(b.onGPU, a.onGPU))
		}
		return cmp.Or(cmp.Compare(a.siblings, b.siblings), cmp.Compare(a.taken, b.taken), cmp.Compare(a.onGPU, b.onGPU))
	})
	for _, r := range fit[:w.Devices()] {
		devices = append(devices, r.UUID)
	}
	return devices, ""
}

// fits tells whether the device has room for a replica, or for its part of a replica of several devices. The parts of a divided GPU
// cannot work together: CUDA shows a process only one.
func (r room) fits(w want) bool {
	if w.GPU < 1 {
		return r.taken+w.GPU <= 1+grain
	}
	return len(r.holders) == 0 && (w.Devices() == 1 || !r.MIG)
}

// roomsOf tells of every device what is taken.
func roomsOf(node engines.Node, claims []claim, w want) []room {
	rooms := make([]room, len(node.GPUs))
	onGPU, siblings := map[int]float64{}, map[int]int{}
	for i, gpu := range node.GPUs {
		rooms[i].GPU = gpu
		for _, c := range claims {
			if !slices.Contains(c.devices, gpu.UUID) {
				continue
			}
			rooms[i].holders = append(rooms[i].holders, c)
			rooms[i].taken += c.Share()
			onGPU[gpu.Index] += c.Share()
			if c.model == w.model {
				siblings[gpu.Index]++
			}
		}
	}
	for i := range rooms {
		rooms[i].onGPU, rooms[i].siblings = onGPU[rooms[i].Index], siblings[rooms[i].Index]
	}
	return rooms
}

// lackOf says why the GPUs are not enough, and who has them.
func lackOf(node engines.Node, rooms []room, free int, w want) string {
	text := "needs " + plural(w.Devices(), "GPU")
	if w.GPU < 1 {
		text = "needs " + number(w.GPU) + " of a GPU"
	}
	if len(rooms) == 0 {
		return text + ", this host has none" + because(node.Reason)
	}
	var held []string
	divided := false
	for _, r := range rooms {
		divided = divided || r.MIG
		if len(r.holders) > 0 {
			held = append(held, r.label()+" has "+holders(r.holders))
		}
	}
	verb := "are"
	if free == 1 {
		verb = "is"
	}
	if w.GPU < 1 {
		text += fmt.Sprintf(", none of %d has that much left", len(rooms))
	} else {
		text += fmt.Sprintf(", %d of %d %s free", free, len(rooms), verb)
	}
	if divided && w.Devices() > 1 {
		text += " (parts of a GPU that is divided by MIG do not count)"
	}
	if len(held) > 0 {
		text += ": " + strings.Join(held, ", ")
	}
	if node.Reason != "" {
		text += "; " + node.Reason
	}
	return text
}

func because(reason string) string {
	if reason == "" {
		return ""
	}
	return " (" + reason + ")"
}

// label names a device shortly: the parts of a GPU have no numbers that anybody sees.
func (r room) label() string {
	if r.MIG {
		return r.UUID
	}
	return "GPU " + strconv.Itoa(r.Index)
}

// holders lists who has a device, with their shares where they do not have it whole.
func holders(claims []claim) string {
	var names []string
	for _, c := range claims {
		name := c.id
		if c.Share() < 1 {
			name += " (" + number(c.Share()) + ")"
		}
		names = append(names, name)
	}
	return strings.Join(names, " and ")
}

func plural(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return strconv.Itoa(n) + " " + what + "s"
}

// number writes at most three decimals.
func number(f float64) string {
	text := strconv.FormatFloat(f, 'f', 3, 64)
	return strings.TrimSuffix(strings.TrimRight(text, "0"), ".")
}

func gibibytes(n int64) string { return number(float64(n)/(1<<30)) + " GiB" }

// place gives a place to every replica that has none, in the order of the file and of their numbers. One that does not fit holds up
// nobody behind it.
func (t *table) place(wanted []wish) {
	for _, m := range wanted {
		for i := range max(m.Desired, 0) {
			if s, ok := t.slots[replicaID(m.Name, i)]; ok && !s.placed && !s.leaving {
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
	devices, missing := place(*t.node, t.claims(), want{m.Name, *m.Resources, m.Placement})
	if s.replica.Reason = missing; missing != "" {
		return
	}
	s.placed = true
	s.replica.Resources, s.replica.GPUs = *m.Resources, strings.Join(devices, ",")
	s.runner.replica.Resources, s.runner.replica.GPUs = s.replica.Resources, s.replica.GPUs
}

// claims is what the replicas have, in the order of their ids. One that leaves has it until it is gone.
func (t *table) claims() []claim {
	var all []claim
	for _, s := range t.slots {
		if r := s.replica; s.placed && r.Resources != (engines.Resources{}) {
			all = append(all, claim{r.ID, r.Model, r.Resources, r.Devices()})
		}
	}
	slices.SortFunc(all, func(a, b claim) int { return cmp.Compare(a.id, b.id) })
	return all
}

// lost names the replica's devices that are not there any more.
func (t *table) lost(r engines.Replica) string {
	if t.node == nil {
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

// told is the replica as the fleet hears of it.
func (t *table) told(s *slot) engines.Replica {
	r := s.replica
	if lost := t.lost(r); lost != "" && r.Reason != "" {
		r.Reason = lost + "; " + r.Reason
	} else if lost != "" {
		r.Reason = lost
	}
	return r
}
