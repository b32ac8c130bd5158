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

// Object is an engine or a model that does not come from the file: the specification of a custom resource.
type Object struct {
	// Engine tells that it is an engine; otherwise it is a model.
	Engine bool
	// Name of the object, which is that of the engine or the model where its spec has no name.
	Name string
	// Spec is JSON, with the fields that the file has for such an item.
	Spec []byte
}

// Refusal is an object that is not taken, and why: what is wrong with its spec.
type Refusal struct {
	Object int // its place in the list
	Faults Faults
}

// With is the configuration of the same file with objects added, checked as if they stood in the file behind its own items. An object
// that is at fault is left out; it never takes anything else with it, but for models whose engine it was. The error is about the file, when the
// world around it has changed: a directory is gone.
//
// Whoever may write objects is trusted less than who writes the file: an object's model runs on Kubernetes or on servers that are called
// without secrets, never on this host.
func (c *Config) With(objects []Object) (*Config, []Refusal, error) {
	refused := map[int]Faults{}
	for {
		next, faults := c.with(objects, refused)
		if len(faults.file) > 0 {
			return nil, nil, faults.file
		}
		if len(faults.objects) == 0 {
			return next, refusals(refused), nil
		}
		maps.Copy(refused, faults.objects)
	}
}

func refusals(refused map[int]Faults) []Refusal {
	var all []Refusal
	for _, i := range slices.Sorted(maps.Keys(refused)) {
		all = append(all, Refusal{Object: i, Faults: refused[i]})
	}
	return all
}

// attributed are faults, by whose they are.
type attributed struct {
	file    Faults
	objects map[int]Faults
}

// with parses the file together with the objects that are not refused. Where their company makes the file's own items wrong (a name is
// taken, a server is called in another way), the first object with which that begins is at fault: looked for by halves, for there may be hundreds.
func (c *Config) with(objects []Object, refused map[int]Faults) (*Config, attributed) {
	var in []int
	for i := range objects {
		if _, out := refused[i]; !out {
			in = append(in, i)
		}
	}
	next, faults := c.join(objects, in)
	if len(faults.objects) > 0 {
		faults.file = nil // what is said of the file may be a consequence
	}
	if len(faults.file) == 0 || len(in) == 0 || !c.sound() {
		return next, faults
	}
	n := sort.Search(len(in)-1, func(n int) bool { _, some := c.join(objects, in[:n+1]); return len(some.file) > 0 })
	_, first := c.join(objects, in[:n+1])
	return nil, attributed{objects: map[int]Faults{in[n]: withoutPlace(first.file)}}
}

// sound tells whether the file alone still has no fault.
func (c *Config) sound() bool {
	_, faults := parse(c.name, c.source)
	return len(faults) == 0
}

// withoutPlace takes the lines away: they are those of the file.
func withoutPlace(faults Faults) Faults {
	var all Faults
	for _, f := range faults {
		all = append(all, Fault{Path: f.Path, Message: f.Message})
	}
	return all
}

// join parses the file with these objects at the ends of its lists.
func (c *Config) join(objects []Object, in []int) (*Config, attributed) {
	d := newDecoder(c.name)
	root := d.document(c.source)
	if root == nil {
		root = &yaml.Node{Kind: yaml.MappingNode, Tag: "!!map"}
	}
	bad := attributed{objects: map[int]Faults{}}
	guests := map[string]int{} // object by the key of its path
	next := &Config{Hash: c.Hash, File: c.File, name: c.name, source: c.source}
	for _, i := range in {
		o := objects[i]
		item, err := o.node()
		if err != nil {
			bad.objects[i] = Faults{{Path: "spec", Message: err.Error()}}
			continue
		}
		list, count := "models", &next.guestModels
		if o.Engine {
			list, count = "engines", &next.guestEngines
		}
		*count++
		n := appendItem(root, list, item)
		guests[path{list}.item(n).key()] = i
	}
	if len(bad.objects) > 0 {
		return nil, bad
	}
	return d.finish(root, next, guests)
}

// finish reads the joint document.
func (d *decoder) finish(root *yaml.Node, c *Config, guests map[string]int) (*Config, attributed) {
	found := attributed{objects: map[int]Faults{}}
	d.guests = guests
	d.read(root, c)
	for i, f := range d.faults {
		if guest, ok := d.guest[i]; ok {
			found.objects[guest] = append(found.objects[guest], Fault{Path: afterItem(f.Path), Message: f.Message})
			continue
		}
		found.file = append(found.file, f)
	}
	return c, found
}

// afterItem writes models[chat].replicas.max as spec.replicas.max.
func afterItem(path string) string {
	if i := strings.IndexByte(path, ']'); i >= 0 {
		return "spec" + path[i+1:]
	}
	return "spec"
}

// node is the object as an item of the file.
func (o Object) node() (*yaml.Node, error) {
	decoder := json.NewDecoder(bytes.NewReader(o.Spec))
	decoder.UseNumber()
	var spec map[string]any
	if err := decoder.Decode(&spec); err != nil {
		return nil, errors.New("must be an object")
	}
	if spec == nil {
		spec = map[string]any{}
	}
	if _, named := spec["name"]; !named {
		spec["name"] = o.Name
	}
	if !o.Engine {
		if err := restrict(spec); err != nil {
			return nil, err
		}
	}
	return nodeOf(spec), nil
}

// restrict keeps an object's model off this host and away from its secrets, and says where it runs when it does not say itself.
func restrict(spec map[string]any) error {
	switch launcher := spec["launcher"]; launcher {
	case nil:
		spec["launcher"] = string(engines.Kubernetes)
	case string(engines.Kubernetes), string(engines.Upstream), string(engines.None):
	default:
		return fmt.Errorf("launcher must be kubernetes, upstream or none in a custom resource, is %v", shown(fmt.Sprint(launcher)))
	}
	if cluster, elsewhere := spec["cluster"]; elsewhere && cluster != "" {
		return errors.New("cluster is for the file: a custom resource's replicas are in its own namespace")
	}
	servers, _ := spec["upstreams"].([]any)
	for _, server := range servers {
		fields, _ := server.(map[string]any)
		for name := range fields {
			if name != "url" {
				return fmt.Errorf("upstreams must be URLs alone in a custom resource; %s is for the file", shown(name))
			}
		}
	}
	return nil
}

// nodeOf is a value of JSON as YAML.
func nodeOf(value any) *yaml.Node {
	scalar := func(tag, text string) *yaml.Node { return &yaml.Node{Kind: yaml.ScalarNode, Tag: tag, Value: text} }
	switch v := value.(type) {
	case map[string]any:
		n := &yaml.Node{Kind: yaml.MappingNode, Tag: "!!map"}
		for _, key := range slices.Sorted(maps.Keys(v)) {
			n.Content = append(n.Content, scalar("!!str", key), nodeOf(v[key]))
		}
		return n
	case []any:
		n := &yaml.Node{Kind: yaml.SequenceNode, Tag: "!!seq"}
		for _, item := range v {
			n.Content = append(n.Content, nodeOf(item))
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

// appendItem puts an item at the end of a list at the top of the file, and returns its index.
func appendItem(root *yaml.Node, list string, item *yaml.Node) int {
	for i := 0; i+1 < len(root.Content); i += 2 {
		if root.Content[i].Value != list {
			continue
		}
		value := root.Content[i+1]
		if value.Kind == yaml.AliasNode {
			value = value.Alias
		}
		if value.Kind != yaml.SequenceNode { // null: nothing in it
			value = &yaml.Node{Kind: yaml.SequenceNode, Tag: "!!seq"}
		}
		// A list of its own: an alias elsewhere in the file may mean the same one.
		joint := &yaml.Node{Kind: yaml.SequenceNode, Tag: "!!seq", Line: value.Line, Content: append(slices.Clip(value.Content), item)}
		root.Content[i+1] = joint
		return len(joint.Content) - 1
	}
	key := &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!str", Value: list}
	root.Content = append(root.Content, key, &yaml.Node{Kind: yaml.SequenceNode, Tag: "!!seq", Content: []*yaml.Node{item}})
	return 0
}
