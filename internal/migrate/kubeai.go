package migrate

import (
	"cmp"
	"net/url"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
)

// isKubeAIModel reports whether a document is a Model object of KubeAI.
func isKubeAIModel(s source) bool {
	version, _ := s["apiVersion"].(string)
	return strings.HasPrefix(version, "kubeai.org/") && s["kind"] == "Model"
}

// objectsOf returns the objects of documents, which may be lists as kubectl get -o yaml prints.
func objectsOf(documents []source) (objects []source) {
	for _, document := range documents {
		items, isList := document["items"].([]any)
		if !isList {
			objects = append(objects, document)
		}
		for _, item := range items {
			object, _ := item.(map[string]any)
			objects = append(objects, source(object))
		}
	}
	return objects
}

// engineOf and taskOf are Sluice's words for those of KubeAI.
var (
	engineOf = map[string]string{"VLLM": "vllm", "OLlama": "ollama", "FasterWhisper": "faster-whisper", "Infinity": "tei"}
	taskOf   = map[string]string{"TextGeneration": "text-generation", "TextEmbedding": "embedding", "Reranking": "rerank", "SpeechToText": "transcription"}
)

// byHand are fields of a Model whose counterpart is not a field of a model.
var byHand = []struct{ name, todo string }{
	{"envFrom", "write each entry under secrets as secret/key"},
	{"cacheProfile", "give the registry a claim"},
	{"files", "mount them by pod"},
}

func convertKubeAI(o *output, documents []source) {
	for _, object := range objectsOf(documents) {
		if isKubeAIModel(object) {
			kubeAIModel(o, object)
		} else {
			o.note("an object of kind %v: not converted here", object["kind"])
		}
	}
	o.settings.set("kubernetes", flow())
	o.note("KubeAI needs no API keys: make one by sluice keys new --tenant main here, and write its hash under tenants")
}

func kubeAIModel(o *output, object source) {
	it, spec := newItem(), object.mapping("spec")
	name := object.mapping("metadata").text("name")
	engine := spec.text("engine")
	address, query, _ := strings.Cut(spec.text("url"), "?")
	parameters := parametersOf(query)
	loaded := loadedByName(it, engine, address, parameters)
	served := cmp.Or(loaded, name)
	if twin := o.model(served); twin != nil {
		aliases := twin.field("aliases")
		if loaded == "" || aliases == nil || twin.text("engine") != engineOf[engine] {
			o.note("Model %s is left out: another model is called %s here, and is not the same", name, served)
			return
		}
		aliases.Content = append(aliases.Content, &yaml.Node{Kind: yaml.ScalarNode, Value: name})
		twin.note("Model %s is an alias of this one here, because both load %s: its other fields are left out", name, loaded)
		return
	}
	it.set("name", served)
	if loaded != "" {
		it.set("aliases", []string{name})
	}
	it.noteRest("the url's parameter ", parameters)
	task := ""
	if features := spec.list("features"); len(features) > 0 {
		task = taskOf[features[0]]
		it.set("task", task)
		if len(features) > 1 {
			it.note("features %v: a model has one task here", features)
		}
	}
	if engine == "Infinity" {
		it.note("the engine was Infinity: the model runs on text-embeddings-inference here")
	}
	it.set("engine", engineOf[engine])
	it.set("launcher", "kubernetes")
	if loaded == "" {
		kubeAISource(o, it, engine, address)
	}
	kubeAIResources(it, spec.text("resourceProfile"))
	kubeAIReplicas(it, spec)
	more := kubeAIAdapters(it, engine, spec.mappings("adapters"))
	it.setArguments(engineOf[engine], task, spec.list("args"), more)
	if env := spec.mapping("env"); len(env) > 0 {
		it.set("env", map[string]any(env))
	}
	kubeAIRouting(it, spec.mapping("loadBalancing"))
	kubeAIPod(it, spec)
	for _, field := range byHand {
		if v := spec.take(field.name); v != nil {
			it.note("%s %v: %s here", field.name, v, field.todo)
		}
	}
	spec.drop("owner")
	it.noteRest("", spec)
	o.models = append(o.models, it)
}

// parametersOf returns the parameters of a URL. A query that is none is one parameter.
func parametersOf(query string) source {
	parameters := source{}
	values, err := url.ParseQuery(query)
	if err != nil {
		parameters[query] = ""
	}
	for name := range values {
		parameters[name] = values.Get(name)
	}
	return parameters
}

// loadedByName returns the name by which an engine loads a model that is called so; empty if it
// loads a source. Ollama finds a model in its library, or in its own folder in a claim.
func loadedByName(it *item, engine, address string, parameters source) string {
	scheme, rest, _ := strings.Cut(address, "://")
	switch {
	case engine == "FasterWhisper" && scheme == "hf", engine == "OLlama" && scheme == "ollama":
		return rest
	case engine == "OLlama" && scheme == "pvc" && parameters["model"] != nil:
		it.note("Ollama's folder was at %s: mount the claim by pod, and name its path in the variable models here", address)
		return parameters.text("model")
	}
	return ""
}

// kubeAISource sets where the weights are.
func kubeAISource(o *output, it *item, engine, address string) {
	scheme, rest, _ := strings.Cut(address, "://")
	switch {
	case engine == "FasterWhisper":
		it.note("the weights were at %s: this engine loads the repository of Hugging Face that the model's name says here", address)
	case scheme == "hf":
		it.set("source", flow("name", rest))
	case scheme == "pvc":
		claim, folder, _ := strings.Cut(rest, "/")
		registry := flow("name", claim, "kind", "directory", "path", "/"+claim, "claim", claim)
		o.registries = append(o.registries, registry)
		if folder == "" {
			folder = "."
			it.note("the weights lie at the top of the claim: name their folder or file here")
		}
		it.set("source", flow("registry", claim, "name", folder))
	default:
		it.note("the weights were at %s: put them into a claim, and name its registry in source here", address)
	}
}

// kubeAIResources sets the resources of a profile such as nvidia-gpu-l4:2.
func kubeAIResources(it *item, profile string) {
	name, count, _ := strings.Cut(profile, ":")
	n, err := strconv.ParseFloat(count, 64)
	switch {
	case profile == "":
	case err != nil:
		it.note("resourceProfile %s: set resources here", profile)
	case strings.HasPrefix(name, "cpu"):
		it.set("resources", flow("cpu", n))
	default:
		it.set("resources", flow("gpu", n))
		it.note("resourceProfile %s: choose its nodes by pod or profiles here", name)
	}
}

// kubeAIReplicas sets how many replicas there are, and when.
func kubeAIReplicas(it *item, spec source) {
	least, _ := spec.number("minReplicas")
	most, bounded := spec.number("maxReplicas")
	fixed, isFixed := spec.number("replicas")
	disabled := spec.flag("autoscalingDisabled")
	target, hasTarget := spec.number("targetRequests")
	delay, hasDelay := spec.number("scaleDownDelaySeconds")
	if disabled && isFixed {
		least, most, bounded = fixed, fixed, true
	}
	if !bounded {
		most = max(least, 1)
		it.note("maxReplicas was not set: set replicas.max here")
	}
	it.set("replicas", flow("min", int64(least), "max", int64(max(most, 1))))
	if !hasTarget {
		target = 100
	}
	if most > least && !disabled {
		it.set("scale", flow("target", flow("running", int64(target))))
	}
	if !hasDelay {
		delay = 30
	}
	it.set("cooldown", seconds(max(delay, 1)))
}

// kubeAIPod sets what a model says of its pods.
func kubeAIPod(it *item, spec source) {
	pod := flow()
	if class := spec.text("priorityClassName"); class != "" {
		pod.set("priorityClassName", class)
	}
	if image := spec.text("image"); image != "" {
		container := flow("name", "engine", "image", image)
		pod.set("containers", []*item{container})
	}
	if len(pod.node.Content) > 0 {
		it.set("pod", flow("spec", pod))
	}
}

// kubeAIAdapters sets the LoRA adapters of a model on vLLM, and returns the variables for them.
func kubeAIAdapters(it *item, engine string, adapters []source) (variables map[string]any) {
	var names, modules []string
	for _, a := range adapters {
		name, address := a.text("name"), a.text("url")
		if engine != "VLLM" || name == "" {
			it.note("adapter %q at %s: it needs a name, and an engine that loads adapters by their names here", name, address)
			continue
		}
		names = append(names, name)
		modules = append(modules, name+"="+strings.TrimPrefix(address, "hf://"))
		if !strings.HasPrefix(address, "hf://") {
			it.note("adapter %s at %s: mount it, and write its path into lora_modules here", name, address)
		}
		it.noteRest("adapters.", a)
	}
	if len(names) == 0 {
		return nil
	}
	it.set("adapters", names)
	it.note("clients of KubeAI name an adapter model_adapter; here they name the adapter alone")
	return map[string]any{"enable_lora": true, "lora_modules": modules}
}

// kubeAIRouting sets which replica gets a request.
func kubeAIRouting(it *item, s source) {
	hash := s.mapping("prefixHash")
	switch strategy := s.text("strategy"); strategy {
	default:
		it.note("loadBalancing.strategy %s: the default here is prefix", strategy)
	case "":
	case "LeastLoad":
		it.set("routing", flow("strategy", "least_connections"))
	case "PrefixHash":
		routing := flow("strategy", "chwbl")
		if n, ok := hash.number("meanLoadFactor"); ok {
			routing.set("load_factor", n/100)
		}
		if n, ok := hash.number("replication"); ok {
			routing.set("virtual_nodes_per_replica", int64(n))
		}
		it.set("routing", routing)
		it.note("PrefixHash is chwbl here; the default, prefix, predicts the first token and is usually better")
	}
	hash.drop("prefixCharLength")
	it.noteRest("loadBalancing.prefixHash.", hash)
	it.noteRest("loadBalancing.", s)
}
