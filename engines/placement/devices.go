package placement

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/sluice-gateway/sluice/engines"
)

// memoryNeeded is the part of its share of a device's memory that a replica must find free. It is
// what engines are told to use (engines.GPUMemoryHeadroom), so drivers and desktops may hold a
// little.
const memoryNeeded = engines.GPUMemoryHeadroom

// rounding is the error that sums of fractions may have.
const rounding = 1e-9

// deviceUsage is a GPU or MIG device with what its replicas use.
type deviceUsage struct {
	*engines.GPU
	// used is the sum of the shares, from 0 to 1. replicas counts the replicas that hold a share,
	// and siblings those of them that belong to the wanted model.
	used               float64
	replicas, siblings int
	// usedOnGPU and siblingsOnGPU are the sums over all MIG devices of the same GPU.
	usedOnGPU     float64
	siblingsOnGPU int
}

// PickDevices picks the node's devices for one more replica, or says what is missing. A replica
// that needs no GPU gets no device. If the node does not report its CPUs or its memory (0),
// PickDevices does not count them.
func PickDevices(node engines.Node, claims []Claim, w Want) (devices []string, missing string) {
	lacks := missingCPUAndMemory(node, claims, w)
	if w.GPU > 0 {
		found, lack := pickGPUs(node, claims, w)
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

// Fits reports whether PickDevices finds what the replica needs. It is faster, because it does not
// compose the text of what is missing.
func Fits(node engines.Node, claims []Claim, w Want) bool {
	cpu, memory := free(node, claims)
	if exceeds(w.CPU, cpu, node.CPUs) || exceeds(float64(w.Memory), float64(memory), float64(node.Memory)) {
		return false
	}
	if w.GPU <= 0 {
		return true
	}
	fitting := 0
	for _, d := range deviceUsages(node, claims, w) {
		if d.fits(w) {
			fitting++
		}
	}
	return fitting >= w.Devices()
}

// free returns the CPUs and the bytes of memory that no replica claims. They are negative if the
// node has less than its replicas claim.
func free(node engines.Node, claims []Claim) (cpu float64, memory int64) {
	cpu, memory = node.CPUs, node.Memory
	for i := range claims {
		cpu -= claims[i].CPU
		memory -= claims[i].Memory
	}
	return cpu, memory
}

// exceeds reports whether more is wanted than is free. It is false if the node does not report its
// total.
func exceeds(wanted, free, total float64) bool {
	return wanted > 0 && total > 0 && wanted > free+rounding
}

// missingCPUAndMemory says which of CPUs and memory the node lacks for the replica.
func missingCPUAndMemory(node engines.Node, claims []Claim, w Want) (lacks []string) {
	cpu, memory := free(node, claims)
	if exceeds(w.CPU, cpu, node.CPUs) {
		lacks = append(lacks, fmt.Sprintf("needs %s CPUs, %s of %s are free", number(w.CPU), number(max(cpu, 0)), number(node.CPUs)))
	}
	if exceeds(float64(w.Memory), float64(memory), float64(node.Memory)) {
		lacks = append(lacks, fmt.Sprintf("needs %s of memory, %s of %s is free", gibibytes(w.Memory), gibibytes(max(memory, 0)), gibibytes(node.Memory)))
	}
	return lacks
}

// pickGPUs picks GPUs by the policy, or says why the GPUs are not enough.
func pickGPUs(node engines.Node, claims []Claim, w Want) (devices []string, missing string) {
	all := deviceUsages(node, claims, w)
	fit := make([]deviceUsage, 0, len(all))
	for _, d := range all {
		if d.fits(w) {
			fit = append(fit, d)
		}
	}
	if len(fit) < w.Devices() {
		return nil, missingGPUs(node, claims, all, w)
	}
	slices.SortStableFunc(fit, func(a, b deviceUsage) int {
		if w.Policy == Pack {
			return cmp.Or(cmp.Compare(b.used, a.used), cmp.Compare(b.usedOnGPU, a.usedOnGPU))
		}
		return cmp.Or(cmp.Compare(a.siblingsOnGPU, b.siblingsOnGPU), cmp.Compare(a.used, b.used), cmp.Compare(a.usedOnGPU, b.usedOnGPU))
	})
	for _, d := range fit[:w.Devices()] {
		devices = append(devices, d.UUID)
	}
	return devices, ""
}

// fits reports whether the device has room for the replica, or for one part of a replica that needs
// several devices. A replica cannot use several MIG devices: CUDA shows only one MIG device to a
// process.
func (d deviceUsage) fits(w Want) bool {
	switch {
	case !d.hasMemory(w):
		return false
	case w.GPU < 1:
		return d.used+w.GPU <= 1+rounding
	}
	return d.replicas == 0 && (w.Devices() == 1 || !d.MIG)
}

// hasMemory reports whether what others hold of the device's memory leaves enough for its replicas
// and the wanted one. It is true if the driver does not tell.
func (d deviceUsage) hasMemory(w Want) bool {
	if d.MemoryTotal <= 0 {
		return true
	}
	needed := (d.used + w.Share()) * memoryNeeded * float64(d.MemoryTotal)
	return needed <= float64(d.MemoryTotal-d.MemoryForeign)*(1+rounding)
}

// deviceUsages returns the usage of each of the node's devices, in the node's order.
func deviceUsages(node engines.Node, claims []Claim, w Want) []deviceUsage {
	all := make([]deviceUsage, len(node.GPUs))
	for i := range all {
		all[i].GPU = &node.GPUs[i]
	}
	for i := range claims {
		for _, uuid := range claims[i].Devices {
			at := slices.IndexFunc(node.GPUs, func(gpu engines.GPU) bool { return gpu.UUID == uuid })
			if at < 0 {
				continue
			}
			all[at].used += claims[i].Share()
			all[at].replicas++
			if claims[i].Model == w.Model {
				all[at].siblings++
			}
		}
	}
	for i := range all {
		for j := range all {
			if all[i].Index == all[j].Index {
				all[i].usedOnGPU += all[j].used
				all[i].siblingsOnGPU += all[j].siblings
			}
		}
	}
	return all
}

// missingGPUs says why the GPUs are not enough and who holds them.
func missingGPUs(node engines.Node, claims []Claim, all []deviceUsage, w Want) string {
	text := "needs " + plural(w.Devices(), "GPU")
	if w.GPU < 1 {
		text = "needs " + number(w.GPU) + " of a GPU"
	}
	if len(node.GPUs) == 0 {
		return text + ", this node has none" + because(node.Reason)
	}
	var held []string
	hasMIG, fitting := false, 0
	for _, d := range all {
		hasMIG = hasMIG || d.MIG
		if d.fits(w) {
			fitting++
		}
		if names := holders(claims, d.UUID); names != "" {
			held = append(held, label(*d.GPU)+" has "+names)
		}
		if d.used+w.Share() <= 1+rounding && !d.hasMemory(w) {
			held = append(held, fmt.Sprintf("others hold %s of %s of %s", gibibytes(d.MemoryForeign), gibibytes(d.MemoryTotal), label(*d.GPU)))
		}
	}
	verb := "are"
	if fitting == 1 {
		verb = "is"
	}
	if w.GPU < 1 {
		text += fmt.Sprintf(", none of %d has that much left", len(node.GPUs))
	} else {
		text += fmt.Sprintf(", %d of %d %s free", fitting, len(node.GPUs), verb)
	}
	if hasMIG && w.Devices() > 1 {
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

// label returns a short name of a device: the GPU's number, or the UUID of a MIG device, which has
// no number that users see.
func label(gpu engines.GPU) string {
	if gpu.MIG {
		return gpu.UUID
	}
	return "GPU " + strconv.Itoa(gpu.Index)
}

// holders lists the replicas that hold a device, with their shares if these are below 1.
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

// number formats a number with at most three decimals.
func number(f float64) string {
	text := strconv.FormatFloat(f, 'f', 3, 64)
	return strings.TrimSuffix(strings.TrimRight(text, "0"), ".")
}

func gibibytes(n int64) string { return number(float64(n)/(1<<30)) + " GiB" }
