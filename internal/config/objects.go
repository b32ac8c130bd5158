package config

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sort"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/sluice-gateway/sluice/engines"
)

// Object is an engine or a model that does not come from the file: the spec of a custom resource.
type Object struct {
	// Engine tells that the object is an engine; otherwise it is a model.
	Engine bool
	// Name is the name of the object. It is the name of the engine or model if the spec has none.
	Name string
	// Spec is the spec as JSON, with the fields of an item of engines or models in the file.
	Spec []byte
}

// Refusal is an object that was rejected, with the faults of its spec.
type Refusal struct {
	// Object is the index of the object in the list.
	Object int
	// Faults are the faults of the object, without file and line.
	Faults Faults
}

// WithObjects returns the configuration of the same file with objects added. Objects are checked as
// if they stood in the file behind its own items. An object with a fault is left out and returned
// as a Refusal. It affects nothing else, except models that name an engine which was left out. The
// error is about the file itself, if something outside changed since it was loaded, such as a
// directory that was deleted.
//
// A user who may write objects is trusted less than one who writes the file. The model of an object
// therefore runs on Kubernetes, or on upstreams that are called without secrets, never on this
// node.
func (c *Config) WithObjects(objects []Object) (*Config, []Refusal, error) {
	refused := map[int]Faults{}
	for {
		next, faults := c.parseWith(objects, refused)
		if len(faults.file) > 0 {
			return nil, nil, faults.file
		}
		if len(faults.objects) == 0 {
			return next, sortedRefusals(refused), nil
		}
		maps.Copy(refused, faults.objects)
	}
}

// sortedRefusals returns the rejected objects in the order of the list.
func sortedRefusals(refused map[int]Faults) []Refusal {
	var all []Refusal
	for _, i := range slices.Sorted(maps.Keys(refused)) {
		all = append(all, Refusal{Object: i, Faults: refused[i]})
	}
	return all
}

// faultsBySource are faults, separated into those of the file and those of each object, by its
// index.
type faultsBySource struct {
	file    Faults
	objects map[int]Faults
}

// parseWith parses the file together with the objects that are not in refused. The objects may
// cause a fault of an item of the file: they use its name, or call its server with other settings.
// Then the first object that causes such a fault is reported. A binary search finds it, for there
// may be hundreds of objects.
func (c *Config) parseWith(objects []Object, refused map[int]Faults) (*Config, faultsBySource) {
	var included []int
	for i := range objects {
		if _, rejected := refused[i]; !rejected {
			included = append(included, i)
		}
	}
	next, faults := c.join(objects, included)
	if len(faults.objects) > 0 {
		faults.file = nil // they may be consequences of the faults of objects
	}
	if len(faults.file) == 0 || len(included) == 0 || !c.valid() {
		return next, faults
	}
	n := sort.Search(len(included)-1, func(n int) bool { _, found := c.join(objects, included[:n+1]); return len(found.file) > 0 })
	_, first := c.join(objects, included[:n+1])
	return nil, faultsBySource{objects: map[int]Faults{included[n]: withoutLines(first.file)}}
}

// valid tells whether the file alone still has no fault.
func (c *Config) valid() bool {
	_, faults := parseWithFields(c.name, c.source, c.fields)
	return len(faults) == 0
}

// withoutLines removes file and line, which belong to the file and not to the object.
func withoutLines(faults Faults) Faults {
	var all Faults
	for _, f := range faults {
		all = append(all, Fault{Path: f.Path, Message: f.Message})
	}
	return all
}

// join parses the file with some objects, given by their indexes, at the ends of its lists.
func (c *Config) join(objects []Object, included []int) (*Config, faultsBySource) {
	d := newDecoder(c.name)
	root := d.parseDocument(c.source)
	setFields(root, c.fields)
	if root == nil {
		root = &yaml.Node{Kind: yaml.MappingNode, Tag: "!!map"}
	}
	bad := faultsBySource{objects: map[int]Faults{}}
	itemObjects := map[string]int{} // index of the object, by path.key of its item
	next := &Config{Hash: c.Hash, File: c.File, name: c.name, source: c.source, fields: c.fields}
	for _, i := range included {
		o := objects[i]
		item, err := o.node()
		if err != nil {
			bad.objects[i] = Faults{{Path: "spec", Message: err.Error()}}
			continue
		}
		list, count := "models", &next.objectModels
		if o.Engine {
			list, count = "engines", &next.objectEngines
		}
		*count++
		n := appendItem(root, list, item)
		itemObjects[path{list}.item(n).key()] = i
	}
	if len(bad.objects) > 0 {
		return nil, bad
	}
	return d.readJoined(root, next, itemObjects)
}

// readJoined reads the joined document and separates its faults by source.
func (d *decoder) readJoined(root *yaml.Node, c *Config, itemObjects map[string]int) (*Config, faultsBySource) {
	found := faultsBySource{objects: map[int]Faults{}}
	d.objects = itemObjects
	d.read(root, c)
	for i, f := range d.faults {
		if object, ok := d.faultObject[i]; ok {
			found.objects[object] = append(found.objects[object], Fault{Path: specPath(f.Path), Message: f.Message})
			continue
		}
		found.file = append(found.file, f)
	}
	return c, found
}

// specPath rewrites models[chat].replicas.max as spec.replicas.max.
func specPath(path string) string {
	_, field, _ := strings.Cut(path, "]")
	return "spec" + field
}

// node returns the object as a list item of the file.
func (o Object) node() (*yaml.Node, error) {
	decoder := json.NewDecoder(bytes.NewReader(o.Spec))
	decoder.UseNumber()
	var spec map[string]any
	if err := decoder.Decode(&spec); err != nil {
		return nil, errors.New("must be a JSON object")
	}
	if spec == nil {
		spec = map[string]any{}
	}
	if _, named := spec["name"]; !named {
		spec["name"] = o.Name
	}
	if !o.Engine {
		if err := restrictModel(spec); err != nil {
			return nil, err
		}
	}
	return yamlNode(spec), nil
}

// restrictModel returns an error if the model of an object would run on this node or use its
// secrets. It sets launcher kubernetes if the spec names no launcher.
func restrictModel(spec map[string]any) error {
	switch launcher := spec["launcher"]; launcher {
	case nil:
		spec["launcher"] = string(engines.Kubernetes)
	case string(engines.Kubernetes), string(engines.Upstream), string(engines.None):
	default:
		return fmt.Errorf("launcher must be kubernetes, upstream or none in a custom resource, is %v", quoted(fmt.Sprint(launcher)))
	}
	if cluster, set := spec["cluster"]; set && cluster != "" {
		return errors.New("cluster is not allowed in a custom resource, whose replicas run in its own namespace: remove it")
	}
	servers, _ := spec["upstreams"].([]any)
	for _, server := range servers {
		fields, _ := server.(map[string]any)
		for name := range fields {
			if name != "url" {
				return fmt.Errorf("upstreams must be URLs alone in a custom resource, and %s is only allowed in the file: remove it", quoted(name))
			}
		}
	}
	return nil
}

func yamlNode(value any) *yaml.Node {
	scalar := func(tag, text string) *yaml.Node { return &yaml.Node{Kind: yaml.ScalarNode, Tag: tag, Value: text} }
	switch v := value.(type) {
	case map[string]any:
		n := &yaml.Node{Kind: yaml.MappingNode, Tag: "!!map"}
		for _, key := range slices.Sorted(maps.Keys(v)) {
			n.Content = append(n.Content, scalar("!!str", key), yamlNode(v[key]))
		}
		return n
	case []any:
		n := &yaml.Node{Kind: yaml.SequenceNode, Tag: "!!seq"}
		for _, item := range v {
			n.Content = append(n.Content, yamlNode(item))
		}
		return n
	case json.Number:
		if strings.ContainsAny(v.String(), ".eE") {
			return scalar("!!float", v.String())
		}
		return scalar("!!int", v.String())
	case bool:
		return scalar("!!bool", fmt.Sprint(v))
	case nil:
		return scalar("!!null", "null")
	}
	return scalar("!!str", fmt.Sprint(value))
}

// appendItem appends an item to a list at the top of the file and returns the index of the item.
func appendItem(root *yaml.Node, list string, item *yaml.Node) int {
	for i := 0; i+1 < len(root.Content); i += 2 {
		if root.Content[i].Value != list {
			continue
		}
		value := root.Content[i+1]
		if value.Kind == yaml.AliasNode {
			value = value.Alias
		}
		if value.Kind != yaml.SequenceNode { // a null, which counts as absent
			value = &yaml.Node{Kind: yaml.SequenceNode, Tag: "!!seq"}
		}
		// The joined list is a new node, because an alias elsewhere in the file may mean the old
		// one.
		joint := &yaml.Node{Kind: yaml.SequenceNode, Tag: "!!seq", Line: value.Line, Content: append(slices.Clip(value.Content), item)}
		root.Content[i+1] = joint
		return len(joint.Content) - 1
	}
	key := &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!str", Value: list}
	root.Content = append(root.Content, key, &yaml.Node{Kind: yaml.SequenceNode, Tag: "!!seq", Content: []*yaml.Node{item}})
	return 0
}
