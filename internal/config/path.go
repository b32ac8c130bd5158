package config

import (
	"slices"
	"strconv"
	"strings"

	"github.com/sluice-gateway/sluice/engines"
)

// path is the place of a value in the file: names of fields, and "[0]" for the items of a list. The
// empty path is the whole file.
type path []string

func (p path) field(name string) path { return append(slices.Clip(p), name) }

func (p path) item(i int) path { return append(slices.Clip(p), "["+strconv.Itoa(i)+"]") }

// key returns the path as a key of a map.
func (p path) key() string { return strings.Join(p, "\x00") }

func isItem(element string) bool {
	return strings.HasPrefix(element, "[") && strings.HasSuffix(element, "]")
}

// quoted returns a name from the file for a message: in quotes unless it is plain, and cut when it
// is longer than 60 bytes.
func quoted(name string) string {
	const longest = 60
	if len(name) > longest {
		name = name[:longest] + "…"
	}
	if name != "" && strings.Trim(name, plainCharacters) == "" {
		return name
	}
	return strconv.Quote(name)
}

// plainCharacters are the characters of names and the *. A text of these alone is shown in messages
// without quotes.
const plainCharacters = engines.NameCharacters + "*"

// closest returns the known name with the smallest edit distance from name, or "" if none is close.
func closest(name string, known []string) string {
	best, smallest := "", 1+max(1, len(name)/3)
	for _, candidate := range known {
		if d := editDistance(name, candidate); d < smallest && d < len(name) {
			best, smallest = candidate, d
		}
	}
	return best
}

// suggest returns the second half of a message about an unknown name: the closest known name, else
// the known names, at most 20. Items without a name, and a second item of a name, have faults of
// their own.
func suggest(name string, known []string) string {
	seen := map[string]bool{"": true}
	known = slices.DeleteFunc(slices.Clone(known), func(k string) bool {
		repeated := seen[k]
		seen[k] = true
		return repeated
	})
	if near := closest(name, known); near != "" {
		return "did you mean " + near + "?"
	}
	const maxShown = 20
	if len(known) == 0 {
		return "none is defined"
	}
	if len(known) > maxShown {
		return "known are " + strings.Join(known[:maxShown], ", ") + ", …"
	}
	return "known are " + strings.Join(known, ", ")
}

// editDistance returns the number of letters to add, drop or change, or of neighbours to swap, that
// leads from a to b (optimal string alignment). For an a that is much longer than b it returns
// len(a), which no caller accepts as close.
func editDistance(a, b string) int {
	if len(a) > 2*len(b)+2 {
		return len(a)
	}
	// row has the distances from the first i letters of a to each beginning of b, before and
	// earlier those of the two rows above it.
	var earlier, before []int
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		earlier, before, row = before, row, make([]int, len(b)+1)
		row[0] = i + 1
		for j := range len(b) {
			change := before[j]
			if a[i] != b[j] {
				change++
			}
			row[j+1] = min(change, before[j+1]+1, row[j]+1)
			if i > 0 && j > 0 && a[i] == b[j-1] && a[i-1] == b[j] {
				row[j+1] = min(row[j+1], earlier[j-1]+1)
			}
		}
	}
	return row[len(b)]
}
