package testutil

import "strings"

// GroupRows returns rows of a Markdown table. Each row is its first cell and the rest of the line.
// Rows with the same rest become one, at the place of the first of them, whose first cell lists all
// of theirs.
func GroupRows(rows [][2]string) string {
	var rests []string
	firsts := map[string][]string{}
	for _, row := range rows {
		if firsts[row[1]] == nil {
			rests = append(rests, row[1])
		}
		firsts[row[1]] = append(firsts[row[1]], row[0])
	}
	var b strings.Builder
	for _, rest := range rests {
		b.WriteString("| " + strings.Join(firsts[rest], ", ") + " | " + rest + " |\n")
	}
	return b.String()
}
