package ray

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-gateway/sluice/engines"
)

// describe returns the job of a model on these nodes.
func describe(t *testing.T, m Model, nodes []rayNode) submission {
	t.Helper()
	job, err := m.newJob(metadata{install: "sluice", model: m.Name, index: 3, port: 21007, spec: m.spec()}, m.driverNode(nodes))
	if err != nil {
		t.Fatal(err)
	}
	return job
}

// TestN4_AReplicaOverSeveralNodes checks what a job asks Ray for, by what the nodes have.
func TestN4_AReplicaOverSeveralNodes(t *testing.T) {
	t.Parallel()
	vllm, _ := engines.Find(engines.Builtin(), "vllm", "")
	sglang, _ := engines.Find(engines.Builtin(), "sglang", "")
	node := func(ip string, gpus float64, more ...string) rayNode {
		n := rayNode{IP: ip, State: "ALIVE", Resources: map[string]float64{"GPU": gpus}}
		for _, resource := range more {
			n.Resources[resource] = 1
		}
		return n
	}
	dead := node("10.0.0.9", 16)
	dead.State = "DEAD"
	nodes := []rayNode{node("10.0.0.1", 0), node("10.0.0.2", 4, "h100"), node("10.0.0.3", 8), dead}
	for name, test := range map[string]struct {
		version engines.Version
		gpus    float64
		cluster string
		want    submission
		spreads bool
	}{
		"it fits":             {vllm, 8, "", submission{GPUs: 8}, false},
		"a share":             {vllm, 0.5, "", submission{GPUs: 0.5}, false},
		"several nodes":       {vllm, 16, "", submission{Resources: map[string]float64{"node:10.0.0.3": presence}}, true},
		"nodes of a kind":     {vllm, 8, "h100", submission{Resources: map[string]float64{"node:10.0.0.2": presence}}, true},
		"kind of one node":    {vllm, 4, "h100", submission{GPUs: 4, Resources: map[string]float64{"h100": presence}}, false},
		"no node of the kind": {vllm, 4, "b200", submission{GPUs: 4, Resources: map[string]float64{"b200": presence}}, false},
		"it cannot spread":    {sglang, 16, "", submission{GPUs: 16}, false},
	} {
		m := Model{Model: engines.Model{Name: "m"}, Version: test.version, Launch: engines.Launch{Model: "org/name", GPUs: int(test.gpus)},
			Resources: &engines.Resources{GPU: test.gpus}, Cluster: test.cluster}
		job := describe(t, m, nodes)
		got := submission{CPUs: job.CPUs, GPUs: job.GPUs, Memory: job.Memory, Resources: job.Resources}
		if diff := cmp.Diff(test.want, got); diff != "" {
			t.Errorf("%s: what the job asks for (-want +got):\n%s", name, diff)
		}
		if got := strings.Contains(job.Entrypoint, "--distributed-executor-backend ray"); got != test.spreads {
			t.Errorf("%s: the command is %s", name, job.Entrypoint)
		}
	}
}

// TestN4_AJobSaysWhoseItIs checks the id, the command and the metadata of a job.
func TestN4_AJobSaysWhoseItIs(t *testing.T) {
	t.Parallel()
	m := Model{Model: engines.Model{Name: "org/model:q4@x"}, Env: map[string]string{"A": "b"},
		Version: engines.Version{Command: []string{"serve", "{{.Model}}", "{{.Host}}:{{.Port}}"}}, Launch: engines.Launch{Model: "it's $HOME"}}
	job := describe(t, m, nil)
	if !strings.HasPrefix(job.SubmissionID, "org-model-q4-x-3-") || strings.Trim(job.SubmissionID, engines.LettersAndDigits+"-") != "" {
		t.Errorf("the id is %q", job.SubmissionID)
	}
	if want := `exec serve 'it'\''s $HOME' 0.0.0.0:21007`; job.Entrypoint != want {
		t.Errorf("the command is %s, want %s", job.Entrypoint, want)
	}
	if job.CPUs != 1 || job.GPUs != 0 || job.RuntimeEnv.Variables["A"] != "b" {
		t.Errorf("the job is %+v", job)
	}
	meta, ok := decodeMetadata(job.Metadata)
	if !ok || meta.install != "sluice" || meta.model != m.Name || meta.index != 3 || meta.port != 21007 || meta.spec != m.spec() {
		t.Errorf("the metadata are %+v", meta)
	}
	for key, bad := range map[string]string{metaModel: "", metaReplica: "-1", metaPort: "70000"} {
		from := map[string]string{metaModel: "m", metaReplica: "0", metaPort: "1"}
		from[key] = bad
		if _, ok := decodeMetadata(from); ok {
			t.Errorf("metadata with %s = %q are accepted", key, bad)
		}
	}
	changed := m
	changed.Env = map[string]string{"A": "c"}
	if changed.spec() == m.spec() {
		t.Error("another environment has the same spec")
	}
}
