package custom_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/sluice-gateway/sluice/engines/kubernetes"
	"github.com/sluice-gateway/sluice/engines/kubernetes/custom"
	"github.com/sluice-gateway/sluice/internal/kubetest"
	"github.com/sluice-gateway/sluice/internal/testutil"
)

func TestMain(m *testing.M) { os.Exit(kubetest.Main(m)) }

const base = "../../../examples/kubernetes/base"

// installed returns the shared cluster with the custom resource definitions.
func installed(t *testing.T) *kubetest.Cluster {
	t.Helper()
	c := kubetest.Shared(t)
	install(t, c)
	return c
}

// installMu serialises install: of two concurrent "kubectl apply" that create the definitions, one
// fails with AlreadyExists.
var installMu sync.Mutex

// install applies the definitions and waits until the API serves them.
func install(t *testing.T, c *kubetest.Cluster) {
	t.Helper()
	installMu.Lock()
	defer installMu.Unlock()
	c.Kubectl(t, "apply", "-f", base+"/crds.yaml")
	c.Kubectl(t, "wait", "--for=condition=Established", "--timeout=60s", "crd/engines.sluice.dev", "crd/inferencemodels.sluice.dev")
}

// gateway is a running Watcher with the lists it has delivered.
type gateway struct {
	*custom.Watcher
	mu    sync.Mutex
	leads bool
	lists [][]custom.Object
}

func (g *gateway) lead(leads bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.leads = leads
}

// told returns the number of lists and the last one.
func (g *gateway) told() (int, []custom.Object) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if len(g.lists) == 0 {
		return 0, nil
	}
	return len(g.lists), g.lists[len(g.lists)-1]
}

// knows returns a function that reports whether the last list has exactly these objects.
func (g *gateway) knows(names ...string) func() bool {
	return func() bool {
		n, list := g.told()
		var have []string
		for _, o := range list {
			have = append(have, o.Name)
		}
		return n > 0 && slices.Equal(have, names)
	}
}

// one returns an object of the last list.
func (g *gateway) one(name string) custom.Object {
	_, list := g.told()
	for _, o := range list {
		if o.Name == name {
			return o
		}
	}
	return custom.Object{}
}

// run runs a Watcher until the test ends. It fails if two lists in a row are equal.
func run(t *testing.T, kubeconfig, namespace string, leads bool) *gateway {
	t.Helper()
	g := &gateway{leads: leads}
	g.Watcher = custom.New(custom.Config{
		Access: kubernetes.Access{Kubeconfig: kubeconfig}, Namespace: namespace,
		IsLeader: func() bool { g.mu.Lock(); defer g.mu.Unlock(); return g.leads },
		OnChange: func(list []custom.Object) {
			g.mu.Lock()
			defer g.mu.Unlock()
			g.lists = append(g.lists, list)
		},
	})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- g.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run: %v", err)
		}
		for i := 1; i < len(g.lists); i++ {
			if fmt.Sprint(g.lists[i]) == fmt.Sprint(g.lists[i-1]) {
				t.Errorf("told the same twice: %v", g.lists[i])
			}
		}
	})
	return g
}

func until(t testing.TB, what string, holds func() bool) {
	t.Helper()
	testutil.Eventually(t, what, holds)
}

// model returns an InferenceModel with a spec in YAML's flow style.
func model(name, spec string) string {
	return fmt.Sprintf("---\napiVersion: sluice.dev/v1alpha1\nkind: InferenceModel\nmetadata: {name: %s}\nspec: %s\n", name, spec)
}

func engine(name, spec string) string {
	return fmt.Sprintf("---\napiVersion: sluice.dev/v1alpha1\nkind: Engine\nmetadata: {name: %s}\nspec: %s\n", name, spec)
}

// field returns one field of a model.
func field(t *testing.T, c *kubetest.Cluster, namespace, name, path string) string {
	t.Helper()
	out, err := c.TryKubectl(t, "get", "im", "-n", namespace, name, "-o", "jsonpath={"+path+"}")
	if err != nil && !strings.Contains(err.Error(), "NotFound") {
		t.Fatal(err)
	}
	return out
}

// overlay returns the folder of a kustomization with the example's base in another namespace.
func overlay(t *testing.T, namespace string) string {
	t.Helper()
	dir := t.TempDir()
	here, err := filepath.Abs(base)
	if err != nil {
		t.Fatal(err)
	}
	up, err := filepath.Rel(dir, here)
	if err != nil {
		t.Fatal(err)
	}
	text := "namespace: " + namespace + "\nresources: [" + up + "]\n"
	if err := os.WriteFile(filepath.Join(dir, "kustomization.yaml"), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return dir
}
