package config

import (
	"os"
	"path/filepath"
	"strings"

	"github.com/sluice-gateway/sluice/engines"
)

// checker finds the faults that concern several fields, and resolves what fields refer to. A field
// that already has a fault is not checked again.
type checker struct {
	*decoder
	config *Config
	// knownUpstreams are the servers of all lists checked so far, by serverID, in their order.
	knownUpstreams map[string][]knownUpstream
	// versionValid remembers, by engine and version, whether a version that a model names has no
	// fault. A check takes about a millisecond, and a thousand models may name the same version.
	versionValid map[string]bool
}

// check finds the faults of c that concern several fields and completes c. d has decoded c.
func check(d *decoder, c *Config) {
	k := &checker{decoder: d, config: c, versionValid: map[string]bool{}}
	k.checkRedis()
	k.checkListeners()
	k.checkConnections()
	k.checkMemory()
	k.setStateDir()
	k.checkEngines()
	k.checkRegistries()
	k.checkNodes()
	k.checkKubernetes()
	k.checkProfiles()
	k.checkRay()
	for i := range c.Upstreams {
		k.rejectSet(path{"upstreams"}.item(i).field("model"), "the upstreams of the file")
	}
	k.checkUpstreams(path{"upstreams"}, c.Upstreams) // before the models, as those of custom resources name no server of the file
	k.checkUnique(append(k.checkModels(), k.checkPools()...))
	k.checkDefaultModel(path{"default_model"})
	k.checkTenants()
	k.checkModeration()
	k.checkTracing()
	k.checkAccessLog()
	k.checkDiscovered(path{"discovered"}, &c.Discovered)
}

// absolutePath makes a path of the file absolute. ~/ is the user's home; a relative path counts
// from the folder of the file.
func (k *checker) absolutePath(name string) string {
	if rest, ok := strings.CutPrefix(name, "~/"); ok {
		if home, err := os.UserHomeDir(); err == nil {
			return filepath.Join(home, rest)
		}
	}
	if !filepath.IsAbs(name) {
		name = filepath.Join(filepath.Dir(k.file), name)
	}
	if absolute, err := filepath.Abs(name); err == nil {
		return absolute
	}
	return name
}

// setStateDir makes state_dir absolute, or sets its default.
func (k *checker) setStateDir() {
	if k.config.StateDir == "" {
		k.config.StateDir = DefaultStateDir("sluice")
		return
	}
	k.config.StateDir = k.absolutePath(k.config.StateDir)
}

// DefaultStateDir returns the directory for the state of a program of this name.
func DefaultStateDir(name string) string {
	if state := os.Getenv("XDG_STATE_HOME"); filepath.IsAbs(state) {
		return filepath.Join(state, name)
	}
	if home, err := os.UserHomeDir(); err == nil {
		return filepath.Join(home, ".local", "state", name)
	}
	return filepath.Join("/var/lib", name)
}

// checkUnique reports every name that occurs twice. names are in the order of the file.
func (k *checker) checkUnique(names []named) {
	first := map[string]path{}
	for _, n := range names {
		if n.name == "" || !k.valid(n.at) {
			continue
		}
		if other, used := first[n.name]; used {
			k.faultf(n.at, "%s is already used by %s%s: choose another name", quoted(n.name), k.display(other), strings.TrimSuffix(k.onLine(other), ","))
			continue
		}
		first[n.name] = n.at
	}
}

// checkRepeated reports items that occur twice. Messages do not show the items, which may be hashes
// of keys or URLs.
func (k *checker) checkRepeated(items []named, what string) {
	first := map[string]path{}
	for _, n := range items {
		if other, used := first[n.name]; used {
			k.faultf(n.at, "the same %s is%s at %s: remove one of them", what, k.onLine(other), k.display(other))
			continue
		}
		first[n.name] = n.at
	}
}

// named is a text from the file that may occur only once, and its path.
type named struct {
	name string
	at   path
}

// checkName checks the name of a model, pool, tenant, engine, node, label or registry. Names appear
// in URLs, file names and metrics.
func (k *checker) checkName(at path, name string) {
	if !k.valid(at) || name == "" && !k.isSet(at) {
		return
	}
	if !engines.ValidName(name) {
		k.faultf(at, "must be a name: %s, is %s", engines.NameRule, quoted(name))
	}
}
