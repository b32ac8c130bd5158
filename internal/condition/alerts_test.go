package condition

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"github.com/sluice-gateway/sluice/internal/testutil"
)

// alert is an alert of Prometheus about conditions.
type alert struct {
	name, severity string
	// matches tells for each label of its selector which values it selects.
	matches map[string]func(string) bool
	// types are the types that the selector names.
	types []string
}

// selects reports whether the alert fires for a condition.
func (a alert) selects(labels map[string]string) bool {
	for label, matches := range a.matches {
		if !matches(labels[label]) {
			return false
		}
	}
	return true
}

var (
	selector = regexp.MustCompile(`\bsluice_condition\{([^}]*)\}`)
	matcher  = regexp.MustCompile(`(\w+)(=~|!~|!=|=)"([^"]+)"`)
)

// alerts returns the alerts of the examples that are about conditions.
func alerts(t *testing.T) (all []alert) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(testutil.Root(), "examples", "monitoring", "rules.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	var file struct {
		Groups []struct {
			Rules []struct {
				Alert, Expr string
				Labels      struct{ Severity string }
			}
		}
	}
	if err := yaml.Unmarshal(text, &file); err != nil {
		t.Fatal(err)
	}
	for _, group := range file.Groups {
		for _, rule := range group.Rules {
			m := selector.FindStringSubmatch(rule.Expr)
			if m == nil {
				continue
			}
			a := alert{name: rule.Alert, severity: rule.Labels.Severity, matches: map[string]func(string) bool{}}
			for _, m := range matcher.FindAllStringSubmatch(m[1], -1) {
				pattern, negative := regexp.MustCompile("^(?:"+m[3]+")$"), m[2][0] == '!'
				a.matches[m[1]] = func(value string) bool { return pattern.MatchString(value) != negative }
				if m[1] == "type" {
					a.types = append(a.types, strings.Split(m[3], "|")...)
				}
			}
			all = append(all, a)
		}
	}
	return all
}

// TestS17_EveryConditionAlerts: one alert fires for each condition that an operator must act on. It
// is as severe as the condition, unless the type has an alert of its own. No alert names a type
// that does not exist.
func TestS17_EveryConditionAlerts(t *testing.T) {
	all := alerts(t)
	for _, a := range all {
		for _, name := range a.types {
			exists := false
			for _, r := range types {
				exists = exists || regexp.MustCompile("^(?:"+name+")$").MatchString(string(r.kind))
			}
			if !exists {
				t.Errorf("%s names %s, which does not exist", a.name, name)
			}
		}
	}
	wanted := map[Severity]string{Error: "critical", Warning: "warning", Info: ""}
	for _, r := range types {
		for severity, want := range wanted {
			var names []string
			got, own := "", false
			for _, a := range all {
				if a.selects(map[string]string{"type": string(r.kind), "severity": string(severity)}) {
					names, got = append(names, a.name), a.severity
					own = own || a.matches["severity"] == nil
				}
			}
			if len(names) > 1 || got != want && !own {
				t.Errorf("%s of severity %s: alerts %v, severity %q; want one alert with severity %q", r.kind, severity, names, got, want)
			}
		}
	}
}
