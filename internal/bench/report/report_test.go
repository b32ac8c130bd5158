package report

import (
	"encoding/xml"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestSVGHasALineForEachSeries(t *testing.T) {
	svg := SVG([]Panel{
		{Title: "a < b", End: "9 s", Lines: []Line{{X: []float64{0, 9}, Y: []float64{1, 2}}}},
		{Title: "rules", From: 1, Top: 4, Lines: []Line{
			{Name: "one & two", X: []float64{1, 3}, Y: []float64{8, 2}},
			{Name: "none"},
		}},
	})
	decoder := xml.NewDecoder(strings.NewReader(svg))
	for {
		if _, err := decoder.Token(); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatalf("the SVG is no XML: %v", err)
		}
	}
	for _, want := range []string{
		`points="0.0,45.0 720.0,0.0"`,  // from half of the largest value to all of it
		`points="0.0,0.0 720.0,110.0"`, // 8 is cut off at 4
		"a &lt; b", "one &amp; two", "9 s",
	} {
		if !strings.Contains(svg, want) {
			t.Errorf("the SVG lacks %q:\n%s", want, svg)
		}
	}
}

func TestWriteSection(t *testing.T) {
	path := filepath.Join(t.TempDir(), "doc.md")
	if err := os.WriteFile(path, []byte("head\n<!-- begin x -->\nold\n<!-- end x -->\ntail\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := WriteSection(path, "x", "new\n"); err != nil {
			t.Fatal(err)
		}
	}
	got, _ := os.ReadFile(path)
	if want := "head\n<!-- begin x -->\nnew\n<!-- end x -->\ntail\n"; string(got) != want {
		t.Errorf("got %q, want %q", got, want)
	}
	if err := WriteSection(path, "y", ""); err == nil {
		t.Error("a section that the document lacks was written")
	}
}
