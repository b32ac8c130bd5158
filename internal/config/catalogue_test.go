package config

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-gateway/sluice/engines"
)

func TestCatalogue(t *testing.T) {
	t.Parallel()
	c := parsed(t, `
engines:
  - name: sim
    versions:
      - {version: "1", tasks: [rerank], command: [mine]}
  - name: own
    versions:
      - {version: "1", tasks: [embedding], command: [own]}
      - {version: "2", tasks: [rerank], command: [newer], ready: {path: /up, every: 1s}, health: {path: /ok}, slots: {default: 3}, image: i}
models:
  - {name: m, engine: own}
`)
	var got []string
	for _, e := range c.Catalogue() {
		for _, v := range e.Versions {
			if e.Name == "sim" || e.Name == "own" {
				got = append(got, e.Name+" "+v.Version+" "+v.Command[0])
			}
		}
	}
	want := []string{"sim 1 mine", "own 1 own", "own 2 newer"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	v, ok := engines.Find(c.Catalogue(), "own", c.Models[0].Version)
	if !ok || v.Version != "2" {
		t.Fatalf("a model without a version got %q, want the last", v.Version)
	}
	if diff := cmp.Diff(engines.Version{Version: "2", Tasks: []engines.Task{engines.Rerank}, Command: []string{"newer"}, Image: "i",
		Ready: engines.Probe{Path: "/up", Every: time.Second}, Health: engines.Probe{Path: "/ok", Every: 10 * time.Second},
		Slots: engines.Slots{Default: 3}}, v); diff != "" {
		t.Error(diff)
	}
	if c.Models[0].Task != engines.Rerank {
		t.Errorf("the only task of the engine was not taken: %q", c.Models[0].Task)
	}
}

// TestEnginesOfAFileAreItsOwn checks that a file that overrides built-in versions, and adds to what
// they say, changes them for nobody else.
func TestEnginesOfAFileAreItsOwn(t *testing.T) {
	t.Parallel()
	before := fmt.Sprint(engines.Builtin())
	parsed(t, `
engines:
  - {name: sim, versions: [{version: "1", tasks: [rerank], command: [mine]}, {version: "2", env: {A: b}}]}
  - {name: llama-cpp, versions: [{version: "0.3", schema: {type: object, properties: {own: {type: string}}}}, {version: "7", tasks: [embedding]}]}
`)
	if fmt.Sprint(engines.Builtin()) != before {
		t.Error("the built-in engines have changed")
	}
}

func TestLaunch(t *testing.T) {
	t.Parallel()
	c := parsed(t, `
registries: [{name: r, kind: directory, path: models}]
models:
  - {name: here, engine: llama-cpp, task: embedding, source: {registry: r, name: a.gguf}, variables: {parallel: 2}}
  - {name: hub, engine: llama-cpp, task: rerank, source: {name: org/model}}
  - {name: sim, engine: sim, task: embedding}
  - {name: remote, launcher: upstream, upstreams: [http://h:1]}
  - {name: nowhere, launcher: none}
`)
	folder, err := filepath.Abs("testdata/models")
	if err != nil {
		t.Fatal(err)
	}
	want := []engines.Launch{
		{Name: "here", Model: folder + "/a.gguf", Registry: "directory", Task: engines.Embedding, Variables: map[string]any{"parallel": 2}},
		{Name: "hub", Model: "org/model", Registry: "huggingface", Task: engines.Rerank},
		{Name: "sim", Task: engines.Embedding},
		{},
		{},
	}
	versions := []string{"0.5", "0.5", "1", "", ""}
	for i, m := range c.Models {
		version, launch := c.Launch(m)
		if diff := cmp.Diff(want[i], launch); diff != "" || version.Version != versions[i] {
			t.Errorf("%s %s: %s", m.Name, version.Version, diff)
		}
	}
}

func TestDiscoveredModel(t *testing.T) {
	t.Parallel()
	for _, settings := range []string{"", ", routing: {strategy: chwbl, load_factor: 2}, admission: {max_concurrent_requests: 9, max_per_replica: 3}, " +
		"stream: {heartbeat: 1s}, unhealthy_on: [connect], fail_over_on: [429]"} {
		c := parsed(t, "models: [{name: a, launcher: upstream, upstreams: [http://h:1]"+settings+"}]\n"+
			"discovered: {"+strings.TrimPrefix(settings, ", ")+"}")
		want := c.Models[0]
		want.Name, want.Upstreams = "", nil
		if diff := cmp.Diff(want, c.DiscoveredModel()); diff != "" || c.Discovered.StrategySet != (settings != "") {
			t.Errorf("a discovered model is not as one that is named and has the same set: %s", diff)
		}
	}
}

// TestU17_FaultsOfDiscoveredSettings: the settings of discovered models are checked as those of
// models, and the patterns of names too.
func TestU17_FaultsOfDiscoveredSettings(t *testing.T) {
	t.Parallel()
	for file, want := range map[string]string{
		"discovered: {routing: {strategy: chwbl, load_floor: 3}}": "1: discovered.routing.load_floor: must be 0 with strategy: chwbl, is 3: " +
			"this strategy has no load floor; for one set strategy: prefix",
		"discovered: {stream: {mode: native, resume: 1s}}":      "1: discovered.stream.resume: has no effect with mode: native; remove it",
		"discovered: {admission: {queue_timeout: 1h}}":          "1: discovered.admission.queue_timeout: must be at most 55m0s, is 1h0m0s: Envoy holds a request for an hour at most",
		"discovered: {unhealthy_on: []}":                        "1: discovered.unhealthy_on: must name at least one of connect, reset, 5xx, 503, is empty",
		"discovered: {media_hosts: [public, 'http://a']}":       `1: discovered.media_hosts[1]: must be public, *, or a host as in images.example.com, *.example.com, 10.0.0.5, [fd00::5]:9000 or 10.0.0.0/8, is http://a`,
		"discovered: {slots: 3}":                                "1: discovered.slots: unknown field; known are routing, admission, stream, unhealthy_on, fail_over_on, permit_fields, media_hosts",
		"upstreams: [{url: http://h, models: ['a b', 'q*/*']}]": `1: upstreams[0].models[0]: must be a name, in which * stands for any characters, is "a b"`,
		"models: [{name: a, launcher: upstream, upstreams: [{url: http://h, models: [a]}]}]": "1: models[a].upstreams[0].models: " +
			"has no effect with the upstreams of a model; remove it",
	} {
		if got := faultsOf(t, file); len(got) != 1 || got[0] != want {
			t.Errorf("%s: %q, want %q", file, got, want)
		}
	}
}

func TestNeedsRestart(t *testing.T) {
	t.Parallel()
	old := parsed(t, "{}")
	for file, want := range map[string][]string{
		"{}":                                             nil,
		"listen: 127.0.0.1:1":                            {"listen"},
		"admin: 127.0.0.1:1":                             {"admin"},
		"state_dir: /s":                                  {"state_dir"},
		"max_body: 1MiB\norphan_grace: 2s":               {"max_body", "orphan_grace"},
		"max_queue_bytes: 1MiB":                          {"max_queue_bytes"},
		"drain_timeout: 1s":                              {"drain_timeout"},
		"redis: redis://h":                               {"redis"},
		"realtime: {max_sockets: 1}":                     {"realtime.max_sockets"},
		"realtime: {per_tenant: 1}":                      nil,
		"envoy: {hang_timeout: 1s}":                      {"envoy.hang_timeout"},
		"envoy: {filter: ext_proc}":                      nil,
		"task_lease: 1m":                                 nil,
		"tenants: [{name: a, weight: 2}]":                nil,
		"replica_header: false":                          nil,
		"upstreams: [http://h]":                          nil,
		"models: [{name: a, engine: sim, task: rerank}]": nil,
	} {
		if diff := cmp.Diff(want, old.NeedsRestart(parsed(t, file))); diff != "" {
			t.Errorf("%s: %s", file, diff)
		}
	}
}

func TestWithoutRestart(t *testing.T) {
	t.Parallel()
	started := parsed(t, "admin: 127.0.0.1:1\nrealtime: {max_sockets: 1, per_tenant: 1}\nenvoy: {hang_timeout: 1s}")
	file := parsed(t, "admin: 127.0.0.1:2\nrealtime: {max_sockets: 2, per_tenant: 2}\nenvoy: {filter: ext_proc}\ntenants: [{name: a}]")
	c := file.WithoutRestart(started)
	if fields := started.NeedsRestart(c); len(fields) > 0 {
		t.Errorf("fields that need a restart: %q", fields)
	}
	if c.Hash != file.Hash || c.Realtime.PerTenant != 2 || c.Envoy.Filter != file.Envoy.Filter || len(c.Tenants) != 1 {
		t.Errorf("a field of the file that needs no restart is lost: %+v", c)
	}
	if file.Admin != "127.0.0.1:2" || file.Realtime.MaxSockets != 2 {
		t.Error("the file itself has changed")
	}
}

func TestWarnings(t *testing.T) {
	t.Parallel()
	for file, want := range map[string]int{
		"{}": 2,
		"upstreams: [http://h]\ntenants: [{name: a}]":                                          0,
		"upstreams: [http://h]\ntenants: [{name: a}]\nlisten: 127.0.0.1:1\nauth: {mode: none}": 1,
	} {
		if got := parsed(t, file).Warnings(); len(got) != want {
			t.Errorf("%s: %q", file, got)
		}
	}
}
