package config

import (
	"math"

	"github.com/sluice-gateway/sluice/engines"
)

// maxGPUs is the largest number of GPUs of a replica. It is more than any node has.
const maxGPUs = 64

// visibleDevices are the environment variables by which a launcher tells a replica its GPUs.
func visibleDevices() []string {
	return []string{"CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"}
}

// checkResources checks the resources of a replica. It does not check that a node has them, because
// a node may join later.
func (k *checker) checkResources(at path, m *Model) {
	if m.Resources == nil {
		return
	}
	gpu, where := m.Resources.GPU, at.field("resources").field("gpu")
	switch {
	case !k.valid(where):
	case gpu > 1 && gpu != math.Trunc(gpu):
		k.faultf(where, "must be a whole number of GPUs, or less than 1 for a share of one GPU, is %v", gpu)
	case gpu > maxGPUs:
		k.faultf(where, "must be at most %d, is %v", maxGPUs, gpu)
	case gpu > 0 && gpu < minGPUShare:
		k.faultf(where, "must be at least %v of a GPU, is %v", minGPUShare, gpu)
	}
	for _, name := range visibleDevices() {
		if _, ok := m.Env[name]; ok {
			k.faultf(at.field("env").field(name), "has no effect with resources, which assign the GPUs of a replica; remove it")
		}
	}
}

// checkGPUs checks the variables by which an engine is told its GPUs against the resources.
func (k *checker) checkGPUs(at path, m *Model, version engines.Version) {
	launch := k.config.launch(*m)
	for _, fault := range version.CheckGPUs(launch.GPUs, launch.GPUShare, m.Variables) {
		if where := at.below(m.Variables, fault.Path); k.valid(where) {
			k.faultf(where, "%s", fault.Reason)
		}
	}
}

// minGPUShare is the smallest share of a GPU. Sums of smaller shares could not be told from 1
// exactly.
const minGPUShare = 0.001

// Needs returns the resources in the form that launchers use.
func (r Resources) Needs() engines.Resources {
	return engines.Resources{CPU: r.CPU, Memory: int64(r.Memory), GPU: r.GPU}
}
