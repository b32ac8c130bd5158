//go:build !cgo || !linux

package local

// NewInventory returns the inventory of this machine. This program was built without cgo, which
// NVIDIA's driver library needs, so it asks nvidia-smi for the GPUs. AMD's GPUs are read from
// sysfs.
func NewInventory() Inventory { return amdInventory{withVisibleDevices(smi{"nvidia-smi"}), "/sys"} }
