package config

import (
	"slices"
	"strconv"
	"strings"
)

// path leads from the top of the file to a value: names of fields, and "[0]" for the items of a list.
type path []string

func (p path) field(name string) path { return append(slices.Clip(p), name) }

func (p path) item(i int) path { return append(slices.Clip(p), "["+strconv.Itoa(i)+"]") }

// key is the path as a key of a map.
func (p path) key() string { return strings.Join(p, "\x00") }

// pattern is the path without the numbers of its items, as in the table of what comes later: models[].replicas.min.
func (p path) pattern() string {
	return p.join(func(i int) string {
		if isItem(p[i]) {
			return "[]"
		}
		return p[i]
	})
}

// join writes the path with dots between names; each element as word says.
func (p path) join(word func(i int) string) string {
	var text strings.Builder
	for i, element := range p {
		if i > 0 && !isItem(element) {
			text.WriteByte('.')
		}
		text.WriteString(word(i))
	}
	return text.String()
}

func isItem(element string) bool {
	return strings.HasPrefix(element, "[") && strings.HasSuffix(element, "]")
}

// shown is a name from the file as it may stand in a message: quoted unless it is plain, and cut when it is long.
func shown(name string) string {
	const longest = 60
	if len(name) > longest {
		name = name[:longest] + "…"
	}
	if name != "" && strings.Trim(name, plainCharacters) == "" {
		return name
	}
	return strconv.Quote(name)
}

const plainCharacters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-./:*@+"

// nearest is the known name that a wrong one was most likely meant to be, or "".
func nearest(name string, known []string) string {
	best, least := "", 1+max(1, len(name)/3)
	for _, candidate := range known {
		if d := distance(name, candidate); d < least && d < len(name) {
			best, least = candidate, d
		}
	}
	return best
}

// suggestion is what a message says of an unknown name: the nearest known one, or all when there are not too many.
func suggestion(name string, known []string) string {
	if near := nearest(name, known); near != "" {
		return "did you mean " + near + "?"
	}
	const most = 20
	if len(known) == 0 {
		return "there is none"
	}
	if len(known) > most {
		return "known are " + strings.Join(known[:most], ", ") + ", …"
	}
	return "known are " + strings.Join(known, ", ")
}

// distance is how many letters must be added, dropped or changed to make b of a (Levenshtein). A very long a is far from all.
func distance(a, b string) int {
	if len(a) > 2*len(b)+2 {
		return len(a)
	}
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			change := diagonal
			if a[i] != b[j] {
				change++
			}
			diagonal = row[j+1]
			row[j+1] = min(change, diagonal+1, row[j]+1)
		}
	}
	return row[len(b)]
}
