package local

import (
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/sluice-gateway/sluice/engines"
)

// restricted is an inventory of which an operator lets us have a part: CUDA_VISIBLE_DEVICES of our own environment says which.
type restricted struct {
	Inventory
	list string
}

// Read implements Inventory.
func (r restricted) Read() (engines.Node, error) {
	node, err := r.Inventory.Read()
	return restrict(node, r.list), err
}

// asAllowed is the part of an inventory that we may use.
func asAllowed(i Inventory) Inventory {
	if list, ok := os.LookupEnv(visible); ok {
		return restricted{i, list}
	}
	return i
}

// restrict leaves the GPUs that the list names, as CUDA reads it: numbers, or beginnings of UUIDs of GPUs and of their parts (MIG), up to the
// first entry that names none; "" and "-1" name none. Numbers are counted as the driver does (CUDA_DEVICE_ORDER=PCI_BUS_ID), and
// that of a divided GPU means all its parts.
func restrict(node engines.Node, list string) engines.Node {
	all := node.GPUs
	chosen := map[string]bool{}
	for entry := range strings.SplitSeq(list, ",") {
		named := named(all, strings.TrimSpace(entry))
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

// named lists the UUIDs of the devices that one entry names: none, if it could be several GPUs.
func named(all []engines.GPU, entry string) []string {
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
