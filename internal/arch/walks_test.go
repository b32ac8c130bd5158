package arch_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// functionName matches a name of a page about the code: directory, then a function or a type and
// its method.
var functionName = regexp.MustCompile("`([a-z0-9/]+)\\.((?:[A-Za-z]\\w*\\.)?[A-Za-z]\\w*)`")

// testName matches the name of a test.
var testName = regexp.MustCompile("`(Test[A-Z]\\w*)`")

// TestWalksNameFunctionsThatExist keeps docs/walks.md and ARCHITECTURE.md true to the code.
func TestWalksNameFunctionsThatExist(t *testing.T) {
	var text []byte
	for _, page := range []string{"docs/walks.md", "ARCHITECTURE.md"} {
		content, err := os.ReadFile(filepath.Join("..", "..", page))
		if err != nil {
			t.Fatal(err)
		}
		text = append(text, content...)
	}
	declared := map[string]map[string]bool{}
	checked := 0
	for _, match := range functionName.FindAllStringSubmatch(string(text), -1) {
		dir, name := match[1], match[2]
		if info, err := os.Stat(filepath.Join("..", "..", dir)); err != nil || !info.IsDir() || name == "go" {
			continue // a file, or a name that is no path
		}
		if declared[dir] == nil {
			declared[dir] = functionsOf(t, filepath.Join("..", "..", dir))
		}
		if !declared[dir][name] {
			t.Errorf("a page names %s.%s, which does not exist", dir, name)
		}
		checked++
	}
	tests := allTests(t)
	for _, match := range testName.FindAllStringSubmatch(string(text), -1) {
		if !tests[match[1]] {
			t.Errorf("a page names %s, which does not exist", match[1])
		}
	}
	if checked < 50 {
		t.Errorf("the pages name %d functions in a form that can be checked, want at least 50", checked)
	}
}

// functionsOf lists the functions, the methods as Type.Method, and the types of a directory.
func functionsOf(t *testing.T, dir string) map[string]bool {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "*.go"))
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]bool{}
	for _, file := range files {
		if strings.HasSuffix(file, "_test.go") {
			continue
		}
		f, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range f.Decls {
			switch d := d.(type) {
			case *ast.FuncDecl:
				all[receiver(d)+d.Name.Name] = true
			case *ast.GenDecl:
				for _, s := range d.Specs {
					if s, ok := s.(*ast.TypeSpec); ok {
						all[s.Name.Name] = true
					}
				}
			}
		}
	}
	return all
}

// receiver is the name of the method's type with a dot; empty for a function.
func receiver(d *ast.FuncDecl) string {
	if d.Recv == nil {
		return ""
	}
	e := d.Recv.List[0].Type
	for {
		switch x := e.(type) {
		case *ast.StarExpr:
			e = x.X
		case *ast.IndexExpr:
			e = x.X
		case *ast.Ident:
			return x.Name + "."
		default:
			return ""
		}
	}
}

// allTests lists the tests of the module.
func allTests(t *testing.T) map[string]bool {
	t.Helper()
	all := map[string]bool{}
	for _, p := range listPackages(t) {
		files, err := filepath.Glob(filepath.Join(p.Dir, "*_test.go"))
		if err != nil {
			t.Fatal(err)
		}
		for _, file := range files {
			f, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.SkipObjectResolution)
			if err != nil {
				t.Fatal(err)
			}
			for _, d := range f.Decls {
				if d, ok := d.(*ast.FuncDecl); ok && d.Recv == nil {
					all[d.Name.Name] = true
				}
			}
		}
	}
	return all
}
