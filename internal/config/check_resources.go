package config

import (
	"math"

	"github.com/sluice-gateway/sluice/engines"
)

// mostGPUs is more than any host has.
const mostGPUs = 64

// visibleDevices is set by placement.
const visibleDevices = "CUDA_VISIBLE_DEVICES"

// resources checks what a replica takes. Whether this host has it is no fault of the file: it may come.
func (k *checker) resources(at path, m *Model) {
	if m.Resources == nil {
		return
	}
	gpu, where := m.Resources.GPU, at.field("resources").field("gpu")
	switch {
	case !k.sound(where):
	case gpu > 1 && gpu != math.Trunc(gpu):
		k.fault(where, "must be a whole number of GPUs, or less than 1 for a share of one, is %v", gpu)
	case gpu > mostGPUs:
		k.fault(where, "must be at most %d, is %v", mostGPUs, gpu)
	case gpu > 0 && gpu < smallestShare:
		k.fault(where, "must be at least %v of a GPU, is %v", smallestShare, gpu)
	}
	if _, ok := m.Env[visibleDevices]; ok {
		k.fault(at.field("env").field(visibleDevices), "has no effect with resources, which say what GPUs a replica gets")
	}
}

// smallestShare keeps sums of shares exact enough to be told from 1.
const smallestShare = 0.001

// Needs is the same as the launcher has it.
func (r Resources) Needs() engines.Resources {
	return engines.Resources{CPU: r.CPU, Memory: int64(r.Memory), GPU: r.GPU}
}
