package main

import (
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/sluice-gateway/sluice/internal/console"
)

// terminalColumns returns the width of the terminal that a command writes to. 0: it writes to a
// pipe or a file.
func terminalColumns(cmd *cobra.Command) int {
	file, ok := cmd.OutOrStdout().(*os.File)
	if !ok {
		return 0
	}
	columns, _, _ := console.Size(file)
	return columns
}

// columnGap is the space between two columns of a table.
const columnGap = "  "

// table is a table for a terminal. Its first row has the names of the columns.
type table [][]string

func newTable(columns ...string) *table { return &table{columns} }

// add adds a row. An empty cell is shown as a dash.
func (t *table) add(cells ...any) {
	row := make([]string, len(cells))
	for i, cell := range cells {
		if row[i] = printable(fmt.Sprint(cell)); row[i] == "" {
			row[i] = "-"
		}
	}
	*t = append(*t, row)
}

// write writes the table with aligned columns. Numbers are aligned to the right.
func (t *table) write(w io.Writer) {
	for _, line := range t.lines(t.widths()) {
		fmt.Fprintln(w, line)
	}
}

// writeWithin writes the table within this number of columns of a terminal, as fit does. Operators
// give the cells of the first column to other commands, so those that fit has cut stand whole below
// the table. 0 means that the output is no terminal: the table is written whole.
func (t *table) writeWithin(w io.Writer, columns int, spare ...string) {
	if columns == 0 {
		t.write(w)
		return
	}
	var cut []string
	for i, line := range t.fit(1, columns, spare...) {
		fmt.Fprintln(w, line)
		if name := (*t)[i][0]; !strings.HasPrefix(strings.TrimLeft(line, " "), name) {
			cut = append(cut, name)
		}
	}
	if len(cut) > 0 {
		fmt.Fprintln(w, "Names that are cut above:\n"+strings.Join(cut, "\n"))
	}
}

// isWithin reports whether the whole table fits within this number of columns of a terminal. With
// 0, which means no terminal, it does.
func (t *table) isWithin(columns int) bool {
	return columns == 0 || wholeWidth(t.widths()) <= columns
}

// lines returns the lines of the table with columns of these widths. Longer cells are cut.
func (t *table) lines(widths []int) []string {
	var lines []string
	right := t.numbers()
	for _, row := range *t {
		var line strings.Builder
		for i, cell := range row {
			cell = console.Clip(cell, widths[i])
			space := strings.Repeat(" ", widths[i]-console.Columns(cell))
			if right[i] {
				cell = space + cell
			} else {
				cell += space
			}
			line.WriteString(cell + columnGap)
		}
		lines = append(lines, strings.TrimRight(line.String(), " "))
	}
	return lines
}

// widths returns the widths that the columns need.
func (t *table) widths() []int {
	widths := make([]int, len((*t)[0]))
	for _, row := range *t {
		for i, cell := range row {
			widths[i] = max(widths[i], console.Columns(cell))
		}
	}
	return widths
}

// numbers returns which columns have numbers alone. The first column has names.
func (t *table) numbers() []bool {
	all := make([]bool, len((*t)[0]))
	for i := range all {
		all[i] = i > 0 && len(*t) > 1 && !slices.ContainsFunc((*t)[1:], func(row []string) bool { return !isNumber(row[i]) })
	}
	return all
}

const (
	// fairWidth is the width to which long cells are cut before a column is left out.
	fairWidth = 24
	// leastWidth is the least width to which cells are cut.
	leastWidth = 8
)

// fit returns the lines of the table within a width of so many columns of the terminal. It cuts the
// longest cells, but none of the columns before first. It then leaves out the columns of these
// names, one after another. It leaves out the last of them only if cells of leastWidth do not fit
// either. If that does not suffice, it also cuts the columns before first.
func (t *table) fit(first, most int, spare ...string) []string {
	for {
		widths := t.widths()
		cut := func(least int) bool { return shrink(first, widths, most, least) }
		if cut(fairWidth) || len(spare) == 1 && cut(leastWidth) {
			return t.lines(widths)
		}
		at := -1
		for ; len(spare) > 0 && at < 0; spare = spare[1:] {
			at = slices.Index((*t)[0], spare[0])
		}
		if at < 0 {
			if !cut(leastWidth) {
				shrink(0, widths, most, leastWidth)
			}
			lines := t.lines(widths)
			for i, line := range lines {
				lines[i] = console.Clip(line, most)
			}
			return lines
		}
		t.remove(at)
	}
}

// wholeWidth returns how many columns of a terminal a table with columns of these widths takes.
func wholeWidth(widths []int) int {
	whole := len(columnGap) * (len(widths) - 1)
	for _, w := range widths {
		whole += w
	}
	return whole
}

// shrink makes the widest columns narrower, but not below least, until they fit into so many
// columns of the terminal. It leaves the columns before first as they are. It reports whether all
// fit.
func shrink(first int, widths []int, most, least int) bool {
	for excess := wholeWidth(widths) - most; excess > 0; excess-- {
		widest := first
		for i := first + 1; i < len(widths); i++ {
			if widths[i] > widths[widest] {
				widest = i
			}
		}
		if widths[widest] <= least {
			return false
		}
		widths[widest]--
	}
	return true
}

// leaveOut leaves out the columns of these names, one after another, until the whole table fits
// within this number of columns of a terminal. It cuts no cell.
func (t *table) leaveOut(columns int, spare ...string) {
	for ; len(spare) > 0 && !t.isWithin(columns); spare = spare[1:] {
		if at := slices.Index((*t)[0], spare[0]); at >= 0 {
			t.remove(at)
		}
	}
}

// remove removes a column.
func (t *table) remove(at int) {
	for i, row := range *t {
		(*t)[i] = slices.Delete(row, at, at+1)
	}
}

// isNumber reports whether a cell is a number or a span of time, or empty. A name such as m1 has
// only characters of these, too, and begins with a letter.
func isNumber(cell string) bool {
	return cell == "-" || strings.Trim(cell, "0123456789.~dhms") == "" && strings.TrimLeft(cell, "dhms") == cell
}

// printable returns the text on one line and without characters that a terminal would obey. Clients
// choose some of what is shown, such as their request ids.
func printable(s string) string { return console.Printable(s) }
