package migrate

import (
	"bytes"
	"cmp"
	"fmt"
	"net/url"
	"regexp"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/sluice-gateway/sluice/authz"
	"github.com/sluice-gateway/sluice/internal/redact"
)

// compatible are LiteLLM's providers whose servers speak OpenAI's API, with the address of those
// that have one of their own.
var compatible = map[string]string{
	"openai": "https://api.openai.com", "text-completion-openai": "https://api.openai.com",
	"hosted_vllm": "", "vllm": "", "custom_openai": "", "openai_like": "", "llamafile": "", "lm_studio": "",
	"xinference": "", "litellm_proxy": "", "infinity": "", "docker_model_runner": "",
	"ollama": "http://127.0.0.1:11434", "ollama_chat": "http://127.0.0.1:11434",
	"groq": "https://api.groq.com/openai/v1", "together_ai": "https://api.together.xyz", "deepseek": "https://api.deepseek.com",
	"mistral": "https://api.mistral.ai", "openrouter": "https://openrouter.ai/api/v1", "fireworks_ai": "https://api.fireworks.ai/inference/v1",
	"nvidia_nim": "https://integrate.api.nvidia.com", "xai": "https://api.x.ai", "deepinfra": "https://api.deepinfra.com/v1/openai",
	"gemini": "https://generativelanguage.googleapis.com/v1beta/openai", "zai": "https://api.z.ai/api/paas/v4",
	"cerebras": "https://api.cerebras.ai", "sambanova": "https://api.sambanova.ai",
}

// usualKeys are the environment variables from which LiteLLM takes the key of a provider if the
// deployment has none.
var usualKeys = map[string]string{
	"openai": "OPENAI_API_KEY", "text-completion-openai": "OPENAI_API_KEY", "custom_openai": "OPENAI_API_KEY",
	"litellm_proxy": "LITELLM_PROXY_API_KEY", "groq": "GROQ_API_KEY", "together_ai": "TOGETHERAI_API_KEY", "deepseek": "DEEPSEEK_API_KEY",
	"mistral": "MISTRAL_API_KEY", "openrouter": "OPENROUTER_API_KEY", "fireworks_ai": "FIREWORKS_AI_API_KEY", "nvidia_nim": "NVIDIA_NIM_API_KEY",
	"xai": "XAI_API_KEY", "deepinfra": "DEEPINFRA_API_KEY", "gemini": "GEMINI_API_KEY", "zai": "ZAI_API_KEY",
	"cerebras": "CEREBRAS_API_KEY", "sambanova": "SAMBANOVA_API_KEY",
}

// noKey are values that stand for no key.
var noKey = []string{"", "none", "empty", "not-needed", "fake-key", "dummy", "sk-no-key-required", "no-key"}

// environmentReference is how LiteLLM names an environment variable.
const environmentReference = "os.environ/"

// liteLLMInChart returns the config.yaml in the values of LiteLLM's Helm chart; nil if s are none.
func liteLLMInChart(s source) source {
	config, _ := s["proxy_config"].(map[string]any)
	return config
}

// convertLiteLLM converts a config.yaml of LiteLLM, or the values of its Helm chart.
func convertLiteLLM(o *output, file source) {
	if config := liteLLMInChart(file); config != nil {
		file.drop("proxy_config")
		if len(file) > 0 {
			o.note("values of the Helm chart, %s: not converted here", strings.Join(file.rest(), ", "))
		}
		file = config
	}
	for _, variable := range usualKeys {
		o.reserve(environmentReference + variable)
	}
	groups := newLiteLLMGroups(o)
	for _, deployment := range file.mappings("model_list") {
		groups.add(deployment)
	}
	router, settings := file.mapping("router_settings"), file.mapping("litellm_settings")
	groups.alias(router.take("model_group_alias"))
	groups.alias(settings.take("model_alias_map"))
	groups.finish()
	liteLLMRouter(o, router)
	liteLLMKeys(o, file.mapping("general_settings"))
	settings.drop("set_verbose", "json_logs", "telemetry")
	if v := settings.take("drop_params"); v != nil {
		o.note("litellm_settings.drop_params %v: engines get all options of a request here", v)
	}
	if timeout, ok := settings.number("request_timeout"); ok {
		o.note("litellm_settings.request_timeout %v: set stream.max_duration of each model here", timeout)
	}
	for _, s := range []source{router, settings} {
		if v := s.take("num_retries"); v != nil {
			o.note("num_retries %v: up to three replicas of a model are tried here, before the client has a byte of an answer", v)
		}
		for _, key := range []string{"fallbacks", "context_window_fallbacks", "content_policy_fallbacks", "default_fallbacks"} {
			if v := s.take(key); v != nil {
				o.note("%s %v: a request goes to other replicas of its model here, and to other models only by a pool", key, v)
			}
		}
	}
	o.noteRest("litellm_settings.", settings)
	o.noteRest("router_settings.", router)
	if len(file.mapping("environment_variables")) > 0 {
		o.note("environment_variables: set them in the environment of Sluice here")
	}
	o.noteRest("", file)
}

// liteLLMGroups collects the deployments of each model name.
type liteLLMGroups struct {
	out    *output
	names  []string
	models map[string]*liteLLMModel
}

// liteLLMModel is a model with the servers that serve it.
type liteLLMModel struct {
	item *item
	// name is the model's name here.
	name      string
	upstreams []*item
	aliases   []string
	task      string
	// tokens and parallel are the limits of those servers that have them.
	tokens, parallel []liteLLMLimit
}

// liteLLMLimit is a limit of one server.
type liteLLMLimit struct {
	address string
	n       float64
}

func newLiteLLMGroups(o *output) *liteLLMGroups {
	return &liteLLMGroups{out: o, models: map[string]*liteLLMModel{}}
}

// add adds one entry of model_list.
func (g *liteLLMGroups) add(deployment source) {
	name := deployment.text("model_name")
	p, info := deployment.mapping("litellm_params"), deployment.mapping("model_info")
	g.out.noteRest("model "+name+": ", deployment)
	own := cmp.Or(p.text("base_url"), p.text("api_base"))
	asked, custom := p.text("model"), p.text("custom_llm_provider")
	if _, variable := liteLLMValue(asked); variable != "" {
		g.out.note("model %s: the server was asked for $%s, so add the model by hand here", name, variable)
		return
	}
	provider, served := liteLLMProvider(asked, custom)
	if provider == "" && (own != "" || openAIModel.MatchString(served)) {
		provider = "openai"
	}
	if provider == "" {
		g.out.note("model %s: %s names no provider, so its server is not known here", name, served)
		return
	}
	base, known := compatible[provider]
	base = cmp.Or(own, base)
	if !known || base == "" {
		g.out.note("model %s at provider %s: no counterpart here, Sluice calls servers that speak OpenAI's API", name, provider)
		return
	}
	upstream, warnings := g.upstream(name, base, provider, p)
	address := upstream.text("url")
	if strings.Contains(name, "*") {
		if lists(g.out.upstreams, upstream) {
			g.out.note("%s: %s is in the list of upstreams once here, with all that it lists", name, address)
			return
		}
		upstream.noteAll(warnings)
		upstream.note("%s: here Sluice serves all that this server lists, by the names that it lists, or those of its models: list", name)
		upstream.noteRest("litellm_params.", p)
		upstream.noteRest("model_info.", info)
		g.out.upstreams = append(g.out.upstreams, upstream)
		return
	}
	m := g.model(name)
	if lists(m.upstreams, upstream) {
		m.item.note("another deployment at %s, which serves %s: a server is called by one name for a model here", address, cmp.Or(served, name))
		return
	}
	m.item.noteAll(warnings)
	if served != m.name && served != "" {
		upstream.set("model", served)
	}
	m.upstreams = append(m.upstreams, upstream)
	m.describe(address, p, info)
}

// lists reports whether one of the servers has the URL of a server, and its key, headers and path.
func lists(servers []*item, server *item) bool {
	return slices.ContainsFunc(servers, func(s *item) bool {
		for _, field := range []string{"url", "api_path", "api_key_env"} {
			if s.text(field) != server.text(field) {
				return false
			}
		}
		was, _ := yaml.Marshal(s.field("headers"))
		is, _ := yaml.Marshal(server.field("headers"))
		return bytes.Equal(was, is)
	})
}

// openAIModel matches the names of OpenAI's own models. LiteLLM finds the provider of a name alone
// in a table of all models, most of which belong to providers with another API.
var openAIModel = regexp.MustCompile(`^(ft:)?(gpt-|chatgpt-|o[134](-|$)|text-embedding-(3|ada)-|whisper-1$|tts-1|dall-e-)`)

// liteLLMProvider returns the provider of a deployment, and the name under which the provider
// serves the model. A deployment with a custom provider has the name alone, or after that provider.
// The provider is empty if the deployment names none.
func liteLLMProvider(model, custom string) (provider, served string) {
	if custom != "" {
		return custom, strings.TrimPrefix(model, custom+"/")
	}
	provider, served, found := strings.Cut(model, "/")
	if !found {
		return "", model
	}
	return provider, served
}

func (g *liteLLMGroups) model(name string) *liteLLMModel {
	m := g.models[name]
	if m == nil {
		m = &liteLLMModel{item: newItem()}
		plain, variable := liteLLMValue(name)
		if variable != "" {
			m.item.note("the name was in $%s: write it here", variable)
		}
		m.name = m.item.validName("name", cmp.Or(plain, variable))
		m.item.set("name", m.name)
		g.models[name], g.names = m, append(g.names, name)
	}
	return m
}

// tasksOfModes are the tasks of model_info.mode.
var tasksOfModes = map[string]string{"chat": "text-generation", "completion": "text-generation", "responses": "text-generation", "embedding": "embedding",
	"rerank": "rerank", "audio_transcription": "transcription", "audio_speech": "speech", "image_generation": "image-generation"}

// describe takes over what the deployment at address says beside it.
func (m *liteLLMModel) describe(address string, p, info source) {
	if mode := info.text("mode"); mode != "" {
		if m.task = tasksOfModes[mode]; m.task == "" {
			m.item.note("mode %s: no task here", mode)
		}
	}
	if n, _ := p.number("tpm"); n > 0 {
		m.tokens = append(m.tokens, liteLLMLimit{address, n})
	}
	if n, _ := p.number("max_parallel_requests"); n > 0 {
		m.parallel = append(m.parallel, liteLLMLimit{address, n})
	}
	if v := p.text("rpm"); v != "" {
		m.item.note("rpm %s: requests are limited per tenant here, by limits.requests_per_minute", v)
	}
	for _, key := range []string{"weight", "order"} {
		if v := p.text(key); v != "" {
			m.item.note("%s %s of a deployment: no counterpart here, requests go where the first token is soonest", key, v)
		}
	}
	for _, key := range []string{"timeout", "stream_timeout"} {
		if v := p.text(key); v != "" {
			m.item.note("%s %s: see stream.max_duration, ttft_timeout and stall_timeout here", key, v)
		}
	}
	info.drop("id", "base_model", "supports_vision", "supports_function_calling", "max_tokens", "max_input_tokens", "max_output_tokens", "db_model")
	m.item.noteRest("litellm_params.", p)
	m.item.noteRest("model_info.", info)
}

// alias takes over a mapping of aliases to model names.
func (g *liteLLMGroups) alias(aliases any) {
	all, _ := aliases.(map[string]any)
	for _, alias := range source(all).rest() {
		target := fmt.Sprint(all[alias])
		if group, ok := all[alias].(map[string]any); ok {
			target = fmt.Sprint(group["model"])
		}
		if m := g.models[target]; m != nil {
			m.aliases = append(m.aliases, alias)
		} else {
			g.out.note("alias %s of %s: that model is not in the file here", alias, target)
		}
	}
}

func (g *liteLLMGroups) finish() {
	for _, name := range g.names {
		m := g.models[name]
		if len(m.aliases) > 0 {
			m.item.set("aliases", validAliases(m.item, m.aliases))
		}
		if m.task != "" {
			m.item.set("task", m.task)
		}
		m.item.set("launcher", "upstream")
		m.item.set("upstreams", m.upstreams)
		limits := flow()
		if n := m.sum(m.tokens, "tpm"); n > 0 {
			limits.set("max_tokens_per_minute", n)
		}
		if n := m.sum(m.parallel, "max_parallel_requests"); n > 0 {
			limits.set("max_concurrent_requests", n)
		}
		if len(limits.node.Content) > 0 {
			m.item.set("admission", limits)
		}
		g.out.models = append(g.out.models, m.item)
	}
}

// sum returns the sum of a limit over all servers. It is 0 if one of them has no limit. Those of
// the others are then noted, because a limit here is one of the whole model.
func (m *liteLLMModel) sum(limits []liteLLMLimit, name string) (total int64) {
	for _, l := range limits {
		if len(limits) < len(m.upstreams) {
			m.item.note("%s %v of %s: other servers of the model have no such limit, and a limit is one of the whole model here", name, int64(l.n), l.address)
		} else {
			total += int64(l.n)
		}
	}
	return total
}

// upstream returns a server. warnings say what has to be done by hand for it.
func (g *liteLLMGroups) upstream(name, base, provider string, p source) (upstream *item, warnings []string) {
	upstream = newItem()
	address, from := liteLLMValue(base)
	if from != "" {
		warnings = append(warnings, "the address was in $"+from+": write it here")
		address = "http://" + strings.ToLower(strings.ReplaceAll(from, "_", "-")) + ":8000"
	}
	address, warning := plainAddress(address)
	if warning != "" {
		warnings = append(warnings, warning)
	}
	usualAddress, _ := plainAddress(compatible[provider])
	isUsual := address == usualAddress
	api := ""
	if provider == "ollama" || provider == "ollama_chat" {
		address = strings.TrimSuffix(address, "/api")
	} else if hasOtherPath(base) {
		address, api = splitAPI(address)
	}
	upstream.set("url", address)
	if api != "" {
		upstream.set("api_path", api)
	}
	key, variable := liteLLMValue(p.text("api_key"))
	usual := usualKeys[provider]
	switch {
	case variable != "":
		upstream.set("api_key_env", variable)
	case key == "" && usual != "" && isUsual:
		upstream.set("api_key_env", usual)
		warnings = append(warnings, address+" had no api_key: it gets the value of $"+usual+" here")
	case key == "" && usual != "":
		warnings = append(warnings, address+" had no api_key: name $"+usual+" in its api_key_env here if it asks for that key")
	case !slices.Contains(noKey, strings.ToLower(key)):
		variable = g.out.keyVariable(name, key)
		upstream.set("api_key_env", variable)
		warnings = append(warnings, keyWarning(address, variable))
	}
	headers, more := g.headers(name, address, p.mapping("extra_headers"))
	if len(headers) > 0 {
		upstream.set("headers", headers)
	}
	return upstream, append(warnings, more...)
}

// splitAPI splits an address before its last step, and before each /v1 that precedes that step: a
// url does not end with /v1 beside an api_path.
func splitAPI(address string) (base, api string) {
	at := strings.LastIndexByte(address, '/')
	for strings.HasSuffix(address[:at], "/v1") {
		at -= len("/v1")
	}
	return address[:at], address[at:]
}

// hasOtherPath reports whether the address of a server has a path that does not end with /v1.
func hasOtherPath(address string) bool {
	u, err := url.Parse(address)
	return err == nil && u.Host != "" && strings.Trim(u.Path, "/") != "" && !strings.HasSuffix(strings.TrimSuffix(u.Path, "/"), "/v1")
}

// headers returns the headers of a server, without the values of those that name a secret. warnings
// say which environment variables are to have values.
func (g *liteLLMGroups) headers(name, address string, extra source) (headers map[string]string, warnings []string) {
	headers = map[string]string{}
	for _, header := range extra.rest() {
		value, variable := liteLLMValue(fmt.Sprint(extra[header]))
		switch {
		case variable != "":
			warnings = append(warnings, "the header "+header+" of "+address+" is the value of $"+variable+": set it in the environment of Sluice here")
		case redact.NamesSecret(header):
			variable = g.out.keyVariable(name, value)
			warnings = append(warnings, "the header "+header+" of "+address+" was in the file: put its value into $"+variable+" here")
		default:
			headers[header] = value
			continue
		}
		headers[header] = "${" + variable + "}"
	}
	return headers, warnings
}

// filledIn matches a value that a tool such as envsubst, Compose or Helm replaces by a variable.
var filledIn = regexp.MustCompile(`^\$\{?([A-Za-z_]\w*)(:?-[^}]*)?\}?$`)

// liteLLMValue returns a value of LiteLLM, or the name of the environment variable that has it.
func liteLLMValue(v string) (value, variable string) {
	if name, ok := strings.CutPrefix(v, environmentReference); ok {
		return "", name
	}
	if match := filledIn.FindStringSubmatch(v); match != nil {
		return "", match[1]
	}
	return v, ""
}

// liteLLMRouter takes over router_settings.
func liteLLMRouter(o *output, router source) {
	if strategy := router.text("routing_strategy"); strategy != "" {
		o.note("routing_strategy %s: the default here is prefix, which keeps conversations with their cache; routing.strategy of a model has others", strategy)
	}
	if timeout, ok := router.number("timeout"); ok {
		o.note("router_settings.timeout %v: set stream.max_duration of each model here", timeout)
	}
	host, fromHost := liteLLMValue(router.text("redis_host"))
	port, fromPort := liteLLMValue(router.text("redis_port"))
	password, fromPassword := liteLLMValue(router.text("redis_password"))
	switch {
	case host == "" && fromHost == "":
	case fromHost+fromPort+fromPassword != "" || password != "":
		o.note("redis_host, redis_port, redis_password: write redis: redis://user:password@host:6379/0 here")
	default:
		port = cmp.Or(port, "6379")
		o.settings.set("redis", "redis://"+host+":"+port+"/0")
	}
}

// liteLLMKeys takes over the key of general_settings.
func liteLLMKeys(o *output, general source) {
	key, variable := liteLLMValue(general.text("master_key"))
	tenant := newItem()
	switch {
	case variable != "":
		o.note("the master key was in $%s: make a key by sluice keys new --tenant main here, and write its hash under tenants", variable)
		o.settings.set("auth", flow("mode", "keys"))
	case key != "":
		tenant.note("the hash of the master key, so that it stays valid; give each caller a key of its own here")
		tenant.set("name", "main")
		tenant.set("keys", []string{authz.HashKey(key)})
		o.tenants = append(o.tenants, tenant)
	default:
		o.admitAll("master_key")
	}
	if general.text("database_url") != "" || general.flag("store_model_in_db") {
		o.note("database_url: keys, teams and models that are only in the database are not in this file here")
	}
	o.noteRest("general_settings.", general)
}
