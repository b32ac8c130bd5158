package config

import (
	"path/filepath"
	"slices"
	"strings"

	"github.com/sluice-gateway/sluice/engines"
)

// Catalogue returns the engines that models may name: the built-in ones, overridden and extended by
// those of the file and of objects. The caller must not change it.
func (c *Config) Catalogue() []engines.Engine { return c.catalogue }

// catalogueFor returns the engines that a model chooses from. Models of the file do not see the
// engines of objects. Otherwise, whoever may write an Engine object could make the models of the
// file run any program, on this node and with their secrets.
func (c *Config) catalogueFor(m Model) []engines.Engine {
	sameName := func(other Model) bool { return other.Name == m.Name }
	if slices.ContainsFunc(c.Models[len(c.Models)-c.objectModels:], sameName) {
		return c.catalogue
	}
	return c.ownCatalogue
}

// catalogue returns the built-in engines, overridden and extended by own.
func catalogue(own []Engine) []engines.Engine {
	catalogue := slices.Clone(engines.Builtin())
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

// withVersion returns the versions with v in the place of the one of the same name, or behind them.
func withVersion(versions []engines.Version, v engines.Version) []engines.Version {
	versions = slices.Clone(versions) // the built-in ones are shared
	i := slices.IndexFunc(versions, func(known engines.Version) bool { return known.Version == v.Version })
	if i < 0 {
		return append(versions, v)
	}
	versions[i] = v
	return versions
}

// definition returns the version in the form of the catalogue. What the file cannot say is that of
// the built-in version.
func (v EngineVersion) definition() engines.Version {
	d := v.Base
	d.Version = v.Version
	d.Tasks, d.Schema, d.TaskVariables = v.Tasks, v.Schema, v.TaskVariables
	d.Command, d.Flags, d.Env = v.Command, engines.FlagStyle(v.Flags), v.Env
	d.Image, d.Kubernetes, d.PodHost = v.Image, v.Kubernetes, v.PodHost
	d.RayVariables, d.MultiHost = v.RayVariables, engines.MultiHost(v.MultiHost)
	d.Ready, d.Health = engines.Probe(v.Ready), engines.Probe(v.Health)
	d.Slots, d.Metrics, d.PrefillRate = engines.Slots(v.Slots), engines.Metrics(v.Metrics), v.PrefillRate
	d.Protocol, d.RerankAPI, d.Usage = string(v.Protocol), string(v.RerankAPI), v.Usage
	d.Routes = converted[string](v.Routes)
	return d
}

// converted returns texts as texts of another type. No list stays no list.
func converted[To, From ~string](list []From) []To {
	if list == nil {
		return nil
	}
	all := make([]To, len(list))
	for i, text := range list {
		all[i] = To(text)
	}
	return all
}

// CheckKubernetes calls check for every engine version of the file and returns the faults of field
// kubernetes that check finds. check renders that field; it lives in the launcher for Kubernetes.
func (c *Config) CheckKubernetes(check func(engines.Version) error) Faults {
	d := newDecoder(c.name)
	d.read(d.parseDocument(c.source), new(Config)) // records the lines
	d.faults = nil
	for i, engine := range c.Engines {
		for j, version := range engine.Versions {
			if err := check(version.definition()); err != nil {
				d.faultf(path{"engines"}.item(i).field("versions").item(j).field("kubernetes"), "%s", templateFault(err))
			}
		}
	}
	return d.faults
}

// templateFault returns an error of rendering the field kubernetes as the message of a fault.
// text/template begins its errors with kubernetes:LINE, where LINE counts from the first line of
// the template.
func templateFault(err error) string {
	message := strings.ReplaceAll(strings.TrimPrefix(err.Error(), "kubernetes: "), "\n", "; ")
	if rest, ok := strings.CutPrefix(message, "kubernetes:"); ok {
		return "in the template, line " + rest
	}
	return message
}

// OtherNames returns the aliases and adapters of the model: the names, beside Name, that clients
// may request it by.
func (m Model) OtherNames() []string { return slices.Concat(m.Aliases, m.Adapters) }

// Launched tells whether Sluice launches the replicas of the model.
func (m Model) Launched() bool {
	return m.Launcher == engines.Local || m.Launcher == engines.Kubernetes || m.Launcher == engines.Ray
}

// Launch returns the engine version of a launched model, and what its replicas are started with.
// The fields Host, Port and Sluice are left to the launcher. Both results are zero for a model that
// is not launched.
func (c *Config) Launch(m Model) (engines.Version, engines.Launch) {
	if !m.Launched() {
		return engines.Version{}, engines.Launch{}
	}
	version, _ := engines.Find(c.catalogueFor(m), m.Engine, m.Version)
	return version, c.launch(m)
}

// launch returns what the replicas of a launched model are started with.
func (c *Config) launch(m Model) engines.Launch {
	l := engines.Launch{Name: m.Name, Task: m.Task, Args: m.Args, Variables: m.Variables}
	if m.Resources != nil {
		l.GPUs = m.Resources.Needs().Devices()
		if share := m.Resources.GPU; share < 1 {
			l.GPUShare = share
		}
	}
	if m.Source == nil {
		return l
	}
	registry, _ := c.registry(m.Source.Registry)
	l.Registry, l.Model = string(registry.Kind), m.Source.Name
	if registry.Kind == Directory {
		l.Model = filepath.Join(registry.Path, m.Source.Name)
	}
	if cached, link, ok := c.CachedWeights(m); ok {
		l.Registry, l.Model = string(Directory), cachedPath(m, cached, link)
	}
	return l
}

// registry returns the registry of that name: one of the file, or huggingface, which always exists.
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
