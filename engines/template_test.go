package engines

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"
	standard "text/template"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-gateway/sluice/internal/template"
)

// catalogueTemplates lists every template of the built-in engines, once.
func catalogueTemplates() []string {
	texts := map[string]bool{}
	for _, engine := range Builtin() {
		for _, v := range engine.Versions {
			for _, text := range slices.Concat(v.Command, slices.Collect(maps.Values(v.Env)), []string{v.Kubernetes}) {
				texts[text] = !isFlags(text)
			}
		}
	}
	delete(texts, "{{.Flags}}")
	return slices.Sorted(maps.Keys(texts))
}

// randomLaunch returns random data for a template: fields that are empty or not, and for each
// variable a value or none.
func randomLaunch(random *rand.Rand, variables []string) Launch {
	word := func(words ...string) string { return words[random.IntN(len(words))] }
	l := Launch{
		Name: word("", "chat", "a b"), Model: word("", "/models/x", "org/model"), Registry: word("", "directory", "huggingface"),
		Task: Task(word("", string(Embedding), string(Rerank))), Host: word("", "127.0.0.1"), Sluice: word("", "/bin/sluice"),
		Port: random.IntN(3), GPUs: random.IntN(3), Variables: map[string]any{},
	}
	values := []any{nil, true, false, 0, 1, int64(-1), uint64(7), 0.25, "", "word", []any{}, []any{"a", 1}, map[string]any{"a": 1}}
	for _, name := range variables {
		if i := random.IntN(len(values) + 1); i < len(values) {
			l.Variables[name] = values[i]
		}
	}
	return l
}

// TestTemplatesAreTheStandardOnes checks over random data that each template of the catalogue gives
// the same text as with text/template.
func TestTemplatesAreTheStandardOnes(t *testing.T) {
	t.Parallel()
	random := rand.New(rand.NewPCG(1, 2))
	for _, text := range catalogueTemplates() {
		ours, err := template.Parse("test", text)
		if err != nil {
			t.Errorf("%q: %v", text, err)
			continue
		}
		theirs := standard.Must(standard.New("test").Option("missingkey=error").Parse(text))
		for range 200 {
			l := randomLaunch(random, variablesOf(ours))
			image := fmt.Sprint("image:", random.IntN(10))
			data := l.data()
			data["Image"] = image
			got, err := ours.Execute(data)
			var want strings.Builder
			wantErr := theirs.Execute(&want, struct {
				Launch
				Image string
			}{l, image})
			if (err != nil) != (wantErr != nil) || err == nil && got != want.String() {
				t.Fatalf("%q over %+v: %q, %v; text/template makes %q, %v", text, l, got, err, want.String(), wantErr)
			}
		}
	}
}

// TestDataHasTheFieldsOfLaunch checks that templates may name each field of Launch. The exceptions
// are the arguments, which are passed on as they are, and the share, which is told by variables.
func TestDataHasTheFieldsOfLaunch(t *testing.T) {
	t.Parallel()
	var fields []string
	for _, field := range reflect.VisibleFields(reflect.TypeFor[Launch]()) {
		if field.Name != "Args" && field.Name != "GPUShare" {
			fields = append(fields, field.Name)
		}
	}
	if diff := cmp.Diff(fields, launchFields()); diff != "" {
		t.Error("launchFields:", diff)
	}
	slices.Sort(fields)
	if diff := cmp.Diff(fields, slices.Sorted(maps.Keys(Launch{}.data()))); diff != "" {
		t.Error("data:", diff)
	}
}
