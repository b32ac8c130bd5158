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

// FlagStyle says how an engine takes variables on its command line. The zero value is the usual way; see Flags.
type FlagStyle struct {
	// Underscores leaves names as they are: --n_ctx instead of --n-ctx.
	Underscores bool
	// BooleanValues writes true and false as values (--cache true) instead of the flag alone and no flag at all.
	BooleanValues bool
	// Lists says how the items of a list follow their flag.
	Lists ListStyle
}

// ListStyle says how the items of a list follow their flag.
type ListStyle string

// The styles of lists.
const (
	// ListCommas joins the items by commas: --device a,b. The empty style is the same.
	ListCommas ListStyle = "commas"
	// ListArguments makes each item an argument of its own: --device a b.
	ListArguments ListStyle = "arguments"
)

// flags writes variables as command line flags, in order of name. Those named in except are left out. In the usual style, the empty one:
//
// A name becomes --name with dashes for underscores. true is the flag alone; false and null are no flag at all (a flag that
// switches something off is a variable of its own, such as no_webui). Numbers and strings follow as the next argument, the items of a
// list joined by commas, an object as JSON. A list holds numbers and strings; a string with a comma in it cannot be told from two
// and is an error.
func (s FlagStyle) flags(variables map[string]any, except []string) ([]string, error) {
	var flags []string
	for _, name := range slices.Sorted(maps.Keys(variables)) {
		if slices.Contains(except, name) {
			continue
		}
		words, err := s.flag(name, variables[name])
		if err != nil {
			return nil, fmt.Errorf("variables.%s: %w", name, err)
		}
		flags = append(flags, words...)
	}
	return flags, nil
}

// flag is one variable as arguments; none at all for what is not set.
func (s FlagStyle) flag(name string, value any) ([]string, error) {
	flag := "--" + name
	if !s.Underscores {
		flag = strings.ReplaceAll(flag, "_", "-")
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

// argument is a value as one argument, or as the value of an environment variable.
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
	return "", fmt.Errorf("a value of type %T makes no argument", value)
}

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

// itemWords are the items of a list.
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
