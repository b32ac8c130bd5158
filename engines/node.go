package engines

import (
	"math"
	"strings"
)

// Node is a host that replicas run on, and what it has to give.
type Node struct {
	// Name is the host's name.
	Name string
	// Labels are what models may ask for in `cluster`.
	Labels []string
	// CPUs is the number of processors that the launcher may use; 0 is unknown, and then they are not counted.
	CPUs float64
	// Memory is the host's memory in bytes; 0 is unknown, and then it is not counted.
	Memory int64
	// GPUs in the order of their indices.
	GPUs []GPU
	// Reason says in words why there are no GPUs, or not all of them.
	Reason string
	// Lost tells that the host has joined before and does not answer now: nothing is placed there.
	Lost bool
}

// GPU is a device that replicas can be given: a whole GPU, or one part of a GPU that is divided by MIG.
type GPU struct {
	// UUID is what CUDA_VISIBLE_DEVICES takes: GPU-… or MIG-….
	UUID string
	// Name is the product's.
	Name string
	// Index of the GPU on its host, from 0. The parts of one GPU have the same.
	Index int
	// MIG tells that it is a part of the GPU.
	MIG bool
	// MemoryTotal and MemoryUsed in bytes, by whomever; 0 where the driver does not say.
	MemoryTotal, MemoryUsed int64
}

// Resources are what one replica takes of its node. Placement counts them, and CPU and Memory are limits where the launcher can set such.
type Resources struct {
	// CPU is a number of processors.
	CPU float64
	// Memory in bytes.
	Memory int64
	// GPU is a whole number of devices, which nobody else gets, or less than 1: a share of one device.
	GPU float64
}

// Devices is the number of GPUs that the replica sees: one when it shares it.
func (r Resources) Devices() int { return int(math.Ceil(r.GPU)) }

// Share is what the replica has of each of its GPUs, at most 1.
func (r Resources) Share() float64 { return min(r.GPU, 1) }

// Devices lists the UUIDs of the replica's GPUs.
func (r Replica) Devices() []string {
	if r.GPUs == "" {
		return nil
	}
	return strings.Split(r.GPUs, ",")
}
