package admin

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sluice-gateway/sluice/internal/testutil"
)

// TestO10_VendoredFilesAreThoseOfTheLock: the files of others that the binary embeds are those of
// the packages that tests/clients/package-lock.json names.
func TestO10_VendoredFilesAreThoseOfTheLock(t *testing.T) {
	t.Parallel()
	for name, original := range map[string]string{
		"uplot.js": "uplot/dist/uPlot.esm.js", "uplot.css": "uplot/dist/uPlot.min.css", "uplot.LICENSE": "uplot/LICENSE",
	} {
		want, err := os.ReadFile(filepath.Join(testutil.Tool(t, "node/node_modules/uplot"), strings.TrimPrefix(original, "uplot")))
		if err != nil {
			t.Fatal(err)
		}
		got, err := page.ReadFile("page/lib/" + name)
		if err != nil || string(got) != string(want) {
			t.Errorf("page/lib/%s differs from %s of the lock: run scripts/page.sh (%v)", name, original, err)
		}
	}
}

// TestO10_EveryViewHasAURL: the URL of a view is the page itself, with any name below it, and needs
// no login. An unknown URL is an error.
func TestO10_EveryViewHasAURL(t *testing.T) {
	t.Parallel()
	c := newConfig()
	c.Access = newAccess
	h := New(c)
	whole := get(h, "/").Body.String()
	for _, path := range []string{"/models", "/models/org%2Fa", "/models/a/b", "/replicas/10.0.0.1:80", "/requests/x", "/configuration", "/playground"} {
		if w := get(h, path); w.Code != 200 || w.Body.String() != whole {
			t.Errorf("%s: status %d, want the page", path, w.Code)
		}
	}
	app, err := page.ReadFile("page/app.js")
	if err != nil {
		t.Fatal(err)
	}
	for view := range viewPaths {
		if !strings.Contains(string(app), "'"+view+"'") {
			t.Errorf("app.js has no view %s", view)
		}
	}
	if w := get(h, "/modelsx"); w.Code != 404 {
		t.Errorf("/modelsx: status %d, want 404", w.Code)
	}
}
