package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"github.com/sluice-gateway/sluice/internal/adminclient"
	"github.com/sluice-gateway/sluice/internal/console"
)

// The values of the flag --output.
const (
	outputTable = "table"
	outputJSON  = "json"
)

// viewFlags are the flags of a command that shows what a running gateway tells.
type viewFlags struct {
	adminAccess
	output string
}

// addFlags adds the flags to a command and to those below it.
func (v *viewFlags) addFlags(c *cobra.Command) {
	v.adminAccess.addFlags(c)
	c.PersistentFlags().StringVarP(&v.output, "output", "o", outputTable, "table, or json as the admin API answers")
	_ = c.RegisterFlagCompletionFunc("output", cobra.FixedCompletions([]string{outputTable, outputJSON}, cobra.ShellCompDirectiveNoFileComp))
}

// open checks the flags and returns the client.
func (v *viewFlags) open() (adminclient.Client, error) {
	if v.output != outputTable && v.output != outputJSON {
		return adminclient.Client{}, fmt.Errorf("--output is %q: use %s or %s", v.output, outputTable, outputJSON)
	}
	return v.client()
}

// action is a call of the admin API.
type action struct {
	method, path string
	// body is sent as JSON. nil: {}, or nothing by a GET.
	body any
}

// show gets a path of the admin API and prints the answer as do does.
func (v *viewFlags) show(cmd *cobra.Command, path string, answer any, table func(w io.Writer)) error {
	client, err := v.open()
	if err != nil {
		return err
	}
	return v.do(cmd, client, action{method: http.MethodGet, path: path}, answer, table)
}

// do makes a call. As JSON it prints the answer as it is, and else what table writes after the
// answer was decoded into answer.
func (v *viewFlags) do(cmd *cobra.Command, client adminclient.Client, a action, answer any, table func(w io.Writer)) error {
	var text bytes.Buffer
	if err := v.call(cmd.Context(), client, a, answer, &text); err != nil {
		return err
	}
	if v.output == outputTable {
		table(&text)
	}
	_, err := text.WriteTo(cmd.OutOrStdout())
	return err
}

// call makes a call. As JSON it writes the answer to out, and else it decodes the answer.
func (v *viewFlags) call(ctx context.Context, client adminclient.Client, a action, answer any, out *bytes.Buffer) error {
	if v.output == outputTable {
		return client.Call(ctx, a.method, a.path, a.body, answer)
	}
	var raw json.RawMessage
	if err := client.Call(ctx, a.method, a.path, a.body, &raw); err != nil {
		return err
	}
	if err := json.Indent(out, raw, "", "  "); err != nil {
		return err
	}
	return out.WriteByte('\n')
}

// columnGap is the space between two columns of a table.
const columnGap = "  "

// table is a table for a terminal. Its first row has the names of the columns.
type table [][]string

// newTable returns a table with these columns.
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
	rows := *t
	widths, right := make([]int, len(rows[0])), make([]bool, len(rows[0]))
	for i := range rows[0] {
		right[i] = len(rows) > 1
		for n, row := range rows {
			widths[i] = max(widths[i], console.Columns(row[i]))
			right[i] = right[i] && (n == 0 || isNumber(row[i]))
		}
	}
	for _, row := range rows {
		var line strings.Builder
		for i, cell := range row {
			space := strings.Repeat(" ", widths[i]-console.Columns(cell))
			if right[i] {
				cell = space + cell
			} else {
				cell += space
			}
			line.WriteString(cell + columnGap)
		}
		fmt.Fprintln(w, strings.TrimRight(line.String(), " "))
	}
}

// isNumber reports whether a cell is a number or a span of time, or empty.
func isNumber(cell string) bool { return cell == "-" || strings.Trim(cell, "0123456789.~dhms") == "" }

// printable returns the text on one line and without characters that a terminal would obey. Clients
// choose some of what is shown, such as their request ids.
func printable(s string) string {
	return strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f || r >= 0x80 && r < 0xa0 || r == utf8.RuneError {
			return ' '
		}
		return r
	}, s)
}

// age returns how long ago a moment is, in its two greatest units: 3d4h, 12m5s.
func age(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return span(time.Since(t))
}

// span returns a duration in its two greatest units.
func span(d time.Duration) string {
	units := []struct {
		name   string
		length time.Duration
	}{{"d", 24 * time.Hour}, {"h", time.Hour}, {"m", time.Minute}, {"s", time.Second}}
	d = max(d.Truncate(time.Second), 0)
	first := slices.IndexFunc(units, func(u struct {
		name   string
		length time.Duration
	}) bool {
		return d >= u.length
	})
	if first < 0 {
		return "0s"
	}
	text := fmt.Sprintf("%d%s", d/units[first].length, units[first].name)
	if rest := d % units[first].length; first+1 < len(units) && rest >= units[first+1].length {
		text += fmt.Sprintf("%d%s", rest/units[first+1].length, units[first+1].name)
	}
	return text
}

// milliseconds returns a number of milliseconds as people read it: 840ms, 2.31s, 3m12s.
func milliseconds(ms float64) string {
	switch {
	case ms == 0:
		return ""
	case ms < 1000:
		return fmt.Sprintf("%.0fms", ms)
	case ms < 100_000:
		return fmt.Sprintf("%.2fs", ms/1000)
	}
	return span(time.Duration(ms) * time.Millisecond)
}
