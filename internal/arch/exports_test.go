package arch_test

import (
	"go/ast"
	"go/token"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// unusedExports are the exported identifiers that nothing uses. The list may only shrink. A key is
// the package without the module, a dot, and the identifier.
var unusedExports = map[string]bool{
	// Members of enumerations.
	"internal/config.StreamManaged": true,
	"internal/dispatch.ModeAuto":    true,
}

// publishedPackages have exports for programs outside the repository.
var publishedPackages = []string{"api/llm/v1", "examples"}

// Every exported function, type, variable and constant is used, in production or in a test. The
// test reads names and no types, which takes a second. So it does not know methods and fields.
func TestEveryExportIsUsed(t *testing.T) {
	declared, used := map[string]bool{}, map[string]bool{}
	for _, p := range listPackages(t) {
		for _, name := range p.allFiles() {
			f := parseFile(t, token.NewFileSet(), p, name)
			own := p.path()
			if p.Name == "main" || f.Name.Name != p.Name {
				own = "" // no other file can use a command's names, and an external test qualifies its package's
			}
			names := declarations(f)
			recordUses(f, own, names, used)
			if own == "" || !slices.Contains(p.GoFiles, name) || slices.Contains(publishedPackages, own) {
				continue
			}
			for id := range names {
				if id.IsExported() {
					declared[own+"."+id.Name] = true
				}
			}
		}
	}
	if len(declared) < 500 {
		t.Fatalf("the repository has %d exports, which cannot be all", len(declared))
	}
	checkUnused(t, declared, used)
}

func checkUnused(t *testing.T, declared, used map[string]bool) {
	t.Helper()
	for name := range declared {
		if !used[name] && !unusedExports[name] {
			t.Errorf("nothing uses %s: delete it, or begin it with a small letter", name)
		}
	}
	for name := range unusedExports {
		if used[name] || !declared[name] {
			t.Logf("%s is used or gone: delete it from the list", name)
		}
	}
}

// declarations are the identifiers that a file declares at package level, without methods.
func declarations(f *ast.File) map[*ast.Ident]bool {
	names := map[*ast.Ident]bool{}
	for _, decl := range f.Decls {
		switch d := decl.(type) {
		case *ast.FuncDecl:
			if d.Recv == nil {
				names[d.Name] = true
			}
		case *ast.GenDecl:
			for _, spec := range d.Specs {
				switch s := spec.(type) {
				case *ast.TypeSpec:
					names[s.Name] = true
				case *ast.ValueSpec:
					for _, id := range s.Names {
						names[id] = true
					}
				}
			}
		}
	}
	return names
}

// recordUses adds the identifiers that a file uses: of its own package, unless own is empty, and of
// the packages of the module that it imports.
func recordUses(f *ast.File, own string, declared map[*ast.Ident]bool, used map[string]bool) {
	imports := map[string]string{} // path without the module by name in the file
	for _, spec := range f.Imports {
		path, _ := strconv.Unquote(spec.Path.Value)
		path, ok := strings.CutPrefix(path, module+"/")
		if !ok {
			continue
		}
		name := path[strings.LastIndex(path, "/")+1:]
		if spec.Name != nil {
			name = spec.Name.Name
		}
		imports[name] = path
	}
	ast.Inspect(f, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.SelectorExpr:
			if id, ok := n.X.(*ast.Ident); ok && imports[id.Name] != "" {
				used[imports[id.Name]+"."+n.Sel.Name] = true
			}
		case *ast.Ident:
			if own != "" && !declared[n] {
				used[own+"."+n.Name] = true
			}
		}
		return true
	})
}
