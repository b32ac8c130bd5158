package local

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-gateway/sluice/engines"
)

// sysfs makes a directory as the driver of AMD shows it: a CPU and three GPUs, one without a UUID.
func sysfs(t *testing.T) string {
	t.Helper()
	root := t.TempDir()
	write := func(text string, path ...string) {
		name := filepath.Join(append([]string{root, "class"}, path...)...)
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	write("cpu_cores_count 64\nsimd_count 0\n", "kfd/kfd/topology/nodes/0/properties")
	for i, id := range []uint64{0xabcdef0123456789, 0, 0x1} {
		node := "kfd/kfd/topology/nodes/" + strconv.Itoa(10-i) // 8 comes before 10
		write(fmt.Sprintf("cpu_cores_count 0\nsimd_count 1216\ndrm_render_minor %d\nunique_id %d\n", 128+i, id), node, "properties")
		write("aqua_vanjaram\n", node, "name")
		write("206141652992\n", "drm", fmt.Sprintf("renderD%d", 128+i), "device/mem_info_vram_total")
		write("1073741824\n", "drm", fmt.Sprintf("renderD%d", 128+i), "device/mem_info_vram_used")
	}
	write("AMD Instinct MI300X\n", "drm/renderD128/device/product_name")
	return root
}

func TestU12_AMDGPUsAreReadFromSysfs(t *testing.T) {
	root := sysfs(t)
	none := &rack{node: engines.Node{Name: "n"}, err: errors.New("NVIDIA's driver library is not there")}
	want := []engines.GPU{
		{UUID: "GPU-0000000000000001", Name: "aqua_vanjaram", Index: 0, MemoryTotal: 206141652992, MemoryUsed: 1 << 30},
		{UUID: "GPU-abcdef0123456789", Name: "AMD Instinct MI300X", Index: 2, MemoryTotal: 206141652992, MemoryUsed: 1 << 30},
	}
	node, err := amdInventory{none, root}.Read()
	if diff := cmp.Diff(want, node.GPUs); diff != "" || err != nil {
		t.Error(err, diff)
	}
	if _, err := (amdInventory{none, t.TempDir()}).Read(); err == nil {
		t.Error("a machine without AMD GPUs hides why it has none of NVIDIA's")
	}
	t.Setenv(rocrVisible, "GPU-abcdef")
	if node, _ := (amdInventory{none, root}).Read(); len(node.GPUs) != 1 || node.GPUs[0].Index != 2 {
		t.Errorf("%s leaves %+v", rocrVisible, node.GPUs)
	}
}

// A replica sees its own AMD GPUs and no others, by the variables that ROCm reads.
func TestU12_ReplicasSeeTheirAMDGPUs(t *testing.T) {
	t.Parallel()
	w := newFixture(t)
	node := amdGPUs(sysfs(t))
	l := New(w.onRack(&rack{node: engines.Node{CPUs: 8, GPUs: node}}))
	l.Set([]Model{w.needs("pair", 1, engines.Resources{GPU: 2})})
	run(t, l)
	pair := w.awaitReady("pair", 1)[0]
	data, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pair.PID), "environ"))
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"ROCR_VISIBLE_DEVICES=GPU-0000000000000001,GPU-abcdef0123456789", "HIP_VISIBLE_DEVICES=0,1", "CUDA_VISIBLE_DEVICES=0,1"} {
		if !strings.Contains("\x00"+string(data), "\x00"+want+"\x00") {
			t.Errorf("the replica lacks %s", want)
		}
	}
	if got := visibleDevices([]string{"GPU-8f6d1234-0000-0000-0000-000000000000"}); len(got) != 1 || !strings.HasPrefix(got[0], visible) {
		t.Errorf("a GPU of NVIDIA's: %v", got)
	}
}
