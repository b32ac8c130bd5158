package local

import (
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/sluice-gateway/sluice/engines"
)

// restrictedInventory is an inventory of which the launcher may use a part, as CUDA_VISIBLE_DEVICES
// of its own environment says.
type restrictedInventory struct {
	Inventory
	list string
}

// Read implements Inventory.
func (r restrictedInventory) Read() (engines.Node, error) {
	node, err := r.Inventory.Read()
	return restrict(node, r.list), err
}

// withVisibleDevices returns the part of an inventory that CUDA_VISIBLE_DEVICES allows.
func withVisibleDevices(i Inventory) Inventory {
	if list, ok := os.LookupEnv(visible); ok {
		return restrictedInventory{i, list}
	}
	return i
}

// restrict keeps the GPUs that the list names, as CUDA reads it. The list has numbers, or prefixes
// of UUIDs of GPUs and MIG devices. Its first entry that names none ends it. "" and "-1" name none.
// Numbers count as the driver counts (CUDA_DEVICE_ORDER=PCI_BUS_ID). The number of a GPU with MIG
// devices names all of these.
func restrict(node engines.Node, list string) engines.Node {
	all := node.GPUs
	chosen := map[string]bool{}
	for entry := range strings.SplitSeq(list, ",") {
		named := matching(all, strings.TrimSpace(entry))
		if len(named) == 0 {
			break
		}
		for _, uuid := range named {
			chosen[uuid] = true
		}
	}
	if len(chosen) == len(all) {
		return node
	}
	node.GPUs = slices.DeleteFunc(slices.Clone(all), func(gpu engines.GPU) bool { return !chosen[gpu.UUID] })
	reason := fmt.Sprintf("%s=%q leaves %d of %d devices", visible, list, len(node.GPUs), len(all))
	if node.Reason != "" {
		reason += "; " + node.Reason
	}
	node.Reason = reason
	return node
}

// matching returns the UUIDs of the devices that one entry names. It returns none if a prefix fits
// several devices.
func matching(all []engines.GPU, entry string) []string {
	number, err := strconv.Atoi(entry)
	byUUID := strings.HasPrefix(entry, "GPU-") || strings.HasPrefix(entry, "MIG-")
	var uuids []string
	for _, gpu := range all {
		if err == nil && gpu.Index == number || byUUID && strings.HasPrefix(gpu.UUID, entry) {
			uuids = append(uuids, gpu.UUID)
		}
	}
	if byUUID && len(uuids) > 1 {
		return nil
	}
	return uuids
}
