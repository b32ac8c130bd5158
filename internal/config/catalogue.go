package config

import (
	"path/filepath"
	"reflect"
	"slices"
	"strings"

	"github.com/sluice-gateway/sluice/engines"
)

// Catalogue lists the engines that models may name: the built-in ones, and over them the file's own. It must not be changed.
func (c *Config) Catalogue() []engines.Engine { return c.catalogue }

// catalogueFor is what a model picks from. The file's models get nothing of what objects say: who may write an engine could else have them run
// any program, on this host and with their secrets, by another version of their engine.
func (c *Config) catalogueFor(m Model) []engines.Engine {
	isIt := func(other Model) bool { return other.Name == m.Name }
	if slices.ContainsFunc(c.Models[len(c.Models)-c.guestModels:], isIt) {
		return c.catalogue
	}
	return c.ownCatalogue
}

func catalogue(own []Engine) []engines.Engine {
	catalogue := engines.Builtin()
	for _, e := range own {
		i := slices.IndexFunc(catalogue, func(known engines.Engine) bool { return known.Name == e.Name })
		if i < 0 {
			i = len(catalogue)
			catalogue = append(catalogue, engines.Engine{Name: e.Name})
		}
		for _, v := range e.Versions {
			catalogue[i].Versions = withVersion(catalogue[i].Versions, v.definition())
		}
	}
	return catalogue
}

// withVersion puts a version in the place of the one of the same name, or last.
func withVersion(versions []engines.Version, v engines.Version) []engines.Version {
	i := slices.IndexFunc(versions, func(known engines.Version) bool { return known.Version == v.Version })
	if i < 0 {
		return append(versions, v)
	}
	versions[i] = v
	return versions
}

// definition is the version as the catalogue has it.
func (v EngineVersion) definition() engines.Version {
	return engines.Version{
		Version:       v.Version,
		Tasks:         v.Tasks,
		Schema:        v.Schema,
		TaskVariables: v.TaskVariables,
		Command:       v.Command,
		Flags:         engines.FlagStyle(v.Flags),
		Env:           v.Env,
		Image:         v.Image,
		Kubernetes:    v.Kubernetes,
		Ready:         engines.Probe(v.Ready),
		Health:        engines.Probe(v.Health),
		Slots:         engines.Slots(v.Slots),
		Metrics:       engines.Metrics(v.Metrics),
		Protocol:      string(v.Protocol),
		RerankAPI:     string(v.RerankAPI),
	}
}

// CheckKubernetes holds what the file's own engines say of Kubernetes against check, which can render it, and returns the faults that it finds.
func (c *Config) CheckKubernetes(check func(engines.Version) error) Faults {
	d := newDecoder(c.name)
	d.read(d.document(c.source), new(Config)) // for the lines
	d.faults = nil
	for i, engine := range c.Engines {
		for j, version := range engine.Versions {
			if err := check(version.definition()); err != nil {
				message := strings.ReplaceAll(strings.TrimPrefix(err.Error(), "kubernetes: "), "\n", "; ")
				if place, ok := strings.CutPrefix(message, "kubernetes:"); ok { // as text/template names lines
					message = "its line " + place
				}
				d.fault(path{"engines"}.item(i).field("versions").item(j).field("kubernetes"), "%s", message)
			}
		}
	}
	return d.faults
}

// OtherNames are the aliases and the adapters: what the model may be asked for by, beside its name.
func (m Model) OtherNames() []string { return slices.Concat(m.Aliases, m.Adapters) }

// Launched tells whether the model's replicas are launched by Sluice.
func (m Model) Launched() bool {
	return m.Launcher == engines.Local || m.Launcher == engines.Kubernetes
}

// Launch is the engine version that a launched model runs on, and what its replicas are started with, except for Host, Port and Sluice,
// which the launcher knows. It is zero for a model that is not launched.
func (c *Config) Launch(m Model) (engines.Version, engines.Launch) {
	if !m.Launched() {
		return engines.Version{}, engines.Launch{}
	}
	version, _ := engines.Find(c.catalogueFor(m), m.Engine, m.Version)
	return version, c.launch(m)
}

func (c *Config) launch(m Model) engines.Launch {
	l := engines.Launch{Name: m.Name, Task: m.Task, Variables: m.Variables}
	if m.Resources != nil {
		l.GPUs = m.Resources.Needs().Devices()
	}
	if m.Source == nil {
		return l
	}
	registry, _ := c.registry(m.Source.Registry)
	l.Registry, l.Model = string(registry.Kind), m.Source.Name
	if registry.Kind == Directory {
		l.Model = filepath.Join(registry.Path, m.Source.Name)
	}
	return l
}

// registry finds a registry of the file, or the one that is always there.
func (c *Config) registry(name string) (Registry, bool) {
	for _, r := range c.Registries {
		if r.Name == name {
			return r, true
		}
	}
	if name == string(HuggingFace) {
		return Registry{Name: name, Kind: HuggingFace}, true
	}
	return Registry{}, false
}

func (c *Config) registryNames() []string {
	names := []string{string(HuggingFace)}
	for _, r := range c.Registries {
		names = append(names, r.Name)
	}
	return names
}

// DiscoveredModel holds what applies to a model that was discovered on an upstream and is not in the file: the defaults.
func DiscoveredModel() Model {
	var m Model
	d := newDecoder("")
	d.structure(nil, reflect.ValueOf(&m).Elem(), nil)
	m.Launcher = engines.Upstream
	m.Replicas, m.Protocol, m.RerankAPI = Replicas{}, ProtocolHTTP, RerankOpenAI
	k := &checker{decoder: d}
	k.routing(nil, &m.Routing)
	k.refused(nil, &m)
	return m
}
