package config

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// sound is a file without a fault. plantedFaults replaces one text of it by another.
const sound = `listen: 127.0.0.1:8080
admin: 127.0.0.1:9090
max_body: 32MiB
drain_timeout: 30s
tenants:
  - name: acme
    keys: ["sha256:0000000000000000000000000000000000000000000000000000000000000000"]
    priority: default
    limits: {tokens_per_minute: 1000}
registries: [{name: hub, kind: huggingface}]
models:
  - name: chat
    engine: vllm
    version: "0.33"
    task: text-generation
    source: {registry: hub, name: Qwen/Qwen2.5-7B-Instruct}
    replicas: {min: 1, max: 2}
    resources: {gpu: 1}
    variables: {max_model_len: 8192, enable_lora: true, all2all_backend: naive}
    scale: {target: {running: 4}}
    routing: {strategy: prefix, load_factor: 1.5}
    stream: {mode: auto, heartbeat: 15s}
  - name: remote
    launcher: upstream
    upstreams: [{url: "http://10.0.0.5:8000", slots: 4}]
pools: [{name: any, models: [chat, remote]}]
`

// plantedFault is a fault that replaces a text of sound.
type plantedFault struct {
	// name says what kind of fault it is.
	name string
	// old is replaced by fault.
	old, fault string
	// unseen tells that the schema cannot find the fault; the check finds all.
	unseen bool
}

// plantedFaults are the faults of TestO7_SchemaFindsPlantedFaults.
func plantedFaults() []plantedFault {
	return []plantedFault{
		{name: "unknown field at the top", old: "drain_timeout", fault: "drain_timout"},
		{name: "unknown field of a model", old: "replicas:", fault: "replica:"},
		{name: "engine that does not exist", old: "engine: vllm", fault: "engine: vlm"},
		{name: "version below all", old: `version: "0.33"`, fault: `version: "0.7.3"`},
		{name: "task that does not exist", old: "task: text-generation", fault: "task: chat"},
		{name: "task that the engine has not got", old: "task: text-generation", fault: "task: speech"},
		{name: "launcher that does not exist", old: "launcher: upstream", fault: "launcher: proxy"},
		{name: "strategy that does not exist", old: "strategy: prefix", fault: "strategy: random"},
		{name: "priority that does not exist", old: "priority: default", fault: "priority: high"},
		{name: "variable that does not exist", old: "max_model_len", fault: "max_model_length"},
		{name: "variable of another engine", old: "max_model_len: 8192", fault: "ctx_size: 8192"},
		{name: "variable of the wrong type", old: "enable_lora: true", fault: "enable_lora: 4"},
		{name: "variable with a value that it cannot have", old: "all2all_backend: naive", fault: "all2all_backend: fast"},
		{name: "variable below its least value", old: "max_model_len: 8192", fault: "max_model_len: -5"},
		{name: "variable of a newer version", old: `version: "0.33"`, fault: `version: "0.11.2"`},
		{name: "number where a list belongs", old: "upstreams: [{url: \"http://10.0.0.5:8000\", slots: 4}]", fault: "upstreams: 4"},
		{name: "text where a number belongs", old: "slots: 4", fault: "slots: four"},
		{name: "duration without a unit", old: "drain_timeout: 30s", fault: "drain_timeout: 30"},
		{name: "duration with a unit that does not exist", old: "heartbeat: 15s", fault: "heartbeat: 15 seconds"},
		{name: "size with a unit that does not exist", old: "max_body: 32MiB", fault: "max_body: 32 megabytes"},
		{name: "name with a space", old: "name: chat\n", fault: "name: my chat\n"},
		{name: "address without a port", old: "listen: 127.0.0.1:8080", fault: "listen: 127.0.0.1"},
		{name: "port above 65535", old: "127.0.0.1:9090", fault: "127.0.0.1:90900"},
		{name: "URL of another scheme", old: "http://10.0.0.5:8000", fault: "ftp://10.0.0.5:8000"},
		{name: "key instead of its hash", old: "sha256:0000000000000000000000000000000000000000000000000000000000000000", fault: "sk-live-1234"},
		{name: "hash that is too short", old: "sha256:0000000000000000000000000000000000000000000000000000000000000000", fault: "sha256:00"},
		{name: "negative number", old: "tokens_per_minute: 1000", fault: "tokens_per_minute: -1"},
		{name: "number below its least value", old: "load_factor: 1.5", fault: "load_factor: 0.5"},
		{name: "share of several GPUs", old: "gpu: 1}", fault: "gpu: 1.5}"},
		{name: "no name", old: "name: acme", fault: "weight: 1"},
		{name: "no source", old: "source: {registry: hub, name: Qwen/Qwen2.5-7B-Instruct}", fault: "placement: pack"},
		{name: "no upstreams", old: `upstreams: [{url: "http://10.0.0.5:8000", slots: 4}]`, fault: "aliases: [far]"},
		{name: "fields that exclude each other", old: "running: 4", fault: "running: 4, ttft: 1s"},
		{name: "field of another launcher", old: "launcher: upstream", fault: "launcher: upstream\n    replicas: {min: 1}"},
		{name: "field of another strategy", old: "strategy: prefix", fault: "strategy: round_robin"},
		{name: "field of another mode", old: "mode: auto", fault: "mode: native"},
		{name: "field of another sink", old: "drain_timeout: 30s", fault: "access_log: {to: stdout, path: a.log}"},
		{name: "field without what it needs", old: "drain_timeout: 30s", fault: "access_log: {to: file}"},
		{name: "launcher without its section", old: "replicas:", fault: "launcher: kubernetes\n    replicas:"},
		{name: "pool of a model that does not exist", old: "[chat, remote]", fault: "[chat, romote]", unseen: true},
		{name: "max below min", old: "min: 1, max: 2", fault: "min: 3, max: 2", unseen: true},
		{name: "name that is used twice", old: "name: remote", fault: "name: chat", unseen: true},
	}
}

// TestO7_SchemaFindsPlantedFaults plants one fault at a time in a sound file. The check must find
// each, and the schema each but those that one value alone does not show.
func TestO7_SchemaFindsPlantedFaults(t *testing.T) {
	t.Parallel()
	check := compiled(t)
	if _, err := Parse("f", []byte(sound)); err != nil {
		t.Fatal(err)
	}
	if err := check.Validate(decoded(t, []byte(sound))); err != nil {
		t.Fatal(err)
	}
	found := 0
	for _, p := range plantedFaults() {
		if !strings.Contains(sound, p.old) {
			t.Fatalf("%s: the file does not have %q", p.name, p.old)
		}
		file := []byte(strings.Replace(sound, p.old, p.fault, 1))
		if _, err := Parse("f", file); err == nil {
			t.Errorf("the check does not find: %s", p.name)
		}
		switch seen := check.Validate(decoded(t, file)) != nil; {
		case seen && p.unseen:
			t.Errorf("the schema finds %q, which the table does not expect", p.name)
		case seen:
			found++
		case !p.unseen:
			t.Errorf("the schema does not find: %s", p.name)
		}
	}
	t.Logf("the schema finds %d of %d planted faults, the check all", found, len(plantedFaults()))
}

// TestO7_SchemaAccepts checks files that the schema must not refuse, because the check accepts
// them.
func TestO7_SchemaAccepts(t *testing.T) {
	t.Parallel()
	check := compiled(t)
	for _, file := range []string{
		"{}",
		"drain_timeout: 0",
		"models: [{name: a, engine: sim, cold_start: {wait: 0}}]",
		"models: [{name: a, engine: vllm, version: 0.11, source: {name: b}, variables: {runner: pooling}}]",
		"models: [{name: a, engine: vllm, version: v0.33.1, source: {name: b}, variables: {max_model_len: auto}}]",
		"models: [{name: a, engine: vllm, source: {name: b}, variables: {no_enable_prefix_caching: true}}]",
		"models: [{name: a, engine: llama-cpp, version: python-0.3.9, source: {name: b}, task: embedding}]",
		"engines: [{name: vllm, versions: [{version: 9, schema: {properties: {own: {}, max_num_seqs: {}}}}]}]\nmodels: [{name: a, engine: vllm, source: {name: b}, variables: {own: 1}}]",
		"engines: [{name: mine, versions: [{version: 1, tasks: [rerank], command: [run]}]}]\nmodels: [{name: a, engine: mine, variables: {own: 1}}]",
		"access_log: {to: off}",
		"access_log: {to: file, path: access.log, sample: 0.5}",
		"access_log: {to: otlp}\ntracing: {endpoint: http://127.0.0.1:4318}",
		"listen: :8080\nadmin: localhost:9090\nhealth: ''",
		"upstreams: ['http://[::1]:8000/v1', https://h/a]",
	} {
		if _, err := Parse("f", []byte(file)); err != nil {
			t.Errorf("the check refuses %s: %v", file, err)
		}
		if err := check.Validate(decoded(t, []byte(file))); err != nil {
			t.Errorf("the schema refuses %s: %v", file, err)
		}
	}
}

// TestO7_SchemaRefusesFieldsOfOtherLaunchers checks that the schema and the check refuse the same
// fields of a model with each launcher.
func TestO7_SchemaRefusesFieldsOfOtherLaunchers(t *testing.T) {
	t.Parallel()
	check := compiled(t)
	values := map[string]string{
		"engine": "sim", "version": `"1"`, "source": "{name: a}", "cluster": "a", "replicas": "{min: 1}", "scale": "{target: {running: 1}}", "resources": "{cpu: 1}",
		"gpu_resource": "a", "hosts": "2", "placement": "pack", "evict": "idle", "variables": "{}", "args": "[a]", "env": "{A: b}", "env_from": "{files: [a]}",
		"secrets": "{A: b/c}", "pod": "{}", "profiles": "[a]", "cooldown": "1m", "upstreams": `["http://a"]`, "cold_start": "{wait: 1s}", "cold_start_timeout": "1s",
		"unhealthy_on": "[connect]", "fail_over_on": "[503]", "permit_fields": "[rid]", "media_hosts": "[public]", "routing": "{strategy: chwbl}", "stream": "{mode: managed}",
	}
	models := map[string]string{"local": "engine: sim", "kubernetes": "engine: vllm, source: {name: a}", "ray": "engine: vllm, source: {name: a}",
		"upstream": `upstreams: ["http://b"]`, "none": ""}
	for _, launcher := range []string{"local", "kubernetes", "ray", "upstream", "none"} {
		for field, value := range values {
			if strings.Contains(models[launcher], field+":") {
				continue
			}
			file := "kubernetes: {}\nray: {address: http://a}\nmodels: [{name: a, launcher: " + launcher + ", " + field + ": " + value
			if models[launcher] != "" {
				file += ", " + models[launcher]
			}
			file += "}]"
			_, err := Parse("f", []byte(file))
			refused := err != nil && strings.Contains(err.Error(), "models[a]."+field+": has no effect")
			if seen := check.Validate(decoded(t, []byte(file))); (seen != nil) != refused {
				t.Errorf("%s\n%v\nthe schema: %v", file, err, seen)
			}
		}
	}
}

// TestO7_DocumentedSnippetsFitTheSchema checks each YAML snippet of the README and of docs that is
// a configuration file: each is whole, so that it can be pasted.
func TestO7_DocumentedSnippetsFitTheSchema(t *testing.T) {
	t.Parallel()
	check, count := compiled(t), 0
	for _, page := range pages(t) {
		text, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		for _, snippet := range regexp.MustCompile("(?s)\n```yaml\n(.*?)\n```\n").FindAllStringSubmatch(string(text), -1) {
			value := decoded(t, []byte(snippet[1]))
			fields, _ := value.(object)
			if fields["apiVersion"] != nil || fields["scrape_configs"] != nil {
				continue // a custom resource; the file of Prometheus
			}
			count++
			if err := check.Validate(value); err != nil {
				t.Errorf("%s: %v\n%s", page, err, snippet[1])
			}
		}
	}
	if count < 15 {
		t.Errorf("only %d snippets were found", count)
	}
}

// pages returns the paths of the README, of docs and of the pages of the examples.
func pages(t *testing.T) []string {
	t.Helper()
	var all []string
	for _, pattern := range []string{"../../README.md", "../../docs/*.md", "../../examples/*/README.md"} {
		files, err := filepath.Glob(pattern)
		if err != nil || len(files) == 0 {
			t.Fatalf("%s: %v", pattern, err)
		}
		all = append(all, files...)
	}
	return all
}
