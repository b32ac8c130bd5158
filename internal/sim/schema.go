package sim

import (
	"bytes"
	"cmp"
	"encoding/json"
	"maps"
	"slices"
	"strings"

	"github.com/sluice-gateway/sluice/internal/openai"
)

// maxSchemaDepth limits schemas that contain themselves.
const maxSchemaDepth = 12

// sampleJSON returns a document that a JSON Schema usually accepts: required members (all members
// if none is required), first choices, smallest numbers. Strings contain word.
func sampleJSON(schema any, word string) []byte {
	s := sampler{root: schema, word: word}
	var b bytes.Buffer
	s.write(&b, schema, 0)
	return b.Bytes()
}

// sampler writes a document for a schema. root is the whole schema, which $ref refers to.
type sampler struct {
	root any
	word string
}

// write writes a value for schema.
func (s sampler) write(b *bytes.Buffer, schema any, depth int) {
	m, ok := schema.(map[string]any)
	if !ok || depth > maxSchemaDepth {
		b.WriteString("null")
		return
	}
	if v, ok := fixedValue(m); ok {
		b.Write(openai.Encode(v))
		return
	}
	if inner, ok := s.resolve(m); ok {
		s.write(b, inner, depth+1)
		return
	}
	switch typeOf(m) {
	case "object":
		s.object(b, m, depth)
	case "array":
		s.array(b, m, depth)
	case "integer", "number":
		b.Write(openai.Encode(number(m)))
	case "boolean":
		b.WriteString("true")
	case "null":
		b.WriteString("null")
	default:
		format, _ := m["format"].(string)
		b.Write(openai.Encode(cmp.Or(formats[format], s.word)))
	}
}

// fixedValue returns the value of a schema that allows one value, or the first of those that it
// lists.
func fixedValue(m map[string]any) (any, bool) {
	if v, ok := m["const"]; ok {
		return v, true
	}
	if list, ok := m["enum"].([]any); ok && len(list) > 0 {
		return list[0], true
	}
	return nil, false
}

// resolve follows a $ref within the document, or chooses the first of several alternatives.
func (s sampler) resolve(m map[string]any) (any, bool) {
	if ref, ok := m["$ref"].(string); ok {
		return s.resolvePointer(ref), true
	}
	for _, key := range []string{"anyOf", "oneOf", "allOf"} {
		if list, ok := m[key].([]any); ok && len(list) > 0 {
			return list[0], true
		}
	}
	return nil, false
}

// resolvePointer returns the part of the root that a JSON pointer names; nil if there is none.
func (s sampler) resolvePointer(ref string) any {
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

// typeOf returns the type of a schema; of several the first that is not null.
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
	for i, name := range memberNames(m, properties) {
		if i > 0 {
			b.WriteString(", ")
		}
		b.Write(openai.Encode(name))
		b.WriteString(": ")
		s.write(b, properties[name], depth+1)
	}
	b.WriteByte('}')
}

// memberNames returns the members to fill in: the required ones in their order, else all in
// alphabetical order.
func memberNames(m, properties map[string]any) []string {
	required, ok := m["required"].([]any)
	if !ok {
		return slices.Sorted(maps.Keys(properties))
	}
	var names []string
	for _, v := range required {
		if name, ok := v.(string); ok {
			names = append(names, name)
		}
	}
	return names
}

// array writes an array of minItems items, at least 1 and at most 100.
func (s sampler) array(b *bytes.Buffer, m map[string]any, depth int) {
	n := 1
	if minimum, ok := m["minItems"].(float64); ok {
		n = min(max(int(minimum), 1), 100)
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

// number returns a number within the limits of the schema.
func number(m map[string]any) any {
	if minimum, ok := m["minimum"].(float64); ok {
		return minimum
	}
	if maximum, ok := m["maximum"].(float64); ok && maximum < 1 {
		return maximum
	}
	return 1
}

// formats are texts in the formats of a schema.
var formats = map[string]string{
	"date": "2030-01-01", "date-time": "2030-01-01T00:00:00Z", "time": "00:00:00Z", "email": "someone@example.com", "uri": "https://example.com/",
	"uuid": "00000000-0000-4000-8000-000000000000",
}

// isJSON tells whether a raw value is present and not null.
func isJSON(raw json.RawMessage) bool { return len(raw) > 0 && string(raw) != "null" }
