package arch_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

const module = "github.com/sluice-gateway/sluice"

// goPackage is a package of the module as `go list` describes it.
type goPackage struct {
	// ImportPath is the full path, Name the name in the package clause.
	ImportPath, Name, Dir string
	// Imports are the imports of the production files.
	Imports []string
	// The base names of the files in Dir.
	GoFiles, TestGoFiles, XTestGoFiles, IgnoredGoFiles []string
}

// path is the import path without the module, and "." for the root.
func (p goPackage) path() string {
	if p.ImportPath == module {
		return "."
	}
	return strings.TrimPrefix(p.ImportPath, module+"/")
}

// allFiles are all Go files of the package: of production, of tests, and those with other build
// tags.
func (p goPackage) allFiles() []string {
	return slices.Concat(p.GoFiles, p.TestGoFiles, p.XTestGoFiles, p.IgnoredGoFiles)
}

func listPackages(t *testing.T) []goPackage {
	t.Helper()
	fields := "ImportPath,Name,Dir,Imports,GoFiles,TestGoFiles,XTestGoFiles,IgnoredGoFiles"
	out, err := exec.Command("go", "list", "-json="+fields, module+"/...").Output()
	if err != nil {
		t.Fatalf("go list failed: %v", err)
	}
	var all []goPackage
	for d := json.NewDecoder(bytes.NewReader(out)); ; {
		var p goPackage
		if err := d.Decode(&p); errors.Is(err, io.EOF) {
			return all
		} else if err != nil {
			t.Fatal(err)
		}
		all = append(all, p)
	}
}

func parseFile(t *testing.T, fset *token.FileSet, p goPackage, name string) *ast.File {
	t.Helper()
	f, err := parser.ParseFile(fset, filepath.Join(p.Dir, name), nil, parser.ParseComments|parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// checkAllowList fails the test for each package with faults that the list does not allow. It logs
// the entries of the list that are no longer needed, so that they can be deleted.
func checkAllowList(t *testing.T, allowed map[string]bool, faults map[string][]string) {
	t.Helper()
	for pkg, found := range faults {
		if allowed[pkg] {
			continue
		}
		for _, fault := range found {
			t.Error(fault)
		}
	}
	for pkg := range allowed {
		if len(faults[pkg]) == 0 {
			t.Logf("package %s complies now: delete it from the list", pkg)
		}
	}
}

// gitFiles are the paths of the files that git tracks, relative to the root of the repository,
// which it returns as well. The test is skipped when there is no git checkout, except in CI.
func gitFiles(t *testing.T) (root string, paths []string) {
	t.Helper()
	const reason = "the tree is not a git checkout, so the tracked files are unknown"
	top, err := exec.Command("git", "rev-parse", "--show-toplevel").Output()
	if err != nil {
		if os.Getenv("CI") != "" {
			t.Fatalf("%s: %v", reason, err)
		}
		t.Skip(reason)
	}
	root = strings.TrimSpace(string(top))
	out, err := exec.Command("git", "-C", root, "ls-files", "-z").Output()
	if err != nil {
		t.Fatalf("git ls-files failed: %v", err)
	}
	return root, strings.Split(strings.TrimSuffix(string(out), "\x00"), "\x00")
}
