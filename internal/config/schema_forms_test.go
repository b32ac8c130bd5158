package config

import (
	"reflect"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/sluice-gateway/sluice/engines"
)

// Parts of the patterns of textForms. Editors and clusters read the patterns, so they use only what
// JavaScript and RE2 have in common.
const (
	letters = "A-Za-z0-9"
	// nameStep is a part of a name behind a slash: not empty, not "." and not "..".
	nameStep = `(\.{0,2}[A-Za-z0-9_:@+-][A-Za-z0-9_.:@+-]*|\.{3}[A-Za-z0-9_.:@+-]*)`
	port     = `(6553[0-5]|655[0-2][0-9]|65[0-4][0-9]{2}|6[0-4][0-9]{3}|[1-5][0-9]{4}|[1-9][0-9]{0,3})`
	address  = `([0-9]{1,3}(\.[0-9]{1,3}){3}|\[[0-9A-Fa-f:.]+\])`
)

// textForms returns the pattern of each form that the tag form names.
func textForms() map[string]string {
	return map[string]string{
		"name":     `[` + letters + `][A-Za-z0-9_.:@+-]*(/` + nameStep + `)*`,
		"label":    `[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?`,
		"listener": `(localhost|` + address + `)?:` + port,
		"target":   `([^:/\s]+|\[[0-9A-Fa-f:.]+\]):` + port,
		"network":  `[0-9A-Fa-f:.]+(/[0-9]{1,3})?`,
		"hash":     `[sS][hH][aA]256:[0-9A-Fa-f]{64}`,
		"redis":    `rediss?://[^\s?#]+`,
		"url":      `https?://[^\s#]+`,
		"base_url": `https?://[^\s/?#@]+(/[^\s?#]*)?`,
		"variable": `[A-Za-z_][A-Za-z0-9_]*`,
		"header":   `[` + letters + `_-]+`,
		"origin":   `\*|` + strings.Trim(origin.String(), "^$"),
		"time":     `[0-9]{4}-[0-9]{2}-[0-9]{2}(T[0-9:.]+(Z|[+-][0-9]{2}:[0-9]{2}))?`,
		"absolute": `/\S*`,
		"ports":    `[0-9]{4,5} ?- ?[0-9]{4,5}`,
	}
}

// text returns the schema of a text with the form of a tag. A field that may be absent may also be
// empty.
func text(tag reflect.StructTag) object {
	s, form := object{"type": "string"}, tag.Get("form")
	if form == "" {
		return s
	}
	pattern, ok := textForms()[form]
	if !ok {
		panic("config: there is no form " + form)
	}
	if _, hasDefault := tag.Lookup("default"); hasDefault || tag.Get("required") != "" {
		s["pattern"] = "^(" + pattern + ")$"
	} else {
		s["pattern"] = "^(" + pattern + ")?$"
	}
	if form == "name" {
		s["maxLength"] = 200
	}
	return s
}

// duration returns the schema of a duration. 0 needs no unit.
func duration(tag reflect.StructTag) object {
	s := object{"type": "string", "pattern": `^([0-9]+(\.[0-9]*)?(ns|us|µs|ms|s|m|h))+$`}
	if least, err := time.ParseDuration(tag.Get("min")); err == nil && least > 0 {
		s["not"] = object{"pattern": `^(0+(\.0*)?[a-zµ]+)+$`}
		return s
	}
	s["type"], s["minimum"], s["maximum"] = []any{"string", "integer"}, 0, 0
	return s
}

// size returns the schema of a number of bytes.
func size(tag reflect.StructTag) object {
	least, _ := ParseSize(tag.Get("min"))
	return object{"anyOf": []any{object{"type": "integer", "minimum": int64(least)},
		object{"type": "string", "pattern": `^[0-9]+(\.[0-9]+)? ?([KMGT]iB?|[kMGT]?B)$`}}}
}

// TestO7_FormsAgreeWithTheChecks compares the pattern of names and of hosts with what the check of
// the configuration says of them.
func TestO7_FormsAgreeWithTheChecks(t *testing.T) {
	t.Parallel()
	name := regexp.MustCompile("^(" + textForms()["name"] + ")$")
	for _, text := range []string{"a", "Qwen/Qwen2.5-7B", "a.b:c@d+e_f", "a/.b", "a/...", "a/..b", "-a", ".a", "", "a//b", "a/", "a/.", "a/../b", "a b", "ä",
		strings.Repeat("a/", 30) + "a"} {
		if got, want := name.MatchString(text), engines.ValidName(text); got != want {
			t.Errorf("name %q: the schema says %v, the check %v", text, got, want)
		}
	}
	listener := regexp.MustCompile("^(" + textForms()["listener"] + ")$")
	for _, text := range []string{":80", "localhost:8080", "127.0.0.1:65535", "[::1]:81", "127.0.0.1:65536", "127.0.0.1:0", "8080", "127.0.0.1", "host:80", ""} {
		k := checker{decoder: newDecoder("f")}
		copied := text
		if _, want := k.checkAddress(path{"listen"}, &copied); listener.MatchString(text) != want {
			t.Errorf("listener %q: the schema says %v, the check %v", text, !want, want)
		}
	}
}
