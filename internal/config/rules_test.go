package config

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// ruleCase is a file and the faults that it has; none if it is valid.
type ruleCase struct {
	name string
	file string
	want []string
}

const (
	zeros = "sha256:0000000000000000000000000000000000000000000000000000000000000000"
	ones  = "sha256:1111111111111111111111111111111111111111111111111111111111111111"
	sims  = "models: [{name: a, engine: sim, task: embedding"
)

// ruleCases are all cases: files, each with the faults that it has.
func ruleCases() []ruleCase {
	return slices.Concat(yamlCases(), listenerCases(), keyCases(), modelCases(), upstreamCases(), engineCases(),
		redisCases(), tenantCases(), keyModelCases(), poolCases(), resourceCases(), rayCases(), hostsCases(), scaleCases(), coldStartCases(), fetchCases())
}

// yamlCases are the cases about the form of the file.
func yamlCases() []ruleCase {
	return []ruleCase{
		{"no field", "{}", nil},
		{"empty", "", []string{"1: " + emptyFile}},
		{"white space", "\n\n", []string{"1: " + emptyFile}},
		{"only comments", "# nothing\n---\n", []string{"3: " + emptyFile}},
		{"nothing", "~", []string{"1: " + emptyFile}},
		{"null", "models:\ntenants: ~\n", nil},
		{"syntax", "a: b\n  c: d", []string{"2: not valid YAML: mapping values are not allowed in this context: the line is indented too far, its value has a colon and must be in quotes, or the line above lacks its colon"}},
		{"two documents", "admin: 127.0.0.1:1\n---\nadmin: 127.0.0.1:2", []string{"2: a second document begins here, and a file may hold only one: remove it"}},
		{"a list", "- a", []string{"1: must be a mapping such as {listen: …, tls: …}, is a list"}},
		{"a number for a mapping", sims + ", replicas: 2}]", []string{"1: models[a].replicas: must be a mapping such as {min: …, max: …}, is a number"}},
		{"a mapping for a list", "models: {name: a}", []string{"1: models: must be a list, is a mapping: begin each item with a hyphen and a space"}},
		{"a text for a list", sims + ", aliases: b}]", []string{"1: models[a].aliases: must be a list, is text: write [ ] around it"}},
		{"a field in the wrong place", sims + ", queue_timeout: 30s}]", []string{"1: models[a].queue_timeout: unknown field; did you mean admission.queue_timeout?"}},
		{"merge key", "auth: &a {mode: keys}\nmodels: []\n<<: {}", []string{"3: merge keys (<<) are not supported: write the fields out"}},
		{"key of a list", "[a]: b", []string{"1: the name of a field must be text, is a list"}},
		{"alias", sims + ", cold_start_timeout: &t 5m, admission: {queue_timeout: *t}}]", nil},
		{"alias to itself", "engines: [{name: a, versions: [{version: 1, tasks: [embedding], command: [a], schema: &s {a: *s}}]}]",
			[]string{"1: engines[a].versions[1].schema" + strings.Repeat(".a", 96) + ": the file is too large or too deep when its aliases are resolved: use fewer aliases"}},
		{"unknown field", "auth: {mood: keys}", []string{"1: auth.mood: unknown field; known are mode, public, jwt, trusted_header, default_tenant"}},
		{"odd name", `auth: {"a b": 1}`, []string{`1: auth."a b": unknown field; known are mode, public, jwt, trusted_header, default_tenant`}},
		{"given twice", "admin: 127.0.0.1:1\nadmin: 127.0.0.1:2", []string{"2: admin: given twice, first on line 1: remove one of them"}},
	}
}

// listenerCases are the cases about listeners, auth and simple fields.
func listenerCases() []ruleCase {
	return []ruleCase{
		{"listen without port", "listen: 127.0.0.1", []string{"1: listen: must be host:port with an IP address as host, such as 127.0.0.1:8080, is 127.0.0.1"}},
		{"listen on a name", "listen: example.com:80", []string{"1: listen: must be host:port with an IP address as host, such as 127.0.0.1:8080, is example.com:80"}},
		{"listen on port 0", "listen: 127.0.0.1:0", []string{"1: listen: must have a port from 1 to 65535, is 127.0.0.1:0"}},
		{"listen on no port", "listen: 127.0.0.1:65536", []string{"1: listen: must have a port from 1 to 65535, is 127.0.0.1:65536"}},
		{"listen on a zone", "listen: '[fe80::1%eth0]:80'", []string{`1: listen: must be host:port with an IP address as host, such as 127.0.0.1:8080, is "[fe80::1%eth0]:80"`}},
		{"listen on localhost, all, IPv6", "listen: localhost:1\nadmin: '[::1]:1'", nil},
		{"one port, two addresses", "listen: 127.0.0.1:80\nadmin: 127.0.0.2:80", nil},
		{"one port, one for all", "listen: :80\nadmin: 127.0.0.2:80", []string{"2: admin: 127.0.0.2:80 is also the address of listen (0.0.0.0:80): choose another port"}},
		{"admin is listen", "listen: 127.0.0.1:9090", []string{"1: admin: 127.0.0.1:9090 is also the address of listen (127.0.0.1:9090): choose another port"}},
		{"none on loopback", "listen: 127.0.0.1:1\nauth: {mode: none}", nil},
		{"none on loopback, IPv6", "listen: '[::1]:1'\nauth: {mode: none}", nil},
		{"none on the default", "auth: {mode: none}", []string{"1: auth.mode: none admits everybody, and 0.0.0.0:8080 can be reached from " +
			"other machines: set listen: 127.0.0.1:8080, mode: keys, or public: true where something in front of the gateway decides who may call"}},
		{"none with admin outside", "listen: 127.0.0.1:1\nadmin: 10.0.0.1:2\nauth: {mode: none}", []string{"2: admin: 10.0.0.1:2 can be reached from other machines, " +
			"so it needs admin_auth: make a token with `sluice admin token NAME`, or set admin: 127.0.0.1:2"}},
		{"size too small", "max_body: 5B", []string{"1: max_body: must be at least 1KiB, is 5B"}},
		{"size too large", "max_body: 8GiB", []string{"1: max_body: must be at most 1GiB, is 8GiB"}},
		{"more than Envoy's filter carries", "max_body: 1025MiB", []string{"1: max_body: must be at most 1GiB, is 1025MiB"}},
		{"as much as Envoy's filter carries", "max_body: 1GiB", nil},
		{"drain at once", "drain_timeout: 0s", nil},
	}
}

// keyCases are the cases about tenants and their keys.
func keyCases() []ruleCase {
	return []ruleCase{
		{"tenants", "tenants: [{name: a, keys: [" + zeros + "]}, {name: b, keys: [" + ones + "], models: ['*']}]", nil},
		{"key in capitals is the same", "tenants: [{name: a, keys: [" + strings.Replace(ones, "sha256:1", "SHA256:1", 1) + ", " + ones + "]}]",
			[]string{"1: tenants[a].keys[1]: the same key is on line 1, at tenants[a].keys[0]: remove one of them"}},
		{"a key itself", "tenants: [{name: a, keys: [sk-sluice-secret]}]",
			[]string{"1: tenants[a].keys[0]: must be sha256: and 64 hex digits, the hash that `sluice keys new` prints, never a key itself"}},
		{"half a hash", "tenants: [{name: a, keys: [sha256:00]}]",
			[]string{"1: tenants[a].keys[0]: must be sha256: and 64 hex digits, the hash that `sluice keys new` prints, never a key itself"}},
		{"tenant twice", "tenants:\n- name: a\n- name: a", []string{"3: tenants[a].name: a is already used by tenants[a].name on line 2: choose another name"}},
		{"tenant of an alias", "tenants: [{name: t, models: [b]}]\n" + sims + ", aliases: [b]}]", nil},
		{"tenant of no model", "tenants: [{name: t, models: [b]}]", []string{"1: tenants[t].models[0]: there is no model b; known are \"*\""}},
		{"tenant of a discovered model", "tenants: [{name: t, models: [b]}]\nupstreams: [http://h:1]", nil},
	}
}

func modelCases() []ruleCase {
	return []ruleCase{
		{"model names", "models: [{name: org/Model-1.5:q4@x+y, engine: sim, task: embedding}]", nil},
		{"model name with a step up", "models: [{name: a/../b, engine: sim, task: embedding}]",
			[]string{"1: models[a/../b].name: must be a name: a letter or digit, then letters, digits and _ - . / : @ +, at most 200 characters, is a/../b"}},
		{"model name with a space", "models: [{name: a b, engine: sim, task: embedding}]",
			[]string{"1: models[0].name: must be a name: a letter or digit, then letters, digits and _ - . / : @ +, at most 200 characters, is \"a b\""}},
		{"alias taken", sims + ", aliases: [b, b, a]}]", []string{
			"1: models[a].aliases[1]: b is already used by models[a].aliases[0] on line 1: choose another name",
			"1: models[a].aliases[2]: a is already used by models[a].name on line 1: choose another name"}},
		{"adapters of SGLang", "models: [{name: a, engine: sglang, source: {name: org/a}, adapters: [sql, 'a:prose']}, {name: b, engine: vllm, source: {name: org/b}, adapters: [law]}]",
			[]string{"1: models[a].adapters[0]: must be written as a:sql, because SGLang knows an adapter in requests only by the model and the adapter"}},
		{"no engine", "models: [{name: a}]", []string{"1: models[a].engine: required with launcher: local, and missing; known are sim, vllm, sglang, llama-cpp, ollama, tei, faster-whisper"}},
		{"unknown engine", "models: [{name: a, engine: llamacpp}]", []string{"1: models[a].engine: there is no engine llamacpp; did you mean llama-cpp?"}},
		{"newer version", sims + ", version: '7.5'}]", nil},
		{"older version", sims + ", version: '0.5'}]", []string{"1: models[a].version: engine sim has no version at or below 0.5; there are 1"}},
		{"version without a number", sims + ", version: main}]", []string{"1: models[a].version: engine sim has no version at or below main; there are 1"}},
		{"the first task", "models: [{name: a, engine: sim}]", nil},
		{"another task", "models: [{name: a, engine: llama-cpp, task: transcription}]", []string{
			"1: models[a].source: required, and missing: the command of engine llama-cpp 0.5 uses {{.Model}}",
			"1: models[a].task: engine llama-cpp 0.5 does not serve transcription; it serves text-generation, embedding, rerank"}},
		{"source for something", sims + ", source: {name: org/x}}]", nil},
		{"source for nothing", "engines: [{name: e, versions: [{version: 1, tasks: [rerank], command: [run]}]}]\nmodels: [{name: a, engine: e, source: {name: org/x}}]",
			[]string{"2: models[a].source: has no effect with engine e 1, whose command does not use {{.Model}}; remove it"}},
		{"upstreams of a local model", sims + ", upstreams: [http://h:1]}]", []string{"1: models[a].upstreams: has no effect with launcher: local; remove it, or set launcher: upstream"}},
		{"two replicas", sims + ", replicas: {min: 2}}]", nil},
		{"fewer than min", sims + ", replicas: {min: 2, max: 1}}]", []string{"1: models[a].replicas.max: must be at least min, which is 2, is 1"}},
		{"too many replicas", sims + ", replicas: {min: 10001, max: 1000000000}}]", []string{
			"1: models[a].replicas.max: must be at most 10000, is 1000000000", "1: models[a].replicas.min: must be at most 10000, is 10001"}},
		{"a response for ever", sims + ", stream: {max_duration: 2562047h}}]", []string{"1: models[a].stream.max_duration: must be at most 8760h, is 2562047h"}},
		{"variables on their lines", sims + ",\n  variables: {\n    seed: -1,\n    sed: 1}}]", []string{
			"3: models[a].variables.seed: must be at least 0, is -1 (varies the sentences of the answers and the embedding space)",
			"4: models[a].variables.sed: engine sim 1 has no such variable; did you mean seed?"}},
		{"variables that JSON cannot hold", sims + ", variables: {batch_slowdown: .nan}}]", []string{"1: models[a].variables.batch_slowdown: must be a finite number"}},
		{"null variables are absent", sims + ", variables: {seed: }}]", nil},
		{"environment", sims + `, env: {"": a, B: "x\0"}}]`, []string{
			`1: models[a].env."": cannot be the name of an environment variable: it must not be empty and must not contain = or NUL`, "1: models[a].env.B: must not hold a NUL character"}},
		{"environment of numbers", sims + ", env: {A: 010, B: true, C: 1.50}}]", nil},
		{"floor of chwbl", sims + ", routing: {strategy: chwbl, load_floor: 0}}]", nil},
		{"another floor of chwbl", sims + ", routing: {strategy: chwbl, load_floor: 1}}]",
			[]string{"1: models[a].routing.load_floor: must be 0 with strategy: chwbl, is 1: this strategy has no load floor; for one set strategy: prefix"}},
		{"ring without a ring", sims + ", routing: {strategy: least_connections, load_floor: 8, max_user_messages_for_cache: 2}}]", []string{
			"1: models[a].routing.load_floor: has no effect with strategy: least_connections; remove it",
			"1: models[a].routing.max_user_messages_for_cache: has no effect with strategy: least_connections; remove it"}},
		{"not a number", sims + ", routing: {load_factor: .inf}}]", []string{"1: models[a].routing.load_factor: must be a finite number"}},
		{"fraction", sims + ", admission: {max_queue: 1.5}}]", []string{"1: models[a].admission.max_queue: must be a whole number, is a number"}},
		{"too large", sims + ", admission: {max_queue: 99999999999999}}]", []string{"1: models[a].admission.max_queue: must be a whole number of at most 1099511627776, is larger"}},
		{"explicit tag", "replica_header: !!bool perhaps", []string{"1: replica_header: must be true or false"}},
	}
}

func upstreamCases() []ruleCase {
	return []ruleCase{
		{"upstream model", "models: [{name: a, launcher: upstream, upstreams: ['http://h:1', 'http://h:2/v1', 'http://[::1]/']}]", nil},
		{"upstream without servers", "models: [{name: a, launcher: upstream}]",
			[]string{"1: models[a].upstreams: required with launcher: upstream, and missing: give the base URLs of the model's servers, such as [http://10.0.0.5:8000]"}},
		{"upstream with what is launched", "models: [{name: a, launcher: upstream, upstreams: [http://h], engine: sim, env: {}, replicas: {min: 1}}]", []string{
			"1: models[a].engine: has no effect with launcher: upstream; remove it",
			"1: models[a].env: has no effect with launcher: upstream; remove it",
			"1: models[a].replicas: has no effect with launcher: upstream; remove it"}},
		{"one server twice", "upstreams: [http://H, http://h:80/v1]", []string{"1: upstreams[1]: the same server is on line 1, at upstreams[0]: remove one of them"}},
		{"one host twice, once by TLS", "upstreams: [https://h, http://h]", nil},
		{"no host", "upstreams: ['http://', 'http://:80', 'h:80', '/v1', 'http://h:', 'http://h?a', 'http://h#a', 'http://a_b%20']", repeat("1: upstreams[%]: must be a URL such as http://10.0.0.5:8000", 8)},
		{"no port", "upstreams: ['http://h:0', 'http://h:65536']", []string{"1: upstreams[0]: must have a port from 1 to 65535, is 0", "1: upstreams[1]: must have a port from 1 to 65535, is 65536"}},
	}
}

// engineCases are the cases about engines and registries.
func engineCases() []ruleCase {
	return []ruleCase{
		{"engine twice", "engines: [{name: a, versions: []}, {name: a, versions: []}]", []string{
			"1: engines[a].name: a is already used by engines[a].name on line 1: choose another name",
			"1: engines[a].versions: must have at least one version, is empty", "1: engines[a].versions: must have at least one version, is empty"}},
		{"own engine", "engines: [{name: e, versions: [{version: 0.10, tasks: [rerank], command: [run, '{{.Flags}}'], slots: {default: 3}}]}]\n" +
			"models: [{name: a, engine: e, version: 0.10, variables: {any: [1, x]}}]", nil},
		{"command that cannot be", "engines: [{name: e, versions: [{version: 1, tasks: [rerank], command: [run, '{{.Variables.x}}']}]}]\nmodels: [{name: a, engine: e}]",
			[]string{"2: models[a].variables: give no command for engine e 1: the command names {{.Variables.x}}, and nothing gives that variable a value"}},
		{"registry", "registries: [{name: r, kind: directory, path: models}]\nmodels: [{name: a, engine: llama-cpp, task: embedding, source: {registry: r, name: a.gguf}}]", nil},
		{"not in the registry", "registries: [{name: r, kind: directory, path: models}]\nmodels: [{name: a, engine: llama-cpp, task: embedding, source: {registry: r, name: b.gguf}}]",
			[]string{"2: models[a].source.name: does not exist in the registry's directory: no such file or directory"}},
		{"out of the registry", "registries: [{name: r, kind: directory, path: models}]\nmodels: [{name: a, engine: llama-cpp, task: embedding, source: {registry: r, name: b/../../f}}]",
			[]string{"2: models[a].source.name: must be a path below the registry's directory, without .., is b/../../f"}},
		{"an id that is a flag", "models: [{name: a, engine: llama-cpp, task: embedding, source: {name: --verbose}}]",
			[]string{"1: models[a].source.name: must be an id such as org/name, is --verbose"}},
		{"a name on an engine", "engines: [{name: e, versions: [{version: 1, tasks: [rerank], command: [run]}]}]\nmodels: [{name: a, engine: e, served_model: ' q'}]",
			[]string{"2: models[a].served_model: must be the model's name on this server, without control characters and without spaces at its ends"}},
		{"an id that is a path", "models: [{name: a, engine: llama-cpp, task: embedding, source: {name: /models/a.gguf}}]",
			[]string{"1: models[a].source.name: must be an id such as org/name, is /models/a.gguf; for files of this machine, source.registry must name a registry of kind directory"}},
	}
}

// repeat returns n copies of line, in which the index of the copy replaces %.
func repeat(line string, n int) []string {
	var lines []string
	for i := range n {
		lines = append(lines, strings.Replace(line, "%", string(rune('0'+i)), 1))
	}
	return lines
}

func TestRules(t *testing.T) {
	t.Parallel()
	for _, r := range ruleCases() {
		t.Run(r.name, func(t *testing.T) {
			t.Parallel()
			if diff := cmp.Diff(r.want, faultsOf(t, r.file)); diff != "" {
				t.Error(diff)
			}
		})
	}
}
