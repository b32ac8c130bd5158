package engines

import (
	"math"
	"strings"
)

// Node is a machine that replicas run on, with its resources.
type Node struct {
	// Name is the name of the machine.
	Name string
	// Labels are what `cluster` of a model may require.
	Labels []string
	// CPUs is the number of CPUs that replicas may use. 0 means unknown; then CPUs are not counted.
	CPUs float64
	// Memory is in bytes. 0 means unknown; then memory is not counted.
	Memory int64
	// GPUs are in the order of their indices.
	GPUs []GPU
	// Reason says why there are no GPUs, or not all of them.
	Reason string
	// Lost: the node has joined before and does not answer now. It gets no replicas.
	Lost bool
	// Left: a lost node has said that it stops, so its silence is no fault.
	Left bool `json:",omitzero"`
}

// GPU is a device that a replica can be given: a whole GPU, or a MIG device, which is a part of
// one.
type GPU struct {
	// UUID is what CUDA_VISIBLE_DEVICES takes, GPU-… or MIG-…, or what ROCR_VISIBLE_DEVICES takes
	// for a GPU of AMD's: GPU- and 16 digits.
	UUID string
	// Name is the name of the product.
	Name string
	// Index is the number of the GPU on its node, from 0. The MIG devices of one GPU have the same
	// index.
	Index int
	// MIG: the device is a part of a GPU.
	MIG bool
	// MemoryTotal and MemoryUsed are in bytes and count all processes. They are 0 if the driver
	// does not say.
	MemoryTotal, MemoryUsed int64
	// MemoryForeign is the part of MemoryUsed, in bytes, that exceeds the shares of the node's own
	// replicas, as of the last reading: what others hold.
	MemoryForeign int64 `json:",omitzero"`
}

// Resources are what one replica uses of its node. Placement counts them. CPU and Memory are also
// limits if the launcher can set limits.
type Resources struct {
	// CPU is a number of CPUs.
	CPU float64
	// Memory is in bytes.
	Memory int64
	// GPU is a whole number of devices for this replica alone, or less than 1: a share of one
	// device.
	GPU float64
}

// Devices returns the number of GPUs that the replica sees. It is 1 for a share.
func (r Resources) Devices() int { return int(math.Ceil(r.GPU)) }

// Share returns the part of each of its GPUs that the replica uses, at most 1.
func (r Resources) Share() float64 { return min(r.GPU, 1) }

// Devices returns the UUIDs of the replica's GPUs.
func (r Replica) Devices() []string {
	if r.GPUs == "" {
		return nil
	}
	return strings.Split(r.GPUs, ",")
}
