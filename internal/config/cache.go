package config

import (
	"crypto/sha256"
	"encoding/hex"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/sluice-gateway/sluice/engines"
)

// checkCache checks the volume of a registry, and names the claim that Sluice makes.
func (k *checker) checkCache(at path, r *Registry) {
	c, at := r.Cache, at.field("cache")
	if c == nil {
		return
	}
	if r.Kind != HuggingFace {
		k.rejectSet(at, "kind: directory")
		return
	}
	switch where := at.field("claim"); {
	case c.Claim == "" && c.Size == 0:
		k.faultf(at, "needs claim, or size for a claim that Sluice makes")
	case c.Claim == "":
		c.Claim = "sluice-weights-" + strings.ToLower(strings.ReplaceAll(r.Name, "_", "-"))
		if !label.MatchString(c.Claim) {
			k.faultf(at, "the registry's name makes no name of a claim: set claim")
		}
	case !label.MatchString(c.Claim) && k.valid(where):
		k.faultf(where, "must be the name of a PersistentVolumeClaim: lower case letters, digits and -, at most 63 characters, is %s", quoted(c.Claim))
	default:
		for _, field := range []string{"size", "storage_class"} {
			k.rejectSet(at.field(field), "claim, which exists already")
		}
	}
	if where := at.field("path"); !filepath.IsAbs(c.Path) && k.valid(where) {
		k.faultf(where, "must be absolute, is %s", quoted(c.Path))
	}
	k.checkLoaderPod(at.field("pod"), c.Pod)
	if secret, key, ok := strings.Cut(c.Token, "/"); c.Token != "" && (!ok || secret == "" || key == "" || strings.Contains(key, "/")) {
		k.faultf(at.field("token"), "must be the name of a Secret and the name of its key, as in hub/token")
	}
}

// checkLoaderPod checks the patch of the pods that fetch weights. The Job ends when its only
// container has ended.
func (k *checker) checkLoaderPod(at path, patch map[string]any) {
	k.checkPod(at, patch)
	spec, _ := patch["spec"].(map[string]any)
	containers, _ := spec["containers"].([]any)
	for i, item := range containers {
		container, _ := item.(map[string]any)
		where := []string{"spec", "containers", strconv.Itoa(i)}
		if container["name"] != "loader" {
			k.faultf(at.below(patch, where), "the only container is loader: name it")
		}
		for _, field := range []string{"command", "args", "image", "ports"} {
			if _, ok := container[field]; ok {
				k.faultf(at.below(patch, append(slices.Clip(where), field)), "belongs to Sluice; see the other fields of cache")
			}
		}
	}
}

// CachedWeights returns the registry of a model whose weights a Job fetches into a volume of
// Kubernetes. link is the name of the link to them below the path of the volume. ok tells whether
// there is such a registry.
func (c *Config) CachedWeights(m Model) (r Registry, link string, ok bool) {
	if m.Source == nil || m.Launcher != engines.Kubernetes {
		return Registry{}, "", false
	}
	if r, ok = c.registry(m.Source.Registry); !ok || r.Cache == nil {
		return Registry{}, "", false
	}
	sum := sha256.Sum256([]byte(strings.Join([]string{r.Endpoint, m.Source.Name, m.Source.Revision, m.Source.File}, "\x00")))
	link = "sluice/" + hex.EncodeToString(sum[:8])
	if m.Source.File == "" && LoadsGGUF(m.Engine) {
		link += ".gguf"
	}
	return r, link, true
}

// cachedPath returns the path of what the engine of a model loads from a volume.
func cachedPath(m Model, r Registry, link string) string {
	return filepath.Join(r.Cache.Path, link, m.Source.File)
}
