package config

import (
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/sluice-gateway/sluice/engines"
)

// checkEngines checks the engines of the file and builds the catalogues that models choose from.
func (k *checker) checkEngines() {
	var names []named
	for i, engine := range k.config.Engines {
		at := path{"engines"}.item(i)
		names = append(names, named{engine.Name, at.field("name")})
		k.checkName(at.field("name"), engine.Name)
		if len(engine.Versions) == 0 && k.isSet(at.field("versions")) && k.valid(at.field("versions")) {
			k.faultf(at.field("versions"), "must have at least one version, is empty")
		}
		k.inheritVersions(at.field("versions"), engine.Name, engine.Versions)
		k.checkVersions(at.field("versions"), engine.Versions)
		if _, isObject := k.objects[at.key()]; isObject {
			for j := range engine.Versions {
				k.rejectSet(at.field("versions").item(j).field("env_from"), "an engine of a custom resource")
			}
		}
	}
	k.checkUnique(names)
	c := k.config
	c.catalogue = catalogue(c.Engines)
	if c.ownCatalogue = c.catalogue; c.objectEngines > 0 {
		c.ownCatalogue = catalogue(c.Engines[:len(c.Engines)-c.objectEngines])
	}
}

func (k *checker) checkVersions(at path, versions []EngineVersion) {
	var names []named
	for i, version := range versions {
		where := at.item(i)
		names = append(names, named{version.Version, where.field("version")})
		if len(version.Tasks) == 0 && k.isSet(where.field("tasks")) && k.valid(where.field("tasks")) {
			k.faultf(where.field("tasks"), "must name at least one task, is empty")
		}
		for _, fault := range version.definition().Check() {
			if field := where.below(nil, fault.Path); k.valid(where.field(fault.Path[0])) && k.valid(field) {
				k.faultf(field, "%s", fault.Reason)
			}
		}
		for task := range version.TaskVariables {
			if !slices.Contains(version.Tasks, task) {
				k.faultf(where.field("task_variables").field(string(task)), "is not a task of the version: add it to tasks, or remove it here")
			}
		}
	}
	k.checkUnique(names)
}

// checkRegistries checks the registries and makes the paths of directories absolute.
func (k *checker) checkRegistries() {
	var names []named
	for i := range k.config.Registries {
		registry, at := &k.config.Registries[i], path{"registries"}.item(i)
		names = append(names, named{registry.Name, at.field("name")})
		k.checkName(at.field("name"), registry.Name)
		where := at.field("path")
		k.checkFetch(at, registry)
		switch {
		case !k.valid(where):
		case registry.Kind == HuggingFace && registry.Path != "":
			k.rejectSet(where, "kind: huggingface")
		case registry.Kind == HuggingFace && registry.Claim != "":
			k.rejectSet(at.field("claim"), "kind: huggingface")
		case registry.Kind == Directory && registry.Path == "":
			k.faultf(where, "required with kind: directory, and missing")
		case registry.Claim != "":
			k.checkClaim(at, registry)
		case registry.Kind == Directory:
			registry.Path = k.absolutePath(registry.Path)
			k.checkDirectory(where, registry.Path)
		}
	}
	k.checkUnique(names)
}

// checkDirectory checks that a directory exists on this node.
func (k *checker) checkDirectory(at path, name string) {
	if stat, err := os.Stat(name); err != nil {
		k.faultf(at, "cannot be used: %s: %s", name, reasonOf(err))
	} else if !stat.IsDir() {
		k.faultf(at, "must be a directory, is another kind of file")
	}
}

// rejectID says that the name of a model is no id of a hub.
func (k *checker) rejectID(where path, name string) {
	hint := ""
	if filepath.IsAbs(name) {
		hint = "; for files of this machine, source.registry must name a registry of kind directory"
	}
	k.faultf(where, "must be an id such as org/name, is %s%s", quoted(name), hint)
}

// checkSource checks that the registry exists, and that the model exists in it as far as Sluice can
// know.
func (k *checker) checkSource(at path, m *Model) {
	s := *m.Source
	registry, ok := k.config.registry(s.Registry)
	if !ok {
		k.faultf(at.field("registry"), "there is no registry %s; %s", quoted(s.Registry), suggest(s.Registry, k.config.registryNames()))
		return
	}
	where := at.field("name")
	if s.Name == "" || !k.valid(where) {
		return
	}
	k.checkFetchedSource(at, m, registry)
	if registry.Kind == HuggingFace {
		if k.valid(where) && (strings.ContainsAny(s.Name, " \t\r\n\\") || strings.HasPrefix(s.Name, "/") || strings.HasPrefix(s.Name, "-")) {
			k.rejectID(where, s.Name)
		}
		return
	}
	if !filepath.IsLocal(s.Name) {
		k.faultf(where, "must be a path below the registry's directory, without .., is %s", quoted(s.Name))
		return
	}
	if m.Launcher == engines.Kubernetes {
		if registry.Claim == "" {
			k.faultf(at.field("registry"),
				"registry %s has no claim: set claim to the PersistentVolumeClaim that holds its directory on Kubernetes", quoted(s.Registry))
		}
		return
	}
	if m.Launcher == engines.Ray {
		return // the directory is on Ray's nodes
	}
	if _, err := os.Stat(filepath.Join(registry.Path, s.Name)); err != nil && k.registryPathValid(s.Registry) {
		k.faultf(where, "does not exist in the registry's directory: %s", reasonOf(err))
	}
}

// registryPathValid tells whether the path of a registry has no fault of its own.
func (k *checker) registryPathValid(name string) bool {
	for i, r := range k.config.Registries {
		if r.Name == name {
			return k.valid(path{"registries"}.item(i).field("path"))
		}
	}
	return true
}
