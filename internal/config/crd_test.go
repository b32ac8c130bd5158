package config

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"go.yaml.in/yaml/v3"

	"github.com/sluice-gateway/sluice/engines"
)

const (
	crdFile  = "../../examples/kubernetes/base/crds.yaml"
	crdTitle = "# Generated from the structs in internal/config by: go test ./internal/config -run TestCRDsAreCurrent -update\n"
)

// TestCRDsAreCurrent checks that the committed custom resource definitions are those generated from
// the structs of the file.
func TestCRDsAreCurrent(t *testing.T) {
	t.Parallel()
	text := bytes.NewBufferString(crdTitle)
	e := yaml.NewEncoder(text)
	e.SetIndent(2)
	for _, crd := range []object{engineCRD(t), modelCRD(t)} {
		if err := e.Encode(crd); err != nil {
			t.Fatal(err)
		}
	}
	golden(t, crdFile, text.Bytes())
}

// TestKubernetesExamplesAreAccepted checks the objects in examples/kubernetes/models against the
// schemas of the cluster and with the gateway.
func TestKubernetesExamplesAreAccepted(t *testing.T) {
	t.Parallel()
	checks := map[string]*jsonschema.Schema{"Engine": crdCheck(t, engineCRD(t)), "InferenceModel": crdCheck(t, modelCRD(t))}
	files, err := filepath.Glob("../../examples/kubernetes/models/*.yaml")
	if err != nil || len(files) < 3 {
		t.Fatalf("%v, %v", files, err)
	}
	var objects []Object
	for _, file := range files {
		objects = append(objects, customResources(t, file, checks)...)
	}
	base, err := os.ReadFile("../../examples/kubernetes/base/sluice.yaml")
	if err != nil {
		t.Fatal(err)
	}
	c, err := Parse("testdata/f", base)
	if err != nil {
		t.Fatal(err)
	}
	with, refused, err := c.WithObjects(objects)
	if err != nil || len(refused) > 0 {
		t.Fatalf("refused: %v, %v", refused, err)
	}
	if len(with.Models) < 3 || len(with.Engines) < 1 {
		t.Errorf("%d models, %d engines", len(with.Models), len(with.Engines))
	}
	for _, m := range with.Models {
		if m.Launcher != engines.Kubernetes {
			t.Errorf("%s has launcher %s", m.Name, m.Launcher)
		}
	}
}

// customResources reads a file of custom resources and checks them by their schemas.
func customResources(t *testing.T, file string, checks map[string]*jsonschema.Schema) []Object {
	t.Helper()
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var objects []Object
	for _, document := range bytes.Split(data, []byte("\n---\n")) {
		var resource struct {
			Kind     string
			Metadata struct{ Name string }
			Spec     map[string]any
		}
		if err := yaml.Unmarshal(document, &resource); err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		check, ok := checks[resource.Kind]
		if !ok {
			t.Fatalf("%s: kind %q", file, resource.Kind)
		}
		if err := check.Validate(decoded(t, document)); err != nil {
			t.Errorf("%s: %v", file, err)
		}
		spec, err := json.Marshal(resource.Spec)
		if err != nil {
			t.Fatal(err)
		}
		objects = append(objects, Object{Engine: resource.Kind == "Engine", Name: resource.Metadata.Name, Spec: spec})
	}
	return objects
}

// crdCheck compiles the schema of a custom resource. It takes unknown fields, as the schemas of
// clusters do.
func crdCheck(t *testing.T, crd object) *jsonschema.Schema {
	t.Helper()
	text, err := json.Marshal(crd)
	if err != nil {
		t.Fatal(err)
	}
	var whole struct {
		Spec struct {
			Versions []struct {
				Schema struct{ OpenAPIV3Schema json.RawMessage }
			}
		}
	}
	if err := json.Unmarshal(text, &whole); err != nil {
		t.Fatal(err)
	}
	document, err := jsonschema.UnmarshalJSON(bytes.NewReader(whole.Spec.Versions[0].Schema.OpenAPIV3Schema))
	if err != nil {
		t.Fatal(err)
	}
	c := jsonschema.NewCompiler()
	if err := c.AddResource("mem:///crd", document); err != nil {
		t.Fatal(err)
	}
	return c.MustCompile("mem:///crd")
}

// Every struct of the file is turned into a schema that clusters accept: each part of it has one
// type, or says that it has none.
func TestCRDsAreStructural(t *testing.T) {
	t.Parallel()
	for _, crd := range []object{engineCRD(t), modelCRD(t)} {
		for _, fault := range unstructural(crdSchema(crd), "spec") {
			t.Error(fault)
		}
	}
}

// unstructural returns what makes the schema s at a path not structural.
func unstructural(s object, at string) []string {
	var faults []string
	_, typed := s["type"].(string)
	if !typed && s["x-kubernetes-int-or-string"] != true && s["x-kubernetes-preserve-unknown-fields"] != true {
		faults = append(faults, at+" has no type")
	}
	for _, word := range []string{"default", "const", "oneOf", "allOf", "not", "$ref"} {
		if _, ok := s[word]; ok && !(word == "default" && at == scaledField) {
			faults = append(faults, at+" has "+word)
		}
	}
	properties, _ := s["properties"].(object)
	for name, property := range properties {
		faults = append(faults, unstructural(property.(object), at+"."+name)...)
	}
	for _, word := range []string{"items", "additionalProperties"} {
		if part, ok := s[word].(object); ok {
			faults = append(faults, unstructural(part, at+"."+word)...)
		}
	}
	return faults
}

// scaledField is the field that the scale subresource sets. It alone has a default.
const scaledField = "spec.spec.replicas.min"

// crdSchema returns the schema inside a custom resource definition.
func crdSchema(crd object) object {
	return crdVersion(crd)["schema"].(object)["openAPIV3Schema"].(object)
}

// crdVersion returns the only version of a custom resource definition.
func crdVersion(crd object) object { return crd["spec"].(object)["versions"].([]any)[0].(object) }

// modelCRD generates the definition of InferenceModel.
func modelCRD(t *testing.T) object {
	spec := specOf(t, reflect.TypeFor[Model]())
	properties := spec["properties"].(object)
	launcher := properties["launcher"].(object)
	launcher["enum"] = slices.DeleteFunc(launcher["enum"].([]any), func(v any) bool { return v == string(engines.Local) })
	upstreams := properties["upstreams"].(object)
	upstreams["items"] = object{"type": "string"}
	upstreams["description"] = "upstreams are the servers of a model with launcher upstream, each by its base URL (http://host:port, with or without /v1). " +
		"Servers that need headers, keys or certificates are only allowed in the file."
	spec["x-kubernetes-validations"] = []any{
		rule("!(!has(self.launcher) || self.launcher == 'kubernetes') || has(self.engine) && self.engine != ''", ".engine",
			"required with launcher kubernetes, which is the default"),
		rule("!has(self.launcher) || self.launcher != 'upstream' || has(self.upstreams) && self.upstreams.size() > 0", ".upstreams",
			"required with launcher upstream"),
	}
	replicas := properties["replicas"].(object)
	replicas["x-kubernetes-validations"] = []any{
		rule("!has(self.max) || self.max >= (has(self.min) ? self.min : 1)", ".max", "must be at least min, which is 1 by default"),
	}
	// Without a value the API has no scale of an object, so a HorizontalPodAutoscaler cannot begin.
	replicas["properties"].(object)["min"].(object)["default"] = 1
	target := properties["scale"].(object)["properties"].(object)["target"].(object)
	target["x-kubernetes-validations"] = []any{
		rule("has(self.running) != has(self.ttft)", ".running", "must have one of running and ttft"),
	}
	status := statusSchema()
	maps.Copy(status["properties"].(object), object{
		"phase": object{"type": "string", "enum": []any{"Pending", "Starting", "Ready", "Draining", "Failed", "Idle"},
			"description": "Ready: a replica serves. Idle: no replica runs because nobody requests the model."},
		"replicas":      count("Number of replicas."),
		"ready":         count("Number of replicas that serve."),
		"desired":       count("Number of replicas that the scaling wants."),
		"replicasReady": object{"type": "string", "description": "ready/desired"},
		"selector":      object{"type": "string", "description": "The label selector of the pods, for the scale subresource."},
	})
	columns := []any{
		column("Engine", ".spec.engine", 0), column("Version", ".spec.version", 0), column("Phase", ".status.phase", 0),
		column("Ready", ".status.replicasReady", 0), age(), column("Message", ".status.message", 1),
	}
	model := crd("InferenceModel", []any{"im"}, resourceSchema("A model that clients request: an item of models.", spec, status), columns)
	crdVersion(model)["subresources"].(object)["scale"] = object{ // what kubectl scale and a HorizontalPodAutoscaler set and read
		"specReplicasPath": ".spec.replicas.min", "statusReplicasPath": ".status.replicas", "labelSelectorPath": ".status.selector",
	}
	return model
}

// engineCRD generates the definition of Engine.
func engineCRD(t *testing.T) object {
	columns := []any{
		column("Accepted", `.status.conditions[?(@.type=="Accepted")].status`, 0), age(), column("Message", ".status.message", 1),
	}
	spec := resourceSchema("A kind of inference server that InferenceModels may name: an item of engines.", specOf(t, reflect.TypeFor[Engine]()), statusSchema())
	return crd("Engine", nil, spec, columns)
}

// specOf returns the schema of a spec. Its field name is optional, because metadata has a name too.
func specOf(t *testing.T, s reflect.Type) object {
	t.Helper()
	text, err := json.Marshal(schemaWriter{comments: comments(t)}.structure(s))
	if err != nil {
		t.Fatal(err)
	}
	var plain object
	d := json.NewDecoder(bytes.NewReader(text))
	d.UseNumber()
	if err := d.Decode(&plain); err != nil {
		t.Fatal(err)
	}
	spec := structural(plain)
	spec["required"] = slices.DeleteFunc(spec["required"].([]any), func(v any) bool { return v == "name" })
	if len(spec["required"].([]any)) == 0 {
		delete(spec, "required")
	}
	name := spec["properties"].(object)["name"].(object)
	name["description"] = fmt.Sprint(name["description"], " Default: the name of the object.")
	return spec
}

// structural converts a JSON Schema to a structural schema, the form that clusters require
// (Kubernetes documentation, CustomResourceDefinitions). It drops defaults, which the gateway sets.
func structural(s object) object {
	out := object{}
	for _, word := range []string{"description", "type", "pattern", "maxLength", "enum", "minimum", "maximum", "required"} {
		if value, ok := s[word]; ok {
			out[word] = number(value)
		}
	}
	if anyOf, ok := s["anyOf"].([]any); ok {
		merge(out, anyOf)
	}
	if _, several := out["type"].([]any); several {
		out["type"] = "string" // without YAML's ways with numbers: 0.10 would arrive as 0.1
		delete(out, "minimum")
		delete(out, "maximum")
	}
	if values, ok := out["enum"].([]any); ok {
		out["type"] = "string"
		for i, value := range values {
			if values[i] = number(value); reflect.TypeOf(values[i]).Kind() != reflect.String {
				delete(out, "type")
				out["x-kubernetes-int-or-string"] = true
			}
		}
	}
	addParts(out, s)
	return out
}

func addParts(out, s object) {
	if properties, ok := s["properties"].(object); ok {
		all := object{}
		for name, property := range properties {
			all[name] = structural(property.(object))
		}
		out["properties"] = all
	}
	if items, ok := s["items"].(object); ok {
		out["items"] = structural(items)
	}
	free, isMap := s["additionalProperties"].(object)
	_, typed := out["type"]
	switch {
	case isMap && len(free) > 0:
		out["additionalProperties"] = structural(free)
	case isMap, !typed && out["x-kubernetes-int-or-string"] == nil:
		out["x-kubernetes-preserve-unknown-fields"] = true
	}
}

// merge merges alternatives into out: a number or a text, or else anything.
func merge(out object, alternatives []any) {
	for _, alternative := range alternatives {
		s := alternative.(object)
		if s["type"] == "object" {
			return // addParts declares it as anything
		}
		for _, word := range []string{"minimum", "maximum", "pattern"} {
			if value, ok := s[word]; ok {
				out[word] = number(value)
			}
		}
		if text, ok := s["const"].(string); ok {
			out["pattern"] = "^" + text + "$"
		}
	}
	out["x-kubernetes-int-or-string"] = true
	out["anyOf"] = []any{object{"type": "integer"}, object{"type": "string"}}
}

// number converts a json.Number to an integer if it is whole, else to a float.
func number(value any) any {
	n, ok := value.(json.Number)
	if !ok {
		return value
	}
	if whole, err := n.Int64(); err == nil {
		return whole
	}
	f, err := n.Float64()
	if err != nil {
		panic(err)
	}
	if f == float64(int64(f)) {
		return int64(f)
	}
	return f
}

// resourceSchema returns the schema of a whole custom resource.
func resourceSchema(what string, spec, status object) object {
	return object{"type": "object", "description": what, "required": []any{"spec"}, "properties": object{
		"apiVersion": object{"type": "string"}, "kind": object{"type": "string"}, "metadata": object{"type": "object"},
		"spec": spec, "status": status,
	}}
}

func statusSchema() object {
	text := func(limit int) object { return object{"type": "string", "maxLength": limit} }
	condition := object{
		"type": "object", "required": []any{"lastTransitionTime", "message", "reason", "status", "type"},
		"properties": object{
			"type": text(316), "status": object{"type": "string", "enum": []any{"True", "False", "Unknown"}}, "message": text(32768),
			"reason":             object{"type": "string", "minLength": 1, "maxLength": 1024, "pattern": "^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$"},
			"lastTransitionTime": object{"type": "string", "format": "date-time"},
			"observedGeneration": object{"type": "integer", "format": "int64", "minimum": 0},
		},
	}
	return object{"type": "object", "description": "The state of the object, written by the gateways.", "properties": object{
		"observedGeneration": object{"type": "integer", "format": "int64", "description": "Generation of the spec that the status describes."},
		"message":            object{"type": "string", "description": "Why the spec is rejected, or what the replicas wait for."},
		"acceptedSpec": object{"type": "string",
			"description": "The last spec that was accepted, as JSON. It stays in force while a later spec is refused."},
		"conditions": object{"type": "array", "items": condition, "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": []any{"type"},
			"description": "Accepted: the spec has no fault and is in force. Ready: a replica serves."},
	}}
}

// crd returns a custom resource definition.
func crd(kind string, short []any, schema object, columns []any) object {
	plural := strings.ToLower(kind) + "s"
	names := object{"kind": kind, "listKind": kind + "List", "plural": plural, "singular": strings.ToLower(kind), "categories": []any{"sluice"}}
	if short != nil {
		names["shortNames"] = short
	}
	return object{
		"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": object{"name": plural + ".sluice.dev"},
		"spec": object{"group": "sluice.dev", "scope": "Namespaced", "names": names, "versions": []any{object{
			"name": "v1alpha1", "served": true, "storage": true, "subresources": object{"status": object{}},
			"schema": object{"openAPIV3Schema": schema}, "additionalPrinterColumns": columns,
		}}},
	}
}

func rule(cel, field, message string) object {
	return object{"rule": cel, "fieldPath": field, "message": message}
}

// count returns the schema of a number of replicas.
func count(what string) object { return object{"type": "integer", "minimum": 0, "description": what} }

// column returns a column that kubectl get prints.
func column(name, path string, priority int) object {
	return object{"name": name, "type": "string", "jsonPath": path, "priority": priority}
}

// age returns the column of the object's age.
func age() object {
	return object{"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"}
}
