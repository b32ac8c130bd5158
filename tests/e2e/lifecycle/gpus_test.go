package lifecycle

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sluice-gateway/sluice/internal/condition"
	"github.com/sluice-gateway/sluice/tests/e2e/harness"
)

// useDriver makes a stand-in for NVIDIA's driver library. A gateway with the environment env loads
// it. tell writes what the driver tells: a line for each GPU, see testdata/nvml.c.
func useDriver(t *testing.T) (env []string, tell func(lines ...string)) {
	t.Helper()
	cc, err := exec.LookPath("cc")
	if err != nil {
		t.Skip("there is no C compiler")
	}
	folder := t.TempDir()
	if out, err := exec.Command(cc, "-shared", "-fPIC", "-o", filepath.Join(folder, "libnvidia-ml.so.1"), "testdata/nvml.c").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	list := filepath.Join(folder, "gpus")
	return []string{"LD_LIBRARY_PATH=" + folder, "FAKE_NVML=" + list}, func(lines ...string) {
		if err := os.WriteFile(list, []byte(strings.Join(lines, "\n")+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// devicesOf returns CUDA_VISIBLE_DEVICES of the process of a replica.
func devicesOf(t *testing.T, g *harness.Gateway, id string) string {
	t.Helper()
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", g.Replicas()[id].PID))
	if err != nil {
		t.Fatal(err)
	}
	for entry := range strings.SplitSeq(string(data), "\x00") {
		if value, ok := strings.CutPrefix(entry, "CUDA_VISIBLE_DEVICES="); ok {
			return value
		}
	}
	return "everything"
}

// TestE2E_N8_U12_ReplicasGetTheGPUsThatTheDriverTells: whole, several and shared GPUs, none that
// another program fills, and one that is lost.
func TestE2E_N8_U12_ReplicasGetTheGPUsThatTheDriverTells(t *testing.T) {
	t.Parallel()
	env, tell := useDriver(t)
	tell("GPU-a 80 70 0", "GPU-b 80 1 0", "GPU-c 80 1 0", "GPU-d 80 1 0", "GPU-e 80 1 0")
	g := harness.Start(t, `orphan_grace: 60s
models:
  - {name: pair, engine: sim, resources: {gpu: 2}, placement: pack}
  - {name: whole, engine: sim, resources: {gpu: 1}, placement: pack}
  - {name: left, engine: sim, resources: {gpu: 0.5}, placement: pack}
  - {name: right, engine: sim, resources: {gpu: 0.5}, placement: pack}
  - {name: none, engine: sim, resources: {cpu: 0.1}}
  - {name: more, engine: sim, resources: {gpu: 1}, replicas: {min: 0, max: 1}, cold_start_timeout: 1s}
`, env...)
	holds := map[string]string{}
	for _, model := range []string{"pair", "whole", "left", "right", "none"} {
		if a := g.Post("/v1/chat/completions", harness.ChatBody(model, false, 2, "hello")); a.StatusCode != 200 {
			t.Errorf("%s: %s", model, a)
		}
		holds[model] = devicesOf(t, g, model+"-0")
	}
	if len(strings.Split(holds["pair"], ",")) != 2 || holds["left"] != holds["right"] || holds["none"] != "" {
		t.Errorf("the replicas see %v", holds)
	}
	all := strings.Join([]string{holds["pair"], holds["whole"], holds["left"]}, ",")
	for _, uuid := range []string{"GPU-b", "GPU-c", "GPU-d", "GPU-e"} {
		if strings.Count(all, uuid) != 1 {
			t.Errorf("%s is given to %d models: %v", uuid, strings.Count(all, uuid), holds)
		}
	}
	if a := g.Post("/v1/chat/completions", harness.ChatBody("more", false, 2, "hello")); a.StatusCode != 503 {
		t.Errorf("a model without a GPU: %s", a)
	}
	if c := g.AwaitCondition(condition.ReplicaPending, "more"); !strings.Contains(c.Message, "others hold 70 GiB of 80 GiB of GPU 0") {
		t.Errorf("the condition: %+v", c)
	}

	// The other program ends, and the model gets its GPU.
	lines := []string{"GPU-a 80 1 0", "GPU-b 80 1 0", "GPU-c 80 1 0", "GPU-d 80 1 0", "GPU-e 80 1 0"}
	tell(lines...)
	harness.Eventually(t, "the model gets the GPU that is free now", func() error {
		if a := g.Post("/v1/chat/completions", harness.ChatBody("more", false, 2, "hello")); a.StatusCode != 200 {
			return fmt.Errorf("%s", a)
		}
		return nil
	})
	if holds := devicesOf(t, g, "more-0"); holds != "GPU-a" {
		t.Errorf("it has %s, want GPU-a", holds)
	}

	// The process of a lost GPU is adopted, and what is missing is said.
	g.Kill()
	for i, line := range lines {
		if strings.HasPrefix(line, holds["whole"]+" ") {
			lines[i] = strings.TrimSuffix(line, "0") + "1"
		}
	}
	tell(lines...)
	g.Launch()
	g.AwaitAdmin()
	harness.Eventually(t, "the lost GPU is said", func() error {
		if r := g.Replicas()["whole-0"]; !strings.HasPrefix(r.Reason, "its GPU is missing: "+holds["whole"]) {
			return fmt.Errorf("%+v", r)
		}
		return nil
	})
	if a := g.Post("/v1/chat/completions", harness.ChatBody("left", false, 2, "hello")); a.StatusCode != 200 {
		t.Errorf("a model whose GPU is there: %s", a)
	}
}

// TestE2E_N5_N8_SpreadAndPackOverGPUs: replicas that need half of a GPU each are on two GPUs if
// they are spread, and on one if they are packed.
func TestE2E_N5_N8_SpreadAndPackOverGPUs(t *testing.T) {
	t.Parallel()
	env, tell := useDriver(t)
	tell("GPU-a 80 1 0", "GPU-b 80 1 0", "GPU-c 80 1 0")
	for placement, want := range map[string]int{"spread": 2, "pack": 1} {
		g := harness.Start(t, `
models:
  - {name: m, engine: sim, task: text-generation, resources: {gpu: 0.5}, replicas: {min: 2, max: 2}, placement: `+placement+"}\n", env...)
		on := map[string]bool{}
		for _, id := range []string{"m-0", "m-1"} {
			on[devicesOf(t, g, id)] = true
		}
		if len(on) != want {
			t.Errorf("%s: the replicas are on %v", placement, on)
		}
	}
}
