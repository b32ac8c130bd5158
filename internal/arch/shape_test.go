package arch_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestE1_E2_TheShapeOfTheTree: the module uses the libraries that the requirements name, directly,
// and its top level has the packages and files that they name.
func TestE1_E2_TheShapeOfTheTree(t *testing.T) {
	t.Parallel()
	root, paths := gitFiles(t)
	mod, err := os.ReadFile(filepath.Join(root, "go.mod"))
	if err != nil {
		t.Fatal(err)
	}
	direct := map[string]bool{}
	for line := range strings.Lines(string(mod)) {
		name, rest, _ := strings.Cut(strings.TrimSpace(line), " ")
		direct[name] = !strings.Contains(rest, "// indirect")
	}
	for _, name := range []string{
		"github.com/envoyproxy/go-control-plane", "google.golang.org/grpc", "github.com/redis/go-redis/v9",
		"github.com/NVIDIA/go-nvml", "k8s.io/client-go", "go.uber.org/zap",
	} {
		if !direct[name] {
			t.Errorf("go.mod does not require %s directly", name)
		}
	}
	top := map[string]bool{}
	for _, path := range paths {
		first, _, _ := strings.Cut(path, "/")
		top[first] = true
	}
	for _, name := range strings.Fields("cmd extproc xds authz ringhash admission engines envoy examples go.mod Makefile README.md") {
		if !top[name] {
			t.Errorf("the top level lacks %s", name)
		}
	}
}
