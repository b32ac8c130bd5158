package kubernetes

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
	"sigs.k8s.io/yaml"

	"github.com/sluice-gateway/sluice/engines"
	"github.com/sluice-gateway/sluice/internal/template"
)

// Check reports whether a version's part of a Deployment can be parsed, rendered and merged. It
// uses sample values, because the values of a model are not known yet. It calls no API, so it does
// not find what only a cluster rejects, such as the name of an unknown resource.
func Check(v engines.Version) error {
	if v.Kubernetes == "" {
		return nil
	}
	l := engines.Launch{
		Name: "model", Model: "org/model", Registry: "huggingface", Host: defaultHost, Port: enginePort, GPUs: 1, Sluice: "sluice",
		Variables: map[string]any{},
	}
	if len(v.Tasks) > 0 {
		l.Task = v.Tasks[0]
	}
	if properties, ok := v.Schema["properties"].(map[string]any); ok {
		for name, schema := range properties {
			l.Variables[name] = sample(schema)
		}
	}
	v.Image = cmp.Or(v.Image, "image")
	ours, err := install{name: "sluice"}.baseDeployment(Model{Version: engines.Version{Command: []string{"true"}, Image: v.Image}, Launch: l})
	if err != nil {
		return err
	}
	merged, err := override(ours, v, l)
	for range 100 { // without a schema, each round finds one more variable that the template names
		var missing *template.MissingKeyError
		if v.Schema != nil || !errors.As(err, &missing) {
			break
		}
		l.Variables[missing.Key] = 1
		merged, err = override(ours, v, l)
	}
	if err != nil {
		return err
	}
	return checkContainer(merged)
}

// sample returns a value that fits the schema of a variable.
func sample(schema any) any {
	s, _ := schema.(map[string]any)
	if value, ok := s["default"]; ok {
		return value
	}
	if values, ok := s["enum"].([]any); ok && len(values) > 0 {
		return values[0]
	}
	switch s["type"] {
	case "boolean":
		return true
	case "integer", "number":
		return 1
	case "array":
		return []any{sample(s["items"])}
	case "object":
		return map[string]any{}
	}
	return "sample"
}

// override merges the version's part over the Deployment, as kubectl patch does.
func override(d *appsv1.Deployment, v engines.Version, l engines.Launch) (*appsv1.Deployment, error) {
	if v.Kubernetes == "" {
		return d, nil
	}
	patch, err := renderPatch(v, l)
	if err != nil {
		return nil, err
	}
	original, err := json.Marshal(d)
	if err != nil {
		return nil, err
	}
	data, err := strategicpatch.StrategicMergePatch(original, patch, appsv1.Deployment{})
	if err != nil {
		return nil, fmt.Errorf("kubernetes: %w", err)
	}
	merged := new(appsv1.Deployment)
	if err := yaml.UnmarshalStrict(data, merged); err != nil {
		return nil, fmt.Errorf("kubernetes: %s", strings.TrimPrefix(err.Error(), "error unmarshaling JSON: while decoding JSON: "))
	}
	return merged, nil
}

// renderPatch returns the version's part as JSON.
func renderPatch(v engines.Version, l engines.Launch) ([]byte, error) {
	text, err := v.RenderKubernetes(l)
	if err != nil {
		return nil, err
	}
	var patch map[string]any
	if err := yaml.Unmarshal([]byte(text), &patch); err != nil {
		return nil, fmt.Errorf("kubernetes: %w", err)
	}
	for field, want := range map[string]string{"apiVersion": "apps/v1", "kind": "Deployment"} {
		if got, said := patch[field]; said && got != want {
			return nil, fmt.Errorf("kubernetes: %s must be %s, is %v", field, want, got)
		}
	}
	return json.Marshal(patch)
}
