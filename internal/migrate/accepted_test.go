package migrate_test

import (
	"strings"
	"testing"

	"github.com/sluice-gateway/sluice/internal/config"
	"github.com/sluice-gateway/sluice/internal/migrate"
)

// TestConvertedFilesAreAccepted: Sluice accepts what becomes of files that other gateways accept.
// The environment variables KEY_A, KEY_B and FIRST_API_KEY are set.
func TestConvertedFilesAreAccepted(t *testing.T) {
	for _, variable := range []string{"KEY_A", "KEY_B", "FIRST_API_KEY"} {
		t.Setenv(variable, "x"+variable)
	}
	for name, tt := range map[string]struct {
		kind migrate.Kind
		text string
		has  []string
	}{
		"models of one server with one key": {migrate.LiteLLM, `
model_list:
  - {model_name: first, litellm_params: {model: openai/a, api_key: sk-1}}
  - {model_name: second, litellm_params: {model: openai/b, api_key: sk-1}}
`, []string{"put it into $FIRST_API_KEY here"}},
		"deployments of one server": {migrate.LiteLLM, `
model_list:
  - {model_name: chat, litellm_params: {model: openai/a, api_key: os.environ/KEY_A, tpm: 100}}
  - {model_name: chat, litellm_params: {model: openai/b, api_key: os.environ/KEY_A, rpm: 5}}
  - {model_name: chat, litellm_params: {model: openai/a, api_key: os.environ/KEY_B}}
  - {model_name: other, litellm_params: {model: openai/other, api_key: os.environ/KEY_B}}
  - {model_name: "openai/*", litellm_params: {model: "openai/*", api_key: os.environ/KEY_A}}
  - {model_name: "*", litellm_params: {model: "openai/*", api_key: os.environ/KEY_B}}
`, []string{
			"another deployment at https://api.openai.com, which serves b:", "tpm 100 of https://api.openai.com: other servers of the model have no such limit",
			"- url: https://api.openai.com\n        api_key_env: KEY_A\n        model: a\n      - url: https://api.openai.com\n        api_key_env: KEY_B\n        model: a\n",
			"- url: https://api.openai.com\n    api_key_env: KEY_A\n  # *: here", "  - url: https://api.openai.com\n    api_key_env: KEY_B\n",
		}},
		"one server with other headers and paths": {migrate.LiteLLM, `
model_list:
  - {model_name: chat, litellm_params: {model: openai/chat, api_base: "http://h:1", extra_headers: {x-org: one}}}
  - {model_name: chat, litellm_params: {model: openai/chat, api_base: "http://h:1", extra_headers: {x-org: two}}}
  - {model_name: chat, litellm_params: {model: openai/chat, api_base: "http://h:1", extra_headers: {x-org: two}}}
  - {model_name: chat, litellm_params: {model: openai/chat, api_base: "http://h:1/v2"}}
`, []string{"x-org: one", "x-org: two", "api_path: /v2", "another deployment at http://h:1, which serves chat:"}},
		"APIs below other paths": {migrate.LiteLLM, `
model_list:
  - {model_name: a, litellm_params: {model: deepinfra/a, api_key: os.environ/KEY_A}}
  - {model_name: b, litellm_params: {model: gemini/b, api_key: os.environ/KEY_B}}
  - {model_name: c, litellm_params: {model: zai/c, api_key: os.environ/KEY_A}}
  - {model_name: d, litellm_params: {model: openai/d, api_base: "https://api.z.ai/api/coding/paas/v4", api_key: os.environ/KEY_B}}
`, []string{"api_path: /v1/openai", "api_path: /openai", "api_path: /v4"}},
		"keys that another tool fills in": {migrate.LiteLLM, `
model_list:
  - {model_name: a, litellm_params: {model: openai/a, api_key: "${KEY_A}"}}
  - {model_name: b, litellm_params: {model: openai/b, api_key: $KEY_A}}
general_settings: {master_key: "${MASTER_KEY:-sk-1234}"}
`, []string{"api_key_env: KEY_A", "the master key was in $MASTER_KEY"}},
		"arguments of Sluice's own": {migrate.LlamaSwap, `
models: {m: {cmd: "llama-server --no-webui --models-dir /models --reuse-port -hf org/m --port ${PORT} --new on"}}
`, []string{"# argument --models-dir: Sluice sets it itself here", "# argument --reuse-port: ", "args: [--new, \"on\"]"}},
		"aliases that are models": {migrate.LiteLLM, `
model_list:
  - {model_name: gpt-4, litellm_params: {model: openai/gpt-4, api_key: os.environ/KEY_A}}
  - {model_name: gpt-5, litellm_params: {model: openai/gpt-5, api_key: os.environ/KEY_A}}
router_settings: {model_group_alias: {gpt-4: gpt-5, best: gpt-5}}
litellm_settings: {model_alias_map: {best: gpt-4}}
`, []string{"the alias gpt-4 is left out: a model or a pool has this name here", "the alias best is left out: it is an alias of gpt-4 here"}},
		"models with the name that their engine loads": {migrate.KubeAI, `
apiVersion: kubeai.org/v1
kind: Model
metadata: {name: phi4}
spec: {features: [TextGeneration], url: "ollama://phi4", engine: OLlama, maxReplicas: 1}
`, []string{"name: phi4"}},
		"two models that Ollama loads by one name": {migrate.KubeAI, `
apiVersion: kubeai.org/v1
kind: Model
metadata: {name: one}
spec: {features: [TextGeneration], url: "ollama://gemma2:2b", engine: OLlama, maxReplicas: 1}
---
apiVersion: kubeai.org/v1
kind: Model
metadata: {name: two}
spec: {features: [TextGeneration], url: "ollama://gemma2:2b", engine: OLlama, maxReplicas: 3}
`, []string{"Model two is an alias of this one here", "aliases: [one, two]"}},
		"models that load something else by one name": {migrate.KubeAI, `
apiVersion: kubeai.org/v1
kind: Model
metadata: {name: phi4}
spec: {features: [TextGeneration], url: "hf://x/b", engine: VLLM, maxReplicas: 1}
---
apiVersion: kubeai.org/v1
kind: Model
metadata: {name: one}
spec: {features: [TextGeneration], url: "ollama://phi4", engine: OLlama, maxReplicas: 1}
---
apiVersion: kubeai.org/v1
kind: Model
metadata: {name: phi4, namespace: other}
spec: {features: [TextGeneration], url: "hf://x/c", engine: VLLM, maxReplicas: 1}
`, []string{"Model one is left out: another model is called phi4 here", "Model phi4 is left out: another model is called phi4 here"}},
		"adapters that the engine cannot load": {migrate.KubeAI, `
apiVersion: kubeai.org/v1
kind: Model
metadata: {name: one}
spec: {features: [TextGeneration], url: "ollama://gemma2:2b", engine: OLlama, maxReplicas: 1, adapters: [{name: a, url: "hf://x/a"}]}
---
apiVersion: kubeai.org/v1
kind: Model
metadata: {name: two}
spec: {features: [TextGeneration], url: "hf://x/b", engine: VLLM, maxReplicas: 1, adapters: [{id: c, url: "hf://x/c"}]}
`, []string{`adapter "a" at hf://x/a:`, `adapter "" at hf://x/c:`}},
	} {
		t.Run(name, func(t *testing.T) {
			file, err := migrate.Convert(tt.kind, []byte(tt.text))
			if err != nil {
				t.Fatal(err)
			}
			if _, err := config.Parse("testdata/f", []byte(file.Text)); err != nil {
				t.Errorf("Sluice refuses it: %v\n%s", err, file.Text)
			}
			for _, want := range tt.has {
				if !strings.Contains(file.Text, want) {
					t.Errorf("no %q in\n%s", want, file.Text)
				}
			}
		})
	}
}
