package podpatch

import (
	"maps"
	"slices"
	"strconv"
	"strings"
)

// ownedFields are the fields of a pod's spec that Sluice sets, with what to do instead.
func ownedFields() map[string]string {
	return map[string]string{
		"restartPolicy":                 "the pods of a Deployment are always restarted: remove it",
		"nodeName":                      "the scheduler chooses the node: use nodeSelector or affinity",
		"terminationGracePeriodSeconds": "a deleted pod ends when its requests have ended: see stream.max_duration",
		"ephemeralContainers":           "they cannot be in the template of a pod: remove them",
	}
}

// ownedByEngine are the fields of the engine's container that Sluice sets, with what to do instead.
func ownedByEngine() map[string]string {
	return map[string]string{
		"command":        "it comes from the engine's version: set variables of the model, or command in engines",
		"args":           "the command comes from the engine's version: set variables of the model, or command in engines",
		"ports":          "the engine listens where Sluice tells it to: remove it",
		"readinessProbe": "it comes from the engine's version: set ready in engines",
		"livenessProbe":  "it comes from the engine's version: set health in engines",
		"startupProbe":   "it comes from the engine's version: set ready in engines, or cold_start of the model",
		"lifecycle":      "Sluice lets the requests of a pod end before the engine stops: remove it",
	}
}

// isReserved reports whether Sluice sets the label or annotation of this name.
func isReserved(name string) bool {
	return strings.HasPrefix(name, "sluice.dev/") || name == "app.kubernetes.io/managed-by" || name == "controller.kubernetes.io/pod-deletion-cost"
}

// checkOwned reports the parts of a patch that belong to Sluice.
func (c *checker) checkOwned(patch map[string]any) {
	c.checkDirectives(nil, patch)
	metadata, _ := patch["metadata"].(map[string]any)
	c.checkMetadata(metadata)
	spec, _ := patch["spec"].(map[string]any)
	c.checkDirectives([]string{"spec"}, spec)
	c.checkFields([]string{"spec"}, spec, ownedFields())
	containers, _ := spec["containers"].([]any)
	for i, item := range containers {
		c.checkContainer([]string{"spec", "containers", strconv.Itoa(i)}, item)
	}
}

// checkMetadata reports all but labels and annotations, and those of them that Sluice sets.
func (c *checker) checkMetadata(metadata map[string]any) {
	c.checkDirectives([]string{"metadata"}, metadata)
	for _, name := range slices.Sorted(maps.Keys(metadata)) {
		at := []string{"metadata", name}
		if name != "labels" && name != "annotations" {
			if !isDirective(name) {
				c.faultf(at, "belongs to Sluice; only labels and annotations of a pod can be set")
			}
			continue
		}
		values, _ := metadata[name].(map[string]any)
		c.checkDirectives(at, values)
		for _, key := range slices.Sorted(maps.Keys(values)) {
			if isReserved(key) {
				c.faultf(below(at, key), "belongs to Sluice: use another name")
			}
		}
	}
}

// checkContainer reports what a patch does to the engine's container. Other containers are the
// operator's.
func (c *checker) checkContainer(at []string, item any) {
	container, _ := item.(map[string]any)
	if container["name"] != EngineContainer {
		if container[patchDirective] == "replace" {
			c.faultf(at, "would remove the engine's container: remove %s", patchDirective)
		}
		return
	}
	c.checkDirectives(at, container)
	c.checkFields(at, container, ownedByEngine())
	c.checkGPUs(append(slices.Clip(at), "resources"), container)
	env, _ := container["env"].([]any)
	for i, item := range env {
		switch variable, _ := item.(map[string]any); {
		case variable["name"] == "POD_IP":
			c.faultf(append(slices.Clip(at), "env", strconv.Itoa(i)), "POD_IP belongs to Sluice: use another name")
		case variable[patchDirective] == "replace":
			c.faultf(append(slices.Clip(at), "env", strconv.Itoa(i)), "would remove what Sluice sets: remove it")
		}
	}
}

// checkGPUs reports devices among the resources of the engine's container.
func (c *checker) checkGPUs(at []string, container map[string]any) {
	resources, _ := container["resources"].(map[string]any)
	for _, kind := range []string{"limits", "requests"} {
		amounts, _ := resources[kind].(map[string]any)
		for _, name := range slices.Sorted(maps.Keys(amounts)) {
			if strings.Contains(name, "/gpu") || strings.Contains(name, "/mig-") {
				c.faultf(append(slices.Clip(at), kind, name), "belongs to Sluice, which also tells the engine: set resources.gpu and gpu_resource")
			}
		}
	}
}

// checkFields reports those fields of an object that Sluice sets.
func (c *checker) checkFields(at []string, object map[string]any, owned map[string]string) {
	for _, name := range slices.Sorted(maps.Keys(object)) {
		if instead, ok := owned[name]; ok {
			c.faultf(below(at, name), "belongs to Sluice; %s", instead)
		}
	}
}

// checkDirectives reports the directives that would remove what Sluice has set in an object.
func (c *checker) checkDirectives(at []string, object map[string]any) {
	for _, name := range []string{patchDirective, retainKeys} {
		if _, ok := object[name]; ok {
			c.faultf(below(at, name), "would remove what Sluice sets: remove it")
		}
	}
}
