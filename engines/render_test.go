package engines

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func version(command ...string) Version { return Version{Command: command} }

func TestRender(t *testing.T) {
	t.Parallel()
	launch := Launch{Name: "chat", Model: "/models/a b", Registry: "directory", Task: TextGeneration, Host: "127.0.0.1", Port: 9001,
		Sluice: "/bin/sluice", Variables: map[string]any{"dtype": "half", "max_num_seqs": 8, "verbose": true}}
	for _, tt := range []struct {
		name    string
		command []string
		want    []string
	}{
		{"plain", []string{"run", "me"}, []string{"run", "me"}},
		{"every field", []string{"{{.Sluice}}", "{{.Name}}", "{{.Model}}", "{{.Registry}}", "{{.Task}}", "{{.Host}}:{{.Port}}"},
			[]string{"/bin/sluice", "chat", "/models/a b", "directory", "text-generation", "127.0.0.1:9001"}},
		{"flags are several arguments", []string{"run", "{{.Flags}}", "last"},
			[]string{"run", "--dtype", "half", "--max-num-seqs", "8", "--verbose", "last"}},
		{"flags with spaces and trim marks", []string{"run", " {{- .Flags -}} "},
			[]string{"run", "--dtype", "half", "--max-num-seqs", "8", "--verbose"}},
		{"a named variable is not repeated", []string{"run", "--type={{.Variables.dtype}}", "{{.Flags}}"},
			[]string{"run", "--type=half", "--max-num-seqs", "8", "--verbose"}},
		{"a dot that is the variables", []string{"run", `{{with .Variables}}{{.dtype}}{{end}}`}, []string{"run", "half"}},
		{"another dot", []string{"run", `{{range $i, $v := .Variables}}{{if eq $i "dtype"}}{{.}}{{end}}{{end}}`}, []string{"run", "half"}},
		{"a variable named below", []string{"run", `{{if .Variables.verbose}}-v{{end}}`, `{{with .Name}}{{$.Variables.dtype}}{{end}}`, "{{.Flags}}"},
			[]string{"run", "-v", "half", "--max-num-seqs", "8"}},
		{"an empty argument stays", []string{"run", `{{if eq .Task "embedding"}}x{{end}}`}, []string{"run", ""}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			got, err := version(tt.command...).Render(launch)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestRenderFaults(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name    string
		command []string
		want    string
	}{
		{"no command", nil, "the engine version has no command"},
		{"no source", []string{"run", "{{.Model}}"}, "the command names {{.Model}}, and the model has no source"},
		{"no value", []string{"run", "{{.Variables.dtype}}"}, "the command names {{.Variables.dtype}}, and nothing gives that variable a value"},
		{"unknown field", []string{"run", "{{.Home}}"}, "command[1]:1:2: {{.Home}} is unknown"},
		{"syntax", []string{"run", "{{if}}"}, "command[1]:1: missing value for if"},
		{"execution", []string{"run", "{{.Port.Number}}"}, "can't evaluate field Number in type int"},
		{"no key in a loop", []string{"run", `{{range $i, $v := .Variables}}{{end}}{{eq .Variables.list 3}}`}, "nothing gives that variable"},
		{"empty program", []string{"{{.Sluice}}"}, "command[0]: the program is empty"},
		{"only flags, and none", []string{"{{.Flags}}"}, "command[0]: the program is empty"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			_, err := version(tt.command...).Render(Launch{Port: 1})
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("error %v, want %q in it", err, tt.want)
			}
		})
	}
}

func TestRenderDefaults(t *testing.T) {
	t.Parallel()
	v := Version{
		Command:       []string{"run", "{{.Flags}}"},
		Schema:        map[string]any{"properties": map[string]any{"a": map[string]any{"default": 1}, "b": map[string]any{"default": 1}, "c": true}},
		TaskVariables: map[Task]map[string]any{Embedding: {"b": 2, "d": 2}},
	}
	given := map[string]any{"d": 3}
	for task, want := range map[Task]string{
		TextGeneration: "run --a 1 --b 1 --d 3",
		Embedding:      "run --a 1 --b 2 --d 3",
	} {
		got, err := v.Render(Launch{Task: task, Variables: given})
		if err != nil {
			t.Fatal(err)
		}
		if line := strings.Join(got, " "); line != want {
			t.Errorf("%s: %s, want %s", task, line, want)
		}
	}
	if len(given) != 1 {
		t.Errorf("the model's own variables were changed: %v", given)
	}
}

func TestRenderBuiltin(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		engine string
		launch Launch
		want   string
	}{
		{"sim", Launch{Sluice: "/bin/sluice", Variables: map[string]any{"token_interval": "20ms"}},
			"/bin/sluice sim --host 127.0.0.1 --port 9001 --model m --served-model-name m --max-num-seqs 256 --token-interval 20ms"},
		{"llama-cpp", Launch{Model: "/models/a.gguf", Registry: "directory", Variables: map[string]any{"parallel": 2, "no_webui": true, "metrics": false}},
			"llama-server --host 127.0.0.1 --port 9001 --model /models/a.gguf --alias m --no-webui --parallel 2"},
		{"llama-cpp", Launch{Model: "org/repo", Registry: "huggingface", Task: Embedding, Variables: map[string]any{"pooling": "mean"}},
			"llama-server --host 127.0.0.1 --port 9001 --hf-repo org/repo --alias m --embeddings --metrics --pooling mean"},
		{"llama-cpp", Launch{Model: "/models/a.gguf", Task: Rerank, Variables: map[string]any{"tensor_split": []any{3, 1.5}, "lora": []any{"a", "b"}}},
			"llama-server --host 127.0.0.1 --port 9001 --model /models/a.gguf --alias m --lora a,b --metrics --rerank --tensor-split 3,1.5"},
	} {
		v, ok := Find(Builtin(), tt.engine, "")
		if !ok {
			t.Fatalf("no engine %s", tt.engine)
		}
		tt.launch.Name, tt.launch.Host, tt.launch.Port = "m", "127.0.0.1", 9001
		got, err := v.Render(tt.launch)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(tt.want, strings.Join(got, " ")); diff != "" {
			t.Errorf("%s: %s", tt.engine, diff)
		}
		if faults := v.CheckVariables(tt.launch.Task, tt.launch.Variables); len(faults) > 0 {
			t.Errorf("%s: %v", tt.engine, words(faults))
		}
	}
}

func TestSource(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		argument     string
		used, needed bool
	}{
		{"{{.Model}}", true, true},
		{"--model={{ .Model }}", true, true},
		{"{{or .Model .Name}}", true, false},
		{"{{if .Model}}--model={{.Model}}{{end}}", true, false},
		{"{{with .Task}}{{$.Model}}{{end}}", true, false},
		{"{{.Name}}", false, false},
		{"{{", false, false},
	} {
		v := version("run", tt.argument)
		if used, needed := v.Source(); used != tt.used || needed != tt.needed {
			t.Errorf("%s: used %v, needed %v", tt.argument, used, needed)
		}
		if _, err := v.Render(Launch{Name: "m", Task: Rerank}); tt.argument != "{{" && (err != nil) != tt.needed {
			t.Errorf("%s without a source: %v", tt.argument, err)
		}
	}
}

func TestFlagStyles(t *testing.T) {
	t.Parallel()
	variables := map[string]any{"a_b": 1, "list": []any{"x,y", 2}, "off": false, "on": true, "unset": nil, "void": map[string]any{"k": "v"}}
	for _, tt := range []struct {
		style FlagStyle
		want  []string
	}{
		{FlagStyle{Lists: ListArguments}, []string{"--a-b", "1", "--list", "x,y", "2", "--on", "--void", `{"k":"v"}`}},
		{FlagStyle{Lists: ListArguments, Underscores: true}, []string{"--a_b", "1", "--list", "x,y", "2", "--on", "--void", `{"k":"v"}`}},
		{FlagStyle{Lists: ListArguments, BooleanValues: true},
			[]string{"--a-b", "1", "--list", "x,y", "2", "--off", "false", "--on", "true", "--void", `{"k":"v"}`}},
	} {
		v := Version{Command: []string{"run", "{{.Flags}}"}, Flags: tt.style}
		got, err := v.Render(Launch{Variables: variables})
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(append([]string{"run"}, tt.want...), got); diff != "" {
			t.Errorf("%+v: %s", tt.style, diff)
		}
	}
	for _, style := range []FlagStyle{{}, {Lists: ListCommas}} {
		if got, err := style.flags(variables, nil, nil); err == nil {
			t.Errorf("%+v: an item with a comma became %q", style, got)
		}
	}
	if got, err := (FlagStyle{Lists: ListArguments}).flags(map[string]any{"x": []any{true}}, nil, nil); err == nil {
		t.Errorf("a list of booleans became %q", got)
	}
}

func TestRenderEnv(t *testing.T) {
	t.Parallel()
	v := Version{
		Schema: map[string]any{"properties": map[string]any{"given": map[string]any{"default": 7}}},
		Env: map[string]string{
			"ADDRESS": "{{.Host}}:{{.Port}}", "PLAIN": "as it is", "EMPTY": "", "OFF": "{{.Variables.off}}", "LIST": "{{.Variables.list}}",
			"OBJECT": "{{.Variables.object}}", "LARGE": "{{.Variables.large}}", "GIVEN": "{{.Variables.given}}", "ABSENT": "{{.Variables.absent}}",
			"NULL": "{{.Variables.null}}", "BOTH": "{{.Variables.given}}{{.Variables.absent}}", "IF": "{{if .Variables.off}}yes{{else}}no{{end}}",
		},
		Command: []string{"run", "{{.Flags}}"},
	}
	launch := Launch{Host: "h", Port: 1, Variables: map[string]any{
		"off": false, "list": []any{"a", 2}, "object": map[string]any{"k": 1}, "large": 1e6, "null": nil, "flag": 3}}
	got, err := v.RenderEnv(launch)
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]string{"ADDRESS": "h:1", "PLAIN": "as it is", "EMPTY": "", "OFF": "false", "LIST": "a,2", "OBJECT": `{"k":1}`,
		"LARGE": "1000000", "GIVEN": "7", "IF": "no"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	command, err := v.Render(launch)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"run", "--flag", "3"}, command); diff != "" {
		t.Errorf("variables of the environment are flags too: %s", diff)
	}
	if len(launch.Variables) != 6 || launch.Variables["large"] != 1e6 {
		t.Errorf("the model's own variables were changed: %v", launch.Variables)
	}
	for _, value := range []any{[]any{"a,b"}, []any{true}} {
		if got, err := v.RenderEnv(Launch{Variables: map[string]any{"list": value}}); err == nil || !strings.HasPrefix(err.Error(), "variables.list: ") {
			t.Errorf("%v became %v, error %v", value, got, err)
		}
	}
	for text, want := range map[string]string{"{{.Prot}}": "env.X:1:2: {{.Prot}} is unknown", "{{": "env.X:1: unclosed action", "{{.Port.Number}}": "can't evaluate"} {
		v := Version{Env: map[string]string{"X": text}, Command: []string{"run"}}
		if _, err := v.RenderEnv(Launch{}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: error %v, want %q in it", text, err, want)
		}
	}
}
