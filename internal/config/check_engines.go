package config

import (
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/sluice-gateway/sluice/engines"
)

// engines checks the file's own engines and sets the catalogue that models pick from.
func (k *checker) engines() {
	var names []named
	for i, engine := range k.config.Engines {
		at := path{"engines"}.item(i)
		names = append(names, named{engine.Name, at.field("name")})
		k.name(at.field("name"), engine.Name)
		if len(engine.Versions) == 0 && k.given(at.field("versions")) && k.sound(at.field("versions")) {
			k.fault(at.field("versions"), "must have at least one version")
		}
		k.versions(at.field("versions"), engine.Versions)
	}
	k.unique(names)
	c := k.config
	c.catalogue = catalogue(c.Engines)
	if c.ownCatalogue = c.catalogue; c.guestEngines > 0 {
		c.ownCatalogue = catalogue(c.Engines[:len(c.Engines)-c.guestEngines])
	}
}

func (k *checker) versions(at path, versions []EngineVersion) {
	var names []named
	for i, version := range versions {
		where := at.item(i)
		names = append(names, named{version.Version, where.field("version")})
		if len(version.Tasks) == 0 && k.given(where.field("tasks")) && k.sound(where.field("tasks")) {
			k.fault(where.field("tasks"), "must name at least one task")
		}
		for _, fault := range version.definition().Check() {
			if field := where.below(nil, fault.Path); k.sound(where.field(fault.Path[0])) && k.sound(field) {
				k.fault(field, "%s", fault.Reason)
			}
		}
		for task := range version.TaskVariables {
			if !slices.Contains(version.Tasks, task) {
				k.fault(where.field("task_variables").field(string(task)), "is none of the version's tasks")
			}
		}
	}
	k.unique(names)
}

// registries checks where models come from.
func (k *checker) registries() {
	var names []named
	for i := range k.config.Registries {
		registry, at := &k.config.Registries[i], path{"registries"}.item(i)
		names = append(names, named{registry.Name, at.field("name")})
		k.name(at.field("name"), registry.Name)
		where := at.field("path")
		switch {
		case !k.sound(where):
		case registry.Kind == HuggingFace && registry.Path != "":
			k.fault(where, "has no effect on a registry of kind huggingface")
		case registry.Kind == HuggingFace && registry.Claim != "":
			k.fault(at.field("claim"), "has no effect on a registry of kind huggingface")
		case registry.Kind == Directory && registry.Path == "":
			k.fault(where, "required for a registry of kind directory")
		case registry.Claim != "":
			k.claim(at, registry)
		case registry.Kind == Directory:
			registry.Path = k.resolve(registry.Path)
			if stat, err := os.Stat(registry.Path); err != nil {
				k.fault(where, "cannot be used: %s", reasonOf(err))
			} else if !stat.IsDir() {
				k.fault(where, "must be a directory")
			}
		}
	}
	k.unique(names)
}

// source checks that the model is there, as far as it can be known.
func (k *checker) source(at path, m *Model) {
	s := *m.Source
	registry, ok := k.config.registry(s.Registry)
	if !ok {
		k.fault(at.field("registry"), "there is no registry %s; %s", shown(s.Registry), suggestion(s.Registry, k.config.registryNames()))
		return
	}
	where := at.field("name")
	if s.Name == "" || !k.sound(where) {
		return
	}
	if registry.Kind == HuggingFace {
		if strings.ContainsAny(s.Name, " \t\r\n\\") || strings.HasPrefix(s.Name, "/") || strings.HasPrefix(s.Name, "-") {
			k.fault(where, "must be an id such as org/name")
		}
		return
	}
	if !filepath.IsLocal(s.Name) {
		k.fault(where, "must be a path below the registry's directory, without ..")
		return
	}
	if m.Launcher == engines.Kubernetes {
		if registry.Claim == "" {
			k.fault(at.field("registry"), "registry %s has no claim: on Kubernetes a directory is one of a PersistentVolumeClaim", shown(s.Registry))
		}
		return
	}
	if _, err := os.Stat(filepath.Join(registry.Path, s.Name)); err != nil && k.soundRegistry(s.Registry) {
		k.fault(where, "is not in the registry's directory: %s", reasonOf(err))
	}
}

// soundRegistry tells whether the path of a registry has no fault of its own.
func (k *checker) soundRegistry(name string) bool {
	for i, r := range k.config.Registries {
		if r.Name == name {
			return k.sound(path{"registries"}.item(i).field("path"))
		}
	}
	return true
}
