package config

import (
	"cmp"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/sluice-gateway/sluice/engines"
)

// checkLocalModel checks a model with launcher local: its replicas run on this node, or on one that
// joined.
func (k *checker) checkLocalModel(at path, m *Model) {
	for _, field := range refusedFields(engines.Local) {
		k.rejectSet(at.field(field), "launcher: local")
	}
	where, labels := at.field("cluster"), k.nodeLabels()
	if m.Cluster != "" && k.valid(where) && !slices.Contains(labels, m.Cluster) {
		k.faultf(where, "no node in nodes has the label %s; %s", quoted(m.Cluster), suggest(m.Cluster, labels))
	}
	k.checkLaunchedModel(at, m)
	k.setSecretEnv(at, m)
}

// nodeLabels returns the labels of all nodes, sorted, each once.
func (k *checker) nodeLabels() []string {
	var all []string
	for _, n := range k.config.Nodes {
		all = append(all, n.Labels...)
	}
	slices.Sort(all)
	return slices.Compact(all)
}

func (k *checker) checkNodes() {
	var names []named
	for i := range k.config.Nodes {
		n, at := &k.config.Nodes[i], path{"nodes"}.item(i)
		names = append(names, named{n.Name, at.field("name")})
		k.checkName(at.field("name"), n.Name)
		for j, label := range n.Labels {
			k.checkName(at.field("labels").item(j), label)
		}
		n.Ranges = k.checkRanges(at.field("addresses"), n.Addresses)
	}
	k.checkUnique(names)
}

// checkLaunchedModel checks what launcher local and launcher kubernetes have in common. It returns
// the engine version of the model, and whether the model has no fault.
func (k *checker) checkLaunchedModel(at path, m *Model) (engines.Version, bool) {
	if where := at.field("upstreams"); k.isSet(where) && k.valid(where) {
		k.faultf(where, "has no effect with launcher: %s; remove it, or set launcher: upstream", m.Launcher)
	}
	k.checkServedModel(at.field("served_model"), m.ServedModel)
	k.checkAdapters(at.field("adapters"), m)
	k.checkReplicas(at.field("replicas"), &m.Replicas)
	k.checkScaleTarget(at, m)
	k.checkResources(at, m)
	k.checkEnv(at.field("env"), m.Env)
	version, ok := k.resolveVersion(at, m)
	if !ok {
		return version, false
	}
	k.checkTask(at.field("task"), m, version)
	m.Protocol, m.RerankAPI = cmp.Or(m.Protocol, Protocol(version.Protocol)), cmp.Or(m.RerankAPI, RerankAPI(version.RerankAPI))
	m.Usage = version.Usage
	if m.Routes == nil {
		m.Routes = converted[Route](version.Routes)
	}
	before := len(k.faults)
	k.checkModelSource(at.field("source"), m, version)
	k.checkVariables(at.field("variables"), m, version)
	k.checkGPUs(at.field("variables"), m, version)
	for _, fault := range version.CheckArgs(m.Args) {
		k.faultf(at.field("args").below([]any{}, fault.Path), "%s", fault.Reason)
	}
	if before < len(k.faults) || !k.valid(at.field("source")) {
		return version, false
	}
	launch := k.config.launch(*m)
	launch.Host, launch.Port, launch.Sluice = "127.0.0.1", 65535, "sluice"
	if _, err := version.Render(launch); err != nil {
		k.faultf(at.field("variables"), "give no command for engine %s: %v", engineTitle(m), err)
	} else if _, err := version.RenderEnv(launch); err != nil {
		k.faultf(at.field("variables"), "give no environment for engine %s: %v", engineTitle(m), err)
	}
	return version, before == len(k.faults)
}

// checkAdapters checks the names of adapters on SGLang. It answers a request for an adapter without
// the name of a model before it with the model, without an error.
func (k *checker) checkAdapters(at path, m *Model) {
	if m.Engine != "sglang" {
		return
	}
	for i, adapter := range m.Adapters {
		if !strings.Contains(adapter, ":") {
			k.faultf(at.item(i), "must be written as %s, because SGLang knows an adapter in requests only by the model and the adapter",
				quoted(m.Name+":"+adapter))
		}
	}
}

// engineTitle returns the engine and version of a model for messages.
func engineTitle(m *Model) string { return m.Engine + " " + m.Table }

// resolveVersion finds the model's engine version and writes its name into the model's Table. The
// second result is false when there is no such version or when the version itself has a fault,
// which is reported where it is defined.
func (k *checker) resolveVersion(at path, m *Model) (engines.Version, bool) {
	where := at.field("engine")
	catalogue := k.config.ownCatalogue
	if _, isObject := k.objects[at.key()]; isObject {
		catalogue = k.config.catalogue
	}
	var known []string
	for _, e := range catalogue {
		known = append(known, e.Name)
	}
	i := slices.Index(known, m.Engine)
	switch {
	case !k.valid(where):
		return engines.Version{}, false
	case m.Engine == "":
		k.faultf(where, "required with launcher: %s, and missing; known are %s", m.Launcher, strings.Join(known, ", "))
		return engines.Version{}, false
	case i < 0:
		k.faultf(where, "there is no engine %s; %s", quoted(m.Engine), suggest(m.Engine, known))
		return engines.Version{}, false
	}
	if len(catalogue[i].Versions) == 0 {
		return engines.Version{}, false // the engine itself has a fault
	}
	version, ok := catalogue[i].Resolve(m.Version)
	if !ok {
		var versions []string
		for _, v := range catalogue[i].Versions {
			versions = append(versions, v.Version)
		}
		k.faultf(at.field("version"), "engine %s has no version at or below %s; there are %s", m.Engine, quoted(m.Version), strings.Join(versions, ", "))
		return version, false
	}
	m.Version, m.Table = cmp.Or(m.Version, version.Version), version.Version
	key := m.Engine + " " + m.Table
	valid, checked := k.versionValid[key]
	if !checked {
		ofFile := slices.ContainsFunc(k.config.Engines, func(e Engine) bool { return e.Name == m.Engine })
		valid = !ofFile || len(version.Check()) == 0 // the built-in ones have no fault
		k.versionValid[key] = valid
	}
	return version, valid
}

// checkTask checks that the engine serves the task, or sets the default task.
func (k *checker) checkTask(at path, m *Model, version engines.Version) {
	if !k.valid(at) || len(version.Tasks) == 0 {
		return
	}
	switch {
	case m.Task == "":
		m.Task = version.Tasks[0]
	case !version.Serves(m.Task):
		k.faultf(at, "engine %s does not serve %s; it serves %s", engineTitle(m), m.Task, strings.Join(converted[string](version.Tasks), ", "))
	}
}

// checkModelSource checks that the model has a source if, and only if, the engine uses one.
func (k *checker) checkModelSource(at path, m *Model, version engines.Version) {
	used, needed := version.Source()
	switch {
	case m.Source == nil && needed:
		k.faultf(at, "required, and missing: the command of engine %s uses {{.Model}}", engineTitle(m))
	case m.Source != nil && !used:
		k.rejectSet(at, "engine "+engineTitle(m)+", whose command does not use {{.Model}}")
	case m.Source != nil:
		k.checkSource(at, m)
	}
}

// checkVariables checks a model's variables by the schema of its engine. Each fault is on the line
// of the variable.
func (k *checker) checkVariables(at path, m *Model, version engines.Version) {
	if !k.valid(at) {
		return
	}
	for _, fault := range version.CheckVariables(m.Task, m.Variables) {
		where := at.below(m.Variables, fault.Path)
		if len(fault.Known) > 0 {
			k.faultf(where, "engine %s has no such variable; %s", engineTitle(m), suggest(fault.Path[len(fault.Path)-1], fault.Known))
			continue
		}
		k.faultf(where, "%s", fault.Reason)
	}
}

// below returns the path that leads from p down into value along names. value was read at p; its
// shape tells which names are indexes of lists.
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

// checkReplicas sets the default of max and checks that max is at least min.
func (k *checker) checkReplicas(at path, r *Replicas) {
	minimum, maximum := at.field("min"), at.field("max")
	if !k.valid(minimum) || !k.valid(maximum) {
		return
	}
	if !k.isSet(maximum) {
		r.Max = max(r.Min, 1)
	}
	if r.Max < r.Min {
		k.faultf(maximum, "must be at least min, which is %d, is %d", r.Min, r.Max)
	}
}

// checkEnv checks the names of an environment. No message shows a value, which may be a secret.
func (k *checker) checkEnv(at path, env map[string]string) {
	for _, name := range slices.Sorted(maps.Keys(env)) {
		if name == "" || strings.ContainsAny(name, "=\x00") {
			k.faultf(at.field(name), "cannot be the name of an environment variable: it must not be empty and must not contain = or NUL")
		} else if strings.Contains(env[name], "\x00") {
			k.faultf(at.field(name), "must not hold a NUL character")
		}
	}
}
