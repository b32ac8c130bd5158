//go:build cgo && linux

package local

import (
	"fmt"
	"strings"
	"testing"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock"
	"github.com/google/go-cmp/cmp"

	"github.com/sluice-gateway/sluice/engines"
)

// card is a device as the driver describes it. A return value other than SUCCESS is what its call
// returns.
type card struct {
	uuid           string
	handle, answer nvml.Return
	memory, mode   nvml.Return
	divided        bool
	parts          []*card // nil where the number is not given
}

func (c *card) device() *mock.Device {
	return &mock.Device{
		GetUUIDFunc: func() (string, nvml.Return) { return c.uuid, c.answer },
		GetNameFunc: func() (string, nvml.Return) { return "A100", nvml.SUCCESS },
		GetMemoryInfoFunc: func() (nvml.Memory, nvml.Return) {
			return nvml.Memory{Total: 40 << 30, Free: 29 << 30, Used: 11 << 30}, c.memory
		},
		GetMemoryInfo_v2Func: func() (nvml.Memory_v2, nvml.Return) {
			return nvml.Memory_v2{Total: 40 << 30, Free: 29 << 30, Used: 10 << 30, Reserved: 1 << 30}, c.memory
		},
		GetMigModeFunc: func() (int, int, nvml.Return) {
			if c.divided {
				return nvml.DEVICE_MIG_ENABLE, nvml.DEVICE_MIG_ENABLE, c.mode
			}
			return nvml.DEVICE_MIG_DISABLE, nvml.DEVICE_MIG_ENABLE, c.mode
		},
		GetMaxMigDeviceCountFunc: func() (int, nvml.Return) { return len(c.parts), nvml.SUCCESS },
		GetMigDeviceHandleByIndexFunc: func(i int) (nvml.Device, nvml.Return) {
			if c.parts[i] == nil {
				return nil, nvml.ERROR_NOT_FOUND
			}
			return c.parts[i].device(), c.parts[i].handle
		},
	}
}

// library returns an NVML with these cards.
func library(cards ...*card) *mock.Interface {
	return &mock.Interface{
		InitFunc:           func() nvml.Return { return nvml.SUCCESS },
		ShutdownFunc:       func() nvml.Return { return nvml.SUCCESS },
		DeviceGetCountFunc: func() (int, nvml.Return) { return len(cards), nvml.SUCCESS },
		DeviceGetHandleByIndexFunc: func(i int) (nvml.Device, nvml.Return) {
			return cards[i].device(), cards[i].handle
		},
		ExtensionsFunc: func() nvml.ExtendedInterface {
			return &mock.ExtendedInterface{LookupSymbolFunc: func(string) error { return nil }}
		},
	}
}

// told formats a node's GPUs: index, UUID, gibibytes.
func shortly(node engines.Node) string {
	var all []string
	for _, gpu := range node.GPUs {
		text := fmt.Sprintf("%d %s %s %d/%d", gpu.Index, gpu.UUID, gpu.Name, gpu.MemoryUsed>>30, gpu.MemoryTotal>>30)
		if gpu.MIG {
			text += " MIG"
		}
		all = append(all, text)
	}
	return strings.Join(all, ", ")
}

func TestGPUsAreRead(t *testing.T) {
	t.Parallel()
	lost := nvml.ERROR_GPU_IS_LOST
	for name, c := range map[string]struct {
		cards        []*card
		want, reason string
	}{
		"none":                 {nil, "", "NVIDIA's driver knows of no GPU"},
		"one":                  {[]*card{{uuid: "GPU-a"}}, "0 GPU-a A100 10/40", ""},
		"two":                  {[]*card{{uuid: "GPU-a"}, {uuid: "GPU-b"}}, "0 GPU-a A100 10/40, 1 GPU-b A100 10/40", ""},
		"no memory of its own": {[]*card{{uuid: "GPU-a", memory: nvml.ERROR_NOT_SUPPORTED}}, "0 GPU-a A100 0/0", ""},
		"no MIG on this one":   {[]*card{{uuid: "GPU-a", mode: nvml.ERROR_NOT_SUPPORTED}}, "0 GPU-a A100 10/40", ""},
		"divided": {[]*card{{uuid: "GPU-a", divided: true, parts: []*card{nil, {uuid: "MIG-1"}, nil, {uuid: "MIG-2"}, nil}}, {uuid: "GPU-b"}},
			"0 MIG-1 A100 10/40 MIG, 0 MIG-2 A100 10/40 MIG, 1 GPU-b A100 10/40", ""},
		"divided into nothing": {[]*card{{uuid: "GPU-a", divided: true, parts: []*card{nil}}}, "",
			"GPU 0 cannot be used: MIG is on and it has no MIG devices"},
		"a part that is lost": {[]*card{{uuid: "GPU-a", divided: true, parts: []*card{{uuid: "MIG-1"}, {handle: lost}}}, {uuid: "GPU-b"}},
			"1 GPU-b A100 10/40", "GPU 0 cannot be used: ERROR_GPU_IS_LOST"},
		"a part without a name": {[]*card{{uuid: "GPU-a", divided: true, parts: []*card{{answer: nvml.ERROR_UNKNOWN}}}}, "",
			"GPU 0 cannot be used: ERROR_UNKNOWN"},
		"lost from the bus": {[]*card{{uuid: "GPU-a"}, {handle: lost}, {uuid: "GPU-c"}},
			"0 GPU-a A100 10/40, 2 GPU-c A100 10/40", "GPU 1 cannot be used: ERROR_GPU_IS_LOST"},
		"whole or not, nobody knows": {[]*card{{uuid: "GPU-a", mode: lost}}, "", "GPU 0 cannot be used: ERROR_GPU_IS_LOST"},
		"not for us": {[]*card{{handle: nvml.ERROR_NO_PERMISSION}, {answer: lost}}, "",
			"GPU 0 cannot be used: ERROR_NO_PERMISSION; GPU 1 cannot be used: ERROR_GPU_IS_LOST"},
	} {
		l := library(c.cards...)
		node, err := driver{l}.Read()
		if err != nil || len(l.ShutdownCalls()) != 1 {
			t.Errorf("%s: %v, ended %d times", name, err, len(l.ShutdownCalls()))
		}
		if diff := cmp.Diff([]string{c.want, c.reason}, []string{shortly(node), node.Reason}); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
		if node.CPUs < 1 || node.Memory == 0 {
			t.Errorf("%s: the node itself is missing: %+v", name, node)
		}
	}
}

// A call of a function that the driver lacks would end the process. What an old driver tells of
// memory in use includes what it reserves.
func TestOldDriverIsAskedForWhatItHas(t *testing.T) {
	t.Parallel()
	l := library(&card{uuid: "GPU-a", divided: true})
	l.ExtensionsFunc = func() nvml.ExtendedInterface {
		return &mock.ExtendedInterface{LookupSymbolFunc: func(string) error { return nvml.ERROR_FUNCTION_NOT_FOUND }}
	}
	node, err := driver{l}.Read()
	if got := shortly(node); err != nil || got != "0 GPU-a A100 11/40" {
		t.Errorf("%q, %v", got, err)
	}
}

func TestDriverThatDoesNotAnswer(t *testing.T) {
	t.Parallel()
	for ret, want := range map[nvml.Return]string{
		nvml.ERROR_LIBRARY_NOT_FOUND: "NVIDIA's driver library, libnvidia-ml.so.1, is not there",
		nvml.ERROR_DRIVER_NOT_LOADED: "NVIDIA's driver does not answer: ERROR_DRIVER_NOT_LOADED",
	} {
		l := library()
		l.InitFunc = func() nvml.Return { return ret }
		node, err := driver{l}.Read()
		if err == nil || err.Error() != want || node.CPUs < 1 || len(l.ShutdownCalls()) != 0 {
			t.Errorf("%+v, %v; want %q", node, err, want)
		}
	}
	l := library()
	l.DeviceGetCountFunc = func() (int, nvml.Return) { return 0, nvml.ERROR_UNKNOWN }
	if _, err := (driver{l}).Read(); err == nil || len(l.ShutdownCalls()) != 1 {
		t.Errorf("%v, ended %d times", err, len(l.ShutdownCalls()))
	}
}

// The inventory of the real machine can be read. It is read twice, because each reading loads the
// library anew.
func TestThisMachine(t *testing.T) {
	t.Parallel()
	for range 2 {
		node, err := NewInventory().Read()
		if node.CPUs < 1 || err == nil && len(node.GPUs) == 0 && node.Reason == "" {
			t.Errorf("%+v, %v", node, err)
		}
		t.Logf("%+v, %v", node, err)
	}
}
