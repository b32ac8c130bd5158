package migrate

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
)

// source is a mapping of the other configuration. Its methods remove what they return, so what is
// left at the end has no counterpart.
type source map[string]any

// take removes and returns a field; nil if it is missing.
func (s source) take(key string) any {
	v := s[key]
	delete(s, key)
	return v
}

// text removes a field and returns it as text. It is empty if the field is missing or no scalar.
func (s source) text(key string) string {
	switch v := s[key].(type) {
	case string:
		delete(s, key)
		return strings.TrimSpace(v)
	case int, int64, uint64, float64, bool:
		delete(s, key)
		return fmt.Sprint(v)
	case nil:
		delete(s, key)
	}
	return ""
}

// number removes a field and returns it as a number. ok is false if it is missing or none.
func (s source) number(key string) (n float64, ok bool) {
	n, err := strconv.ParseFloat(s.text(key), 64)
	return n, err == nil
}

// flag removes a field and returns whether it is true.
func (s source) flag(key string) bool { return s.text(key) == "true" }

// list removes a field and returns the texts of its items. A text alone counts as a list of one.
func (s source) list(key string) []string {
	if one := s.text(key); one != "" {
		return []string{one}
	}
	items, ok := s[key].([]any)
	if !ok {
		return nil
	}
	delete(s, key)
	var texts []string
	for _, item := range items {
		texts = append(texts, fmt.Sprint(item))
	}
	return texts
}

// mapping removes a field and returns it as a mapping, which is empty if the field is missing.
func (s source) mapping(key string) source {
	m, ok := s[key].(map[string]any)
	if !ok {
		return source{}
	}
	delete(s, key)
	return source(m)
}

// mappings removes a field and returns the mappings in its list.
func (s source) mappings(key string) []source {
	items, ok := s[key].([]any)
	if !ok {
		return nil
	}
	delete(s, key)
	var all []source
	for _, item := range items {
		if m, ok := item.(map[string]any); ok {
			all = append(all, source(m))
		}
	}
	return all
}

// drop removes fields that need no counterpart.
func (s source) drop(keys ...string) {
	for _, key := range keys {
		delete(s, key)
	}
}

// rest returns the names of the fields that are left, sorted.
func (s source) rest() []string { return slices.Sorted(maps.Keys(s)) }
