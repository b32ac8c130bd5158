//go:build cgo && linux

package local

import (
	"errors"
	"fmt"
	"strings"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/sluice-gateway/sluice/engines"
)

// NewInventory returns the inventory of this machine, with its GPUs as NVIDIA's management library
// (NVML, libnvidia-ml.so.1) lists them. Each reading looks for the library; a machine without it
// has no GPUs. If CUDA_VISIBLE_DEVICES is set, only the GPUs that it names count.
//
// AMD's GPUs are those of the kernel's driver, as sysfs lists them. ROCR_VISIBLE_DEVICES counts in
// the same way.
func NewInventory() Inventory {
	return amdInventory{withVisibleDevices(driver{nvml.New()}), "/sys"}
}

// driver reads GPUs through NVML. The library lists the devices when it is initialised, so each
// reading initialises it anew. So a GPU that fell off the bus disappears, and one that came back
// appears.
type driver struct{ library nvml.Interface }

// Read implements Inventory. It leaves out a GPU that cannot be read, and the node's Reason says
// why.
func (d driver) Read() (engines.Node, error) {
	node := nodeWithoutGPUs()
	if ret := d.library.Init(); ret == nvml.ERROR_LIBRARY_NOT_FOUND {
		return node, errors.New("NVIDIA's driver library, libnvidia-ml.so.1, is not there")
	} else if ret != nvml.SUCCESS {
		return node, fmt.Errorf("NVIDIA's driver does not answer: %s", ret.Error())
	}
	defer func() { _ = d.library.Shutdown() }() // the next reading tells whether all is well
	count, ret := d.library.DeviceGetCount()
	if ret != nvml.SUCCESS {
		return node, fmt.Errorf("NVIDIA's driver does not count its GPUs: %s", ret.Error())
	}
	if count == 0 {
		node.Reason = "NVIDIA's driver knows of no GPU"
	}
	var faults []string
	for index := range count {
		devices, err := d.devices(index)
		if err != nil {
			faults = append(faults, fmt.Sprintf("GPU %d cannot be used: %v", index, err))
			continue
		}
		node.GPUs = append(node.GPUs, devices...)
	}
	if len(faults) > 0 {
		node.Reason = strings.Join(faults, "; ")
	}
	return node, nil
}

// devices lists the devices of one GPU: the GPU itself, or its MIG devices.
func (d driver) devices(index int) ([]engines.GPU, error) {
	handle, ret := d.library.DeviceGetHandleByIndex(index)
	if ret != nvml.SUCCESS {
		return nil, ret
	}
	divided, err := d.divided(handle)
	if err != nil {
		return nil, err
	}
	if divided {
		return d.parts(handle, index)
	}
	whole, err := d.device(handle, index)
	return []engines.GPU{whole}, err
}

func (d driver) has(function string) bool {
	return d.library.Extensions().LookupSymbol(function) == nil
}

// divided reports whether MIG is on. Drivers before 450 lack the function, and calling it would end
// the process.
func (d driver) divided(handle nvml.Device) (bool, error) {
	if !d.has("nvmlDeviceGetMigMode") {
		return false, nil
	}
	mode, _, ret := handle.GetMigMode()
	switch ret {
	case nvml.SUCCESS:
		return mode == nvml.DEVICE_MIG_ENABLE, nil
	case nvml.ERROR_NOT_SUPPORTED:
		return false, nil
	}
	return false, ret
}

// parts lists the MIG devices of a GPU. Their numbers have gaps.
func (d driver) parts(handle nvml.Device, index int) ([]engines.GPU, error) {
	most, ret := handle.GetMaxMigDeviceCount()
	if ret != nvml.SUCCESS {
		return nil, ret
	}
	var all []engines.GPU
	for i := range most {
		part, ret := handle.GetMigDeviceHandleByIndex(i)
		if ret == nvml.ERROR_NOT_FOUND {
			continue
		}
		if ret != nvml.SUCCESS {
			return nil, ret
		}
		gpu, err := d.device(part, index)
		if err != nil {
			return nil, err
		}
		gpu.MIG = true
		all = append(all, gpu)
	}
	if len(all) == 0 {
		return nil, errors.New("MIG is on and it has no MIG devices")
	}
	return all, nil
}

// device describes a device. Only the UUID is required.
func (d driver) device(handle nvml.Device, index int) (engines.GPU, error) {
	uuid, ret := handle.GetUUID()
	if ret != nvml.SUCCESS {
		return engines.GPU{}, ret
	}
	gpu := engines.GPU{UUID: uuid, Index: index}
	if name, ret := handle.GetName(); ret == nvml.SUCCESS {
		gpu.Name = name
	}
	gpu.MemoryTotal, gpu.MemoryUsed = d.memory(handle)
	return gpu, nil
}

// memory returns the memory of a device and what is used of it, in bytes, as nvidia-smi does:
// without what the driver reserves. Drivers before 510 cannot tell the two apart. Both are 0 for
// GPUs without memory of their own.
func (d driver) memory(handle nvml.Device) (total, used int64) {
	if d.has("nvmlDeviceGetMemoryInfo_v2") {
		if memory, ret := handle.GetMemoryInfo_v2(); ret == nvml.SUCCESS {
			return int64(memory.Total), int64(memory.Used)
		}
	}
	if memory, ret := handle.GetMemoryInfo(); ret == nvml.SUCCESS {
		return int64(memory.Total), int64(memory.Used)
	}
	return 0, 0
}
