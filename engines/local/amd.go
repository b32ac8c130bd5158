package local

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/sluice-gateway/sluice/engines"
)

// The variables that tell ROCm which devices there are. The first takes UUIDs; what it leaves is
// numbered from 0 in the second. ROCm's HIP also reads CUDA_VISIBLE_DEVICES as the second.
const (
	rocrVisible = "ROCR_VISIBLE_DEVICES"
	hipVisible  = "HIP_VISIBLE_DEVICES"
)

// amdInventory adds the AMD GPUs of this machine to another inventory.
type amdInventory struct {
	Inventory
	// root is where sysfs is mounted.
	root string
}

// Read implements Inventory. A machine with AMD GPUs needs no driver of NVIDIA's.
func (a amdInventory) Read() (engines.Node, error) {
	node, err := a.Inventory.Read()
	found := amdGPUs(a.root)
	if list, ok := os.LookupEnv(rocrVisible); ok {
		found = restrict(engines.Node{GPUs: found}, list).GPUs
	}
	if len(found) == 0 {
		return node, err
	}
	node.GPUs = append(slices.Clone(node.GPUs), found...)
	return node, nil
}

// amdGPUs lists the GPUs that AMD's kernel driver tells of (class/kfd of sysfs). Their order is the
// one of ROCr. Their memory is told by the device of the same GPU in class/drm. A GPU without a
// UUID is left out, because ROCr cannot be told to use it alone.
func amdGPUs(root string) []engines.GPU {
	paths, _ := filepath.Glob(filepath.Join(root, "class/kfd/kfd/topology/nodes/*/properties"))
	number := func(path string) int {
		n, _ := strconv.Atoi(filepath.Base(filepath.Dir(path)))
		return n
	}
	slices.SortFunc(paths, func(a, b string) int { return cmp.Compare(number(a), number(b)) })
	var all []engines.GPU
	index := 0
	for _, path := range paths {
		properties := fields(path)
		if properties["simd_count"] == 0 {
			continue // a CPU
		}
		if id := properties["unique_id"]; id != 0 {
			device := filepath.Join(root, "class/drm", fmt.Sprintf("renderD%d", properties["drm_render_minor"]), "device")
			all = append(all, engines.GPU{
				UUID: fmt.Sprintf("%s%016x", amdPrefix, id), Index: index,
				Name:        cmp.Or(line(filepath.Join(device, "product_name")), line(filepath.Join(filepath.Dir(path), "name"))),
				MemoryTotal: int64(value(line(filepath.Join(device, "mem_info_vram_total")))),
				MemoryUsed:  int64(value(line(filepath.Join(device, "mem_info_vram_used")))),
			})
		}
		index++
	}
	return all
}

// amdPrefix begins the UUIDs that ROCr takes. 16 hexadecimal digits follow, without dashes.
const amdPrefix = "GPU-"

// isAMD reports whether a UUID is one of an AMD GPU. Those of NVIDIA's have dashes between their
// digits.
func isAMD(uuid string) bool {
	digits, ok := strings.CutPrefix(uuid, amdPrefix)
	_, err := strconv.ParseUint(digits, 16, 64)
	return ok && len(digits) == 16 && err == nil
}

// fields reads a file of lines "name number".
func fields(path string) map[string]uint64 {
	data, _ := os.ReadFile(path) // a GPU that has gone has no fields
	all := map[string]uint64{}
	for text := range strings.Lines(string(data)) {
		if name, number, ok := strings.Cut(strings.TrimSpace(text), " "); ok {
			all[name] = value(number)
		}
	}
	return all
}

// line reads a file of one line; "" if it is not there.
func line(path string) string {
	data, _ := os.ReadFile(path)
	return strings.TrimSpace(string(data))
}

// value parses a number; 0 if it is none.
func value(text string) uint64 {
	n, _ := strconv.ParseUint(text, 10, 64)
	return n
}

// visibleDevices returns the variables by which a process sees these devices and no others.
func visibleDevices(uuids []string) []string {
	if len(uuids) == 0 || !isAMD(uuids[0]) {
		return []string{visible + "=" + strings.Join(uuids, ",")}
	}
	var numbers []string
	for i := range uuids {
		numbers = append(numbers, strconv.Itoa(i))
	}
	list := strings.Join(numbers, ",")
	return []string{rocrVisible + "=" + strings.Join(uuids, ","), hipVisible + "=" + list, visible + "=" + list}
}
