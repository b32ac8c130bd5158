package config

import (
	"cmp"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/sluice-gateway/sluice/engines"
)

// models checks every model and fills in what depends on other fields. It returns all names and aliases.
func (k *checker) models() []named {
	var names []named
	for i := range k.config.Models {
		m, at := &k.config.Models[i], path{"models"}.item(i)
		names = append(names, named{m.Name, at.field("name")})
		k.name(at.field("name"), m.Name)
		for j, alias := range m.Aliases {
			where := at.field("aliases").item(j)
			names = append(names, named{alias, where})
			k.name(where, alias)
		}
		for j, adapter := range m.Adapters {
			where := at.field("adapters").item(j)
			names = append(names, named{adapter, where})
			k.name(where, adapter)
		}
		k.routing(at.field("routing"), &m.Routing)
		k.stream(at.field("stream"), m)
		k.refused(at, m)
		k.wait(at.field("cold_start_timeout"), m.ColdStartTimeout)
		k.wait(at.field("admission").field("queue_timeout"), m.Admission.QueueTimeout)
		switch m.Launcher {
		case engines.Local:
			k.local(at, m)
		case engines.Kubernetes:
			k.onKubernetes(at, m)
		case engines.Upstream:
			k.remote(at, m)
		case engines.None:
			k.admitted(at, m)
		}
		m.Protocol, m.RerankAPI = cmp.Or(m.Protocol, ProtocolHTTP), cmp.Or(m.RerankAPI, RerankOpenAI)
		k.managed(at, m)
	}
	return names
}

// longestWait is how long a request may be held at most: Envoy gives up on an answer after an hour, and then nobody could tell the client
// why.
const longestWait = 55 * time.Minute

// wait checks how long requests may wait.
func (k *checker) wait(at path, d time.Duration) {
	if d > longestWait && k.sound(at) {
		k.fault(at, "must be at most %v, is %v: Envoy holds no request for longer than an hour", longestWait, d)
	}
}

// remote checks a model whose servers someone else runs.
func (k *checker) remote(at path, m *Model) {
	for _, field := range launchFields {
		k.noEffect(at.field(field), "launcher: upstream")
	}
	where := at.field("upstreams")
	if len(m.Upstreams) == 0 && k.sound(where) {
		k.fault(where, "required with launcher: upstream: the base URLs of the model's servers, such as [http://10.0.0.5:8000]")
	}
	k.upstreams(where, m.Upstreams)
	m.Replicas = Replicas{}
}

// admitted checks a model that tasks are only admitted for.
func (k *checker) admitted(at path, m *Model) {
	for _, field := range append(slices.Clone(launchFields), "upstreams", "cold_start_timeout", "unhealthy_on", "routing", "stream") {
		k.noEffect(at.field(field), "launcher: none")
	}
	for _, field := range []string{"max_per_replica", "max_prefill_per_replica"} {
		k.noEffect(at.field("admission").field(field), "launcher: none")
	}
	m.Replicas = Replicas{}
}

// noEffect adds a fault if a field is given that does nothing.
func (k *checker) noEffect(at path, with string) {
	if k.given(at) && k.sound(at) {
		k.fault(at, "has no effect with %s", with)
	}
}

// launchFields are the fields of a model that say how its replicas are launched.
var launchFields = []string{"engine", "version", "source", "cluster", "replicas", "resources", "gpu_resource", "placement", "evict", "variables",
	"env", "secrets", "cooldown"}

// launched checks what all models that are launched have in common. It returns the version that they run on.
func (k *checker) launched(at path, m *Model) (engines.Version, bool) {
	k.noEffect(at.field("upstreams"), "launcher: "+string(m.Launcher)+"; did you mean launcher: upstream?")
	k.replicas(at.field("replicas"), &m.Replicas)
	k.resources(at, m)
	k.env(at.field("env"), m.Env)
	version, ok := k.version(at, m)
	if !ok {
		return version, false
	}
	k.task(at.field("task"), m, version)
	m.Protocol, m.RerankAPI = cmp.Or(m.Protocol, Protocol(version.Protocol)), cmp.Or(m.RerankAPI, RerankAPI(version.RerankAPI))
	faults := len(k.faults)
	k.modelSource(at.field("source"), m, version)
	k.variables(at.field("variables"), m, version)
	if faults < len(k.faults) || !k.sound(at.field("source")) {
		return version, false
	}
	launch := k.config.launch(*m)
	launch.Host, launch.Port, launch.Sluice = "127.0.0.1", 65535, "sluice"
	if _, err := version.Render(launch); err != nil {
		k.fault(at.field("variables"), "make no command of engine %s: %v", title(m), err)
	} else if _, err := version.RenderEnv(launch); err != nil {
		k.fault(at.field("variables"), "make no environment of engine %s: %v", title(m), err)
	}
	return version, faults == len(k.faults)
}

// title names the engine and version of a model.
func title(m *Model) string { return m.Engine + " " + m.Version }

// version finds the engine's version and writes its name into the model. A version whose own definition is at fault is not
// looked at again.
func (k *checker) version(at path, m *Model) (engines.Version, bool) {
	where := at.field("engine")
	catalogue := k.config.ownCatalogue
	if _, guest := k.guests[at.key()]; guest {
		catalogue = k.config.catalogue
	}
	var known []string
	for _, e := range catalogue {
		known = append(known, e.Name)
	}
	i := slices.Index(known, m.Engine)
	switch {
	case !k.sound(where):
		return engines.Version{}, false
	case m.Engine == "":
		k.fault(where, "required with launcher: %s; known are %s", m.Launcher, strings.Join(known, ", "))
		return engines.Version{}, false
	case i < 0:
		k.fault(where, "there is no engine %s; %s", shown(m.Engine), suggestion(m.Engine, known))
		return engines.Version{}, false
	}
	version, ok := engines.Find(catalogue, m.Engine, m.Version)
	if !ok {
		var versions []string
		for _, v := range catalogue[i].Versions {
			versions = append(versions, v.Version)
		}
		k.fault(at.field("version"), "engine %s has no version %s; %s", m.Engine, shown(m.Version), suggestion(m.Version, versions))
		return version, false
	}
	m.Version = version.Version
	key := m.Engine + " " + m.Version
	sound, checked := k.versionsChecked[key]
	if !checked { // it takes a millisecond, and a thousand models may have the same
		sound = len(version.Check()) == 0
		k.versionsChecked[key] = sound
	}
	return version, sound
}

func (k *checker) task(at path, m *Model, version engines.Version) {
	if !k.sound(at) || len(version.Tasks) == 0 {
		return
	}
	tasks := make([]string, len(version.Tasks))
	for i, t := range version.Tasks {
		tasks[i] = string(t)
	}
	switch {
	case m.Task == "":
		m.Task = version.Tasks[0]
	case !version.Serves(m.Task):
		k.fault(at, "engine %s does not serve %s; it serves %s", title(m), m.Task, strings.Join(tasks, ", "))
	}
}

func (k *checker) modelSource(at path, m *Model, version engines.Version) {
	used, needed := version.Source()
	switch {
	case m.Source == nil && needed:
		k.fault(at, "required: the command of engine %s names {{.Model}}", title(m))
	case m.Source != nil && !used:
		k.noEffect(at, "engine "+title(m)+", whose command does not name {{.Model}}")
	case m.Source != nil:
		k.source(at, m)
	}
}

// variables holds a model's variables against the engine's schema, each fault on the line of the variable.
func (k *checker) variables(at path, m *Model, version engines.Version) {
	if !k.sound(at) {
		return
	}
	for _, fault := range version.CheckVariables(m.Task, m.Variables) {
		where := at.below(m.Variables, fault.Path)
		if len(fault.Known) > 0 {
			k.fault(where, "engine %s has no such variable; %s", title(m), suggestion(fault.Path[len(fault.Path)-1], fault.Known))
			continue
		}
		k.fault(where, "%s", fault.Reason)
	}
}

// below is the path from at down a value that was read from there.
func (p path) below(value any, names []string) path {
	for _, name := range names {
		switch v := value.(type) {
		case []any:
			i, _ := strconv.Atoi(name)
			p, value = p.item(i), nil
			if i < len(v) {
				value = v[i]
			}
		case map[string]any:
			p, value = p.field(name), v[name]
		default:
			p = p.field(name)
		}
	}
	return p
}

func (k *checker) replicas(at path, r *Replicas) {
	least, most := at.field("min"), at.field("max")
	if !k.sound(least) || !k.sound(most) {
		return
	}
	if !k.given(most) {
		r.Max = max(r.Min, 1)
	}
	if r.Max < r.Min {
		k.fault(most, "must be at least min, which is %d", r.Min)
	}
}

// env checks names only; values may be secrets.
func (k *checker) env(at path, env map[string]string) {
	for _, name := range slices.Sorted(maps.Keys(env)) {
		if name == "" || strings.ContainsAny(name, "=\x00") {
			k.fault(at.field(name), "cannot be the name of an environment variable")
		} else if strings.Contains(env[name], "\x00") {
			k.fault(at.field(name), "must not hold a NUL character")
		}
	}
}

// standardSlowStart is how long a new replica is spared when nothing is said.
const standardSlowStart = 10 * time.Second

// prefixFloor is the load_floor of strategy prefix when none is given: about the batch size up to which latency is flat.
const prefixFloor = 8

func (k *checker) routing(at path, r *Routing) {
	floor, slow := at.field("load_floor"), at.field("slow_start")
	if !k.given(slow) && r.Strategy != CHWBL {
		r.SlowStart = standardSlowStart
	}
	switch r.Strategy {
	case CHWBL:
		if r.SlowStart != 0 {
			k.fault(slow, "must be 0s with strategy: chwbl, which looks at loads alone; strategy: prefix is the same with a slow start")
		}
		if r.LoadFloor != 0 {
			k.fault(floor, "must be 0 with strategy: chwbl; strategy: prefix is the same with a floor")
		}
	case Prefix:
		if !k.given(floor) {
			r.LoadFloor = prefixFloor
		}
	case RoundRobin, LeastConnections:
		for _, field := range []string{"virtual_nodes_per_replica", "load_factor", "load_floor", "max_user_messages_for_cache"} {
			k.noEffect(at.field(field), "strategy: "+string(r.Strategy))
		}
	}
}
