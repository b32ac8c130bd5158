package engines

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestU10_Figures: each form of a figure is understood, and what is none is refused.
func TestU10_Figures(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]Figure{
		"vllm:running":     {{Series: "vllm:running"}},
		`t{mode="a b",x}`:  {{Series: "t", Labels: map[string]string{"mode": "a b"}, Factors: []string{"x"}}},
		"info{a, b}":       {{Series: "info", Factors: []string{"a", "b"}}},
		"/props#a*b.c_d":   {{Document: "/props", Fields: [][]string{{"a"}, {"b", "c_d"}}}},
		"a or b or /c#d":   {{Series: "a"}, {Series: "b"}, {Document: "/c", Fields: [][]string{{"d"}}}},
		`total{le="+Inf"}`: {{Series: "total", Labels: map[string]string{"le": "+Inf"}}},
	} {
		if got, err := ParseFigure(text); err != nil {
			t.Errorf("%s: %v", text, err)
		} else if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s:\n%s", text, diff)
		}
	}
	for _, text := range []string{"", " ", "1a", "a b", "a{", "a{}", "a{b", "a{b}c", `a{b="c}`, "a{b=c}", "a or ", "/a", "/a#", "/a#b*", "/a#b..c", "/a#b c"} {
		if got, err := ParseFigure(text); err == nil {
			t.Errorf("%q is taken for %+v", text, got)
		}
	}
}
