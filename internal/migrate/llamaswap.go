package migrate

import (
	"fmt"
	"net"
	"net/url"
	"path"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/sluice-gateway/sluice/authz"
	"github.com/sluice-gateway/sluice/internal/redact"
)

const (
	// llamaSwapTimeout is llama-swap's default of healthCheckTimeout.
	llamaSwapTimeout = 120
	// stopGrace is how long a replica has to end, in seconds, here and by default in llama-swap.
	stopGrace = 10
	// maxCommand bounds a command while macros are replaced in it, in bytes.
	maxCommand = 1 << 20
	// forever is the cooldown of a model that is never stopped for want of requests.
	forever = "8760h"
)

// llamaSwap converts one config.yaml of llama-swap.
type llamaSwap struct {
	out     *output
	macros  map[string]string
	timeout float64
	ttl     float64
	// preload are the names of models that are started at once, without those converted already.
	preload []string
	// folders are the registries by their path.
	folders map[string]string
}

// convertLlamaSwap converts a config.yaml of llama-swap.
func convertLlamaSwap(o *output, file source) {
	c := &llamaSwap{out: o, macros: macrosOf(file.mapping("macros")), timeout: llamaSwapTimeout, folders: map[string]string{}}
	if n, ok := file.number("healthCheckTimeout"); ok {
		c.timeout = n
	}
	c.ttl, _ = file.number("globalTTL")
	hooks := file.mapping("hooks")
	startup := hooks.mapping("on_startup")
	c.preload = startup.list("preload")
	o.noteRest("hooks.on_startup.", startup)
	models := file.mapping("models")
	for _, name := range models.rest() {
		c.model(name, models.mapping(name))
	}
	for _, name := range c.preload {
		o.note("hooks.on_startup.preload %s: no model of models has that name here", name)
	}
	c.peers(file.mapping("peers"))
	c.selectors(file.mapping("selectors"))
	c.keys(file.list("apiKeys"))
	routing := file.mapping("routing")
	if len(file.mapping("groups"))+len(file.mapping("matrix"))+len(routing.mapping("router")) > 0 || len(o.models) > 1 {
		o.note("llama-swap runs one model, or one group, at a time. Models run side by side here, and an idle one makes room (evict: idle) " +
			"if resources say what each needs: set resources.memory or resources.gpu of each model here")
	}
	file.drop("startPort", "logLevel", "logTimeFormat", "logToStdout", "metricsMaxInMemory", "captureBuffer", "ui", "performance")
	noteUnlikeHere(o.note, file)
	o.noteRest("routing.", routing)
	o.noteRest("hooks.", hooks)
	o.noteRest("", file)
}

// model converts one model.
func (c *llamaSwap) model(name string, s source) {
	it := newItem()
	valid := it.validName("name", name)
	it.set("name", valid)
	aliases := s.list("aliases")
	if len(aliases) > 0 {
		it.set("aliases", validAliases(it, aliases))
	}
	own := macrosOf(s.mapping("macros"))
	command := splitWords(c.expand(s.text("cmd"), name, own))
	proxy := c.expand(s.text("proxy"), name, own)
	check := s.text("checkEndpoint")
	if len(command) == 0 {
		it.note("cmd is missing: write here how the model is started")
	}
	if !onThisMachine(withEnvironment(proxy)) {
		it.note("proxy %s: replicas are called on this machine here; a server elsewhere belongs into upstreams of a model with launcher upstream",
			redact.Text(proxy))
	}
	command = withoutKey(it, withPort(command, withEnvironment(proxy)))
	noteReferences(it, command)
	if isLlamaServer(command) && (check == "" || check == "/health") {
		c.builtIn(it, command)
	} else {
		c.ownEngine(it, valid, command, check)
	}
	c.lifetime(it, append(aliases, name), s)
	c.environment(it, s.list("env"), func(text string) string { return c.expand(text, name, own) })
	if n, ok := s.number("concurrencyLimit"); ok && n > 0 {
		it.set("admission", flow("max_per_replica", int64(n)))
	}
	if served := s.text("useModelName"); served != "" {
		it.note("useModelName %s: the engine is asked by %s here; let it know that name", served, valid)
	}
	if stop := s.text("cmdStop"); stop != "" {
		it.note("cmdStop %s: replicas are ended by SIGTERM here", stop)
	}
	if shown := s.text("name"); shown != "" {
		it.note("name %s: a model has no other name for people here", shown)
	}
	if s.flag("unlisted") {
		it.note("unlisted: GET /v1/models lists each model that the tenant may use here")
	}
	noteFilters(it, s.mapping("filters"), append(aliases, name), func(text string) string { return c.expand(text, name, own) })
	noteUnlikeHere(it.note, s)
	it.noteRest("", s)
	c.out.models = append(c.out.models, it)
}

// noteFilters notes what llama-swap changes in the requests of a model, which has these names. It
// also serves a model by other names for which it sets parameters.
func noteFilters(it *item, filters source, names []string, expand func(string) string) {
	for _, asked := range filters.mapping("setParamsByID").rest() {
		hint := ""
		if asked = expand(asked); !slices.Contains(names, asked) {
			hint = ", and it is no name of the model: write it into aliases if clients ask for it"
		}
		it.note("filters.setParamsByID %s: requests for this name get no parameters here%s", asked, hint)
	}
	it.noteRest("filters.", filters)
}

// noteUnlikeHere notes the fields of the file or of a model that ask for something which Sluice
// does in another way.
func noteUnlikeHere(note func(format string, args ...any), s source) {
	if s.flag("sendLoadingState") {
		note("sendLoadingState: a stream that waits for a replica gets heartbeats with the phase of the start here, and no text in its reasoning")
	}
	if s.flag("includeAliasesInList") {
		note("includeAliasesInList: GET /v1/models lists models without their aliases here")
	}
	if n, ok := s.number("unloadTimeout"); ok && n != stopGrace {
		note("unloadTimeout %v: a replica has %d s to end after SIGTERM here", n, stopGrace)
	}
}

// lifetime sets when replicas of a model, which has these names, are started and stopped.
func (c *llamaSwap) lifetime(it *item, names []string, s source) {
	least := 0
	c.preload = slices.DeleteFunc(c.preload, func(preloaded string) bool {
		isThis := slices.Contains(names, preloaded)
		if isThis {
			least = 1
		}
		return isThis
	})
	it.set("replicas", flow("min", least, "max", 1))
	it.set("evict", "idle")
	ttl, ok := s.number("ttl")
	if !ok || ttl < 0 { // -1 stands for globalTTL
		ttl = c.ttl
	}
	if ttl > 0 {
		it.set("cooldown", seconds(ttl))
	} else {
		it.set("cooldown", forever)
	}
	it.set("cold_start", flow("wait", seconds(c.timeout), "load_timeout", seconds(c.timeout)))
}

func seconds(n float64) string { return (time.Duration(n) * time.Second).String() }

// onThisMachine reports whether the address of a model, which may be missing or have a template for
// its port, is one of this machine.
func onThisMachine(proxy string) bool {
	u, err := url.Parse(strings.ReplaceAll(proxy, portTemplate, "1"))
	if err != nil || proxy == "" {
		return err == nil
	}
	ip := net.ParseIP(u.Hostname())
	return u.Hostname() == "localhost" || ip.IsLoopback() || ip.IsUnspecified()
}

// hasPort reports whether a command has the port that Sluice chooses.
func hasPort(command []string) bool {
	return slices.ContainsFunc(command, func(w string) bool { return strings.Contains(w, portTemplate) })
}

// withPort replaces a fixed port by the one that Sluice chooses, if the command has none.
func withPort(command []string, proxy string) []string {
	if hasPort(command) {
		return command
	}
	u, err := url.Parse(proxy)
	if err != nil || u.Port() == "" {
		return command
	}
	port := u.Port()
	isTold := func(word string) bool { return word == port || strings.HasSuffix(word, "="+port) }
	inside := port // of a container: the port that its program is told, or has by itself
	if slices.ContainsFunc(command, isTold) {
		inside = portTemplate
	}
	published := regexp.MustCompile("(^|[=:])" + port + ":" + port + "$")
	for i, word := range command {
		switch {
		case published.MatchString(word):
			command[i] = strings.TrimSuffix(word, port+":"+port) + portTemplate + ":" + inside
		case isTold(word):
			command[i] = strings.TrimSuffix(word, port) + portTemplate
		case strings.HasPrefix(word, port+":"):
			command[i] = portTemplate + strings.TrimPrefix(word, port)
		}
	}
	return command
}

func isLlamaServer(command []string) bool {
	return len(command) > 0 && path.Base(command[0]) == "llama-server" && modelOf(command) != ""
}

// modelOf returns what a command of llama-server loads.
func modelOf(command []string) string {
	for i, word := range command {
		name, value, joined := strings.Cut(word, "=")
		if slices.Contains([]string{"-m", "--model", "-hf", "-hfr", "--hf-repo"}, name) {
			if joined {
				return value
			}
			if i+1 < len(command) {
				return command[i+1]
			}
		}
	}
	return ""
}

// builtIn uses the built-in engine llama-cpp for a command of llama-server.
func (c *llamaSwap) builtIn(it *item, command []string) {
	task, args := "text-generation", []string(nil)
	for i := 1; i < len(command); i++ {
		name, value, joined := strings.Cut(command[i], "=")
		next := func() string {
			if joined {
				return value
			}
			if i++; i < len(command) {
				return command[i]
			}
			return ""
		}
		switch name {
		case "-m", "--model":
			c.file(it, next())
		case "-hf", "-hfr", "--hf-repo":
			it.set("source", flow("name", next()))
		case "--port", "--host", "-a", "--alias":
			next()
		case "--metrics", "--slots":
		case "--embedding", "--embeddings":
			task = "embedding"
		case "--rerank", "--reranking":
			task = "rerank"
		default:
			args = append(args, command[i])
		}
	}
	it.set("task", task)
	it.set("engine", "llama-cpp")
	if program := command[0]; program != "llama-server" {
		it.note("the program was %s: put its folder into $PATH here", program)
	}
	it.setArguments("llama-cpp", task, args, nil)
}

// file names a file of weights by its folder, which becomes a registry.
func (c *llamaSwap) file(it *item, file string) {
	folder := path.Dir(file)
	name, known := c.folders[folder]
	if !known {
		name = fmt.Sprintf("folder-%d", len(c.folders)+1)
		c.folders[folder] = name
		registry := flow("name", name, "kind", "directory", "path", folder)
		c.out.registries = append(c.out.registries, registry)
	}
	it.set("source", flow("registry", name, "name", path.Base(file)))
}

func (c *llamaSwap) ownEngine(it *item, name string, command []string, check string) {
	engine := newItem()
	engine.set("name", name)
	version := newItem()
	version.set("version", "1")
	version.set("tasks", []string{"text-generation"})
	version.set("command", command)
	switch check {
	case "none":
	case "":
		version.set("ready", flow("path", "/health"))
	default:
		version.set("ready", flow("path", check))
	}
	engine.set("versions", []*item{version})
	c.out.engines = append(c.out.engines, engine)
	it.set("task", "text-generation")
	it.set("engine", name)
	if len(command) > 0 && !hasPort(command) {
		it.note("the command of its engine has no port: write %s here where its port belongs", portTemplate)
	}
	it.note("the task is a guess: correct it and that of its engine here, and set slots of the engine")
}

// peers converts the servers that llama-swap passes requests on to.
func (c *llamaSwap) peers(s source) {
	for _, name := range s.rest() {
		peer := s.mapping(name)
		address, warning := plainAddress(peer.text("proxy"))
		key := peer.text("apiKey")
		for _, model := range peer.list("models") {
			it := newItem()
			valid := it.validName("name", model)
			it.set("name", valid)
			it.set("launcher", "upstream")
			if warning != "" {
				it.note("%s", warning)
			}
			upstream := flow("url", address)
			if valid != model {
				upstream.set("model", model)
			}
			if variable, ok := strings.CutPrefix(strings.TrimSuffix(key, "}"), "${"+environmentMacro); ok {
				upstream.set("api_key_env", variable)
			} else if key != "" {
				variable = c.out.keyVariable(name, key)
				upstream.set("api_key_env", variable)
				it.note("%s", keyWarning(address, variable))
			}
			it.set("upstreams", []*item{upstream})
			c.out.models = append(c.out.models, it)
		}
		c.out.noteRest("peers."+name+".", peer)
	}
}

// selectors converts names that stand for one of several models to pools.
func (c *llamaSwap) selectors(s source) {
	for _, name := range s.rest() {
		selector := s.mapping(name)
		pool := newItem()
		pool.set("name", pool.validName("name", name))
		targets := selector.list("targets")
		for i := range targets {
			targets[i] = pool.validName("name of a target", targets[i])
		}
		pool.set("models", targets)
		if strategy := selector.text("strategy"); strategy != "" {
			pool.note("strategy %s: a request of a pool goes to the model that is free first here", strategy)
		}
		pool.noteRest("", selector)
		c.out.pools = append(c.out.pools, pool)
	}
}

// keys converts the API keys to those of one tenant.
func (c *llamaSwap) keys(keys []string) {
	if len(keys) == 0 {
		c.out.admitAll("apiKeys")
		return
	}
	tenant := newItem()
	tenant.set("name", "main")
	var hashes []string
	for _, key := range keys {
		expanded := withEnvironment(c.expand(key, "", nil))
		if reference.MatchString(expanded) {
			tenant.note("the key %s is not set in this environment: add its hash here", key)
			continue
		}
		hashes = append(hashes, authz.HashKey(expanded))
	}
	if len(hashes) > 0 {
		tenant.set("keys", hashes)
	}
	c.out.tenants = append(c.out.tenants, tenant)
}
