// Package placement says what fits where: which devices of a host a replica gets, which host, and whose replicas must go for it. It is
// pure: the same question has the same answer, and nothing is kept between two questions.
package placement

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/sluice-gateway/sluice/engines"
)

// Policy says which of several hosts and devices with room a replica gets. Empty means Spread.
type Policy string

// The policies.
const (
	// Spread takes the host, and on it the GPU, with the fewest replicas of the same model, then the one of which least is taken.
	Spread Policy = "spread"
	// Pack takes the host, and on it the device, of which most is taken.
	Pack Policy = "pack"
)

// Claim is what one replica has of its host.
type Claim struct {
	ID, Model string
	engines.Resources
	// Devices are the UUIDs of its GPUs, or of parts of GPUs.
	Devices []string
}

// Want is what a replica without a place asks for.
type Want struct {
	Model string
	engines.Resources
	Policy Policy
}

// grain is what sums of fractions may be off by.
const grain = 1e-9

// room is a device with what is taken of it.
type room struct {
	*engines.GPU
	// taken is the sum of the shares, replicas how many hold one, own how many of those are of the wanted model.
	taken         float64
	replicas, own int
	// onGPU is what is taken of the whole GPU that it is a part of, siblings how many replicas of the wanted model are there.
	onGPU    float64
	siblings int
}

// Place finds devices of the node for a replica beside those that have theirs, or says what is missing. A replica that needs no GPU gets
// none. What the node does not say of its processors and memory is not counted.
func Place(node engines.Node, claims []Claim, w Want) (devices []string, missing string) {
	lacks := lackOfRest(node, claims, w)
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

// Fits tells whether Place finds what the replica needs. It is quicker, because it has no words for what is missing.
func Fits(node engines.Node, claims []Claim, w Want) bool {
	cpu, memory := left(node, claims)
	if tooMuch(w.CPU, cpu, node.CPUs) || tooMuch(float64(w.Memory), float64(memory), float64(node.Memory)) {
		return false
	}
	if w.GPU <= 0 {
		return true
	}
	free := 0
	for _, r := range roomsOf(node, claims, w) {
		if r.fits(w) {
			free++
		}
	}
	return free >= w.Devices()
}

// left is what nobody has of the processors and of the memory; less than nothing where the node has shrunk.
func left(node engines.Node, claims []Claim) (cpu float64, memory int64) {
	cpu, memory = node.CPUs, node.Memory
	for i := range claims {
		cpu -= claims[i].CPU
		memory -= claims[i].Memory
	}
	return cpu, memory
}

// tooMuch tells that more is wanted than is left of something of which the node says how much it has.
func tooMuch(wanted, left, all float64) bool { return wanted > 0 && all > 0 && wanted > left+grain }

func lackOfRest(node engines.Node, claims []Claim, w Want) (lacks []string) {
	cpu, memory := left(node, claims)
	if tooMuch(w.CPU, cpu, node.CPUs) {
		lacks = append(lacks, fmt.Sprintf("needs %s CPUs, %s of %s are free", number(w.CPU), number(max(cpu, 0)), number(node.CPUs)))
	}
	if tooMuch(float64(w.Memory), float64(memory), float64(node.Memory)) {
		lacks = append(lacks, fmt.Sprintf("needs %s of memory, %s of %s is free", gibibytes(w.Memory), gibibytes(max(memory, 0)), gibibytes(node.Memory)))
	}
	return lacks
}

func placeGPUs(node engines.Node, claims []Claim, w Want) (devices []string, missing string) {
	rooms := roomsOf(node, claims, w)
	fit := make([]room, 0, len(rooms))
	for _, r := range rooms {
		if r.fits(w) {
			fit = append(fit, r)
		}
	}
	if len(fit) < w.Devices() {
		return nil, lackOf(node, claims, len(fit), w)
	}
	slices.SortStableFunc(fit, func(a, b room) int {
		if w.Policy == Pack {
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
func (r room) fits(w Want) bool {
	if w.GPU < 1 {
		return r.taken+w.GPU <= 1+grain
	}
	return r.replicas == 0 && (w.Devices() == 1 || !r.MIG)
}

// roomsOf tells of every device what is taken.
func roomsOf(node engines.Node, claims []Claim, w Want) []room {
	rooms := make([]room, len(node.GPUs))
	for i := range rooms {
		rooms[i].GPU = &node.GPUs[i]
	}
	for i := range claims {
		for _, uuid := range claims[i].Devices {
			at := slices.IndexFunc(node.GPUs, func(gpu engines.GPU) bool { return gpu.UUID == uuid })
			if at < 0 {
				continue
			}
			rooms[at].taken += claims[i].Share()
			rooms[at].replicas++
			if claims[i].Model == w.Model {
				rooms[at].own++
			}
		}
	}
	for i := range rooms {
		for j := range rooms {
			if rooms[i].Index == rooms[j].Index {
				rooms[i].onGPU += rooms[j].taken
				rooms[i].siblings += rooms[j].own
			}
		}
	}
	return rooms
}

// lackOf says why the GPUs are not enough, and who has them.
func lackOf(node engines.Node, claims []Claim, free int, w Want) string {
	text := "needs " + plural(w.Devices(), "GPU")
	if w.GPU < 1 {
		text = "needs " + number(w.GPU) + " of a GPU"
	}
	if len(node.GPUs) == 0 {
		return text + ", this host has none" + because(node.Reason)
	}
	var held []string
	divided := false
	for _, gpu := range node.GPUs {
		divided = divided || gpu.MIG
		if names := holders(claims, gpu.UUID); names != "" {
			held = append(held, label(gpu)+" has "+names)
		}
	}
	verb := "are"
	if free == 1 {
		verb = "is"
	}
	if w.GPU < 1 {
		text += fmt.Sprintf(", none of %d has that much left", len(node.GPUs))
	} else {
		text += fmt.Sprintf(", %d of %d %s free", free, len(node.GPUs), verb)
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
func label(gpu engines.GPU) string {
	if gpu.MIG {
		return gpu.UUID
	}
	return "GPU " + strconv.Itoa(gpu.Index)
}

// holders lists who has a device, with their shares where they do not have it whole.
func holders(claims []Claim, uuid string) string {
	var names []string
	for _, c := range claims {
		if !slices.Contains(c.Devices, uuid) {
			continue
		}
		name := c.ID
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
