package delta_test

import (
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-gateway/sluice/internal/openai/delta"
)

// piece is a piece of a tool call, as an engine sends it.
func piece(choice, index int, id, name, arguments string) delta.Delta {
	return delta.Delta{Kind: delta.ToolCall, Choice: choice, Tool: index, ID: []byte(id), Name: []byte(name), Text: []byte(arguments)}
}

func TestCalls(t *testing.T) {
	for name, c := range map[string]struct {
		pieces []delta.Delta
		want   []string
	}{
		"an index each": {
			[]delta.Delta{piece(0, 0, "a", "f", ""), piece(0, 1, "b", "g", "{"), piece(0, 0, "", "", "{}"), piece(0, 1, "", "", "}")},
			[]string{"0.0 a f ", "0.1 b g {", "0.0   {}", "0.1   }"},
		},
		"one index for all": {
			[]delta.Delta{piece(0, 0, "a", "f", "{"), piece(0, 0, "", "", "}"), piece(0, 0, "b", "f", "{"), piece(0, 0, "", "", "}"), piece(0, 0, "c", "g", "{}")},
			[]string{"0.0 a f {", "0.0   }", "0.1 b f {", "0.1   }", "0.2 c g {}"},
		},
		"an index that another call has taken": {
			[]delta.Delta{piece(0, 0, "a", "f", ""), piece(0, 0, "b", "f", ""), piece(0, 1, "c", "f", ""), piece(0, 1, "", "", "{}"), piece(0, 0, "", "", "[]")},
			[]string{"0.0 a f ", "0.1 b f ", "0.2 c f ", "0.2   {}", "0.1   []"},
		},
		"no index":            {[]delta.Delta{piece(0, -1, "a", "f", "{}"), piece(0, -1, "b", "f", "{}")}, []string{"0.0 a f {}", "0.1 b f {}"}},
		"a later choice":      {[]delta.Delta{piece(0, 0, "a", "f", ""), piece(1, 0, "b", "f", "")}, []string{"0.0 a f ", "1.0 b f "}},
		"an id in each piece": {[]delta.Delta{piece(0, 0, "a", "f", "{"), piece(0, 0, "a", "f", "}"), piece(0, 0, "b", "", "")}, []string{"0.0 a f {", "0.0   }", "0.0   "}},
		"a late name":         {[]delta.Delta{piece(0, 0, "a", "", "{"), piece(0, 0, "", "f", "}")}, []string{"0.0 a  {", "0.0  f }"}},
		"a late id":           {[]delta.Delta{piece(0, 0, "", "f", "{"), piece(0, 0, "a", "", "}")}, []string{"0.0  f {", "0.0 a  }"}},
		"no ids":              {[]delta.Delta{piece(0, 0, "", "f", "{"), piece(0, 0, "", "", "}")}, []string{"0.0  f {", "0.0   }"}},
	} {
		var calls delta.Calls
		var got []string
		for _, d := range c.pieces {
			apart := calls.Clone()
			other := d
			apart.Resolve(&other)
			calls.Resolve(&d)
			got = append(got, fmt.Sprintf("%d.%d %s %s %s", d.Choice, d.Tool, d.ID, d.Name, d.Text))
		}
		if diff := cmp.Diff(c.want, got); diff != "" {
			t.Errorf("%s (-want +got)\n%s", name, diff)
		}
	}
}
