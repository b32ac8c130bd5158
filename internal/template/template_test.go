package template_test

import (
	"errors"
	"strings"
	"testing"
	standard "text/template"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-gateway/sluice/internal/template"
)

// root is the data of the tests for text/template, which tells a struct's fields from a map's keys,
// as Data does.
type root struct {
	Name, Empty string
	GPUs, Zero  int
	Variables   map[string]any
}

func (r root) data() template.Data {
	return template.Data{"Name": r.Name, "Empty": r.Empty, "GPUs": r.GPUs, "Zero": r.Zero, "Variables": r.Variables}
}

func sample() root {
	return root{Name: "chat", GPUs: 2, Variables: map[string]any{
		"text": "half", "none": nil, "yes": true, "no": false, "int": 8, "long": int64(8), "large": uint64(8), "huge": uint64(1) << 63,
		"float": 0.9, "zero": 0, "list": []any{"a", 1, nil}, "nothing": []any{}, "object": map[string]any{"b": 1, "a": map[string]any{"x": 2}},
	}}
}

// byStandard is what text/template makes of a template.
func byStandard(text string, data any) (string, error) {
	t, err := standard.New("test").Option("missingkey=error").Parse(text)
	if err != nil {
		return "", err
	}
	var out strings.Builder
	err = t.Execute(&out, data)
	return out.String(), err
}

// compare requires of a template that Parse supports that it is the same template for
// text/template. It tells whether Parse supports the template.
func compare(t *testing.T, text string, data root) bool {
	t.Helper()
	parsed, err := template.Parse("test", text)
	if err != nil {
		return false
	}
	got, err := parsed.Execute(data.data())
	want, standardErr := byStandard(text, data)
	if (err != nil) != (standardErr != nil) {
		if err == nil || !strings.Contains(err.Error(), "can't iterate") && !strings.Contains(err.Error(), "can't print all") &&
			!strings.Contains(err.Error(), "incompatible types") {
			t.Errorf("%q: error %v, text/template's %v", text, err, standardErr)
		}
	} else if err == nil && got != want {
		t.Errorf("%q: %q, text/template makes %q", text, got, want)
	}
	return true
}

// supported are templates over sample that use all that is supported.
var supported = []string{
	"", "plain", "{{.Name}}", "a {{- .Name -}} b", "{{/* comment */}}x", "{{$.Name}} {{$.Variables.text}}",
	"{{.Variables.text}} {{.Variables.none}} {{.Variables.yes}} {{.Variables.float}} {{.Variables.huge}} {{.Variables.list}} {{.Variables.object}}",
	"{{.Variables.object.a.x}}", `{{"text"}} {{1}} {{0x10}} {{1.5}} {{1e3}} {{'a'}} {{true}} {{-3}} {{0x1p4}} {{1_000}}`,
	"{{.Variables.absent}}", "{{.Variables.text.x}}", "{{.Variables.none.x}}", "{{.GPUs.x}}", "{{.Absent}}", "{{with .}}{{.Absent}}{{end}}",
	"{{if .Name}}a{{else}}b{{end}}{{if .Empty}}a{{else if .GPUs}}b{{else}}c{{end}}",
	"{{if .Variables.none}}a{{end}}{{if .Variables.zero}}a{{end}}{{if .Variables.nothing}}a{{end}}{{if .Variables.float}}a{{end}}",
	"{{if .Variables.large}}a{{end}}{{if .Variables.long}}a{{end}}{{if .Variables.object}}a{{end}}{{if .}}a{{end}}",
	"{{with .Variables.object}}{{.b}}{{$.Name}}{{else}}none{{end}}{{with .Empty}}{{.}}{{else with .Name}}{{.}}{{end}}",
	"{{range .Variables.list}}[{{.}}]{{end}}{{range $v := .Variables.list}}[{{$v}}]{{end}}{{range $i, $v := .Variables.list}}{{$i}}={{$v}} {{end}}",
	"{{range $k, $v := .Variables}}{{$k}}={{$v}};{{end}}{{range .Variables.nothing}}a{{else}}b{{end}}{{range .Variables.none}}a{{else}}b{{end}}",
	"{{$x := .Name}}{{if true}}{{$x := 2}}{{$x}}{{end}}{{$x}}", "{{$o := .Variables.object}}{{$o.b}}{{$o.c}}", "{{if $x := .GPUs}}{{$x}}{{end}}",
	"{{or .Empty .Name}} {{or .Zero 1}} {{or .Empty .Zero}} {{and .Name .GPUs}} {{and .Empty .Variables.absent}} {{or .Name .Variables.absent}} {{or .Name}}",
	"{{not .Name}} {{not .Zero}} {{if not (eq .GPUs 1)}}x{{end}} {{if and (not .Zero) (or .Empty .Name)}}y{{end}}",
	`{{eq .Name "chat"}} {{eq .Name "a" "chat"}} {{ne .GPUs 3}} {{eq .Variables.int .Variables.large}} {{eq .Variables.huge 1}} {{eq .Variables.huge .Variables.huge}}`,
	`{{eq .Variables.none "a"}} {{eq .Variables.none .Variables.none}} {{ne .Name .Variables.none}} {{eq .Variables.yes true}} {{eq .Variables.float 0.9}}`,
	`{{eq .Name 1}}`, `{{eq .Variables.float 1}}`, `{{eq .Variables.list .Variables.list}}`, `{{eq .Variables.list .Variables.none}}`, `{{eq .Name .Variables.absent}}`,
	"{{(.Name)}} {{((.GPUs))}}", "{{.}}", "{{range .Name}}{{end}}", "{{range .Zero}}{{end}}",
	"{{define \"test\"}}{{end}}x", "{{if .Name}}line\nline{{end}}\n{{- range .Variables.list}}\n{{.}}{{end}}",
}

// TestSameAsStandard: the supported templates give what text/template gives.
func TestSameAsStandard(t *testing.T) {
	t.Parallel()
	for _, text := range supported {
		if !compare(t, text, sample()) && !strings.Contains(text, "define") {
			_, err := template.Parse("test", text)
			t.Errorf("%q is not supported: %v", text, err)
		}
	}
}

// FuzzSameAsStandard: whatever Parse supports gives what text/template gives, or is refused by
// both.
func FuzzSameAsStandard(f *testing.F) {
	for _, text := range supported {
		f.Add(text, "half", 2, 0.5)
	}
	f.Fuzz(func(t *testing.T, text, word string, n int, float float64) {
		data := sample()
		data.Name, data.GPUs = word, n
		data.Variables["text"], data.Variables["int"], data.Variables["float"] = word, n, float
		if len(text) < 1000 {
			compare(t, text, data)
		}
	})
}

// TestRefused: what is not supported is refused with its place and quoted.
func TestRefused(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"{{.Name":                      "name:1: unclosed action",
		"a\n{{if}}":                    "name:2: missing value for if",
		"{{$x}}":                       `name:1: undefined variable "$x"`,
		"\n b {{printf .Name}}":        `name:2:5: <printf .Name>: function "printf" is not supported; and, or, not, eq and ne are`,
		"{{.Name | not}}":              "name:1:2: <.Name | not>: a pipeline with | is not supported; write the call with parentheses",
		"{{$x := 1}}{{$x = 2}}":        "name:1:13: <$x = 2>: an assignment with = is not supported; := declares a variable",
		"{{.Name 1}}":                  "name:1:2: <.Name 1>: can't give argument to non-function .Name",
		"{{eq .Name}}":                 "name:1:2: <eq .Name>: wrong number of arguments for eq: 1",
		"{{not}}":                      "name:1:2: <not>: wrong number of arguments for not: 0",
		"{{if eq .Name nil}}{{end}}":   "name:1:14: <nil>: this is not supported as a value",
		"{{(.Variables).x}}":           "name:1:14: <(.Variables).x>: this is not supported as a value",
		"{{1i}}":                       "name:1:2: <1i>: a complex number is not supported",
		"{{99999999999999999999}}":     "overflow",
		`{{template "x"}}`:             `name:1:11: <{{template "x"}}>: this is not supported; text, fields, if, with and range are`,
		`x{{define "x"}}y{{end}}`:      "a template of its own is not supported",
		`{{define "name"}}y{{end}}`:    "a template of its own is not supported",
		"{{range .X}}{{break}}{{end}}": "name:1:14: <{{break}}>: this is not supported; text, fields, if, with and range are",
	} {
		_, err := template.Parse("name", text)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", text, err, want)
		}
	}
}

// TestFailures: an execution that fails says where and on what.
func TestFailures(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"{{.Port}}":                  "name:1:2: <.Port>: can't evaluate field Port",
		"a\n{{.Variables.absent}}":   `name:2:12: <.Variables.absent>: map has no entry for key "absent"`,
		"{{.GPUs.x}}":                "name:1:7: <.GPUs.x>: can't evaluate field x in type int",
		"{{.Variables.none.x}}":      `name:1:12: <.Variables.none.x>: nil data; no entry for key "x"`,
		"{{range .Name}}{{end}}":     "name:1:8: <.Name>: range can't iterate over a value of type string",
		"{{range .Zero}}{{end}}":     "name:1:8: <.Zero>: range can't iterate over 0",
		"{{.}}":                      "name:1:2: <{{.}}>: can't print all fields at once; name one",
		`{{if eq .Name 1}}x{{end}}`:  "name:1:5: <eq .Name 1>: error calling eq: incompatible types for comparison: string and int64",
		"{{not (eq .Name .Absent)}}": "name:1:16: <.Absent>: can't evaluate field Absent",
	} {
		parsed, err := template.Parse("name", text)
		if err != nil {
			t.Errorf("%q: %v", text, err)
			continue
		}
		if _, err := parsed.Execute(sample().data()); err == nil || !strings.HasSuffix(err.Error(), want) {
			t.Errorf("%q: %v, want %q", text, err, want)
		}
	}
	parsed, err := template.Parse("name", "{{.Variables.absent}}")
	if err != nil {
		t.Fatal(err)
	}
	_, err = parsed.Execute(sample().data())
	if missing := new(template.MissingKeyError); !errors.As(err, &missing) || missing.Key != "absent" {
		t.Errorf("got %v, want a MissingKeyError of absent", err)
	}
}

// TestFields: the fields of the Data are found wherever the dot is the Data, and behind $.
func TestFields(t *testing.T) {
	t.Parallel()
	parsed, err := template.Parse("x", `{{.Name}}{{if eq .GPUs 1}}{{with .Variables}}{{.not}}{{$.Zero}}{{else}}{{.Variables.a}}{{end}}{{end}}`)
	if err != nil {
		t.Fatal(err)
	}
	want := []template.Field{
		{Names: []string{"Name"}, Place: "x:1:2"}, {Names: []string{"GPUs"}, Place: "x:1:17"}, {Names: []string{"Variables"}, Place: "x:1:33"},
		{Names: []string{"Zero"}, Place: "x:1:56"}, {Names: []string{"Variables", "a"}, Place: "x:1:83"},
	}
	if diff := cmp.Diff(want, parsed.Fields()); diff != "" {
		t.Error(diff)
	}
	if !parsed.Prints("Name") || parsed.Prints("GPUs") || parsed.Prints("Zero") {
		t.Error("only Name is printed outside of every branch")
	}
}
