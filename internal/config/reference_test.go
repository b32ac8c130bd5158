package config

import (
	"cmp"
	"fmt"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/sluice-gateway/sluice/internal/testutil"
)

// referenceFile is the page that lists every field of the file.
const referenceFile = "../../docs/reference/configuration.md"

// TestO11_ReferenceIsCurrent checks that the page of all fields is the one generated from the
// structs: their fields, tags and doc comments.
func TestO11_ReferenceIsCurrent(t *testing.T) {
	t.Parallel()
	testutil.Golden(t, referenceFile, reference(t), *update)
}

// TestO11_EachFieldHasAMeaning checks that no row of the page lacks its explanation.
func TestO11_EachFieldHasAMeaning(t *testing.T) {
	t.Parallel()
	rows := regexp.MustCompile("(?m)^\\| `.*$").FindAllString(reference(t), -1)
	if len(rows) < 250 {
		t.Errorf("the page has only %d fields", len(rows))
	}
	for _, row := range rows {
		if strings.HasSuffix(row, "|  |") {
			t.Errorf("no meaning: %s", row)
		}
	}
}

// reference returns the page of all fields.
func reference(t *testing.T) string {
	t.Helper()
	w := referenceWriter{comments: comments(t), shown: map[reflect.Type]string{}}
	w.text.WriteString(`# Every field of the configuration file

This page is generated from ` + "`internal/config`" + ` by ` + "`go test ./internal/config -update`" + `. [The guide](../configuration.md) says how to check and edit a file.
` + "`[]`" + ` in a path stands for each item of a list, ` + "`{}`" + ` for each name of a mapping.

- A duration is a number with a unit: ` + "`500ms`, `30s`, `5m`, `1h30m`" + `.
- A size is a number of bytes, or a number with a unit: ` + "`512KiB`, `32MiB`, `1GiB`" + ` (powers of 1024), ` + "`kB`, `MB`, `GB`" + ` (powers of 1000).
  The short forms ` + "`Ki`, `Mi`, `Gi`, `Ti`" + ` of Kubernetes mean the same as the long ones.
- A share is a number from 0 to 1.
- – as a default means empty, or off. A mapping without a default has those of its fields.

"restart" marks a field whose change takes effect only when Sluice is restarted; the condition ` + "`RestartRequired`" + ` then names the field.
A change of any other field takes effect as soon as the gateway has read the file again.

## Fields of the first level

| field | type | default | change | meaning |
| --- | --- | --- | --- | --- |
`)
	top := reflect.TypeFor[Config]()
	for _, f := range w.fields(top) {
		w.shown[element(f.Type)] = f.Tag.Get("yaml") + suffix(f.Type)
		change := w.change(f)
		meaning, def := w.meaning(top, f)
		if len(w.fields(element(f.Type))) > 0 {
			meaning += " [Its fields](#" + strings.ToLower(f.Tag.Get("yaml")) + ")."
		}
		fmt.Fprintf(&w.text, "| `%s` | %s | %s | %s | %s |\n", f.Tag.Get("yaml"), kindOf(f), def, change, meaning)
	}
	for _, f := range w.fields(top) {
		inner := element(f.Type)
		if len(w.fields(inner)) == 0 {
			continue
		}
		name := f.Tag.Get("yaml")
		fmt.Fprintf(&w.text, "\n## %s\n\n| field | type | default | meaning |\n| --- | --- | --- | --- |\n", name)
		w.rows(inner, name+suffix(f.Type))
	}
	return w.text.String()
}

// referenceWriter writes the page of all fields.
type referenceWriter struct {
	text strings.Builder
	// comments are the doc comments of fields, by Type.Field.
	comments map[string]string
	// shown are the paths under which the fields of a struct are already on the page.
	shown map[reflect.Type]string
}

// change says when a change of a field of the first level takes effect, and for which of its own
// fields that is otherwise.
func (w *referenceWriter) change(f reflect.StructField) string {
	change := map[string]string{"": "reload", "true": "restart"}[f.Tag.Get("restart")]
	for _, inner := range w.fields(element(f.Type)) {
		other := map[string]string{"false": "reload", "true": "restart"}[inner.Tag.Get("restart")]
		if other != "" && other != change {
			change += fmt.Sprintf("; `%s`: %s", inner.Tag.Get("yaml"), other)
		}
	}
	return change
}

// fields returns the fields of a struct that the file may have; none if t is no struct.
func (w *referenceWriter) fields(t reflect.Type) []reflect.StructField {
	if t.Kind() != reflect.Struct {
		return nil
	}
	all := reflect.VisibleFields(t)
	return slices.DeleteFunc(all, func(f reflect.StructField) bool { return f.Tag.Get("yaml") == "" || f.Tag.Get("yaml") == "-" })
}

// rows writes a row for each field of a struct and, below it, for the fields of this field.
func (w *referenceWriter) rows(t reflect.Type, at string) {
	w.shown[t] = at
	for _, f := range w.fields(t) {
		path := at + "." + f.Tag.Get("yaml")
		meaning, def := w.meaning(t, f)
		inner := element(f.Type)
		nested := len(w.fields(inner)) > 0
		before, again := w.shown[inner]
		if nested && again {
			meaning += " Its fields are those of `" + before + "`."
		}
		fmt.Fprintf(&w.text, "| `%s` | %s | %s | %s |\n", path, kindOf(f), def, meaning)
		if nested && !again {
			w.rows(inner, path+suffix(f.Type))
		}
	}
}

// meaning returns what the doc comment of a field says, and its default apart.
func (w *referenceWriter) meaning(t reflect.Type, f reflect.StructField) (meaning, def string) {
	comment, named := strings.CutPrefix(w.comments[t.Name()+"."+f.Name], f.Name)
	if comment = strings.TrimLeft(comment, " "); named && strings.HasPrefix(comment, ":") {
		comment = f.Tag.Get("yaml") + comment
	}
	for _, verb := range []string{"is ", "are "} {
		comment = strings.TrimPrefix(comment, verb)
	}
	if i := strings.LastIndex(comment, "Default"); i == 0 || i > 0 && comment[i-1] == ' ' {
		comment, def = comment[:i], strings.TrimRight(strings.TrimLeft(strings.TrimPrefix(comment[i:], "Default"), ": "), ".")
	}
	meaning = cell(sentence(comment, allowedValues(element(f.Type), f.Tag)))
	tagged, ok := f.Tag.Lookup("default")
	switch {
	case ok && (def == "" || def == tagged):
		return meaning, "`" + tagged + "`"
	case f.Tag.Get("required") != "":
		return meaning, "required"
	case def == "" && f.Type.Kind() == reflect.Struct:
		return meaning, ""
	case def == "":
		return meaning, "–"
	}
	return meaning, cell(def)
}

// sentence returns a text with a capital at its beginning, unless one of the values stands there.
func sentence(text string, values []string) string {
	if word, _, _ := strings.Cut(text, " "); slices.Contains(values, strings.Trim(word, ",:")) {
		return text
	}
	first, size := utf8.DecodeRuneInString(text)
	return string(unicode.ToUpper(first)) + text[size:]
}

// cell returns text for a cell of a table.
func cell(text string) string {
	return strings.NewReplacer("|", `\|`, "<", "&lt;", "*", `\*`).Replace(strings.TrimSpace(text))
}

// element returns the type of the values of a field: of a list, a mapping or a pointer that of its
// items. Types that the file writes as one text have no fields of their own.
func element(t reflect.Type) reflect.Type {
	for t.Kind() == reflect.Pointer || t.Kind() == reflect.Slice || t.Kind() == reflect.Map {
		t = t.Elem()
	}
	return t
}

// suffix returns what stands behind the name of a field whose values are items.
func suffix(t reflect.Type) string {
	switch t.Kind() {
	case reflect.Pointer:
		return suffix(t.Elem())
	case reflect.Slice:
		return "[]" + suffix(t.Elem())
	case reflect.Map:
		return ".{}" + suffix(t.Elem())
	}
	return ""
}

// kindOf returns the type of a field in words, with its bounds and the values allowed.
func kindOf(f reflect.StructField) string {
	t := f.Type
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	switch t.Kind() {
	case reflect.Slice:
		if values := oneOf(element(t), f.Tag); values != "" {
			return "list of " + values
		}
		return "list of " + plural(wordOf(t.Elem(), f.Tag))
	case reflect.Map:
		return "mapping of names to " + plural(wordOf(t.Elem(), ""))
	}
	return cmp.Or(oneOf(t, f.Tag), wordOf(t, f.Tag)) + bounds(f.Tag)
}

func wordOf(t reflect.Type, tag reflect.StructTag) string {
	switch t {
	case reflect.TypeFor[time.Duration]():
		return "duration"
	case reflect.TypeFor[Size]():
		return "size"
	case reflect.TypeFor[time.Time]():
		return "time"
	case reflect.TypeFor[PerReplica]():
		return "`auto` or whole number ≥ 1"
	case reflect.TypeFor[Key]():
		return "hash or mapping"
	case reflect.TypeFor[Upstream]():
		return "URL or mapping"
	case reflect.TypeFor[Control]():
		return "host:port or mapping"
	case reflect.TypeFor[Redis]():
		return "URL of Redis or mapping"
	}
	switch t.Kind() {
	case reflect.Struct:
		return "mapping"
	case reflect.Slice:
		return "list of " + plural(wordOf(t.Elem(), tag))
	case reflect.Bool:
		return "`true` or `false`"
	case reflect.Int:
		return "whole number"
	case reflect.Float64:
		if tag.Get("form") == "share" {
			return "share"
		}
		return "number"
	case reflect.Interface:
		return "value"
	case reflect.Map:
		return "mapping"
	}
	return formWord(tag.Get("form"))
}

func formWord(form string) string {
	words := map[string]string{
		"name": "name", "label": "name of Kubernetes", "listener": "host:port", "target": "host:port", "network": "address or range", "hash": "hash",
		"redis": "URL of Redis", "url": "URL", "base_url": "URL", "variable": "environment variable", "header": "header name", "absolute": "path",
		"ports": "range of ports",
	}
	if word, ok := words[form]; ok {
		return word
	}
	return "text"
}

// plural returns the plural of a word for a type.
func plural(word string) string {
	switch {
	case word == "address or range":
		return "addresses or ranges"
	case strings.HasSuffix(word, " or mapping"):
		return plural(strings.TrimSuffix(word, " or mapping")) + " or mappings"
	case strings.HasSuffix(word, "hash"):
		return word + "es"
	}
	return word + "s"
}

// oneOf returns the values that a field allows; empty if it allows all of its type.
func oneOf(t reflect.Type, tag reflect.StructTag) string {
	values := allowedValues(t, tag)
	if len(values) == 0 {
		return ""
	}
	return "`" + strings.Join(values, "`, `") + "`"
}

// bounds returns the least and the greatest value of a field; empty if it has none.
func bounds(tag reflect.StructTag) string {
	least, most := tag.Get("min"), tag.Get("max")
	switch {
	case least == "0s", least == "0" && most == "":
		return ""
	case least != "" && most != "":
		return ", " + least + " to " + most
	case least != "":
		return " ≥ " + least
	case most != "":
		return " ≤ " + most
	}
	return ""
}
