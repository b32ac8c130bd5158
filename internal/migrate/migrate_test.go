package migrate_test

import (
	"errors"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-gateway/sluice/internal/config"
	"github.com/sluice-gateway/sluice/internal/migrate"
	"github.com/sluice-gateway/sluice/internal/testutil"
)

var update = flag.Bool("update", false, "write the files *.golden in testdata")

// input returns a configuration in testdata. FOLDER in it stands for folder.
func input(t *testing.T, name, folder string) []byte {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("testdata", name+".yaml"))
	if err != nil {
		t.Fatal(err)
	}
	return []byte(strings.ReplaceAll(string(text), "FOLDER", folder))
}

// TestImport: each configuration becomes a file that Sluice accepts, with a comment for all that
// has no counterpart.
func TestImport(t *testing.T) {
	t.Setenv("OPENAI_API_KEY", "x")
	t.Setenv("LLAMA_70B_API_KEY", "x")
	folder := t.TempDir()
	for _, name := range []string{"coder.gguf", "embed.gguf"} {
		if err := os.WriteFile(filepath.Join(folder, name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, kind := range migrate.Kinds() {
		t.Run(string(kind), func(t *testing.T) {
			file, err := migrate.Convert("", input(t, string(kind), folder))
			if err != nil {
				t.Fatal(err)
			}
			testutil.Golden(t, filepath.Join("testdata", string(kind)+".golden"), strings.ReplaceAll(file.Text, folder, "FOLDER"), *update)
			if _, err := config.Parse("testdata/f", []byte(file.Text)); err != nil {
				t.Errorf("Sluice refuses it: %v", err)
			}
			if n := strings.Count(file.Text, " here"); file.Open == 0 || n < file.Open {
				t.Errorf("%d comments of %d are in the text", n, file.Open)
			}
		})
	}
}

// TestKeysOfServersStayApart: different keys belong into different variables, none of which the
// other configuration names, and the comment names the server.
func TestKeysOfServersStayApart(t *testing.T) {
	t.Parallel()
	for kind, tt := range map[migrate.Kind]struct {
		text string
		want []string
	}{
		migrate.LiteLLM: {`
model_list:
  - {model_name: chat, litellm_params: {model: openai/a, api_key: sk-1}}
  - {model_name: chat, litellm_params: {model: groq/b, api_key: gsk-2}}
  - {model_name: Chat, litellm_params: {model: deepseek/c, api_key: sk-1}}
  - {model_name: 4o, litellm_params: {model: openai/d, api_key: sk-4, api_base: "http://d"}}
  - {model_name: own, litellm_params: {model: openai/e, api_key: sk-5, api_base: "http://e"}}
  - {model_name: other, litellm_params: {model: openai/f, api_key: os.environ/OWN_API_KEY, api_base: "http://f"}}
`, []string{
			"the key of https://api.openai.com was in the file: put it into $CHAT_API_KEY here",
			"the key of https://api.groq.com/openai was in the file: put it into $CHAT_API_KEY_2 here",
			"the key of https://api.deepseek.com was in the file: put it into $CHAT_API_KEY here",
			"put it into $_4O_API_KEY here", "put it into $OWN_API_KEY_2 here", "api_key_env: OWN_API_KEY\n",
		}},
		migrate.LlamaSwap: {`
models: {m: {cmd: "llama-server -m /m.gguf --port ${PORT}"}}
peers:
  lab-1: {proxy: "http://one", apiKey: k1, models: [a, b]}
  lab.1: {proxy: "http://two", apiKey: k2, models: [c]}
`, []string{
			"the key of http://one was in the file: put it into $LAB_1_API_KEY here",
			"the key of http://two was in the file: put it into $LAB_1_API_KEY_2 here",
			"api_key_env: LAB_1_API_KEY_2}",
		}},
	} {
		file, err := migrate.Convert(kind, []byte(tt.text))
		if err != nil {
			t.Errorf("%s: %v", kind, err)
		}
		for _, want := range tt.want {
			if !strings.Contains(file.Text, want) {
				t.Errorf("%s: no %q in\n%s", kind, want, file.Text)
			}
		}
	}
}

// TestModelsKeepTheNamesOfTheirServers: a server is asked by the name that it knows, also where the
// model has another name here.
func TestModelsKeepTheNamesOfTheirServers(t *testing.T) {
	t.Parallel()
	for params, want := range map[string]string{
		"model: meta-llama/Llama-3.1-8B, custom_llm_provider: openai":             "model: meta-llama/Llama-3.1-8B\n",
		"model: openai/meta-llama/Llama-3.1-8B, custom_llm_provider: openai":      "model: meta-llama/Llama-3.1-8B\n",
		"model: hosted_vllm/meta-llama/Llama-3.1-8B, custom_llm_provider: openai": "model: hosted_vllm/meta-llama/Llama-3.1-8B\n",
		"model: hosted_vllm/meta-llama/Llama-3.1-8B":                              "model: meta-llama/Llama-3.1-8B\n",
		"model: Llama":                   "model: Llama\n",
		`model: "openai/my model (new)"`: "model: my model (new)\n",
		"model: openai/my-model--new":    "- url: http://one\n",
	} {
		file, err := migrate.Convert(migrate.LiteLLM, []byte(`model_list: [{model_name: "my model (new)", litellm_params: {api_base: "http://one", `+params+"}}]"))
		if err != nil || !strings.Contains(file.Text, want) || want[0] == '-' && strings.Contains(file.Text, " model:") {
			t.Errorf("%s: %v, no %q in\n%s", params, err, want, file.Text)
		}
	}
}

// convert converts a configuration, and checks which texts the file has and which it has not.
func convert(t *testing.T, kind migrate.Kind, text string, has, hasNot []string) {
	t.Helper()
	file, err := migrate.Convert(kind, []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range has {
		if !strings.Contains(file.Text, want) {
			t.Errorf("no %q in\n%s", want, file.Text)
		}
	}
	for _, refused := range hasNot {
		if strings.Contains(file.Text, refused) {
			t.Errorf("%q in\n%s", refused, file.Text)
		}
	}
}

// TestKeysOfOtherProvidersStayThere: a deployment that names neither a provider nor a server
// belongs to OpenAI only if its model is one of OpenAI's.
func TestKeysOfOtherProvidersStayThere(t *testing.T) {
	t.Parallel()
	for model, openAI := range map[string]bool{
		"gpt-4o": true, "o3-mini": true, "o1": true, "chatgpt-4o-latest": true, "text-embedding-3-small": true, "whisper-1": true,
		"tts-1-hd": true, "dall-e-3": true, "ft:gpt-4o-mini:org::id": true,
		"claude-3-5-sonnet-20241022": false, "gemini-1.5-pro": false, "command-r-plus": false, "text-embedding-004": false, "o10": false, "*": false,
	} {
		text := "model_list: [{model_name: own, litellm_params: {model: openai/own, api_base: http://one}}, " +
			"{model_name: other, litellm_params: {model: '" + model + "', api_key: os.environ/OTHER_KEY}}]"
		has, hasNot := []string{"url: https://api.openai.com\n        api_key_env: OTHER_KEY\n"}, []string{"names no provider"}
		if !openAI {
			has, hasNot = []string{"# model other: " + model + " names no provider, so its server is not known here\n"}, []string{"openai.com", "OTHER_KEY"}
		}
		convert(t, migrate.LiteLLM, text, has, hasNot)
	}
	convert(t, migrate.LiteLLM, "model_list: [{model_name: m, litellm_params: {model: claude-3, api_base: http://one}}]", []string{"url: http://one\n"}, nil)
}

// TestUsualKeysOfProviders: a deployment without a key has the one that its provider usually has. A
// server of someone else does not get that key.
func TestUsualKeysOfProviders(t *testing.T) {
	t.Parallel()
	for params, tt := range map[string]struct{ has, hasNot []string }{
		"model: gpt-4o": {[]string{"api_key_env: OPENAI_API_KEY\n", "# https://api.openai.com had no api_key: it gets the value of $OPENAI_API_KEY here\n"}, nil},
		"model: groq/m": {[]string{"api_key_env: GROQ_API_KEY\n"}, nil},
		"model: openai/m, api_key: '', api_base: 'https://api.openai.com/v1/'": {[]string{"api_key_env: OPENAI_API_KEY\n"}, nil},
		"model: openai/m, api_base: 'http://one'": {
			[]string{"# http://one had no api_key: name $OPENAI_API_KEY in its api_key_env here if it asks for that key\n"}, []string{"api_key_env:"},
		},
		"model: openai/m, api_key: none":               {nil, []string{"KEY"}},
		"model: openai/m, api_key: sk-secret":          {[]string{"api_key_env: OPENAI_API_KEY_2\n"}, []string{"had no api_key"}},
		"model: ollama/m":                              {nil, []string{"KEY"}},
		"model: hosted_vllm/m, api_base: 'http://one'": {nil, []string{"KEY"}},
	} {
		convert(t, migrate.LiteLLM, "model_list: [{model_name: openai, litellm_params: {"+params+"}}]", tt.has, tt.hasNot)
	}
}

// TestLimitsOfServersAddUp: a model has the sum of the limits of its servers, and no limit if one
// of them has none.
func TestLimitsOfServersAddUp(t *testing.T) {
	t.Parallel()
	for second, tt := range map[string]struct{ has, hasNot []string }{
		"tpm: 2000, max_parallel_requests: 3": {
			[]string{"admission: {max_tokens_per_minute: 1200000, max_concurrent_requests: 4}\n"}, []string{"no such limit"},
		},
		"max_parallel_requests: 3": {[]string{"admission: {max_concurrent_requests: 4}\n",
			"# tpm 1198000 of http://one: other servers of the model have no such limit, and a limit is one of the whole model here\n"}, nil},
		"order: 1": {[]string{"# tpm 1198000 of http://one", "# max_parallel_requests 1 of http://one"}, []string{"admission"}},
	} {
		convert(t, migrate.LiteLLM, `
model_list:
  - {model_name: fast, litellm_params: {model: openai/a, api_key: none, api_base: http://one, tpm: 1198000, max_parallel_requests: 1}}
  - {model_name: fast, litellm_params: {model: openai/b, api_key: none, api_base: http://two, `+second+`}}
`, tt.has, tt.hasNot)
	}
}

// TestArgumentsBecomeVariables: an argument for which the engine has a variable is that variable,
// so that Sluice knows what it changes. The others stay arguments, as do values that no variable
// takes.
func TestArgumentsBecomeVariables(t *testing.T) {
	t.Parallel()
	for args, want := range map[string]string{
		"--parallel 8 -c 8192 --n-gpu-layers=all": "variables: {ctx_size: 8192, n_gpu_layers: all, parallel: 8}\n",
		"-np 2 -ngl 99 --threads -1 --no-warmup":  "variables: {n_gpu_layers: 99, no_warmup: true, parallel: 2, threads: -1}\n",
		"--jinja -fa --parallel -1 -t 4 --new on": "variables: {jinja: true, threads: 4}\n    args: [-fa, --parallel, \"-1\", --new, \"on\"]\n",
		"--tensor-split 3,1 --no-warmup=true -np": "variables: {tensor_split: '3,1'}\n    args: [--no-warmup=true, -np]\n",
	} {
		convert(t, migrate.LlamaSwap, "models: {m: {cmd: 'llama-server -m /m.gguf --port ${PORT} "+args+"'}}", []string{want}, nil)
	}
	for args, want := range map[string]string{
		`--gpu-memory-utilization=0.9, --max-num-seqs, "64", -tp=2`: "variables: {gpu_memory_utilization: 0.9, max_num_seqs: 64, tensor_parallel_size: 2}\n",
		"--max_num_seqs=64, --enable-auto-tool-choice, --new=1":     "variables: {enable_auto_tool_choice: true, max_num_seqs: 64}\n    args: [--new=1]\n",
	} {
		text := "{apiVersion: kubeai.org/v1, kind: Model, metadata: {name: m}, spec: {features: [TextGeneration], url: hf://a/b, engine: VLLM, args: [" + args + "]}}"
		convert(t, migrate.KubeAI, text, []string{want}, nil)
	}
}

// TestServersElsewhereAreNoted: a model that llama-swap calls on another machine, and a command
// without a port, need a hand.
func TestServersElsewhereAreNoted(t *testing.T) {
	t.Setenv("MIGRATE_TEST_HOST", "10.0.0.4")
	const elsewhere = "replicas are called on this machine here; a server elsewhere belongs into upstreams of a model with launcher upstream\n"
	const noPort = "# the command of its engine has no port: write {{.Port}} here where its port belongs\n"
	for model, tt := range map[string]struct{ has, hasNot []string }{
		`proxy: "http://10.0.0.4:8000", cmd: ssh box vllm serve`: {[]string{"# proxy http://10.0.0.4:8000: " + elsewhere, noPort}, nil},
		`proxy: "http://${env.MIGRATE_TEST_HOST}:8000", cmd: "llama-server -m /m.gguf"`: {
			[]string{"# proxy http://${env.MIGRATE_TEST_HOST}:8000: " + elsewhere}, []string{noPort}},
		`proxy: "http://user:hunter2@gpu:80", cmd: "x 80"`:          {[]string{elsewhere}, []string{"hunter2"}},
		`proxy: "http://localhost:${PORT}", cmd: "vllm serve a"`:    {[]string{noPort}, []string{elsewhere}},
		`proxy: "http://[::1]:9000", cmd: "vllm serve --port=9000"`: {nil, []string{elsewhere, noPort}},
		`cmd: "vllm serve --port ${PORT}"`:                          {nil, []string{elsewhere, noPort}},
	} {
		convert(t, migrate.LlamaSwap, "models: {m: {"+model+"}}", tt.has, tt.hasNot)
	}
}

// TestContainersPublishTheirPort: the port that a container publishes is the one that Sluice calls,
// and the port inside is the one at which its program listens.
func TestContainersPublishTheirPort(t *testing.T) {
	t.Parallel()
	for command, want := range map[string]string{
		"docker run -p 9100:9100 image llama-server --port 9100": "[docker, run, -p, '{{.Port}}:{{.Port}}', image, llama-server, --port, '{{.Port}}']",
		"docker run -p 9100:9100 -e PORT=9100 image":             "[docker, run, -p, '{{.Port}}:{{.Port}}', -e, 'PORT={{.Port}}', image]",
		"docker run -p 127.0.0.1:9100:9100 image --port=9100":    "[docker, run, -p, '127.0.0.1:{{.Port}}:{{.Port}}', image, '--port={{.Port}}']",
		"docker run --publish=9100:9100 image --port 9100":       "[docker, run, '--publish={{.Port}}:{{.Port}}', image, --port, '{{.Port}}']",
		"docker run -p 9100:9100 image":                          "[docker, run, -p, '{{.Port}}:9100', image]",
		"docker run -p 9100:8080 image --port 8080":              "[docker, run, -p, '{{.Port}}:8080', image, --port, \"8080\"]",
		"docker run -p 19100:9100 image --port 9100":             "[docker, run, -p, '19100:9100', image, --port, '{{.Port}}']",
	} {
		convert(t, migrate.LlamaSwap, "models: {m: {proxy: 'http://127.0.0.1:9100', cmd: '"+command+"'}}", []string{"command: " + want + "\n"}, nil)
	}
}

// TestPreloadedModelsAreStarted: a model may be preloaded by an alias, and a name that is none of a
// model is noted.
func TestPreloadedModelsAreStarted(t *testing.T) {
	t.Parallel()
	convert(t, migrate.LlamaSwap, `
models: {a: {cmd: "x ${PORT}", aliases: [b, c]}, d: {cmd: "x ${PORT}"}}
hooks: {on_startup: {preload: [c, other]}}
`, []string{"aliases: [b, c]\n    task: text-generation\n    engine: a\n    replicas: {min: 1, max: 1}", "replicas: {min: 0, max: 1}",
		"# hooks.on_startup.preload other: no model of models has that name here\n"}, []string{"preload c"})
}

// TestFilesWithPeersAloneAreKnown: llama-swap may have no model of its own.
func TestFilesWithPeersAloneAreKnown(t *testing.T) {
	t.Parallel()
	convert(t, "", `peers: {lab: {proxy: "http://one", models: [a]}}`, []string{"url: 'http://one'"}, nil)
}

// TestAPIsBelowOtherPaths: LiteLLM calls a server below the whole path of its address.
func TestAPIsBelowOtherPaths(t *testing.T) {
	t.Parallel()
	for params, want := range map[string][2]string{
		"model: openai/a, api_base: https://h/v1beta/openai/": {"https://h/v1beta", "/openai"},
		"model: openai/a, api_base: https://h/openai":         {"https://h", "/openai"},
		"model: gemini/a":     {"https://generativelanguage.googleapis.com/v1beta", "/openai"},
		"model: deepinfra/a":  {"https://api.deepinfra.com", "/v1/openai"},
		"model: zai/a":        {"https://api.z.ai/api/paas", "/v4"},
		"model: groq/a":       {"https://api.groq.com/openai", ""},
		"model: openrouter/a": {"https://openrouter.ai/api", ""},
		"model: hosted_vllm/a, api_base: http://one":           {"http://one", ""},
		"model: hosted_vllm/a, api_base: http://one/a/v1/":     {"http://one/a", ""},
		"model: ollama/a, api_base: http://one/api":            {"http://one", ""},
		"model: openai/a, api_base: os.environ/URL_OF_A":       {"http://url-of-a:8000", ""},
		"model: openai/a, api_base: 'http://one/v1?key=abc'":   {"http://one", ""},
		"model: openai/a, api_base: 'http://one/b/c?key=abc'":  {"http://one/b", "/c"},
		"model: openai/a, api_base: http://one/v1/v1/openai/x": {"http://one/v1/v1/openai", "/x"},
	} {
		text, without := "- url: "+want[0]+"\n        api_path: "+want[1]+"\n", []string(nil)
		if want[1] == "" {
			text, without = want[0], []string{"api_path"}
		}
		convert(t, migrate.LiteLLM, "model_list: [{model_name: m, litellm_params: {"+params+"}}]", []string{text}, without)
	}
}

// TestFieldsForPeopleAreNoted: fields of llama-swap that only people see, and hidden models, have
// no counterpart. A model that is not hidden needs no comment.
func TestFieldsForPeopleAreNoted(t *testing.T) {
	t.Parallel()
	const hidden = "# unlisted: GET /v1/models lists each model that the tenant may use here\n"
	for model, tt := range map[string]struct{ has, hasNot []string }{
		`unlisted: true`:                          {[]string{hidden}, nil},
		`unlisted: false`:                         {nil, []string{hidden, "# unlisted"}},
		`name: "The coder"`:                       {[]string{"# name The coder: a model has no other name for people here\n"}, nil},
		`description: long, metadata: {owner: x}`: {[]string{"# description: no counterpart here\n", "# metadata: no counterpart here\n"}, nil},
	} {
		convert(t, migrate.LlamaSwap, "models: {m: {cmd: 'vllm serve --port ${PORT}', "+model+"}}", tt.has, tt.hasNot)
	}
}

// TestNotesStayComments: a value with any line break of YAML, or with a character that YAML has
// nowhere, stays within its comment.
func TestNotesStayComments(t *testing.T) {
	t.Parallel()
	for _, end := range []string{`\r`, `\r\n`, `\n`, `\N`, `\L`, `\P`, `\e`, `\a`, `\x7f`} {
		convert(t, migrate.LlamaSwap, `models: {m: {cmd: 'vllm serve --port ${PORT}', name: "The`+end+`coder: 1"}}`,
			[]string{"# name The coder: 1: a model"}, []string{"\r", "\u0085", "\u2028", "\u2029", "\a", "\x1b", "\x7f"})
		convert(t, migrate.LlamaSwap, `models: {m: {cmd: 'vllm serve --port ${PORT}'}}`+"\n"+`"a`+end+`b": {c: 1}`,
			[]string{"# a b: no counterpart here"}, []string{"\r", "\u0085", "\u2028", "\u2029", "\a", "\x1b", "\x7f"})
	}
}

// TestModelsOfOllamaKeepTheirNames: Ollama finds a model by its name, in its library or in a folder
// of its own. Parameters of a URL are noted.
func TestModelsOfOllamaKeepTheirNames(t *testing.T) {
	t.Parallel()
	const ollama, library = "engine: OLlama", "name: gemma2:2b\n    aliases: [m]\n"
	for _, tt := range []struct {
		spec        string
		has, hasNot []string
	}{
		{ollama + `, url: "ollama://gemma2:2b"`, []string{library}, []string{"source"}},
		{ollama + `, url: "ollama://gemma2:2b?insecure=true&pull=false"`, []string{library, "# the url's parameter insecure: no counterpart here\n",
			"# the url's parameter pull: no counterpart here\n"}, []string{"source"}},
		{ollama + `, url: "pvc://claim/a?model=gemma2:2b"`, []string{library,
			"# Ollama's folder was at pvc://claim/a: mount the claim by pod, and name its path in the variable models here\n"}, []string{"source", "parameter"}},
		{ollama + `, url: "hf://a/b"`, []string{"name: m\n", "source: {name: a/b}\n"}, nil},
		{ollama + `, url: "pvc://claim/a"`, []string{"name: m\n", "source: {registry: claim, name: a}\n"}, nil},
		{`engine: VLLM, url: "hf://a/b?x=%zz"`, []string{"source: {name: a/b}\n", "# the url's parameter x=%zz: no counterpart here\n"}, nil},
		{`engine: FasterWhisper, url: "hf://a/b?x=1"`, []string{"name: a/b\n", "# the url's parameter x: no counterpart here\n"}, nil},
	} {
		convert(t, migrate.KubeAI, "{apiVersion: kubeai.org/v1, kind: Model, metadata: {name: m}, spec: {"+tt.spec+"}}", tt.has, tt.hasNot)
	}
}

// TestAddressesAreCopiedWithoutSecrets: an address may have a user, and a key in its query.
func TestAddressesAreCopiedWithoutSecrets(t *testing.T) {
	t.Parallel()
	for address, plain := range map[string]string{
		"https://user:hunter2@host/v1": "https://host", "https://host/openai/v1/?api-key=hunter2": "https://host/openai",
		"http://us@er:hunter2@host/a@b?x": "http://host/a@b", "http://user:hunter2%@host": "http://host",
	} {
		has := []string{plain, "# " + plain + " had a user or a query, which may be secrets: put what the server needs into api_key_env or headers here\n"}
		convert(t, migrate.LiteLLM, "model_list: [{model_name: m, litellm_params: {model: openai/m, api_base: '"+address+"'}}]", has, []string{"hunter2"})
		convert(t, migrate.LlamaSwap, "{models: {a: {cmd: x}}, peers: {p: {proxy: '"+address+"', models: [m]}}}", has, []string{"hunter2"})
	}
	convert(t, migrate.LiteLLM, "model_list: [{model_name: m, litellm_params: {model: openai/m, api_base: 'http://host/v1'}}]",
		[]string{"url: http://host\n"}, []string{"had a user"})
}

// TestSmallFieldsAreKeptOrNoted: what has a counterpart has it, and all else is noted.
func TestSmallFieldsAreKeptOrNoted(t *testing.T) {
	t.Parallel()
	convert(t, migrate.LlamaSwap, `
globalTTL: 300
models: {a: {cmd: "x ${PORT}", ttl: -1}, b: {cmd: "x ${PORT}", ttl: 0}}
peers: {lab: {proxy: "http://one", models: ["their model"]}}
selectors: {"any one": {targets: ["their model"], sticky: true}}
`, []string{"cooldown: 5m0s", "cooldown: 8760h", `# the name was "their model", which cannot be a name here`, `# the name was "any one", which cannot be a name here`,
		`# the name of a target was "their model", which cannot be a name here`, "# sticky: no counterpart here"}, nil)
	convert(t, migrate.LiteLLM, `
model_list:
  - {model_name: i, litellm_params: {model: gpt-image-1}, model_info: {mode: image_generation}}
  - {model_name: s, litellm_params: {model: tts-1}, model_info: {mode: audio_speech}}
  - {model_name: "*", litellm_params: {model: openai/*, tpm: 5}}
router_settings: {num_retries: 2, retry_after: 3, allowed_fails: 4, cooldown_time: 5, enable_pre_call_checks: true}
`, []string{"task: image-generation", "task: speech", "# litellm_params.tpm: no counterpart here", "# num_retries 2: up to three replicas",
		"# router_settings.retry_after: no counterpart here", "# router_settings.allowed_fails: no counterpart here",
		"# router_settings.cooldown_time: no counterpart here", "# router_settings.enable_pre_call_checks: no counterpart here"}, []string{"no task here"})
}

// TestRenamedModelsAreFound: what names a model by a name that cannot be one here names it by its
// new name. A name of its own follows the same rule.
func TestRenamedModelsAreFound(t *testing.T) {
	t.Parallel()
	for kind, tt := range map[migrate.Kind]struct {
		text string
		want []string
	}{
		migrate.LiteLLM: {`
model_list: [{model_name: "my model", litellm_params: {model: openai/a, api_key: none}}]
router_settings: {model_group_alias: {"the best": my model, best: {model: my model}}}
`, []string{"name: my-model\n", "aliases: [best, the-best]\n", `the alias was "the best", which cannot be a name here`}},
		migrate.LlamaSwap: {`
models: {"my model": {cmd: "llama-server -m /m.gguf --port ${PORT}", aliases: ["the best", best]}}
peers: {lab: {proxy: "http://one", models: ["their model"]}}
selectors: {any: {targets: ["my model", "their model"]}, by-alias: {targets: ["the best"]}}
`, []string{"name: my-model\n", "aliases: [the-best, best]\n", "models: [my-model, their-model]\n", "models: [the-best]\n",
			`the alias was "the best", which cannot be a name here`}},
	} {
		file, err := migrate.Convert(kind, []byte(tt.text))
		if err != nil {
			t.Errorf("%s: %v", kind, err)
		}
		for _, want := range tt.want {
			if !strings.Contains(file.Text, want) {
				t.Errorf("%s: no %q in\n%s", kind, want, file.Text)
			}
		}
	}
}

// TestSecretsAreNotCopied: neither the values of environment variables nor headers with keys are in
// the file, which has the names of variables or a comment in their place.
func TestSecretsAreNotCopied(t *testing.T) {
	t.Setenv("MIGRATE_TEST_SECRET", "hunter2hunter2")
	for kind, tt := range map[migrate.Kind]struct {
		text string
		want []string
	}{
		migrate.LiteLLM: {`
model_list:
- model_name: chat
  litellm_params:
    model: openai/chat
    api_base: http://one
    extra_headers: {X-Team: a, X-Id: os.environ/MIGRATE_TEST_SECRET, Authorization: Basic hunter2hunter2}
`, []string{
			"headers: {Authorization: '${CHAT_API_KEY}', X-Id: '${MIGRATE_TEST_SECRET}', X-Team: a}\n",
			"the header X-Id of http://one is the value of $MIGRATE_TEST_SECRET: set it in the environment of Sluice here",
			"the header Authorization of http://one was in the file: put its value into $CHAT_API_KEY here",
		}},
		migrate.LlamaSwap: {`
macros: {secret: "${env.MIGRATE_TEST_SECRET}", level: 3}
models:
  a:
    cmd: llama-server -m /a.gguf --port ${PORT} --api-key ${secret} --alias a
    env: ["MIGRATE_TEST_SECRET=${env.MIGRATE_TEST_SECRET}", "A=${env.MIGRATE_TEST_SECRET}", "NAME=${MODEL_ID}-${level}", "P=${PORT}"]
  b:
    cmd: other --port ${PORT} --api-key=hunter2hunter2 --header ${secret} ${unknown}
`, []string{
			"argument --api-key: Sluice sends no key to an engine that it starts, so it is left out here",
			"env A was ${env.MIGRATE_TEST_SECRET}: write its value, or name a file with it in env_from, here",
			"env P was {{.Port}}: write its value, or name a file with it in env_from, here",
			"env: {NAME: a-3}\n    env_from: {variables: [MIGRATE_TEST_SECRET]}\n",
			"${env.MIGRATE_TEST_SECRET}: the value of an environment variable is not copied: write it here",
			"${unknown} has no value: write it here",
			"command: [other, --port, '{{.Port}}', --header, '${env.MIGRATE_TEST_SECRET}', '${unknown}']",
		}},
	} {
		file, err := migrate.Convert(kind, []byte(tt.text))
		if err != nil || strings.Contains(file.Text, "hunter2") {
			t.Errorf("%s: %v, or a secret is in\n%s", kind, err, file.Text)
		}
		for _, want := range tt.want {
			if !strings.Contains(file.Text, want) {
				t.Errorf("%s: no %q in\n%s", kind, want, file.Text)
			}
		}
	}
}

func TestSplitWords(t *testing.T) {
	t.Parallel()
	for text, want := range map[string][]string{
		"":                           nil,
		"a  b\tc\n":                  {"a", "b", "c"},
		"a 'b c' \"d 'e'\" f\\ g":    {"a", "b c", "d 'e'", "f g"},
		"a \\\n  b\n# no\n  # no\nc": {"a", "b", "c"},
		`--json '{"a": "\n"}' ''`:    {"--json", `{"a": "\n"}`, ""},
		`x="y z"`:                    {"x=y z"},
	} {
		if diff := cmp.Diff(want, migrate.SplitWords(text)); diff != "" {
			t.Errorf("%q (-want +got):\n%s", text, diff)
		}
	}
}

func TestWhatCannotBeImported(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		kind        migrate.Kind
		text, fault string
	}{
		"empty":          {"", "", "the file is empty"},
		"no YAML":        {"", "a: b: c", "not valid YAML: mapping values are not allowed in this context"},
		"of nginx":       {"", "upstream llm { server 10.0.0.1:8000; }\nserver { listen 80; }\n", "the file is not a YAML mapping"},
		"a name twice":   {"", "model_list: []\nmodel_list: []", "already defined"},
		"something else": {"", "services: {}", "the file is no configuration of LiteLLM, llama-swap or KubeAI"},
		"an own file":    {"", "models: [{name: a}]", "the file is no configuration of"},
		"values of Helm": {"", "models: {catalog: {llama: {enabled: true, engine: VLLM}}}", "the file is no configuration of"},
		"no models":      {"", "model_list: []", "the file has no model as litellm names them"},
		"a wrong kind":   {migrate.KubeAI, "model_list: []", "the file has no model as kubeai names them"},
		"no kind":        {"nginx", "model_list: []", `unknown kind "nginx": use one of [litellm llama-swap kubeai]`},
	} {
		_, err := migrate.Convert(tt.kind, []byte(tt.text))
		if err == nil || !strings.Contains(err.Error(), tt.fault) {
			t.Errorf("%s: %v, want %q", name, err, tt.fault)
		}
	}
}

// FuzzConvert: no text makes Convert panic.
func FuzzConvert(f *testing.F) {
	for _, kind := range migrate.Kinds() {
		text, err := os.ReadFile(filepath.Join("testdata", string(kind)+".yaml"))
		if err != nil {
			f.Fatal(err)
		}
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		for _, kind := range append(migrate.Kinds(), "") {
			_, _ = migrate.Convert(kind, text)
		}
	})
}

// TestValuesOfTheChartOfLiteLLM: LiteLLM's Helm chart has the config.yaml in a field of its values.
func TestValuesOfTheChartOfLiteLLM(t *testing.T) {
	t.Parallel()
	const text = `
replicaCount: 2
masterkey: sk-secret
proxy_config:
  model_list: [{model_name: chat, litellm_params: {model: openai/gpt-4o, api_key: os.environ/OPENAI_API_KEY}}]
  general_settings: {master_key: os.environ/PROXY_MASTER_KEY}
`
	for _, kind := range []migrate.Kind{"", migrate.LiteLLM} {
		convert(t, kind, text, []string{"name: chat", "url: https://api.openai.com", "values of the Helm chart, masterkey, replicaCount: not converted here"}, []string{"sk-secret"})
	}
	if _, err := migrate.Convert("", []byte("proxy_config: {model_list: x}\n")); !errors.Is(err, migrate.ErrUnknownKind) {
		t.Errorf("no list of models: %v", err)
	}
}
