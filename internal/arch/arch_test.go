// Package arch holds the shape of the tree: which package may import which, and that each says what it is.
package arch_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"go/parser"
	"go/token"
	"io"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

const module = "github.com/sluice-gateway/sluice"

// allowed lists what of ours each package imports. A package that is not here may not exist.
var allowed = map[string]string{
	"ringhash":                   "",
	"admission":                  "",
	"admission/admissiontest":    "admission",
	"admission/redis":            "admission internal/limits",
	"internal/limits":            "",
	"internal/redistest":         "",
	"internal/scale":             "",
	"internal/backlog":           "admission",
	"engines":                    "",
	"engines/placement":          "engines",
	"engines/local":              "engines engines/placement internal/process",
	"engines/nodes":              "engines engines/local engines/placement",
	"engines/join":               "engines engines/local internal/process",
	"engines/kubernetes":         "engines",
	"engines/kubernetes/custom":  "engines/kubernetes",
	"engines/upstream":           "engines",
	"internal/stream/jsonscan":   "",
	"internal/stream/sse":        "internal/stream/jsonscan",
	"internal/stream/queue":      "internal/stream/jsonscan internal/stream/sse",
	"internal/stream/replay":     "internal/stream/queue internal/stream/sse",
	"internal/stream/nowait":     "",
	"internal/stream/h1client":   "internal/stream/nowait",
	"internal/stream/h1server":   "internal/stream/nowait",
	"internal/stream/delta":      "internal/stream/jsonscan",
	"internal/stream/moderation": "internal/stream/delta internal/stream/jsonscan",
	"internal/stream": "admission authz engines internal/dispatch internal/headers internal/openai internal/stream/h1client " +
		"internal/stream/h1server internal/stream/jsonscan internal/stream/moderation internal/stream/queue internal/stream/replay internal/stream/sse",
	"internal/stream/realtime": "authz internal/headers internal/openai internal/stream internal/stream/delta internal/stream/sse",
	"internal/stream/llmv1": "authz examples/grpc/llmv1 internal/headers internal/openai internal/stream internal/stream/delta " +
		"internal/stream/jsonscan internal/stream/sse",
	"internal/stream/peers":    "internal/headers internal/openai",
	"internal/kubetest":        "",
	"authz":                    "internal/headers internal/openai",
	"internal/headers":         "",
	"internal/openai":          "",
	"internal/process":         "",
	"internal/sim":             "examples/grpc/llmv1 internal/openai",
	"internal/config":          "engines",
	"internal/telemetry":       "internal/headers",
	"internal/telemetry/trace": "internal/telemetry",
	"internal/dispatch":        "ringhash admission engines internal/headers internal/openai",
	"internal/api":             "engines internal/headers internal/openai",
	"internal/admin":           "engines internal/headers internal/openai internal/telemetry",
	"xds":                      "engines internal/headers",
	"envoy":                    "internal/headers internal/process",
	"extproc":                  "admission authz internal/dispatch internal/headers internal/openai internal/stream",
	"cmd/sluice":               "*",
	"examples":                 "",
	"examples/airflow":         "",
	"examples/grpc/llmv1":      "",
	"examples/grpc/client":     "examples/grpc/llmv1",
	"internal/arch":            "",
	"internal/e2e":             "*",
	"internal/bench":           "*",
}

// confined lists who may import a technology.
var confined = map[string]string{
	"github.com/envoyproxy/go-control-plane": "extproc authz xds envoy internal/telemetry",
	"k8s.io/":                                "engines/kubernetes engines/kubernetes/custom internal/kubetest",
	"github.com/NVIDIA/go-nvml":              "engines/local",
	"github.com/spf13/cobra":                 "cmd/sluice",
	"github.com/redis/go-redis":              "admission/redis internal/redistest internal/stream/peers",
	"github.com/coder/websocket":             "internal/stream/realtime internal/e2e xds",
	"go.opentelemetry.io/":                   "internal/telemetry/trace internal/e2e",
}

type pkg struct {
	ImportPath, Dir  string
	Imports, GoFiles []string
}

func packages(t *testing.T) []pkg {
	t.Helper()
	out, err := exec.Command("go", "list", "-json=ImportPath,Dir,Imports,GoFiles", module+"/...").Output()
	if err != nil {
		t.Fatal(err)
	}
	var all []pkg
	for d := json.NewDecoder(bytes.NewReader(out)); ; {
		var p pkg
		if err := d.Decode(&p); errors.Is(err, io.EOF) {
			return all
		} else if err != nil {
			t.Fatal(err)
		}
		all = append(all, p)
	}
}

func TestImports(t *testing.T) {
	for _, p := range packages(t) {
		name := strings.TrimPrefix(p.ImportPath, module+"/")
		row, ok := allowed[name]
		if !ok {
			t.Errorf("%s has no row: say what it may import", name)
			continue
		}
		for _, path := range p.Imports {
			if ours, ok := strings.CutPrefix(path, module+"/"); ok && row != "*" && !slices.Contains(strings.Fields(row), ours) {
				t.Errorf("%s imports %s, which its row does not allow", name, ours)
			}
			for tech, who := range confined {
				if strings.HasPrefix(path, tech) && !slices.Contains(strings.Fields(who), name) {
					t.Errorf("%s imports %s, which only %s may", name, path, who)
				}
			}
		}
	}
}

func TestEveryPackageSaysWhatItIs(t *testing.T) {
	for _, p := range packages(t) {
		said := false
		for _, file := range p.GoFiles {
			f, err := parser.ParseFile(token.NewFileSet(), filepath.Join(p.Dir, file), nil, parser.ParseComments|parser.PackageClauseOnly)
			if err != nil {
				t.Fatal(err)
			}
			said = said || f.Doc != nil && len(f.Doc.Text()) > 40
		}
		if len(p.GoFiles) > 0 && !said {
			t.Errorf("%s has no package comment", p.ImportPath)
		}
	}
}
