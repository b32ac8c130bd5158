package local

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-gateway/sluice/engines"
	"github.com/sluice-gateway/sluice/internal/testutil"
)

// TestB11_GPUsOfAStaticProgram: a program without cgo reads the GPUs from nvidia-smi.
func TestB11_GPUsOfAStaticProgram(t *testing.T) {
	t.Parallel()
	program := filepath.Join(t.TempDir(), "nvidia-smi")
	const script = `#!/bin/sh
case $1 in
-L) cat <<'END'
GPU 0: NVIDIA H200 (UUID: GPU-0a)
GPU 1: NVIDIA H100 80GB HBM3 (UUID: GPU-1b)
  MIG 1g.10gb     Device  0: (UUID: MIG-c1)
  MIG 2g.20gb+me  Device  1: (UUID: MIG-c2)
END
;;
*) cat <<'END'
0, GPU-0a, NVIDIA H200, 143771, 4, Disabled
1, GPU-1b, NVIDIA H100 80GB HBM3, 81559, 100, Enabled
2, GPU-2c, NVIDIA T4, [N/A], [N/A], [N/A]
3, [Unknown Error], NVIDIA T4, 1, 1, [N/A]
END
;;
esac
`
	testutil.WriteProgram(t, program, script)
	node, err := smi{program}.Read()
	if err != nil {
		t.Fatal(err)
	}
	want := []engines.GPU{
		{UUID: "GPU-0a", Name: "NVIDIA H200", MemoryTotal: 143771 << 20, MemoryUsed: 4 << 20},
		{UUID: "MIG-c1", Name: "NVIDIA H100 80GB HBM3 MIG 1g.10gb", Index: 1, MIG: true, MemoryTotal: 10 << 30},
		{UUID: "MIG-c2", Name: "NVIDIA H100 80GB HBM3 MIG 2g.20gb+me", Index: 1, MIG: true, MemoryTotal: 20 << 30},
		{UUID: "GPU-2c", Name: "NVIDIA T4", Index: 2},
	}
	if diff := cmp.Diff(want, node.GPUs); diff != "" || node.Reason != "GPU 3 cannot be used: nvidia-smi says [Unknown Error]" {
		t.Errorf("%s (-want +got)\n%s", node.Reason, diff)
	}
	if node, err = (smi{program + "-none"}).Read(); err == nil || len(node.GPUs) > 0 || node.CPUs == 0 {
		t.Errorf("without a driver: %+v, %v", node, err)
	}
	testutil.WriteProgram(t, program, "#!/bin/sh\necho NVIDIA-SMI has failed; exit 9\n")
	if _, err := (smi{program}).Read(); err == nil || !strings.Contains(err.Error(), "NVIDIA-SMI has failed") {
		t.Errorf("a driver that fails: %v", err)
	}
}
