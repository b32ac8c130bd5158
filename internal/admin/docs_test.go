package admin

import (
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/sluice-gateway/sluice/internal/history"
)

// everything returns a handler with all endpoints. None of them may be called.
func everything() *handler {
	c := Config{Actions: struct{ Actions }{}, Keys: struct{ Keys }{}, History: new(history.Store), Events: new(Events)}
	v := reflect.ValueOf(&c).Elem()
	for i := range v.NumField() {
		if f := v.Field(i); f.Kind() == reflect.Func {
			f.Set(reflect.MakeFunc(f.Type(), func([]reflect.Value) []reflect.Value { panic("called") }))
		}
	}
	c.Metrics = http.NotFoundHandler()
	return New(c).(*handler)
}

// apiCode matches code in the page of the admin API that names a method, a path or both.
var apiCode = regexp.MustCompile("`(?:(GET|POST|PUT|PATCH|DELETE)\\b)? ?([/…][^`? ]*)?[^`]*`")

// documentedCalls returns the methods of each path that the page of the admin API has. In the page,
// "`GET`, `PATCH /a`" are two methods, and "`POST /a/b`, `…/c`" are two paths.
func documentedCalls(page string) map[string][]string {
	calls := map[string][]string{}
	for _, line := range strings.Split(page, "\n") {
		var methods []string
		last, fresh := "", false
		for _, m := range apiCode.FindAllStringSubmatch(line, -1) {
			method, path := m[1], m[2]
			if method != "" {
				if fresh {
					methods = nil
				}
				methods, fresh = append(methods, method), false
			}
			if rest, ok := strings.CutPrefix(path, "…"); ok {
				kept := strings.Split(last, "/")
				path = strings.Join(kept[:max(0, len(kept)-strings.Count(rest, "/"))], "/") + rest
			}
			if len(methods) == 0 || !strings.HasPrefix(path, "/") {
				continue
			}
			last, fresh = path, true
			calls[path] = append(calls[path], methods...)
		}
	}
	return calls
}

// TestO11_DocumentHasEachCall compares docs/api.md with the endpoints: their paths, and the methods
// of each.
func TestO11_DocumentHasEachCall(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../../docs/api.md")
	if err != nil {
		t.Fatal(err)
	}
	calls, h := documentedCalls(string(page)), everything()
	for path := range h.routes {
		if _, isPage := pageFiles()[path]; !isPage && calls[path] == nil {
			t.Errorf("docs/api.md does not have %s", path)
		}
	}
	for path, methods := range calls {
		r, ok := h.find(path)
		if !ok || isView(path) {
			if strings.HasPrefix(path, "/api/") {
				t.Errorf("docs/api.md has %s, which does not exist", path)
			}
			continue
		}
		slices.Sort(methods)
		if want := slices.Sorted(maps.Keys(r)); !slices.Equal(slices.Compact(methods), want) {
			t.Errorf("docs/api.md has %s with the methods %v, want %v", path, slices.Compact(methods), want)
		}
	}
	for _, ending := range endings(t) {
		if !slices.ContainsFunc(slices.Collect(maps.Keys(calls)), func(path string) bool { return strings.HasSuffix(path, ending) }) {
			t.Errorf("docs/api.md has no call that ends with %s", ending)
		}
	}
}

// endings returns the endings of paths, such as /drain, that the functions know which find a route.
func endings(t *testing.T) []string {
	t.Helper()
	files, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	var found []string
	for _, file := range files {
		parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range parsed.Decls {
			if f, ok := d.(*ast.FuncDecl); ok && strings.HasPrefix(f.Name.Name, "find") {
				ast.Inspect(f, func(n ast.Node) bool {
					if l, ok := n.(*ast.BasicLit); ok && l.Kind == token.STRING {
						if text, err := strconv.Unquote(l.Value); err == nil && regexp.MustCompile("^/[a-z_]+$").MatchString(text) {
							found = append(found, text)
						}
					}
					return true
				})
			}
		}
	}
	if len(found) < 6 {
		t.Fatalf("only the endings %v were found", found)
	}
	return found
}
