package migrate

import (
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"
)

// freeMappings are mappings whose keys are names that someone has chosen, and what Kubernetes
// itself writes into an object.
var freeMappings = []string{"macros", "models", "peers", "selectors", "pins", "metadata", "env", "extra_headers", "environment_variables",
	"model_group_alias", "model_alias_map", "status", "labels", "annotations"}

// mappingsOf calls visit for each mapping below v whose keys are fields, with its path.
func mappingsOf(at string, v any, visit func(at string, m map[string]any)) {
	switch v := v.(type) {
	case map[string]any:
		last := at[strings.LastIndexByte(at, '.')+1:]
		if !slices.Contains(freeMappings, last) {
			visit(at, v)
		}
		for _, key := range slices.Sorted(maps.Keys(v)) {
			mappingsOf(at+"."+key, v[key], visit)
		}
	case []any:
		for _, item := range v {
			mappingsOf(at+"[]", item, visit)
		}
	}
}

// A field that Sluice does not know is named in the result, wherever it stands.
func TestNoFieldIsLostInSilence(t *testing.T) {
	t.Parallel()
	const unknown = "fieldOfTomorrow"
	for _, kind := range Kinds() {
		text, err := os.ReadFile("testdata/" + string(kind) + ".yaml")
		if err != nil {
			t.Fatal(err)
		}
		documents, err := read(text)
		if err != nil {
			t.Fatal(err)
		}
		for i, document := range documents {
			mappingsOf("", map[string]any(document), func(at string, m map[string]any) {
				if kind == KubeAI && at == "" || strings.HasPrefix(at, ".groups") || strings.HasPrefix(fmt.Sprint(m["model"]), "anthropic/") {
					return // apiVersion, kind and what kubectl adds; what one comment names as a whole
				}
				m[unknown] = 1
				defer delete(m, unknown)
				all := slices.Clone(documents[:i])
				if kind == KubeAI || i == 0 {
					all = documents
				}
				out := convertAll(t, kind, all)
				field := at[strings.LastIndexByte(at, '.')+1:]
				if !strings.Contains(out, unknown) && !strings.Contains(out, "# "+field+": no counterpart") {
					t.Errorf("%s, document %d: a field in %q is lost", kind, i, at)
				}
			})
		}
	}
}

func convertAll(t *testing.T, kind Kind, documents []source) string {
	t.Helper()
	var text strings.Builder
	encoder := yaml.NewEncoder(&text)
	for _, d := range documents {
		if err := encoder.Encode(map[string]any(d)); err != nil {
			t.Fatal(err)
		}
	}
	file, err := Convert(kind, []byte(text.String()))
	if err != nil {
		t.Fatal(err)
	}
	return file.Text
}

// What llama-swap does and Sluice does in another way is named.
func TestLlamaSwapLoadingAndUnloading(t *testing.T) {
	t.Parallel()
	file, err := Convert(LlamaSwap, []byte("sendLoadingState: true\nincludeAliasesInList: true\nunloadTimeout: 60\nrouting: {scheduler: {use: fifo}}\n"+
		"models: {m: {cmd: x, sendLoadingState: true, unloadTimeout: 5}, n: {cmd: x, sendLoadingState: false, unloadTimeout: 10}}"))
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"\n# sendLoadingState: ", "\n# includeAliasesInList: ", "\n# unloadTimeout 60: ", "\n# routing.scheduler: ", "\n  # sendLoadingState: ", "\n  # unloadTimeout 5: "} {
		if strings.Count(file.Text, want) != 1 {
			t.Errorf("%q is not there once:\n%s", want, file.Text)
		}
	}
}
