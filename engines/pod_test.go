package engines

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"github.com/sluice-gateway/sluice/internal/testutil"
)

// deployment has the fields of a Deployment that the built-in engines use.
type deployment struct {
	Spec struct {
		Template struct {
			Spec struct {
				InitContainers []podContainer `yaml:"initContainers"`
				Containers     []podContainer
				Volumes        []struct {
					Name     string
					EmptyDir *struct{} `yaml:"emptyDir"`
				}
			}
		}
	}
}

type podContainer struct {
	Name, Image  string
	Command      []string
	Env          []struct{ Name, Value string }
	VolumeMounts []struct {
		Name      string
		MountPath string `yaml:"mountPath"`
	} `yaml:"volumeMounts"`
}

// kubernetesPart renders the version's part of a Deployment.
func kubernetesPart(t *testing.T, v Version, l Launch) string {
	t.Helper()
	l.Host, l.Port = "0.0.0.0", 8000
	text, err := v.RenderKubernetes(l)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// podLaunches returns the launches that the Deployments may depend on.
func podLaunches(v Version) []Launch {
	var all []Launch
	for _, registry := range []string{"huggingface", "directory"} {
		for _, gpus := range []int{0, 2} {
			all = append(all, Launch{Name: "chat", Model: "org/model", Registry: registry, Task: v.Tasks[0], GPUs: gpus})
		}
	}
	return all
}

// TestBuiltinPods compares the parts of Deployments with a golden file: for models from a hub and
// from a directory, with and without GPUs.
func TestBuiltinPods(t *testing.T) {
	t.Parallel()
	var texts []string
	said := map[string]string{}
	for _, engine := range Builtin() {
		for _, version := range engine.Versions {
			for _, launch := range podLaunches(version) {
				text := kubernetesPart(t, version, launch)
				checkPod(t, engine.Name+" "+version.Version, text)
				if !slices.Contains(texts, text) {
					texts = append(texts, text)
				}
				said[text] += fmt.Sprintf("# %s %s, %s, %d GPUs: %s\n", engine.Name, version.Version, launch.Registry, launch.GPUs, version.Image)
			}
		}
	}
	var got strings.Builder
	for _, text := range texts {
		got.WriteString("---\n" + said[text] + strings.TrimLeft(text, "\n"))
	}
	testutil.Golden(t, "testdata/pods.golden", got.String(), *update)
}

// checkPod checks some of Kubernetes' rules: known fields, the engine's container, mounts of
// existing volumes.
func checkPod(t *testing.T, name, text string) {
	t.Helper()
	if strings.TrimSpace(text) == "" {
		return
	}
	var d deployment
	decoder := yaml.NewDecoder(strings.NewReader(text))
	decoder.KnownFields(true)
	if err := decoder.Decode(&d); err != nil {
		t.Fatalf("%s: %v\n%s", name, err, text)
	}
	pod := d.Spec.Template.Spec
	if len(pod.Containers) != 1 || pod.Containers[0].Name != "engine" {
		t.Errorf("%s: containers %+v", name, pod.Containers)
	}
	var volumes []string
	for _, v := range pod.Volumes {
		volumes = append(volumes, v.Name)
		if v.EmptyDir == nil {
			t.Errorf("%s: volume %s is nothing", name, v.Name)
		}
	}
	for _, c := range slices.Concat(pod.InitContainers, pod.Containers) {
		for _, m := range c.VolumeMounts {
			if !slices.Contains(volumes, m.Name) || !filepath.IsAbs(m.MountPath) {
				t.Errorf("%s: mount %+v of volumes %v", name, m, volumes)
			}
		}
		for _, e := range c.Env {
			if e.Name == "PATH" && !strings.HasSuffix(e.Value, ":/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin") {
				t.Errorf("%s: the system's programs are not on $PATH: %s", name, e.Value)
			}
		}
	}
}

// In a pod every engine listens on all addresses, and on the port that its command or environment
// names.
func TestBuiltinPodsListen(t *testing.T) {
	t.Parallel()
	for _, engine := range Builtin() {
		for _, version := range engine.Versions {
			launch := launchOf(version.Tasks[0])
			launch.Host, launch.Port = "0.0.0.0", 8000
			said := started(t, version, launch)
			if strings.Contains(said, "127.0.0.1") || !strings.Contains(said, "0.0.0.0") || !strings.Contains(said, "8000") {
				t.Errorf("%s %s: %s", engine.Name, version.Version, said)
			}
			if version.Image == "" {
				t.Errorf("%s %s has no image", engine.Name, version.Version)
			}
		}
	}
}
