package dispatch

import (
	"testing"

	"github.com/sluice-gateway/sluice/authz"
	"github.com/sluice-gateway/sluice/engines"
	"github.com/sluice-gateway/sluice/internal/openai"
)

// TestR5_DefaultModel: which model a request gets that names none, by the file and by its tenant.
func TestR5_DefaultModel(t *testing.T) {
	t.Parallel()
	s := newStage(Policy{})
	s.put("a", replicas("a-0")...)
	s.put("b", replicas("b-0")...)
	s.fleet.Set("none", engines.Part{Models: []engines.Model{{Name: "elsewhere", Launcher: engines.None}}})
	for name, test := range map[string]struct {
		rules Rules
		may   []string
		want  string
	}{
		"default":                      {Rules{DefaultModel: "a"}, []string{"*"}, "a"},
		"alias":                        {Rules{DefaultModel: "a-alias"}, []string{"a", "b"}, "a-alias"},
		"pool":                         {Rules{DefaultModel: "p", Pools: map[string][]string{"p": {"a"}}}, []string{"*"}, "p"},
		"not allowed":                  {Rules{DefaultModel: "c"}, []string{"a", "b"}, ""},
		"not allowed, another is":      {Rules{DefaultModel: "a"}, []string{"b"}, "b"},
		"unknown":                      {Rules{DefaultModel: "x"}, []string{"*"}, ""},
		"two models":                   {Rules{}, []string{"*"}, ""},
		"one model":                    {Rules{}, []string{"b"}, "b"},
		"one model, and one elsewhere": {Rules{}, []string{"b", "elsewhere"}, "b"},
		"one model and a pool":         {Rules{Pools: map[string][]string{"p": {"b"}}}, []string{"b", "p"}, ""},
		"one model, and a hidden pool": {Rules{Pools: map[string][]string{"p": {"b"}}}, []string{"b"}, "b"},
		"nothing":                      {Rules{}, []string{"elsewhere"}, ""},
	} {
		s.SetRules(test.rules)
		s.rebuild()
		scan := openai.Request{}
		fault := s.SetModel(&scan, &authz.Tenant{Name: "t", Models: test.may})
		if scan.Model != test.want {
			t.Errorf("%s: %q, want %q", name, scan.Model, test.want)
		}
		if (fault == nil) != (test.want != "") || fault != nil && (fault.Param != "model" || fault.HTTPStatus() != 400) {
			t.Errorf("%s: fault %v", name, fault)
		}
		const message = "model is missing, and there is no default_model that the caller may use: name one of the models that GET /v1/models lists."
		if fault != nil && fault.Message != message {
			t.Errorf("%s: the message is %q", name, fault.Message)
		}
		scan = openai.Request{Model: "named"}
		if fault := s.SetModel(&scan, &authz.Tenant{}); fault != nil || scan.Model != "named" {
			t.Errorf("%s: a named model became %q, %v", name, scan.Model, fault)
		}
	}
}
