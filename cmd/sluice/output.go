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

	"github.com/spf13/cobra"

	"github.com/sluice-gateway/sluice/internal/adminclient"
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
	// csv has the command also print CSV.
	csv bool
}

// addFlags adds the flags to a command and to those below it.
func (v *viewFlags) addFlags(c *cobra.Command) {
	v.adminAccess.addFlags(c)
	c.PersistentFlags().StringVarP(&v.output, "output", "o", outputTable, "table, or json as the admin API answers")
	_ = c.RegisterFlagCompletionFunc("output", cobra.FixedCompletions(v.outputs(), cobra.ShellCompDirectiveNoFileComp))
}

// outputs returns the values that the flag --output may have.
func (v *viewFlags) outputs() []string {
	if v.csv {
		return []string{outputTable, outputCSV, outputJSON}
	}
	return []string{outputTable, outputJSON}
}

// open checks the flags and returns the client.
func (v *viewFlags) open() (adminclient.Client, error) {
	if all := v.outputs(); !slices.Contains(all, v.output) {
		return adminclient.Client{}, fmt.Errorf("--output is %q: use %s", v.output, strings.Join(all, " or "))
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

// age returns how long ago a moment is, in its two greatest units: 3d4h, 12m5s.
func age(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return span(time.Since(t))
}

// span returns a duration in its two greatest units.
func span(d time.Duration) string {
	type unit struct {
		name   string
		length time.Duration
	}
	units := []unit{{"d", 24 * time.Hour}, {"h", time.Hour}, {"m", time.Minute}, {"s", time.Second}}
	d = max(d.Truncate(time.Second), 0)
	first := slices.IndexFunc(units, func(u unit) bool { return d >= u.length })
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
	case ms < 999.5: // 999.7 is 1.00s, not 1000ms
		return fmt.Sprintf("%.0fms", ms)
	case ms < 100_000:
		return fmt.Sprintf("%.2fs", ms/1000)
	}
	return span(time.Duration(ms) * time.Millisecond)
}
