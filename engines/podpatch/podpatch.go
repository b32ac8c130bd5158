// Package podpatch checks and applies patches of pods that operators write: a strategic merge patch
// over a pod template, as kubectl patch takes it. Package internal/config calls Check when it reads
// a file or a custom resource, and engines/kubernetes calls Apply when it renders a Deployment.
//
// A patch may not touch what Sluice relies on. That is the engine's command, port and probes, the
// labels by which Sluice finds its pods, and how long a pod may take to end.
package podpatch

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
)

// EngineContainer is the name of the engine's container.
const EngineContainer = "engine"

// Fault is a part of a patch that cannot be applied.
type Fault struct {
	// Path leads to the part: names of fields, and the indexes of items of lists. It is empty for
	// the whole patch.
	Path []string
	// Message says what is wrong. It is empty for an unknown field.
	Message string
	// Known lists the fields that exist beside an unknown one.
	Known []string
}

// Check returns the faults of a patch, in the order of its fields. The patch is as a decoder of
// JSON or YAML returns it. An empty patch has no fault.
func Check(patch map[string]any) []Fault {
	c := &checker{}
	c.checkType(nil, patch, podTemplate, "")
	c.checkOwned(patch)
	if len(c.faults) > 0 {
		return c.faults
	}
	sample := corev1.PodTemplateSpec{Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: EngineContainer, Image: "image"}}}}
	if _, err := Apply(sample, patch); err != nil {
		c.faultf(nil, "%v", err)
	}
	return c.faults
}

// Apply merges a patch over a pod template and returns the result. A volume of the patch replaces
// one of the same name, because a volume with two sources is invalid.
func Apply(template corev1.PodTemplateSpec, patch map[string]any) (corev1.PodTemplateSpec, error) {
	if len(patch) == 0 {
		return template, nil
	}
	original, err := json.Marshal(template)
	if err != nil {
		return template, err
	}
	change, err := json.Marshal(withReplacedVolumes(patch))
	if err != nil {
		return template, err
	}
	data, err := strategicpatch.StrategicMergePatch(original, change, corev1.PodTemplateSpec{})
	if err != nil {
		return template, fmt.Errorf("the patch of the pod cannot be merged: %w", err)
	}
	var merged corev1.PodTemplateSpec
	if err := json.Unmarshal(data, &merged); err != nil {
		return template, fmt.Errorf("the patched pod is invalid: %w", err)
	}
	return merged, nil
}

// withReplacedVolumes returns the patch with the directive, in each of its volumes, that drops what
// the volume of the same name had. kubectl adds the same directive. The patch is not changed.
func withReplacedVolumes(patch map[string]any) map[string]any {
	spec, _ := patch["spec"].(map[string]any)
	volumes, _ := spec["volumes"].([]any)
	if len(volumes) == 0 {
		return patch
	}
	replaced := make([]any, len(volumes))
	for i, item := range volumes {
		replaced[i] = item
		volume, ok := item.(map[string]any)
		if !ok || slices.ContainsFunc(slices.Collect(maps.Keys(volume)), isDirective) {
			continue
		}
		volume = maps.Clone(volume)
		volume[retainKeys] = slices.Sorted(maps.Keys(volume))
		replaced[i] = volume
	}
	spec = maps.Clone(spec)
	spec["volumes"] = replaced
	patch = maps.Clone(patch)
	patch["spec"] = spec
	return patch
}

// The directives of a strategic merge patch that change an object as a whole.
const (
	patchDirective = "$patch"
	retainKeys     = "$retainKeys"
)

// isDirective reports whether a key of a patch is a directive and no field.
func isDirective(key string) bool { return strings.HasPrefix(key, "$") }
