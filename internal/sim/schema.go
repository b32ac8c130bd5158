package sim

import (
	"bytes"
	"encoding/json"
	"slices"
	"strings"
)

// maxSchemaDepth stops schemas that contain themselves.
const maxSchemaDepth = 12

// sampleJSON is a document that a JSON Schema would usually accept: required members (all, when none is said to be), first
// choices, smallest numbers. Strings hold the given word.
func sampleJSON(schema any, word string) []byte {
	s := sampler{root: schema, word: word}
	var b bytes.Buffer
	s.write(&b, schema, 0)
	return b.Bytes()
}

type sampler struct {
	root any
	word string
}

func (s sampler) write(b *bytes.Buffer, schema any, depth int) {
	m, ok := schema.(map[string]any)
	if !ok || depth > maxSchemaDepth {
		b.WriteString("null")
		return
	}
	if v, ok := fixed(m); ok {
		b.Write(marshal(v))
		return
	}
	if inner, ok := s.indirect(m); ok {
		s.write(b, inner, depth+1)
		return
	}
	switch typeOf(m) {
	case "object":
		s.object(b, m, depth)
	case "array":
		s.array(b, m, depth)
	case "integer", "number":
		b.Write(marshal(number(m)))
	case "boolean":
		b.WriteString("true")
	case "null":
		b.WriteString("null")
	default:
		b.Write(marshal(s.text(m)))
	}
}

// fixed is the value of a schema that allows one, or names some.
func fixed(m map[string]any) (any, bool) {
	if v, ok := m["const"]; ok {
		return v, true
	}
	if list, ok := m["enum"].([]any); ok && len(list) > 0 {
		return list[0], true
	}
	return nil, false
}

// indirect follows $ref within the document, and the first of alternatives.
func (s sampler) indirect(m map[string]any) (any, bool) {
	if ref, ok := m["$ref"].(string); ok {
		return s.lookUp(ref), true
	}
	for _, key := range []string{"anyOf", "oneOf", "allOf"} {
		if list, ok := m[key].([]any); ok && len(list) > 0 {
			return list[0], true
		}
	}
	return nil, false
}

func (s sampler) lookUp(ref string) any {
	at := s.root
	for step := range strings.SplitSeq(strings.TrimPrefix(ref, "#"), "/") {
		if step == "" {
			continue
		}
		m, ok := at.(map[string]any)
		if !ok {
			return nil
		}
		at = m[strings.NewReplacer("~1", "/", "~0", "~").Replace(step)]
	}
	return at
}

// typeOf is the schema's type; the first of several that is not null.
func typeOf(m map[string]any) string {
	switch t := m["type"].(type) {
	case string:
		return t
	case []any:
		for _, v := range t {
			if name, ok := v.(string); ok && name != "null" {
				return name
			}
		}
	}
	if m["properties"] != nil {
		return "object"
	}
	return ""
}

func (s sampler) object(b *bytes.Buffer, m map[string]any, depth int) {
	properties, _ := m["properties"].(map[string]any)
	b.WriteByte('{')
	for i, name := range members(m, properties) {
		if i > 0 {
			b.WriteString(", ")
		}
		b.Write(marshal(name))
		b.WriteString(": ")
		s.write(b, properties[name], depth+1)
	}
	b.WriteByte('}')
}

// members are the names to fill in: the required ones in their order, else all in alphabetical order.
func members(m, properties map[string]any) []string {
	var names []string
	if required, ok := m["required"].([]any); ok {
		for _, v := range required {
			if name, ok := v.(string); ok {
				names = append(names, name)
			}
		}
		return names
	}
	for name := range properties {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

func (s sampler) array(b *bytes.Buffer, m map[string]any, depth int) {
	n := 1
	if least, ok := m["minItems"].(float64); ok {
		n = min(max(int(least), 1), 100)
	}
	b.WriteByte('[')
	for i := range n {
		if i > 0 {
			b.WriteString(", ")
		}
		s.write(b, m["items"], depth+1)
	}
	b.WriteByte(']')
}

func number(m map[string]any) any {
	if least, ok := m["minimum"].(float64); ok {
		return least
	}
	if most, ok := m["maximum"].(float64); ok && most < 1 {
		return most
	}
	return 1
}

func (s sampler) text(m map[string]any) string {
	switch m["format"] {
	case "date":
		return "2030-01-01"
	case "date-time":
		return "2030-01-01T00:00:00Z"
	case "time":
		return "00:00:00Z"
	case "email":
		return "someone@example.com"
	case "uri":
		return "https://example.com/"
	case "uuid":
		return "00000000-0000-4000-8000-000000000000"
	}
	return s.word
}

// isJSON says whether the raw value is there and not null.
func isJSON(raw json.RawMessage) bool { return len(raw) > 0 && string(raw) != "null" }
