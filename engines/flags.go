package engines

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
)

// FlagStyle says how an engine takes variables on its command line. The zero value is the usual
// style.
type FlagStyle struct {
	// Underscores keeps the underscores of names: --n_ctx instead of --n-ctx.
	Underscores bool
	// BooleanValues writes true and false as values (--cache true). Without it, true is the flag
	// alone and false is no flag.
	BooleanValues bool
	// Lists says how the items of a list follow their flag.
	Lists ListStyle
}

// ListStyle says how the items of a list follow their flag.
type ListStyle string

// The styles of lists.
const (
	// ListCommas joins the items by commas: --device a,b. It is the default.
	ListCommas ListStyle = "commas"
	// ListArguments makes each item an argument of its own: --device a b.
	ListArguments ListStyle = "arguments"
)

// flagOf returns the flag of a variable in the usual style.
func flagOf(variable string) string { return "--" + strings.ReplaceAll(variable, "_", "-") }

// flags formats variables as command line flags, in the order of their names. It leaves out the
// variables in except. schema holds the schemas of the variables that the version knows.
//
// In the usual style a name becomes --name, with dashes for underscores. true becomes the flag
// alone. false becomes the flag --no-name if there is such a variable, else no flag; null becomes
// no flag. Numbers and strings follow as the next argument, a list as its items joined by
// commas, an object as JSON. A list may hold numbers and strings. A string with a comma in it is an
// error, because the engine would read two items. Variables that the schema calls JSON are JSON.
func (s FlagStyle) flags(variables, schema map[string]any, except []string) ([]string, error) {
	var flags []string
	for _, name := range slices.Sorted(maps.Keys(variables)) {
		if slices.Contains(except, name) {
			continue
		}
		value, err := asJSONText(variables[name], schema[name])
		if err != nil {
			return nil, fmt.Errorf("variables.%s: %w", name, err)
		}
		if negative := "no_" + name; value == false && schema[negative] != nil {
			name, value = negative, true
		}
		words, err := s.flag(name, value)
		if err != nil {
			return nil, fmt.Errorf("variables.%s: %w", name, err)
		}
		flags = append(flags, words...)
	}
	return flags, nil
}

// flag formats one variable as arguments. It returns none for a variable that is not set.
func (s FlagStyle) flag(name string, value any) ([]string, error) {
	flag := flagOf(name)
	if s.Underscores {
		flag = "--" + name
	}
	switch v := value.(type) {
	case nil:
		return nil, nil
	case bool:
		switch {
		case s.BooleanValues:
			return []string{flag, strconv.FormatBool(v)}, nil
		case v:
			return []string{flag}, nil
		}
		return nil, nil
	case []any:
		if s.Lists == ListArguments {
			items, err := itemWords(v)
			return append([]string{flag}, items...), err
		}
	}
	text, err := argument(value)
	return []string{flag, text}, err
}

// asJSONText returns the JSON of a list or object whose schema says that it is written so, and any
// other value as it is.
func asJSONText(value, schema any) (any, error) {
	keywords, _ := schema.(map[string]any)
	switch value.(type) {
	case []any, map[string]any:
		if keywords[asJSON] == jsonMedia {
			text, err := json.Marshal(value)
			return string(text), err
		}
	}
	return value, nil
}

// argument formats a value as one argument, or as the value of an environment variable.
func argument(value any) (string, error) {
	switch v := value.(type) {
	case string:
		return v, nil
	case bool:
		return strconv.FormatBool(v), nil
	case float64:
		return strconv.FormatFloat(v, 'f', -1, 64), nil
	case int, int64, uint64:
		return fmt.Sprint(v), nil
	case map[string]any:
		text, err := json.Marshal(v)
		return string(text), err
	case []any:
		return joined(v)
	}
	return "", fmt.Errorf("a value of type %T cannot be an argument: use a string, number, boolean, list or object", value)
}

// joined formats a list as its items joined by commas.
func joined(items []any) (string, error) {
	all, err := itemWords(items)
	if err != nil {
		return "", err
	}
	for _, word := range all {
		if strings.Contains(word, ",") {
			return "", errors.New("an item of a list must not hold a comma")
		}
	}
	return strings.Join(all, ","), nil
}

func itemWords(items []any) ([]string, error) {
	all := make([]string, len(items))
	for i, item := range items {
		switch item.(type) {
		case string, float64, int, int64, uint64:
		default:
			return nil, errors.New("a list may hold numbers and strings only")
		}
		word, err := argument(item)
		if err != nil {
			return nil, err
		}
		all[i] = word
	}
	return all, nil
}
