package main

import (
	"cmp"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/sluice-gateway/sluice/internal/usage"
)

// outputCSV is a value of the flag --output that only usage has.
const outputCSV = "csv"

// usageRow is what one group has used.
type usageRow struct {
	Hour, Day, Month, Tenant, Key, Model string

	Requests          int64   `json:"requests"`
	EstimatedRequests int64   `json:"estimated_requests"`
	PromptTokens      int64   `json:"prompt_tokens"`
	CachedTokens      int64   `json:"cached_tokens"`
	CompletionTokens  int64   `json:"completion_tokens"`
	Cost              float64 `json:"cost"`
}

// usageAnswer is the answer of /api/v1/usage.
type usageAnswer struct {
	From    time.Time  `json:"from"`
	To      time.Time  `json:"to"`
	Missing []string   `json:"missing"`
	Usage   []usageRow `json:"usage"`
}

func newUsageCommand() *cobra.Command {
	flags := viewFlags{csv: true}
	var from, to, by string
	c := &cobra.Command{
		Use:   "usage [--from -24h] [--to TIME] [--by tenant,key,model] [--output table|json|csv]",
		Short: "Show the requests, tokens and cost of tenants, keys and models",
		Long: `Show the requests, tokens and cost of tenants, keys and models.

A time is a span before now (-24h, -30m), a day (2026-11-23) or a time in RFC 3339
(2026-11-23T02:00:00Z). Usage is kept by the hour in UTC.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if _, ok := usage.ParseDimensions(by); !ok {
				return fmt.Errorf("--by: %q %s", by, usage.DimensionsRule)
			}
			query := url.Values{"group_by": {by}}
			for name, text := range map[string]string{"from": from, "to": to} {
				value, err := usageTime(text)
				if err != nil {
					return fmt.Errorf("--%s: %w", name, err)
				}
				if value != "" {
					query.Set(name, value)
				}
			}
			if flags.output == outputCSV {
				return flags.usageCSV(cmd, query)
			}
			var answer usageAnswer
			return flags.show(cmd, "/api/v1/usage?"+query.Encode(), &answer, func(w io.Writer) {
				answer.write(w, strings.Split(by, ","), terminalColumns(cmd))
				flags.writeBudgets(cmd, w)
			})
		},
	}
	flags.addFlags(c)
	c.PersistentFlags().Lookup("output").Usage = "table, csv, or json as the admin API answers"
	f := c.Flags()
	f.StringVar(&from, "from", "-24h", "when the period begins")
	f.StringVar(&to, "to", "", "when the period ends (default: now)")
	f.StringVar(&by, "by", "tenant,key,model", "what is shown apart: tenant, key, model, hour, day, month")
	return c
}

// usageCSV prints the answer of the admin API as CSV.
func (v *viewFlags) usageCSV(cmd *cobra.Command, query url.Values) error {
	client, err := v.client()
	if err != nil {
		return err
	}
	query.Set("format", "csv")
	response, err := client.Do(cmd.Context(), http.MethodGet, "/api/v1/usage?"+query.Encode(), nil)
	if err != nil {
		return err
	}
	defer response.Body.Close() //nolint:errcheck // the body was read
	if _, err = io.Copy(cmd.OutOrStdout(), response.Body); err != nil {
		return err
	}
	if missing := response.Header.Get(usage.MissingHeader); missing != "" {
		return fmt.Errorf("the usage is not complete: %s", missing)
	}
	return nil
}

// writeBudgets writes how far the budgets of all tenants and keys are used, if there are any.
func (v *viewFlags) writeBudgets(cmd *cobra.Command, w io.Writer) {
	client, err := v.client()
	if err != nil {
		return
	}
	var answer struct {
		Tenants []struct {
			Name    string
			Budgets []struct {
				Key, Per, Of, Level string
				Used, Soft, Hard    float64
				Resets              time.Time
			}
		}
	}
	if err := client.Call(cmd.Context(), http.MethodGet, "/api/v1/tenants", nil, &answer); err != nil {
		fmt.Fprintln(w, "The budgets could not be read:", err)
		return
	}
	t := newTable("BUDGET OF", "PER", "OF", "USED", "SOFT", "HARD", "USED UP", "REACHED", "ENDS")
	for _, tenant := range answer.Tenants {
		for _, b := range tenant.Budgets {
			t.add(cmp.Or(b.Key, tenant.Name), b.Per, b.Of, number(b.Used), bound(b.Soft), bound(b.Hard),
				share(b.Used, cmp.Or(b.Hard, b.Soft)), b.Level, b.Resets.Format(time.RFC3339))
		}
	}
	if len(*t) > 1 { // the first row has the names of the columns
		fmt.Fprintln(w)
		t.leaveOut(terminalColumns(cmd), "ENDS", "REACHED")
		t.write(w)
	}
}

// number writes a number without an exponent.
func number(v float64) string { return strconv.FormatFloat(v, 'f', -1, 64) }

// bound writes a bound of a budget; 0 is none.
func bound(v float64) string {
	if v == 0 {
		return "-"
	}
	return number(v)
}

// share writes how much of a bound is used, in percent.
func share(used, of float64) string { return strconv.FormatFloat(100*used/of, 'f', 0, 64) + "%" }

// usageTime returns a time as the admin API reads it. An empty text stays empty.
func usageTime(text string) (string, error) {
	if span, err := time.ParseDuration(text); err == nil && span <= 0 {
		return strconv.FormatInt(int64(span/time.Second), 10), nil
	}
	if day, err := time.Parse(time.DateOnly, text); err == nil {
		return day.Format(time.RFC3339), nil
	}
	if _, err := time.Parse(time.RFC3339, text); err == nil || text == "" {
		return text, nil
	}
	return "", fmt.Errorf("%q is no time: use -24h, 2026-11-23 or 2026-11-23T02:00:00Z", text)
}

// hidesTenant reports whether the key does not tell the tenant. The names of keys begin with their
// tenants, but callers whom a proxy or a provider names have no key.
func (r usageRow) hidesTenant() bool { return !strings.HasPrefix(r.Key, r.Tenant+"/") }

// write writes the table of an answer that is grouped by these dimensions, for a terminal with this
// number of columns. 0 means that the output is no terminal. No cell is cut, because a number that
// is cut would be another number.
func (a *usageAnswer) write(w io.Writer, by []string, columns int) {
	defer func() {
		for _, missing := range a.Missing {
			fmt.Fprintln(w, "Not complete:", missing)
		}
	}()
	if len(a.Usage) == 0 {
		fmt.Fprintln(w, "Nothing was used in this period.")
		return
	}
	var groups []string
	for _, name := range by {
		groups = append(groups, strings.ToUpper(name))
	}
	t := newTable(append(groups, "REQUESTS", "ESTIMATED", "PROMPT", "CACHED", "COMPLETION", "COST")...)
	for _, r := range a.Usage {
		names := map[string]string{"hour": r.Hour, "day": r.Day, "month": r.Month, "tenant": r.Tenant, "key": r.Key, "model": r.Model}
		var cells []any
		for _, name := range by {
			cells = append(cells, names[name])
		}
		t.add(append(cells, r.Requests, r.EstimatedRequests, r.PromptTokens, r.CachedTokens, r.CompletionTokens,
			strconv.FormatFloat(r.Cost, 'f', 4, 64))...)
	}
	if slices.Contains(by, "key") && !slices.ContainsFunc(a.Usage, usageRow.hidesTenant) {
		t.leaveOut(columns, "TENANT")
	}
	t.leaveOut(columns, "ESTIMATED", "CACHED")
	t.write(w)
	fmt.Fprintf(w, "From %s to %s.\n%s\n", a.From.Format(time.RFC3339), a.To.Format(time.RFC3339), usageUnits((*t)[0]))
}

// usageUnits says what the columns of a table of usage count. The units stand below the table,
// because longer heads would not fit a terminal of 80 columns.
func usageUnits(columns []string) string {
	tokens, requests := "PROMPT", ""
	if slices.Contains(columns, "CACHED") {
		tokens += ", CACHED"
	}
	if slices.Contains(columns, "ESTIMATED") {
		requests = "\nESTIMATED counts the requests whose tokens are estimated."
	}
	return tokens + " and COMPLETION count tokens. COST is in the currency of the prices." + requests
}
